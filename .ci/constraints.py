"Print exact versions of everything that `.[dev,ray,speech,ocr,gguf]` needs, as installed in this environment, provided that the oldest Python of settings.ini can have them."
import configparser
import sys
from importlib.metadata import PackageNotFoundError, distribution

from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name as canonical

ini = configparser.ConfigParser(interpolation=None)
ini.read(Path(__file__).resolve().parents[1]/'settings.ini', encoding='utf-8')
OLDEST = ini['DEFAULT']['min_python'] + '.0'
APART = ('openenv-core==0.3.0',)   # its requirements disagree with the versions here: an environment of its own


def walk(name, extras, seen):
    "Add `name` and what it needs to `seen`: name -> version."
    try: dist = distribution(name)
    except PackageNotFoundError: return
    if (name, extras) in seen: return
    seen[name, extras] = dist.version.split('+')[0]
    for req in map(Requirement, dist.requires or []):
        wanted = req.marker is None or any(req.marker.evaluate({'extra': e}) for e in ('', *extras))
        if wanted: walk(canonical(req.name), tuple(sorted(req.extras)), seen)


def too_new(names):
    "Those packages whose installed version the oldest Python cannot have, with what they want."
    wants = {name: distribution(name).metadata['Requires-Python'] or '' for name in names}
    return {name: want for name, want in wants.items() if OLDEST not in SpecifierSet(want)}


def closure(name='uitars-nb', extras=('dev', 'ray', 'speech', 'ocr', 'gguf')):
    "Lines `name==version`, sorted."
    seen = {}
    walk(name, extras, seen)
    if bad := too_new(n for n, _ in seen): sys.exit(f'Python {OLDEST} cannot have {bad}: install older versions and run this again')
    return sorted({f'{n}=={v}' for (n, _), v in seen.items() if n != name})


if __name__ == '__main__': print('# Exact versions of everything; made by `make constraints`', *sorted([*closure(), *APART]), sep='\n')

"Print exact versions of everything that `.[dev]` needs, as installed in this environment."
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as canonical


def walk(name, extras, seen):
    "Add `name` and what it needs to `seen`: name -> version."
    try: dist = distribution(name)
    except PackageNotFoundError: return
    if (name, extras) in seen: return
    seen[name, extras] = dist.version.split('+')[0]
    for req in map(Requirement, dist.requires or []):
        wanted = req.marker is None or any(req.marker.evaluate({'extra': e}) for e in ('', *extras))
        if wanted: walk(canonical(req.name), tuple(sorted(req.extras)), seen)


def closure(name='uitars-nb', extras=('dev',)):
    "Lines `name==version`, sorted."
    seen = {}
    walk(name, extras, seen)
    return sorted({f'{n}=={v}' for (n, _), v in seen.items() if n != name})


if __name__ == '__main__': print('# Exact versions of everything; made by `make constraints`', *closure(), sep='\n')

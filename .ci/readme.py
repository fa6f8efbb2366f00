"""Run the pages that are made from the reports, nbs/index.ipynb and nbs/reference/*.ipynb, and make README.md from the first.

What their cells show stays in the notebooks, from which the site is built. `--check` changes nothing and names what is out of date."""
import argparse
import os
import re
import sys
from copy import deepcopy
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter
from nbdev.clean import nbdev_clean
from nbdev.process import NBProcessor

root = Path(__file__).resolve().parents[1]
index = root/'nbs'/'index.ipynb'
reference = sorted((root/'nbs'/'reference').glob('*.ipynb'))


def executed(path):
    "A notebook, freshly run."
    nb = nbformat.read(path, as_version=4)
    return NotebookClient(nb, timeout=120, resources=dict(metadata=dict(path=path.parent))).execute()


def tables(nb):
    "What the cells of a notebook show as Markdown."
    return [o.data['text/markdown'] for c in nb.cells if c.cell_type == 'code' for o in c.outputs if 'text/markdown' in o.get('data', {})]


def output_text(output):
    "What an output says on a page of text."
    data = output.get('data', {})
    text = data.get('text/markdown') or data.get('text/plain') or output.get('text', '')
    return text if 'text/markdown' in data else f'```\n{text.rstrip()}\n```'


def echoed(nb):
    "The notebook with hidden cells gone and silent ones replaced by what they show."
    for old, new in zip(NBProcessor(index).nb.cells, nb.cells):
        if old.cell_type != 'code' or not (old.directives_.keys() & {'hide', 'echo:'}): continue
        text = '' if 'hide' in old.directives_ else '\n\n'.join(map(output_text, new.outputs))
        new.update(cell_type='markdown', source=text)
        for k in ('outputs', 'execution_count'): new.pop(k)
    return nb


def link(target):
    "A link of the home notebook, as seen from the top folder."
    if re.match(r'[a-z]+:|#', target): return target
    return os.path.normpath(Path('nbs')/target)


def readme(nb):
    "The text of README.md."
    text, _ = MarkdownExporter().from_notebook_node(echoed(nb))
    text = re.sub(r'(\]\()([^)\s]+)(\))', lambda m: m[1] + link(m[2]) + m[3], text)
    return re.sub(r'\n{3,}', '\n\n', text).strip() + '\n'


def stale(fresh, text):
    "The files that differ from what the reports give now."
    changed = [p for p, nb in fresh.items() if tables(nb) != tables(nbformat.read(p, as_version=4))]
    if text != (root/'README.md').read_text(encoding='utf-8'): changed.append(root/'README.md')
    return [str(p.relative_to(root)) for p in changed]


def main():
    "Exit status 1 where a check finds a page that is out of date."
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--check', action='store_true', help='change nothing; name what is out of date')
    wanted, fresh = parser.parse_args(), {p: executed(p) for p in [index, *reference]}
    text = readme(deepcopy(fresh[index]))
    if wanted.check:
        if old := stale(fresh, text): print('out of date, run `make readme`:', *old)
        return bool(old)
    (root/'README.md').write_text(text, encoding='utf-8')
    for path, nb in fresh.items():
        nbformat.write(nb, path)
        nbdev_clean(str(path))


if __name__ == '__main__': sys.exit(main())

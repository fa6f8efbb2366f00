"Make README.md from nbs/index.ipynb: its cells are run, its links are made those of the top folder. What they show stays in the notebook, from which the site is built."
import argparse
import os
import re
from copy import deepcopy
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter
from nbdev.clean import nbdev_clean
from nbdev.process import NBProcessor

root = Path(__file__).resolve().parents[1]
index = root/'nbs'/'index.ipynb'


def executed():
    "The home notebook, freshly run."
    nb = nbformat.read(index, as_version=4)
    return NotebookClient(nb, timeout=120, resources=dict(metadata=dict(path=index.parent))).execute()


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


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--print', action='store_true', help='print it instead of writing README.md')
    wanted, nb = parser.parse_args(), executed()
    text = readme(deepcopy(nb))
    if wanted.print: print(text, end='')
    else:
        (root/'README.md').write_text(text, encoding='utf-8')
        nbformat.write(nb, index)
        nbdev_clean(str(index))

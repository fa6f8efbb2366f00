"Build the site: notebooks, processed as nbdev reads them, through Sphinx with MyST-NB into `_docs/`. Nothing is executed."
import argparse
import fcntl
import json
import os
import re
import shutil
import sys
from configparser import ConfigParser
from pathlib import Path

from nbdev.process import NBProcessor
from sphinx.cmd.build import build_main

import api

root = Path(__file__).resolve().parents[2]
source, site = root/'_proc', root/'_docs'
doctrees = source/'.doctrees'
ini = ConfigParser(interpolation=None)
ini.read(root/'settings.ini', encoding='utf-8')
cfg = ini['DEFAULT']
TITLES = dict(tutorials='Tutorials', reference='Reference', experiments='Experiments', reports='Reports', core='Core', sandbox='Sandbox', tasks='Tasks', model='Model', agent='Agent',
              rl='RL', flywheel='Flywheel', train='Train', evaluation='Evaluation', pipelines='Pipelines', cli='Command line')   # in the order of the navigation
HIDDEN = {'hide', 'default_exp'}
EXPORTS = {'export', 'exports', 'exporti'}


def plain(name):
    "The name of a folder without its number."
    return re.sub(r'^\d+_', '', name)


def pages_in(folder): return sorted(o for o in folder.glob('[!._]*.ipynb'))


def sections():
    "Title -> notebooks, in reading order; what is read by topic comes before the layers, a layer's folders behind it."
    folders = {plain(d.name): d for d in sorted((root/'nbs').iterdir()) if d.is_dir() and d.name[0] not in '._'}
    found = {}
    for name, title in TITLES.items():
        if name == 'reports': found[title] = sorted((root/'reports').glob('*/[!._]*.ipynb'))
        if name not in folders: continue
        found[title] = pages_in(folders[name])
        for sub in sorted(o for o in folders[name].iterdir() if o.is_dir() and o.name[0] not in '._'): found[f'{title}: {plain(sub.name)}'] = pages_in(sub)
    return {k: v for k, v in found.items() if v}


def page_of(path):
    "Where the page of a notebook lies in the site, such as `core/types.ipynb`."
    if path == root/'nbs'/'index.ipynb': return Path('index.ipynb')
    if path.is_relative_to(root/'reports'): return Path('reports')/f'{path.parent.name}-{path.name}'
    return Path(*map(plain, path.relative_to(root/'nbs').parts))


def module_of(nb):
    "The module that a notebook exports, or nothing."
    return next((c.directives_['default_exp'][0] for c in nb.cells if c.cell_type == 'code' and 'default_exp' in c.directives_), None)


def link(path, target):
    "A relative link of a notebook, as a link of its page; pages link to pages, other files of the repository to GitHub."
    file, _, anchor = target.partition('#')
    if re.match(r'[a-z]+:', target) or not file: return target
    there = (path.parent/file).resolve()
    if there.suffix == '.ipynb' and there.exists(): return os.path.relpath(page_of(there), page_of(path).parent) + (f'#{anchor}' if anchor else '')
    if there.suffix in ('.svg', '.png', '.gif', '.jpg', '.webp'): return '/' + copied(there)
    return f'{cfg["git_url"]}/blob/{cfg["branch"]}/{there.relative_to(root)}' if there.is_relative_to(root) else target


def copied(image):
    "Copy an image of the repository beside the pages; its place there."
    place = Path('images')/image.relative_to(root)
    write(source/place, image.read_bytes())
    return str(place)


def relink(path, text):
    "Markdown with its links and images made the page's own."
    text = re.sub(r'(\]\()([^)\s]+)(\))', lambda m: m[1] + link(path, m[2]) + m[3], text)
    return re.sub(r'((?:src|href)=")([^"]+)(")', lambda m: m[1] + link(path, m[2]) + m[3], text)


def mention(text, names, module):
    "Markdown in which the names of other modules lead to their cards."
    def linked(m):
        home, place = names.get(m[1], (module, ''))
        return f'[`{m[1]}`](#{place})' if home != module else m[0]
    parts = re.split(r'(^```.*?^```$)', text, flags=re.M | re.S)
    return ''.join(p if p.startswith('```') else re.sub(r'(?<![\[`\w])`([A-Za-z_]\w*)`(?![\]`])', linked, p) for p in parts)


def promise(text):
    "The quoted line under a title, marked as the page's subtitle."
    return re.sub(r'(\A# .*?\n+)(> )', r'\1{.promise}\n\2', text)


def sources(path, module):
    "Where the page comes from."
    tree = f'{cfg["git_url"]}/blob/{cfg["branch"]}'
    notebook = f'[Notebook]({tree}/{path.relative_to(root)})'
    if not module: return f'{{.sources}}\n{notebook}'
    return f'{{.sources}}\n`uitars_nb.{module}` {notebook} [Module]({tree}/uitars_nb/{module.replace(".", "/")}.py)'


def cell(kind, text, tags=(), outputs=None):
    new = dict(cell_type=kind, metadata=dict(tags=list(tags)) if tags else {}, source=text)
    return new | dict(execution_count=None, outputs=outputs or []) if kind == 'code' else new


def shown(path, output):
    "An output without what only a live notebook can show; nothing where that is all."
    output = json.loads(json.dumps(output))
    data = output.get('data', {})
    for mime in [m for m in data if 'widget' in m]: del data[mime]
    if 'text/markdown' in data: data['text/markdown'] = relink(path, ''.join(data['text/markdown']))
    return output if data or 'data' not in output else None


def code_cells(c, path, module):
    "The cells that a code cell becomes: cards first, then the source, then its outputs."
    outputs = [o for o in (shown(path, o) for o in c.get('outputs', [])) if o]
    if c.directives_.keys() & HIDDEN or not c.source.strip(): return []
    if 'echo:' in c.directives_: return [cell('code', c.source, ['remove-input'], outputs)]
    if not c.directives_.keys() & EXPORTS: return [cell('code', c.source, outputs=outputs)]
    if api.only_imports(c.source): return [cell('code', c.source, ['hide-input', 'imports'], outputs)]
    cards = api.cards(c.source, module)
    return [*([cell('markdown', cards)] if cards else []), cell('code', c.source, ['exported'], outputs)]


def process(path, nb, names):
    "A notebook as the page that Sphinx reads."
    module, cells = module_of(nb), []
    for c in nb.cells:
        if c.cell_type == 'code': cells += code_cells(c, path, module)
        elif c.source.strip(): cells.append(cell('markdown', mention(relink(path, promise(c.source)), names, module)))
    if path.name != 'index.ipynb': cells.insert(1, cell('markdown', sources(path, module)))
    return cells


def notebook(cells):
    numbered = [c | dict(id=f'c{i}') for i, c in enumerate(cells)]
    meta = dict(kernelspec=dict(name='python3', display_name='python3', language='python'), language_info=dict(name='python'))
    return json.dumps(dict(cells=numbered, metadata=meta, nbformat=4, nbformat_minor=5), ensure_ascii=False, indent=1).encode()


def write(path, data):
    "Write a file unless it is so already, so that an unchanged page is not built again."
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != data: path.write_bytes(data)
    written.add(path)


def title(nb):
    "What the first heading of a notebook says."
    return next(c.source for c in nb.cells if c.cell_type == 'markdown').partition('\n')[0].lstrip('# ')


def toctree(name, pages, books):
    "The navigation of a section; where titles are the same, with the name of the folder behind them."
    titles = [title(books[p]) for p in pages]
    links = [f'/{page_of(p).with_suffix("")}' for p in pages]
    lines = [f'{t} ({p.parent.name}) <{link}>' if titles.count(t) > 1 else link for p, t, link in zip(pages, titles, links)]
    return cell('markdown', '\n'.join(['```{toctree}', ':hidden:', f':caption: {name}', '', *lines, '```']))


def public_names(books):
    "Public name -> its module and its card's place, where only one module defines it and prose cannot mean anything else by it."
    homes = {}
    for nb in books.values():
        for c in nb.cells:
            if c.cell_type == 'code' and c.directives_.keys() & EXPORTS:
                for node in api.definitions(c.source): homes.setdefault(node.name, set()).add((module_of(nb), api.anchor(node, module_of(nb))))
    return {n: next(iter(h)) for n, h in homes.items() if len(h) == 1 and re.search('[A-Z_]', n)}


def prepare():
    "Write what Sphinx reads, and remove what no notebook stands behind any more."
    written.clear()
    groups = sections()
    books = {p: NBProcessor(p).nb for p in [root/'nbs'/'index.ipynb', *(p for ps in groups.values() for p in ps)]}
    names = public_names(books)
    for path, nb in books.items():
        extra = [toctree(k, ps, books) for k, ps in groups.items()] if path.name == 'index.ipynb' else []
        write(source/page_of(path), notebook(process(path, nb, names) + extra))
    for old in source.rglob('[!.]*'):
        if old.is_file() and old not in written and doctrees not in old.parents: old.unlink()
    return len(books)


def sweep():
    "Remove built pages that no source stands behind any more; Sphinx leaves them."
    made = {'genindex', 'search', 'index'}
    for page in site.rglob('*.html'):
        name = page.relative_to(site).with_suffix('')
        if str(name) not in made and '_static' not in name.parts and not (source/name).with_suffix('.ipynb').exists(): page.unlink()


def main():
    "Build; exit status 1 where Sphinx warns."
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--fresh', action='store_true', help='build every page again')
    fresh = parser.parse_args().fresh
    with open(root/'.ci'/'site'/'build.py') as own:
        fcntl.flock(own, fcntl.LOCK_EX)  # one build at a time; a second waits
        return build(fresh)


def moved():
    "Whether pages have come or gone since the last build: Sphinx leaves the old navigation in the pages that stay."
    wanted = {page_of(p) for p in [root/'nbs'/'index.ipynb', *(p for ps in sections().values() for p in ps)]}
    built = {p.relative_to(source) for p in source.rglob('*.ipynb')}
    return bool(built) and built != wanted


def build(fresh):
    "Prepare the pages and build them; Sphinx's exit status."
    if fresh or moved(): shutil.rmtree(source, ignore_errors=True); shutil.rmtree(site, ignore_errors=True)
    source.mkdir(exist_ok=True)
    pages = prepare()
    args = ['-b', 'html', '-q', '-W', '--keep-going', '-c', str(root/'.ci'/'site'), '-d', str(doctrees), str(source), str(site)]
    status = build_main(args)
    sweep()
    print(f'{pages} pages in {site.name}/index.html' if status == 0 else 'the site has warnings, see above')
    return status


written = set()
if __name__ == '__main__': sys.exit(main())

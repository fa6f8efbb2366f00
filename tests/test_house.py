"House rules: who may import whom, one notebook a module, what a notebook may hold."
import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

root = Path(__file__).resolve().parents[1]
package = root/'uitars_nb'
LAYERS = ['core', 'sandbox', 'tasks', 'model', 'agent', 'rl', 'flywheel', 'train', 'evaluation', 'pipelines', 'cli']
MAY_IMPORT = dict(core=[], sandbox=['core'], tasks=['core', 'sandbox'], model=['core'], agent=['core', 'sandbox', 'tasks', 'model'], rl=['core'],
                  flywheel=LAYERS[:6], train=LAYERS[:7], evaluation=LAYERS[:7], pipelines=LAYERS[:9], cli=LAYERS)
TORCH_FREE = ['core', 'sandbox', 'tasks', 'agent']
TORCH = {'torch', 'transformers', 'lightning', 'tokenizers', 'safetensors'}
DEVELOPMENT = {'nbdev', 'fastcore', 'execnb', 'IPython.testing', 'pytest', 'hypothesis', 'ui_tars'}

books = sorted(p for p in (root/'nbs').rglob('*.ipynb') if not any(o.startswith(('.', '_')) for o in p.relative_to(root).parts))
modules = sorted(p for p in package.rglob('*.py') if p.name not in ('__init__.py', '__main__.py', '_modidx.py'))
name = lambda p: str(p.relative_to(root))
each_book = pytest.mark.parametrize('path', books, ids=name)
each_module = pytest.mark.parametrize('path', modules, ids=name)


def cells(path, kind='code'): return [c for c in json.loads(path.read_text())['cells'] if c['cell_type'] == kind]
def text(cell): return ''.join(cell['source'])


def imported(path):
    "Full names of all modules that a module imports, anywhere in it."
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import): yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ['uitars_nb', *path.relative_to(package).parts[:-1]][:len(path.relative_to(package).parts) + 1 - node.level] if node.level else []
            base = '.'.join([*above, *([node.module] if node.module else [])])
            yield from (f'{base}.{a.name}' for a in node.names)


@each_module
def test_imports_stay_between_layers(path):
    here = path.relative_to(package).parts[0]
    assert here in MAY_IMPORT, f'{here} is no layer'
    reached = {o.split('.')[1] for o in imported(path) if o.startswith('uitars_nb.')} & set(LAYERS)
    assert reached <= {here, *MAY_IMPORT[here]}


COMMANDS = ['tutorials/00_own_task', 'tutorials/30_real_checkpoints']   # they show commands at work


@each_book
def test_nothing_but_the_command_line_imports_it(path):
    where = str(path.relative_to(root/'nbs').with_suffix(''))
    if where.startswith('90_cli/') or where in COMMANDS: return
    assert not [o for c in cells(path) for o in text(c).splitlines() if re.match(r'\s*(from|import) uitars_nb\.cli\b', o)], 'call a pipeline instead'


def test_a_notebook_has_its_number_alone_among_commands_and_pipelines():
    for folder in ('85_pipelines', '90_cli'):
        numbers = [o.name.split('_')[0] for o in books if o.parent == root/'nbs'/folder]
        assert len(numbers) == len(set(numbers))


@each_module
def test_modules_need_no_development_tools(path):
    assert not {o for o in imported(path) if o.split('.')[0] in DEVELOPMENT}


@pytest.mark.parametrize('path', [p for p in modules if p.relative_to(package).parts[0] in TORCH_FREE], ids=name)
def test_lower_layers_are_free_of_torch(path):
    assert not {o.split('.')[0] for o in imported(path)} & TORCH


BLOCK = '''
import importlib, sys
class Without:
    "A finder that knows nothing of some packages, as where they are not installed."
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.split('.')[0] in blocked else self.finder.find_spec(name, path, target)
blocked = set(sys.argv[1].split())
sys.meta_path[:] = map(Without, sys.meta_path)
for name in sys.argv[2].split(): importlib.import_module(name)
'''


def import_without(blocked, paths):
    "Import modules in a fresh Python that lacks some packages."
    names = ['.'.join(p.relative_to(root).with_suffix('').parts) for p in paths]
    done = subprocess.run([sys.executable, '-c', BLOCK, ' '.join(blocked), ' '.join(names)], cwd=root, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_package_imports_without_development_tools(): import_without(DEVELOPMENT, modules)


def test_lower_layers_import_without_torch(): import_without(TORCH | DEVELOPMENT, [p for p in modules if p.relative_to(package).parts[0] in TORCH_FREE])


def exported(source): return re.search(r'^#\|\s*exports?\b', source, re.M)


@each_book
def test_first_cell_names_the_module(path):
    first = json.loads(path.read_text())['cells'][0]
    if any(exported(text(c)) for c in cells(path)): assert re.match(r'#\|\s*default_exp \S+$', text(first)), 'the first cell is `#| default_exp layer.module`'


def homes():
    "Module -> the notebooks that export it."
    found = {}
    for path in books:
        for c in cells(path):
            if m := re.search(r'^#\|\s*default_exp\s+(\S+)', text(c), re.M): found.setdefault(m[1], []).append(name(path))
    return found


def test_one_notebook_a_module():
    assert {k: v for k, v in homes().items() if len(v) > 1} == {}
    expected = {k: re.sub(r'(^|/)\d+_', r'\1', v[0]).removeprefix('nbs/').removesuffix('.ipynb').replace('/', '.') for k, v in homes().items()}
    assert expected == {k: k for k in expected}, 'a notebook exports the module of its own name'


def test_every_module_has_a_notebook():
    assert {'.'.join(p.relative_to(package).with_suffix('').parts) for p in modules} == set(homes())


@each_book
def test_title_and_promise(path):
    first = text(cells(path, 'markdown')[0])
    assert re.match(r'# .+\n\n> .+', first), 'the first text is a title, an empty line and a promise after `>`'


@each_book
def test_outputs_are_clean(path):
    for cell in cells(path):
        for output in cell['outputs']:
            assert output['output_type'] != 'error', f'a traceback is stored: {text(cell)[:80]}'
            shown = json.dumps({k: v for k, v in output.get('data', {}).items() if not k.startswith('image/')} | {'text': output.get('text', '')})
            assert not (m := re.search(r'(?<![\w.])/(home|root|Users|tmp|work)/[^"\\ ]*', shown)), f'an absolute path is stored: {m[0]}'


@each_book
def test_no_state_of_widgets(path): assert 'widgets' not in json.loads(path.read_text())['metadata'], 'progress bars leave their state: remove metadata.widgets'


@each_book
def test_size(path): assert path.stat().st_size < 1_500_000, 'keep the outputs that teach, drop the rest'


def undocumented(tree):
    "Public functions, classes and methods of more than three lines without a docstring."
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    owners = [tree, *(n for n in tree.body if isinstance(n, ast.ClassDef) and not n.name.startswith('_'))]
    for owner in owners:
        for node in owner.body:
            if not isinstance(node, kinds) or node.name.startswith('_') or ast.get_docstring(node): continue
            if owner is tree or node.end_lineno - node.lineno > 2: yield f'{getattr(owner, "name", "")}.{node.name}'.lstrip('.')


@each_module
def test_public_names_say_what_they_do(path): assert list(undocumented(ast.parse(path.read_text()))) == []

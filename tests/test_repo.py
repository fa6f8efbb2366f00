"The repository agrees with itself: notebooks and modules, home notebook and README, requirements and constraints."
import configparser
import json
import re
import shutil
import subprocess
import sys
import warnings
from importlib.metadata import distribution
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from uitars_nb.core.figures import GOALS

root = Path(__file__).resolve().parents[1]
ini = configparser.ConfigParser(interpolation=None)
ini.read(root/'settings.ini', encoding='utf-8')
cfg = ini['DEFAULT']
SKIP = shutil.ignore_patterns('__pycache__', '.*', '_proc', '*.percent.py')


def run(*command, cwd=root, **kw):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=250, **kw)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def files(top):
    "Relative path -> content of the notebooks and modules under `top`."
    found = [p for folder in ('nbs', 'uitars_nb') for p in (top/folder).rglob('*') if p.suffix in ('.ipynb', '.py') and not p.name.endswith('.percent.py')]
    found = [p for p in found if not any(o.startswith('.') or o == '__pycache__' for o in p.relative_to(top).parts)]
    return {str(p.relative_to(top)): p.read_bytes() for p in [*found, top/'pyproject.toml']}


def test_export_and_cleaning_change_nothing(tmp_path):
    for o in ('nbs', 'uitars_nb'): shutil.copytree(root/o, tmp_path/o, ignore=SKIP)
    for o in ('settings.ini', 'pyproject.toml', 'setup.py'): shutil.copy(root/o, tmp_path/o)
    for o in ('nbdev_export', 'nbdev_clean'): run(str(Path(sys.executable).with_name(o)), cwd=tmp_path)
    before, after = files(root), files(tmp_path)
    assert sorted(before) == sorted(after)
    assert [k for k in before if before[k] != after[k]] == [], 'run `make export` and commit what it changes'


def test_modules_compile_without_a_warning():
    "Later Pythons say aloud what 3.11 keeps to itself, such as a backslash in a docstring."
    with warnings.catch_warnings(action='error', category=DeprecationWarning):
        for name, content in files(root).items():
            if name.endswith('.py'): compile(content, name, 'exec')


def test_readme_and_reference_pages_are_up_to_date():
    if subprocess.run(['git', 'status', '--porcelain', '--', 'reports'], cwd=root, capture_output=True).stdout: pytest.skip('reports/ holds results that are not committed: `make readme` puts them into the pages')
    run(sys.executable, '.ci/readme.py', '--check')


def test_the_reference_lists_every_goal():
    stored = nbformat.read(root/'nbs'/'reference'/'00_figures.ipynb', as_version=4)
    shown = [output.data['text/markdown'] for cell in stored.cells if cell.cell_type == 'code' for output in cell.outputs if 'text/markdown' in output.get('data', {})]
    figures = [line for text in shown for line in text.splitlines() if line.startswith('| `')]
    assert {k for k, o in GOALS.items() if o.value is not None} <= {o.split('`')[1] for o in figures}


def test_the_readme_can_be_read_in_ten_minutes():
    assert len((root/'README.md').read_text(encoding='utf-8').split()) <= 1500


def pins(): return dict(line.split('==') for line in (root/'constraints.txt').read_text().splitlines() if line and line[0] != '#')


def test_constraints_pin_every_requirement():
    wanted = [Requirement(o) for k, v in cfg.items() if k.endswith('requirements') for o in v.split()]
    unmet = [str(o) for o in wanted if (pin := pins().get(canonicalize_name(o.name))) is None or not o.specifier.contains(pin)]
    assert unmet == [], 'run `make constraints`'


def test_training_can_load_a_model_onto_a_gpu():
    "transformers lets accelerate put it there."
    assert 'accelerate' in cfg['train_requirements'].split()


def test_the_oldest_python_can_have_every_pin(): run(sys.executable, '.ci/constraints.py')  # it refuses packages that want a newer one


def test_readme_links_lead_somewhere():
    targets = re.findall(r'\]\(([^)\s#]+)', (root/'README.md').read_text(encoding='utf-8'))
    assert [o for o in targets if not re.match(r'[a-z]+:', o) and not (root/o).exists()] == []


def test_links_of_reports_and_experiments_lead_somewhere():
    "A report is a copy of its notebook in another folder, so links have to hold from both: `../../nbs/...`."
    dead = []
    for path in (*(root/'nbs/experiments').glob('*.ipynb'), *(root/'reports').glob('*/*.ipynb')):
        text = ''.join(line for o in json.loads(path.read_text(encoding='utf-8'))['cells'] if o['cell_type'] == 'markdown' for line in o['source'])
        targets = re.findall(r'\]\(([^)\s#]+)', text)
        dead += [f'{path.relative_to(root)}: {o}' for o in targets if not re.match(r'[a-z]+:', o) and not (path.parent/o).exists()]
    assert dead == []


def test_help_names_every_target():
    shown = run('make', '--no-print-directory', 'help')
    assert {line.split()[1] for line in shown.splitlines()} >= {'run', 'test', 'test-all', 'lab', 'docs', 'bench', 'help', 'clean', 'readme'}


@pytest.mark.skipif(not (root/'.venv'/'.setup').exists(), reason='`make setup` has not been run here')
def test_setup_has_nothing_to_do_twice():
    assert run('.ci/setup') == ''


def test_a_machine_without_root_is_told_what_to_do(tmp_path):
    "A copy of the set-up on a machine with neither root nor a Python that can make environments."
    tools = tmp_path/'bin'
    tools.mkdir()
    for o in ('bash', 'cat', 'sha256sum', 'cut', 'dirname', 'grep', 'xargs', 'env'): (tools/o).symlink_to(shutil.which(o))
    for name, text in dict(id='echo 1000', python3='[ "$1" = -m ] && exit 1; [ "$2" = "" ] && exit 0; case "$2" in *venv*) echo python3.11-venv;; esac; exit 0',
                           **{'apt-get': 'exit 1', 'dpkg-query': 'exit 1'}).items():
        (tools/name).write_text(f'#!{shutil.which("bash")}\n{text}\n')
        (tools/name).chmod(0o755)
    copy = tmp_path/'repo'
    (copy/'.ci').mkdir(parents=True)
    for o in ('.ci/setup', 'settings.ini', 'setup.py', 'pyproject.toml', 'constraints.txt'): shutil.copy(root/o, copy/o)
    done = subprocess.run(['.ci/setup'], cwd=copy, env=dict(PATH=str(tools)), capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert 'sudo apt-get install -y python3.11-venv' in done.stderr


def needed(requirements, seen, extras=('',)):
    "The distributions that `requirements` lead to, with the extras they are wanted with, added to `seen`."
    for req in map(Requirement, requirements):
        key = canonicalize_name(req.name), tuple(sorted(req.extras))
        if key in seen or req.marker and not any(req.marker.evaluate({'extra': o}) for o in extras): continue
        seen.add(key)
        needed(distribution(key[0]).requires or [], seen, ('', *key[1]))
    return seen


def beside(folder, names):
    "A folder that holds the packages of these distributions alone, as links."
    folder.mkdir()
    for o in map(distribution, {name for name, _ in names}):
        for top in {f.parts[0] for f in o.files if f.parts[0] not in ('..', '__pycache__')}:
            if not (folder/top).exists(): (folder/top).symlink_to(o.locate_file(top))
    return folder


def test_a_plain_install_runs_on_what_it_declares(tmp_path):
    "`pip install .` into an environment that has the requirements of settings.ini without any extra, and nothing else: no torch, no notebook tools."
    for o in ('settings.ini', 'setup.py', 'pyproject.toml', 'README.md', 'LICENSE'): shutil.copy(root/o, tmp_path/o)
    shutil.copytree(root/'uitars_nb', tmp_path/'uitars_nb', ignore=SKIP)
    subprocess.run([sys.executable, '-m', 'venv', '--without-pip', tmp_path/'env'], check=True, timeout=120)
    python = tmp_path/'env'/'bin'/'python'
    run(sys.executable, '-m', 'pip', '-q', 'wheel', '--no-deps', '--no-build-isolation', '-w', 'dist', '.', cwd=tmp_path)
    run(sys.executable, '-m', 'pip', '-q', '--python', python, 'install', '--no-deps', '--no-index', *(tmp_path/'dist').iterdir())
    packages = next((tmp_path/'env').glob('lib/python*/site-packages'))
    (packages/'requirements.pth').write_text(str(beside(tmp_path/'requirements', needed(cfg['requirements'].split(), set()))))
    away = tmp_path/'away'
    away.mkdir()
    assert cfg['version'] in run(python.with_name('uitars-nb'), '--version', cwd=away)
    imports = 'import importlib, importlib.util, pathlib, uitars_nb, sys\nhome = pathlib.Path(uitars_nb.__file__).parent\nassert home.is_relative_to(sys.prefix)\n' \
              'assert not [o for o in ("nbdev", "torch", "pytest") if importlib.util.find_spec(o)]\n' \
              'for o in "core sandbox tasks agent cli".split():\n' \
              '    for p in (home/o).glob("[!_]*.py"): importlib.import_module(f"uitars_nb.{o}.{p.stem}")'
    run(python, '-c', imports, cwd=away)

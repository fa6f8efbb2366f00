"""SWE-bench: patches of agents that change git itself, and SWE-bench's own code on our predictions and logs.

Where UITARS_BENCH_SWEBENCH is a checkout of github.com/SWE-bench/SWE-bench, its functions read the predictions and grade the log. Its package
imports Docker and Hugging Face clients at the top, so only the modules without them are run: constants, types, log parsers and grading;
the reader of predictions is taken out of its file.
"""
import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from uitars_nb.agent.loop import Reply
from uitars_nb.core.types import Action
from uitars_nb.evaluation.benchmarks.swebench import export_commit, place_repository, predict, predicted, read_instances, read_reports, run_tests, take_patch
from uitars_nb.sandbox.base import EnvironmentFailure
from uitars_nb.core.types import StopReason
from uitars_nb.sandbox.jail.jail import Jail

SOURCE = os.environ.get('UITARS_BENCH_SWEBENCH', '')
with_source = pytest.mark.skipif(not (Path(SOURCE or '/none')/'swebench/harness/grading.py').is_file(), reason='UITARS_BENCH_SWEBENCH is no checkout of SWE-bench')

TESTS = '''diff --git a/tests/test_words.py b/tests/test_words.py
--- a/tests/test_words.py
+++ b/tests/test_words.py
@@ -1,3 +1,5 @@
 from words import count
 
 def test_one(): assert count("a b") == 2
+
+def test_spaces(): assert count(" a  b ") == 2
'''


@pytest.fixture
def repository(tmp_path):
    "A clone with a commit after the base commit, and its data set."
    folder = tmp_path/'clones'/'own__words'
    (folder/'tests').mkdir(parents=True)
    def git(*args): return subprocess.run(['git', '-C', str(folder), '-c', 'user.name=a', '-c', 'user.email=a@b', *args], check=True, capture_output=True, text=True).stdout.strip()
    (folder/'words.py').write_text('def count(text):\n    "Number of words."\n    return text.count(" ") + 1\n')
    (folder/'tests/test_words.py').write_text('from words import count\n\ndef test_one(): assert count("a b") == 2\n')
    (folder/'.gitignore').write_text('__pycache__\n*.log\n')
    (folder/'kept.log').write_text('tracked though ignored\n')
    (folder/'.gitattributes').write_text('tests export-ignore\n')
    (folder/'link').symlink_to('words.py')
    git('init', '-q'); git('add', '-A', '-f'); git('commit', '-qm', 'Begin')
    commit = git('rev-parse', 'HEAD')
    (folder/'words.py').write_text('def count(text):\n    return len(text.split())\n')
    git('commit', '-qam', 'The solution')
    row = dict(instance_id='own__words-1', repo='own/words', base_commit=commit, problem_statement='count("a  b") is 3; it should be 2.', patch='secret',
               test_patch=TESTS, FAIL_TO_PASS=['tests/test_words.py::test_spaces'], PASS_TO_PASS=['tests/test_words.py::test_one'])
    (tmp_path/'data.jsonl').write_text(json.dumps(row) + '\n')
    return folder, commit, row


@pytest.fixture
async def placed(repository, tmp_path):
    folder, commit, _ = repository
    (tmp_path/'files').mkdir()
    export_commit(folder, commit, tmp_path/'files')
    async with Jail() as jail: yield jail, await place_repository(jail, tmp_path/'files')


async def shell(jail, command): return (await jail.run(['bash', '-c', f'cd repository; {command}']))[1].decode()


async def test_the_jail_has_all_files_and_no_later_commit(placed):
    jail, _ = placed
    assert (await shell(jail, 'git rev-list --all | wc -l')).strip() == '1'
    assert (await shell(jail, 'git ls-files')).split() == ['.gitattributes', '.gitignore', 'kept.log', 'link', 'tests/test_words.py', 'words.py']
    assert not await shell(jail, 'git status --porcelain')


@pytest.mark.parametrize('trick', ['', 'git config diff.noprefix true; git config color.ui always', 'git -c user.name=a -c user.email=a@b commit -qam done; git checkout -qb other',
                                   'rm -rf .git', 'git config core.pager false; git config diff.external /bin/false'], ids=['plain', 'configured', 'committed', 'deleted', 'external'])
async def test_the_patch_does_not_depend_on_what_the_agent_does_to_git(placed, trick, tmp_path):
    jail, base = placed
    await shell(jail, f"sed -i 's/text.count.*/len(text.split())/' words.py; echo new > new.txt; mkdir __pycache__; echo x > __pycache__/a.pyc; {trick}")
    patch = await take_patch(jail, base)
    assert patch.count('diff --git') == 2 and '+    return len(text.split())\n' in patch and 'b/new.txt' in patch and 'pyc' not in patch
    (tmp_path/'p.diff').write_text(patch)
    subprocess.run(['git', 'init', '-q'], cwd=tmp_path/'files', check=True)
    subprocess.run(['git', 'apply', '--verbose', str(tmp_path/'p.diff')], cwd=tmp_path/'files', check=True)
    assert (tmp_path/'files/new.txt').read_text() == 'new\n'


async def test_a_patch_with_other_encodings_is_text(placed, tmp_path):
    jail, base = placed
    await shell(jail, r'printf "caf\xe9\n" > latin.txt; printf "\0\1" > image.bin; rm link; chmod +x words.py')
    patch = await take_patch(jail, base)
    json.dumps(patch).encode()
    (tmp_path/'p.diff').write_text(patch)
    subprocess.run(['git', 'init', '-q'], cwd=tmp_path/'files', check=True)
    subprocess.run(['git', 'apply', str(tmp_path/'p.diff')], cwd=tmp_path/'files', check=True)
    assert (tmp_path/'files/latin.txt').read_bytes() == b'caf\xe9\n' and not (tmp_path/'files/link').is_symlink() and os.access(tmp_path/'files/words.py', os.X_OK)


async def test_no_change_is_an_empty_patch(placed): assert await take_patch(*placed) == ''


class Repairer:
    def __init__(self, session, task, spec): self.left = ["cd repository; sed -i 's/text.count.*/len(text.split())/' words.py"]
    async def act(self, steps, obs): return Reply(actions=(Action('execute_bash', dict(command=self.left.pop())) if self.left else Action('finished'),))


class Idle(Repairer):
    async def act(self, steps, obs): return Reply(actions=(Action('finished'),))


class Broken(Repairer):
    gone = True
    async def act(self, steps, obs):
        if Broken.gone: raise EnvironmentFailure(StopReason.ENV_CRASH, 'the engine is gone')
        return Reply(actions=(Action('finished'),))


async def test_a_broken_episode_makes_no_prediction_and_is_played_again(repository, tmp_path, monkeypatch):
    instances = read_instances(tmp_path/'data.jsonl')
    path = await predict(instances, tmp_path/'clones', f'{__name__}:Broken', tmp_path/'run')
    assert predicted(path) == set()
    monkeypatch.setattr(Broken, 'gone', False)
    await predict(instances, tmp_path/'clones', f'{__name__}:Broken', tmp_path/'run')   # the same policy: the store keeps both
    assert json.loads(path.read_text())['model_patch'] == ''
    (tmp_path/'reports').mkdir()
    (tmp_path/'reports/report.json').write_text(json.dumps({'own__words-1': dict(resolved=False)}))
    index = read_reports(tmp_path/'run', tmp_path/'reports')
    assert (len(index), index.stop.item(), index.env_failure.item(), index.success.item()) == (1, 'finished', False, False)


GRADE = '''
import json, sys, types
sys.path.insert(0, sys.argv[1])
for name in ('swebench', 'swebench.harness'):   # their __init__ imports Docker clients
    sys.modules[name] = types.ModuleType(name); sys.modules[name].__path__ = [sys.argv[1] + '/' + name.replace('.', '/')]
try: import unidiff
except ImportError: sys.modules['unidiff'] = types.SimpleNamespace(PatchSet=None)   # grading does not use it
from swebench.harness.grading import get_eval_report
from swebench.types import TestSpec
row, prediction = json.load(open(sys.argv[2])), json.load(open(sys.argv[3]))
spec = TestSpec(row['instance_id'], '', [], row['repo'], '1', row['FAIL_TO_PASS'], row['PASS_TO_PASS'], 'parse_log_pytest', 'pass_and_fail')
print(json.dumps(get_eval_report(spec, prediction, sys.argv[4], True)))
'''


@with_source
@pytest.mark.parametrize('agent, resolved', [('Repairer', True), ('Idle', False)])
async def test_swebench_reads_the_prediction_and_grades_the_log_of_the_jail(repository, tmp_path, agent, resolved):
    folder, commit, row = repository
    path = await predict(read_instances(tmp_path/'data.jsonl'), tmp_path/'clones', f'{__name__}:{agent}', tmp_path/'run')
    tree = ast.parse((Path(SOURCE)/'swebench/harness/utils.py').read_text())
    (function,) = [o for o in tree.body if getattr(o, 'name', '') == 'get_predictions_from_file']
    exec(compile(ast.Module([function], []), 'utils.py', 'exec'), space := dict(json=json))
    (prediction,) = space['get_predictions_from_file'](str(path), 'none', 'test')
    assert set(prediction) == {'instance_id', 'model_name_or_path', 'model_patch'}
    (tmp_path/'files').mkdir()
    export_commit(folder, commit, tmp_path/'files')
    files = dict(row=json.dumps(row), prediction=json.dumps(prediction), log=await run_tests(tmp_path/'files', prediction['model_patch'], row['test_patch']))
    for name, text in files.items(): (tmp_path/name).write_text(text)
    done = subprocess.run([sys.executable, '-c', GRADE, SOURCE, *(str(tmp_path/o) for o in files)], capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]
    report = json.loads(done.stdout)[row['instance_id']]
    assert report['patch_successfully_applied'] and report['resolved'] is resolved, files['log']
    assert report['tests_status']['PASS_TO_PASS']['success'] == row['PASS_TO_PASS']
    (tmp_path/'reports').mkdir()
    (tmp_path/'reports/report.json').write_text(done.stdout)
    assert read_reports(tmp_path/'run', tmp_path/'reports').success.item() is resolved

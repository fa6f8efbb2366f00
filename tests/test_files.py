"File tasks: oracles solve them in every interface, nothing but the folder counts, and agents that behave badly break neither verdict nor the next episode."
import io
import os
import shutil
import signal
import tarfile
from dataclasses import replace

import pytest
import pytest_asyncio

import uitars_nb.tasks.session_pools as places
from uitars_nb.agent.loop import OracleAgent, RandomAgent, Reply, run_episode
from uitars_nb.agent.playing import Delayed
from uitars_nb.agent.rollout import Rollout
from uitars_nb.core.types import Action, StopReason, TaskSpec
from uitars_nb.sandbox.base import ActionError, EnvironmentFailure
from uitars_nb.sandbox.sessions import SessionPool, closing
from uitars_nb.sandbox.manager.kinds import SimulatedConfig, SimulatedSession
from uitars_nb.tasks.base import SUITES, TASKS, get_task, check_train_split, split_of, suite
from uitars_nb.tasks.files.chores import CHORES, draw_chore
from uitars_nb.tasks.files.chores_shell import WORK, by_shell
from uitars_nb.tasks.files.trees import apply, tree_differences, lay_out, read_tree, unpacked, with_parents

missing = [o for o in ('bwrap', 'Xvfb', 'openbox', 'tint2', 'xclip', 'mousepad', 'pcmanfm', 'xarchiver') if not shutil.which(o)]
pytestmark = [pytest.mark.asyncio(loop_scope='module'), pytest.mark.skipif(bool(missing), reason=f'file tasks need {", ".join(missing)}: make setup installs them')]
LINES = 'make-folder rename write-file'.split()   # of the desktop, in every run; all others are slow


class Arena:
    "A pool for each interface, opened when it is first wanted."
    def __init__(self): self.pools = {}

    async def pool(self, name):
        task = get_task(name)
        if task.interface not in self.pools: self.pools[task.interface] = await places.pool_for([name]).__aenter__()
        return self.pools[task.interface]

    async def __call__(self, spec, agent=OracleAgent):
        async with (await self.pool(spec.name)).session() as session: return await run_episode(session, get_task(spec.name), spec, agent)


@pytest_asyncio.fixture(loop_scope='module', scope='module')
async def played():
    arena = Arena()
    yield arena
    for pool in arena.pools.values(): await pool.__aexit__()


def says(*actions):
    "An agent that does these things, one after the other, and finishes."
    class Said:
        def __init__(self, session, task, spec): self.left = [*actions, Action('finished')]
        async def act(self, steps, obs): return Reply(actions=(self.left.pop(0),))
    return Said


def bash(command): return Action('execute_bash', dict(command=command))
def specs(name, n=1, split='test'): return suite(f'files/{name}', split, n)


# --- chores

async def test_each_split_has_instances_of_its_own():
    for name in CHORES:
        drawn = {split: {repr(draw_chore(name, s.seed)) for s in suite(f'files/{name}-both', split, 20)} for split in ('train', 'validation', 'test')}
        assert sum(map(len, drawn.values())) == len(set.union(*drawn.values())) == 60
    assert all(split_of(s.seed) == 'test' for s in specs('sdk', 3))
    with pytest.raises(ValueError, match='must not be trained on'): list(check_train_split(specs('gui')))


async def test_no_chore_is_done_by_doing_less_or_more():
    for name in CHORES:
        for seed in range(40):
            c = draw_chore(name, seed)
            effects = [op for op in c.operations if op[0] != 'read']
            for k in range(len(effects)): assert tree_differences(apply(c.before, *effects[:k], *effects[k + 1:]), c.after)
            if name != 'archive': assert tree_differences(c.after | {'more.txt': b''}, c.after) == ['more.txt is too much']
            assert len(c.before) <= 8 and all(p.isascii() and p == p.lower() for p in c.before)


async def test_the_instruction_names_all_that_the_verifier_asks():
    for name in CHORES:
        for seed in range(40):
            c = draw_chore(name, seed)
            new = [p.rstrip('/').rpartition('/')[2] for p in c.after if p not in c.before]
            moved = {p.rpartition('/')[2] for p in c.before}
            assert all(o in c.instruction for o in new if o not in moved), (name, c.instruction)


# --- solved

@pytest.mark.parametrize('split', ['train', 'validation', 'test'])
async def test_oracles_solve_all_with_tools(played, split):
    for spec in specs('sdk', 2, split):
        traj = await played(spec)
        assert traj.success and traj.reward == 1 and traj.stop is StopReason.FINISHED, (spec.id, traj.info)
        assert sum(o.reward for o in traj.steps) == pytest.approx(1), spec.id   # step by step, all of it was done


@pytest.mark.parametrize('interface', ['gui', 'both'])
@pytest.mark.parametrize('chore', [o if o in LINES else pytest.param(o, marks=pytest.mark.slow) for o in CHORES])
async def test_oracles_solve_all_on_the_desktop(played, chore, interface):
    for spec in specs(f'{chore}-{interface}', 1 if chore in LINES else 3):
        traj = await played(spec)
        assert traj.success and len(traj.steps) <= TASKS[spec.name].max_steps / 1.5, (spec.id, traj.info, len(traj.steps))
        used = {a.name for s in traj.steps for a in s.actions} - {'finished', 'wait'}
        assert interface == 'both' or not used & {'execute_bash', 'str_replace_editor'}


async def test_both_hands_are_used(played):
    spec = specs('unsaved-both', 2)[0]
    spec = replace(spec, seed=spec.seed + spec.seed % 2)   # the second operation by the shell
    traj = await played(spec)
    used = [a.name for s in traj.steps for a in s.actions]
    assert traj.success and 'hotkey' in used and 'execute_bash' in used


async def test_a_report_is_fetched_by_the_browser_and_filed_by_the_shell(played):
    for spec in specs('web', 4):
        traj = await played(spec)
        told = [(s.observation.text, [str(e) for e in s.observation.events]) for s in traj.steps]
        assert traj.success, (spec.id, traj.info, told)
        assert [a.name for s in traj.steps for a in s.actions] == ['click', 'execute_bash', 'execute_bash', 'finished']
    wrong = await played(specs('web')[0], says(bash('find / -name "*.csv" -path "*ownload*" 2>/dev/null; touch ~/files/done')))
    assert (wrong.reward, wrong.success) == (0, False)


# --- not solved

@pytest.mark.parametrize('interface', ['sdk', 'web'])
async def test_doing_nothing_is_worth_nothing(played, interface):
    for spec in specs(interface):
        for agent in (says(), RandomAgent):
            traj = await played(spec, agent)
            assert (traj.reward, traj.success) == (0, False) and not traj.stop.is_environment, spec.id


async def test_doing_nothing_on_the_desktop_is_worth_nothing(played):
    for name in ('files/unsaved-both', 'files/rename-both'):
        traj = await played(suite(name, 'test')[0], says(Action('click', dict(point=(500, 500)))))
        assert (traj.reward, traj.success) == (0, False)


async def test_another_instances_solution_is_worth_nothing(played):
    for name in SUITES['files/sdk']:
        one, other = suite(name, 'test', 2)
        wrong = [by_shell(op) for op in TASKS[name].problem(other).operations]
        traj = await played(one, says(*wrong))
        assert (traj.reward, traj.success) == (0, False), traj.info


async def test_the_reward_is_for_the_end_and_not_for_passing_by(played):
    spec = specs('delete-sdk')[0]
    right = [by_shell(op) for op in TASKS[spec.name].problem(spec).operations]
    assert (await played(spec, says(*right))).reward == 1
    traj = await played(spec, says(*right, bash('touch ~/files/oops')))
    assert traj.reward == 0 and traj.info['faults'] == ('oops is too much',)
    assert traj.steps[len(right)].reward < 0 and sum(o.reward for o in traj.steps) < 1   # and what it broke is taken back
    assert (await played(spec, says(*right, bash('touch ~/files/oops'), bash('rm ~/files/oops')))).reward == 1


# --- tampering

TRICKS = {
    'programs of its own': 'mkdir -p ~/bin ~/.local/bin; for p in cat find ls tar sh bash python3 stat; do printf "#!/bin/sh\\nexit 0\\n" > ~/.local/bin/$p; cp ~/.local/bin/$p ~/bin; chmod +x ~/bin/$p; done',
    'start-up files': 'echo "import sys; sys.exit(0)" > ~/sitecustomize.py; echo "exit 0" > ~/.bashrc; echo "exit 0" > ~/.profile',
    'claims': 'echo "reward: 1, success: true, done" | tee ~/verdict.json ~/result.txt /tmp/reward; echo SUCCESS',
    'a link in place of the folder': 'mv ~/files ~/kept; ln -s ~/kept ~/files',
    'a mount of something else': 'ln -sfn /proc/self/root/home/user/work ~/files2; mv ~/files ~/w; ln -s ~/w ~/files',
    'no permissions': 'chmod 000 ~/files',
    'no home': 'chmod 000 ~',
    'no folder': 'rm -rf ~/files',
    'a file in its place': 'rm -rf ~/files; echo 1 > ~/files',
    'a pipe': 'mkfifo ~/files/pipe',
    'too many files': 'cd ~/files && touch $(seq 3000)',
    'too large a file': 'truncate -s 400M ~/files/big',
    'a name that is no text': "cd ~/files && touch \"$(printf 'a\\nb\\377')\"",
    'the end of all programs': 'kill -9 -1',
    'too many programs': ':(){ :|:& };:',
    'too much memory': 'python3 -c "x = [bytes(1 << 28) for _ in range(40)]"',
    'a full disk': 'head -c 2G /dev/zero > ~/full; head -c 1G /dev/zero > /tmp/full',
    'a deep folder': 'cd ~/files; for i in $(seq 700); do mkdir d && cd d; done',
}


@pytest.mark.parametrize('trick', TRICKS)
async def test_tricks_are_worth_nothing_and_leave_nothing(played, trick):
    spec = specs('rename-sdk')[0]
    traj = await played(spec, says(bash(TRICKS[trick])))
    assert (traj.reward, traj.success) == (0, False) and not traj.stop.is_environment, traj.info
    assert (await played(spec)).success, 'the next episode'


@pytest.mark.parametrize('trick', ['programs of its own', 'start-up files', 'claims'])
async def test_what_lies_elsewhere_does_not_matter(played, trick):
    spec = specs('edit-line-sdk')[0]
    right = [by_shell(op) for op in TASKS[spec.name].problem(spec).operations]
    assert (await played(spec, says(bash(TRICKS[trick]), *right))).reward == 1


async def test_an_archive_is_judged_by_what_it_holds(played):
    spec = specs('archive-sdk')[0]
    _, path, a, b = TASKS[spec.name].problem(spec).operations[0]
    for command, reward in {f'tar -czf {path} {a} {b}': 1, f'tar -cf - ./{b} ./{a} | gzip -9 > {path}': 1, f'tar -czf {path} {a}': 0, f'tar -czf {path} .': 0, f'tar -cf {path} {a} {b}': 0,
                            f'head -c 300M /dev/zero | gzip -1 > {path}': 0, f'touch {path}': 0, f'tar -czf {path} {a} {b} && mv {a} gone': 0,
                            f'mkdir t && truncate -s 200G t/x && tar -Sczf {path} t && rm -r t': 0}.items():
        traj = await played(spec, says(bash(f'cd ~/files && {command}')))
        assert traj.reward == reward and not traj.stop.is_environment, (command, traj.info)


async def test_a_bomb_is_unpacked_up_to_a_limit():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode='w:gz') as tar:
        for i in range(30):
            info = tarfile.TarInfo(f'{i}')
            info.size = 1 << 20
            tar.addfile(info, io.BytesIO(bytes(1 << 20)))
    with pytest.raises(ValueError, match='too large'): unpacked(out.getvalue())


@pytest.mark.parametrize('data', [b'', b'no archive', b'\x1f\x8b\x08\x00', os.urandom(2000)])
async def test_garbage_is_no_archive(data):
    with pytest.raises(ValueError, match='no archive'): unpacked(data)


# --- agents that break things

@pytest.mark.parametrize('deed', ['kill -9 -1', 'rm -rf ~/.config ~/.local /tmp/.X* /tmp/.Xauthority; kill -9 -1', ':(){ :|:& };:', 'head -c 2G /dev/zero > ~/full; head -c 1G /dev/zero > /tmp/full'])
async def test_breaking_the_desktop_is_the_agents_own_doing(played, deed):
    spec = specs('rename-both')[0]
    traj = await played(spec, says(bash(deed), Action('wait', dict(time=1)), Action('click', dict(point=(500, 500)))))
    assert (traj.reward, traj.success) == (0, False) and not traj.stop.is_environment, (traj.stop, traj.info)
    assert (await played(spec)).success, 'the next episode'


class Wild(RandomAgent):
    "Closes, kills, deletes and fills, between random clicks."
    KEYS = 'alt f4', 'ctrl q', 'ctrl w', 'enter', 'delete', 'ctrl a', 'ctrl x', 'ctrl v', 'esc', 'ctrl alt t', 'alt tab'
    COMMANDS = ('ls', 'pkill -f pcmanfm', 'rm -rf ~/.config', 'kill -9 -1', 'head -c 5M /dev/urandom', 'yes > /dev/null &', 'chmod 000 ~/files', 'exit', 'mv ~/files ~/x', 'cd ~; rm *')
    async def act(self, steps, obs):
        kind = self.rng.choice(['key', 'command', 'other'], p=[.25, .15, .6])
        if kind == 'key': return Reply(actions=(Action('hotkey', dict(key=str(self.rng.choice(self.KEYS)))),))
        if kind == 'command': return Reply(actions=(bash(str(self.rng.choice(self.COMMANDS))),))
        return await super().act(steps, obs)


@pytest.mark.slow
@pytest.mark.parametrize('interface', ['both', 'gui'])
async def test_wild_agents_end_at_their_budget_and_the_next_oracle_solves(played, interface):
    for spec in specs(interface)[:6]:
        traj = await played(spec, Wild)
        assert traj.reward == 0 and not traj.stop.is_environment, (spec.id, traj.stop, traj.info)
        assert (await played(specs(f'rename-{interface}')[0])).success, spec.id


async def test_a_jail_that_is_lost_is_the_environments_and_replaced(played):
    spec = specs('rename-sdk')[0]
    class Lost(OracleAgent):
        def __init__(self, session, task, spec):
            super().__init__(session, task, spec)
            os.kill(session.jail.process.pid, signal.SIGKILL)
    traj = await played(spec, Lost)
    assert traj.stop is StopReason.ENV_CRASH and traj.reward is None
    assert (await played(spec)).success


async def test_a_session_of_the_wrong_interface_is_refused(played):
    async with (await played.pool('files/rename-sdk')).session() as session:
        spec = await TASKS['files/rename-sdk'].setup(session, specs('rename-sdk')[0])
        with pytest.raises(ActionError): await session.act(Action('click', dict(point=(1, 1))))
        assert not (await TASKS['files/rename-sdk'].verify(session, spec)).success


# --- trees and pools

async def test_a_tree_that_is_read_is_the_tree_that_was_laid_out(played):
    tree = with_parents({'a b.txt': 'ä\n'.encode(), "it's/-n/$HOME": bytes(range(256)), 'empty/': b'', 'none.txt': b''})
    async with (await played.pool('files/rename-sdk')).session() as session:
        await lay_out(session.jail, tree, WORK)
        assert await read_tree(session.jail, WORK) == tree


async def test_a_pool_serves_one_after_the_other_and_replaces_what_fails():
    opened = []
    class One(SimulatedSession):
        def __init__(self): super().__init__(SimulatedConfig()); opened.append(self); self.open, self.bad = True, False
        async def reset(self):
            if self.bad: raise RuntimeError('it does not come back')
            await super().reset()
        async def close(self): self.open = False
    async with SessionPool(lambda: closing(One()), 2) as pool:
        async with pool.session() as a, pool.session() as b: assert a is not b
        a.bad = b.bad = True
        async with pool.session() as c: assert c not in (a, b) and c.open
        with pytest.raises(ZeroDivisionError):
            async with pool.session(): 1 / 0   # an episode that fails does not leave its session to the next
        assert not c.open
    assert not any(o.open for o in opened)


async def test_where_no_session_can_be_had_the_episode_hears_of_it():
    class Bad(SimulatedSession):
        async def reset(self): raise EnvironmentFailure(StopReason.ENV_RESET, 'never')
    async with SessionPool(lambda: closing(Bad(SimulatedConfig()))) as pool:
        for _ in range(2):
            with pytest.raises(EnvironmentFailure, match='3 attempts: never'):
                async with pool.session(): pass


async def test_tasks_of_several_places_are_played_together():
    names = ['files/rename-sdk', 'miniwob/click-test', 'games/2048']
    specs = [replace(o, max_steps=3) for name in names for o in suite(name, 'test', 2)]
    async with places.pool_for(names, 1, 2) as pool:
        for source in (pool, Delayed(pool, 1e-4, 0.)):
            trajs = [o async for o in Rollout(source, specs, OracleAgent, 'oracle')]
            assert sorted(o.task.name for o in trajs) == sorted(names * 2) and not any(o.stop.is_environment for o in trajs)
            assert all(o.success for o in trajs if o.task.name != 'games/2048')
    with pytest.raises(RuntimeError): await pool.pool_of('miniwob/click-test').session().__aenter__()   # closed with the whole


async def test_a_task_that_does_not_exist_has_no_place():
    with pytest.raises(KeyError, match='did you mean'): places.pool_for(['files/renam-sdk'])

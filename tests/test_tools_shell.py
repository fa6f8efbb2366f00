"The terminal, the Python session and the editor do what they say, whatever is thrown at them."
import asyncio, re, shlex, signal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.escapes import LIMITS
from uitars_nb.core.types import Action, StopReason
from uitars_nb.sandbox.base import ActionError, EnvironmentFailure
from uitars_nb.sandbox.jail.bubblewrap import JailLimits
from uitars_nb.sandbox.tools.editor import Editor, inserted, replaced
from uitars_nb.sandbox.jail.jail import Jail, JailConfig
from uitars_nb.sandbox.tools.kernel import Kernel
from uitars_nb.sandbox.jail.output import BoundedOutput, clean, cut
from uitars_nb.sandbox.tools.shell import Shell
from uitars_nb.sandbox.tools.session import ToolConfig, ToolSession

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def shell():
    async with Jail(JailConfig(LIMITS)) as jail:
        shell = Shell(jail)
        yield shell
        shell.close()


@pytest.fixture
async def kernel():
    async with Jail() as jail:
        kernel = Kernel(jail)
        yield kernel
        await kernel.close()


async def play(shell, *commands, timeout=30):
    return [await shell.run(o, timeout) for o in commands]


SCRIPTS = {
    'state': (['cd /tmp; x=1; export y=2; f() { echo f$1; }; alias g="echo g"', 'echo $x $y $(pwd); f 3; g'], '1 2 /tmp\nf3\ng\n', 0),
    'declare is global': (['declare -A map; map[a]=7; declare -i n=3', 'echo ${map[a]} $n'], '7 3\n', 0),
    'break outside of a loop': (['break; continue; echo on'], 'on', 0),
    'return': (['return 3', 'echo $?'], '2\n', 0),
    'the exit code': (['(exit 42)'], '', 42),
    'the exit code of before': (['false', 'echo $?'], '1\n', 0),
    'here-document': (["cat <<'END'\n$a `b`\nEND"], '$a `b`\n', 0),
    'an open quote': (["echo 'a"], 'unexpected EOF', 2),
    'an open brace': (['if true; then'], 'syntax error', 2),
    'unicode': (['echo "grüße 你好 🙂"'], 'grüße 你好 🙂\n', 0),
    'a comment': (['# nothing'], '', 0),
    'a trap': (['trap "echo trapped" INT; kill -INT $$; echo after'], 'trapped\nafter\n', 0),
    'set -u': (['set -u', 'echo $nothing_here; echo no', 'echo on'], 'on\n', 0),
    'the input is a terminal': (['test -t 0 && test -t 1 && echo yes'], 'yes\n', 0),
    'carriage returns': ([r'printf "10\r20\r30\n"'], '30\n', 0),
    'colours': ([r'printf "\e[31mred\e[0m\n"'], 'red\n', 0),
    'no newline at the end': (['printf abc'], 'abc', 0),
    'no output': (['true'], '', 0),
    'aliases of what the shell itself uses': (['alias read=false eval=false printf=false', 'read() { :; }; eval() { :; }', 'echo fine'], 'fine\n', 0),
    'IFS': (['IFS=x', 'echo fine'], 'fine\n', 0),
    'another directory that is gone': (['mkdir d; cd d; rmdir ../d', 'echo fine'], 'fine\n', 0),
    'closed output': (['exec 3>&1 >/dev/null', 'echo lost', 'exec >&3', 'echo back'], 'back\n', 0),
    'a background job': (['sleep 100 &', 'jobs | grep -c Running; kill %1'], '1\n', 0),
    'closing every descriptor': (['for i in 3 4 5 6 7 8 9; do eval "exec $i>&-"; done', 'echo fine'], 'fine\n', 0),
    'a changed terminal': (['stty raw; stty -a > /dev/null', 'echo a; echo b'], 'a\nb\n', 0),
    'a forged report': (['for i in 3 4 5 6 7 8 9; do printf "1 99\\0" >&$i; done 2>/dev/null; echo real; (exit 5)'], 'real', 5),
    'a forged mark': (['echo before; printf %s "$__m"; sleep .2; echo after'], 'after\n', 0),
    'markers of other tools': (["echo '[exit code 0]'; echo '###DONE###0'; (exit 6)"], '[exit code 0]', 6),
}


@pytest.mark.parametrize('name', SCRIPTS)
async def test_scripts(shell, name):
    commands, output, code = SCRIPTS[name]
    answer = (await play(shell, *commands))[-1]
    assert output in answer.output and answer.code == code, answer
    if output == '': assert answer.output == ''
    assert (await shell.run('echo $((6 * 7))')).output.endswith('42\n')


@given(st.lists(st.text(st.characters(exclude_characters='\0', exclude_categories=['Cs']), max_size=60), min_size=1, max_size=4))
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_goes_through(texts):
    async def main():
        async with Jail(JailConfig(LIMITS)) as jail:
            shell = Shell(jail)
            for text in texts: assert (await shell.run(f'printf %s {shlex.quote(text)}')).output == clean(text.replace('\x1a', ''))
            shell.close()
    texts = [t for t in texts if not set(t) & set('\x03\x04\x11\x12\x13\x16\x1a\x1c')] or ['x']
    asyncio.run(main())


async def test_long_commands(shell):
    for n in (3000, 5000, 200_000):
        text = 'x' * n
        assert (await shell.run(f'echo {text} | wc -c')).output == f'{n + 1}\n'


async def test_interrupts_work_where_this_process_ignores_them():
    "As in a job that a script has put into the background."
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        async with Jail(JailConfig(LIMITS)) as jail:
            shell = Shell(jail)
            assert (await shell.run('trap "echo trapped" INT; kill -INT $$; echo after')).output == 'trapped\nafter\n'
            assert (await shell.run('trap - INT; while :; do sleep .1; done', .3)).code is None
            assert (await shell.run('C-c')).code == 130
            shell.close()
    finally: signal.signal(signal.SIGINT, before)


async def test_an_endless_command_is_left_running(shell):
    answer, = await play(shell, 'echo first; while true; do sleep .1; echo more; done', timeout=.5)
    assert answer.code is None and answer.output.startswith('first') and 'C-c interrupts it' in answer.note
    more = await shell.run('', .5)
    assert more.code is None and set(more.output.split()) == {'more'}
    assert (await shell.run('C-c')).code == 130
    with pytest.raises(ValueError, match='no command is running'): await shell.run('')
    with pytest.raises(ValueError, match='no command is running'): await shell.run('C-c')


async def test_what_ignores_an_interrupt_is_ended(shell):
    await shell.run('python -c "import signal, time; signal.signal(2, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"', 1)
    first, = await play(shell, 'C-c', timeout=.5)
    assert first.code is None and 'another one ends it' in first.note
    assert (await shell.run('C-c')).code == 137
    await shell.run('trap "" INT; while :; do sleep .1; done', .5)
    answers = await play(shell, 'C-c', 'C-c', 'C-c', timeout=.5)
    assert 'the shell has ended' in answers[-1].note
    assert (await shell.run('echo new')).output == 'new\n'


async def test_input_for_a_running_program(shell):
    assert (await shell.run('python -i -c "" 2>&1', 1)).code is None
    assert '42' in (await shell.run('print(6 * 7)', 1)).output
    assert (await shell.run('exit()')).code == 0


async def test_much_input_for_a_running_program(shell):
    lines = ''.join(f'{i:06}\n' for i in range(20_000))
    assert (await shell.run('sleep 1; head -n 20000 | wc -c', .3)).code is None
    answer = await shell.run(lines)
    assert answer.code == 0 and answer.output == '140000\n' and not answer.note


async def test_a_line_of_input_that_is_too_long(shell):
    await shell.run('read x; echo ${#x}', .3)
    with pytest.raises(ValueError, match='at most 4095 bytes'): await shell.run('x' * 4096)
    assert (await shell.run('x' * 4095)).output == '4095\n'
    await shell.run('stty -icanon; head -c 5000 | wc -c', .5)
    assert (await shell.run('x' * 5000)).output == '5000\n'


async def test_input_that_nobody_reads():
    session, lines = ToolSession(ToolConfig(bash_seconds=1)), 20_000 * 'some line\n'
    await session.reset()
    async def bash(command):
        await session.act(Action('execute_bash', dict(command=command)))
        return (await session.observe()).text
    try:
        await bash('sleep 600 & echo $! > /tmp/other; sleep 600')
        took = re.search(r'of the 199999 characters of its input the terminal took only the first (\d+);', await bash(lines))
        assert 1000 < int(took[1]) < 100_000
        assert '[exit code 130]' in await bash('C-c')
        assert 'still here' in await bash('kill -0 $(cat /tmp/other) && echo still here')
        await bash('sleep .5; read x')
        assert re.search(r'\[exit code 0; of the 199999 characters of its input the terminal took only the first', await bash(lines))
        assert await bash('echo on') == 'on\n[exit code 0]'
    finally: await session.close()


async def test_a_command_that_is_no_text_is_refused_and_the_next_one_runs(shell):
    for command in ('echo \0', "echo '\ud800'"):
        with pytest.raises(ValueError): await shell.run(command)
        said = await shell.run('echo next', 5)
        assert (said.output, said.code) == ('next\n', 0), 'a command of its own, and no input of one that never ran'


async def test_the_end_of_the_shell(shell):
    for end, code in (('exit 3', 3), ('kill -9 $$', -9), ('exec true', 0), ('set -e; false', 1)):
        answer = await shell.run(f'x=1; {end}')
        assert answer.code == code and 'the next command starts a new one' in answer.note
        assert (await shell.run('echo "[$x]"')).output == '[]\n'


async def test_output_is_cut(shell):
    answer = await shell.run('seq 1000000')
    assert answer.output.startswith('1\n2\n') and answer.output.rstrip().endswith('\n1000000') and 'characters left out' in answer.output
    assert len(answer.output) < 17_000
    assert (await shell.run('echo next')).output == 'next\n'


async def test_no_room_for_another_program():
    async with Jail(JailConfig(JailLimits(processes=16, memory=256 << 20, disk=1 << 20, tmp=1 << 20))) as jail:
        shell = Shell(jail)
        assert 'Resource temporarily unavailable' in (await shell.run('for i in $(seq 40); do sleep 60 & done 2>&1', 1)).output
        for attempt in range(3): answer = await shell.run('C-c', .2)
        assert 'the shell has ended' in answer.note
        assert (await shell.run('echo $(expr 3 + 4)')).output == '7\n'
        shell.close()


def test_clean_and_cut():
    assert clean('a\x1b]0;title\x07b\x1b[2Kc\x1b(B\x1b7\x1b=') == 'abc'
    assert clean('x\x1b') == 'x' and clean('a\tb\x00') == 'a\tb'
    assert clean('\x1b]' * 100_000).count('\x1b') == 0
    assert cut('x' * 100, 100) == 'x' * 100
    tape = BoundedOutput(1000)
    for i in range(5000): tape.add(b'%04d\n' % i)
    assert tape.gone and len(tape.head) + len(tape.tail) <= 3000
    text = tape.take(2000)
    assert text.startswith('0000\n') and text.endswith('4999\n') and len(text) < 2100


# Python

async def test_cells(kernel):
    run = kernel.run
    assert await run('x = [1]\nx.append(2)\nx') == '[1, 2]'
    assert await run('x') == '[1, 2]' and await run('y = 3') == '[no output]'
    assert 'NameError' in await run('nothing') and '\x1b' not in await run('nothing')
    assert await run('!echo from the shell') == 'from the shell'
    assert await run('import os; os.getcwd()') == "'/home/user'"
    assert 'SyntaxError' in await run('1 +') and 'StdinNotImplementedError' in await run('input()')
    assert await run('print("grüße 🙂")') == 'grüße 🙂'
    assert '[image/png' in await run('import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()')
    flood = await run('for i in range(200_000): print(i)')
    assert len(flood) < 17_000 and flood.startswith('0\n')


async def test_endless_cells(kernel):
    assert await kernel.run('x = 1') == '[no output]'
    assert '[interrupted after 0.5 s]' in await kernel.run('while True: pass', .5)
    assert await kernel.run('x') == '1'
    stubborn = 'import time\nwhile True:\n  try: time.sleep(60)\n  except KeyboardInterrupt: pass'
    assert 'was ended; its variables are lost' in await kernel.run(stubborn, .5)
    assert 'NameError' in await kernel.run('x')


async def test_a_kernel_that_dies(kernel):
    assert 'ended with exit code -9' in await kernel.run('import os, signal; os.kill(os.getpid(), signal.SIGKILL)')
    assert await kernel.run('1 + 1') == '2'


async def test_a_kernel_that_cannot_be_reached_is_the_environments(kernel, monkeypatch):
    async def broken(*args): raise OSError('no descriptor left')
    with monkeypatch.context() as m:
        m.setattr('uitars_nb.sandbox.tools.kernel.bridge', broken)
        for attempt in range(2):
            with pytest.raises(EnvironmentFailure, match='no descriptor left') as e: await kernel.run('1 + 1')
            assert e.value.reason is StopReason.ENV_CRASH and kernel.process is None and not kernel.jail.processes
    assert await kernel.run('1 + 1') == '2'


async def test_a_long_name_for_the_temporary_folder_is_no_hindrance(kernel, monkeypatch, tmp_path):
    (folder := tmp_path/('d' * 100)).mkdir()
    monkeypatch.setattr('tempfile.tempdir', str(folder))
    assert await kernel.run('1 + 1') == '2'


# The editor

async def edit(editor, command, path='/home/user/a.txt', **args):
    return await editor.run(Action('str_replace_editor', dict(command=command, path=path, **args)))


@given(st.text(max_size=30), st.text(min_size=1, max_size=4), st.text(max_size=4))
def test_replaced_is_exact(text, old, new):
    if text.count(old) == 1 and old != new: assert replaced(text, old, new)[0] == text.replace(old, new)
    else:
        try: replaced(text, old, new)
        except ActionError: return
        assert text.count(old) == 1


@given(st.lists(st.text(st.characters(exclude_characters='\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029', exclude_categories=['Cs']), max_size=5), max_size=5), st.integers(0, 6), st.booleans())
def test_inserted_is_a_line(lines, after, end):
    text = '\n'.join(lines) + ('\n' if end and lines else '')
    there = text.splitlines()
    try: assert inserted(text, after, 'new')[0].splitlines() == [*there[:after], 'new', *there[after:]]
    except ActionError: assert after > len(there)


async def test_edits_can_be_taken_back():
    async with Jail(JailConfig(LIMITS)) as jail:
        editor = Editor(jail)
        await edit(editor, 'create', file_text='a\r\nb\n')
        for i in range(3): await edit(editor, 'str_replace', old_str='b', new_str=f'b{i}')
        for i in range(3): await edit(editor, 'undo_edit')
        assert await jail.read('a.txt') == b'a\r\nb\n'
        with pytest.raises(ActionError, match='no edit'): await edit(editor, 'undo_edit')
        await edit(editor, 'insert', insert_line=0, new_str='x')
        await jail.run(['sh', '-c', 'echo y >> a.txt'])
        with pytest.raises(ActionError, match='changed by something else'): await edit(editor, 'undo_edit')


BAD = {'is not absolute': dict(path='a.txt'), 'No such file': dict(path='/home/user/none'), 'is not text': dict(path='/home/user/binary'), 'more than 1048576 bytes': dict(path='/home/user/big'),
       'not in the file': dict(path='/home/user/a.txt', view_range=(5, 2)), 'two line numbers': dict(path='/home/user/a.txt', view_range=(1,)), 'not a regular file': dict(path='/home/user/pipe')}


@pytest.mark.parametrize('words', BAD)
async def test_what_the_editor_refuses(words):
    async with Jail(JailConfig(LIMITS)) as jail:
        await jail.run(['sh', '-c', 'echo a > a.txt; head -c 99 /usr/bin/env > binary; head -c 1500000 /dev/zero > big; mkfifo pipe'])
        with pytest.raises(ActionError, match=words): await asyncio.wait_for(edit(Editor(jail), 'view', **BAD[words]), 20)


async def test_a_file_that_is_refused_is_not_there():
    "So it can be created when what was wrong is mended."
    async with Jail(JailConfig(LIMITS)) as jail:
        for text, words in {'x' * 2_000_000: 'at most 1048576', '\ud800': 'is not text'}.items():
            with pytest.raises(ActionError, match=words): await edit(Editor(jail), 'create', file_text=text)
        await jail.run(['sh', '-c', 'head -c 100000000 /dev/zero > big; head -c 100000000 /dev/zero > big2'])
        with pytest.raises(ActionError, match='No space'): await edit(Editor(jail), 'create', file_text='x' * 900_000)
        await jail.run(['rm', 'big'])
        assert 'was created' in await edit(Editor(jail), 'create', file_text='x' * 900_000)


async def test_a_full_home_keeps_the_text():
    async with Jail(JailConfig(LIMITS)) as jail:
        await jail.write('a.txt', b'old ' * 1000)
        await jail.run(['sh', '-c', 'head -c 100000000 /dev/zero > big; head -c 100000000 /dev/zero > big2'])
        with pytest.raises(ActionError, match='No space'): await edit(Editor(jail), 'insert', insert_line=1, new_str='x' * 900_000)
        assert await jail.read('a.txt') == b'old ' * 1000

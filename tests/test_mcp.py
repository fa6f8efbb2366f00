"`uitars-nb mcp`: real clients of the official SDK over pipes and HTTP, and nothing left when they go."
import asyncio
import json
import shutil
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
from mcp import StdioServerParameters
from mcp.client import Client

from tests.waiting import lives

pytestmark = pytest.mark.timeout(120)
PROGRAM = 'from uitars_nb.cli.main import main; raise SystemExit(main())'
desktop = pytest.mark.skipif(bool([o for o in ('bwrap', 'Xvfb', 'openbox', 'tint2', 'mousepad') if not shutil.which(o)]), reason='no desktop')


def command(*words): return [sys.executable, '-c', PROGRAM, 'mcp', *words]
def client(*words): return Client(StdioServerParameters(command=sys.executable, args=command(*words)[1:]))
def children(): return {p.pid: p for p in psutil.Process().children(recursive=True)}


async def gone(before, seconds=20):
    "Wait until no child is left that was not there before."
    end = time.monotonic() + seconds
    while left := [p for pid, p in children().items() if pid not in before and lives(p)]:
        assert time.monotonic() < end, left
        await asyncio.sleep(.1)


def texts(result): return [o.text for o in result.content if o.type == 'text']
def images(result): return [o for o in result.content if o.type == 'image']


async def test_tools_over_pipes():
    before = children()
    async with client('--screen', 'none') as c:
        names = {o.name: o for o in (await c.list_tools()).tools}
        assert {'look', 'execute_bash', 'execute_python', 'str_replace_editor', 'Search', 'LinkReader'} <= set(names) and 'click' not in names
        assert names['execute_bash'].input_schema['required'] == ['command'] and names['execute_bash'].description
        assert texts(await c.call_tool('execute_bash', dict(command='cd /tmp; x=6; id -un'))) == ['user\n[exit code 0]']
        assert texts(await c.call_tool('execute_bash', dict(command='echo $((x * 7)) $PWD'))) == ['42 /tmp\n[exit code 0]']   # one shell
        wrong = await c.call_tool('execute_bash', {})
        assert wrong.is_error and 'command' in texts(wrong)[0]
        missing = await c.call_tool('fly', {})
        assert missing.is_error and 'there is no tool' in texts(missing)[0]
    await gone(before)


async def test_a_browser_over_pipes():
    before = children()
    async with client('--size', '320', '240') as c:
        page = 'data:text/html,<title>one</title><body onclick="document.title=`two`">'
        there = await c.call_tool('navigate', dict(content=page))
        assert 'one' in texts(there)[0] and len(images(there)) == 1
        assert 'two' in texts(await c.call_tool('click', dict(point='<point>500 500</point>')))[0]
        assert not images(await c.call_tool('execute_bash', dict(command='true')))
        from base64 import b64decode
        from uitars_nb.core.types import png_array
        assert png_array(b64decode(images(await c.call_tool('look', {}))[0].data)).shape == (240, 320, 3)
    await gone(before)


@desktop
async def test_a_desktop_and_a_shell_over_one_home():
    before = children()
    async with client('--screen', 'desktop', '--size', '640', '480') as c:
        await c.call_tool('execute_bash', dict(command='(DISPLAY=$(ls /tmp/.X11-unix | sed s/X/:/) XAUTHORITY=/tmp/.Xauthority mousepad note.txt &) 2>/dev/null; echo started'))
        for attempt in range(100):
            shown = (await c.call_tool('look', {}))
            windows = texts(await c.call_tool('execute_bash', dict(command='pgrep -c mousepad')))
            if windows[0].startswith('1'): break
            await asyncio.sleep(.1)
        await c.call_tool('wait', dict(time=2))
        await c.call_tool('type', dict(content='by a client'))
        await c.call_tool('hotkey', dict(key='ctrl s'))
        for attempt in range(50):
            said = texts(await c.call_tool('execute_bash', dict(command='cat note.txt')))[0]
            if 'by a client' in said: break
            await asyncio.sleep(.1)
        assert 'by a client' in said and len(images(shown)) == 1
    await gone(before)


async def test_over_http_and_ended_in_order():
    with socket.socket() as s: s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]
    before = children()
    process = subprocess.Popen(command('--screen', 'none', '--http', str(port)), stdin=subprocess.DEVNULL)
    try:
        for attempt in range(200):
            try: socket.create_connection(('127.0.0.1', port), .2).close(); break
            except OSError: await asyncio.sleep(.1)
        async with Client(f'http://127.0.0.1:{port}/mcp') as c:
            assert texts(await c.call_tool('execute_bash', dict(command='echo over http'))) == ['over http\n[exit code 0]']
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == 0
        await gone(before)
    finally: process.kill(); process.wait()


@desktop
async def test_killed_or_asked_to_go_it_leaves_nothing():
    for number, status in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
        process = subprocess.Popen(command('--screen', 'desktop'), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        hello = dict(jsonrpc='2.0', id=1, method='initialize', params=dict(protocolVersion='2025-06-18', capabilities={}, clientInfo=dict(name='t', version='1')))
        process.stdin.write(json.dumps(hello).encode() + b'\n')
        process.stdin.flush()
        answer = json.loads(await asyncio.to_thread(process.stdout.readline))
        assert answer['result']['serverInfo']['name'] == 'uitars-sandbox'
        family = psutil.Process(process.pid).children(recursive=True)
        assert {'Xvfb', 'bwrap'} <= {p.name() for p in family}
        process.send_signal(number)
        assert await asyncio.to_thread(process.wait, 20) == status
        _, left = await asyncio.to_thread(psutil.wait_procs, family, 20)
        assert [*filter(lives, left)] == []
        process.stdin.close(); process.stdout.close()


@pytest.mark.parametrize('words, says', [(['--screen', 'tv'], "invalid choice 'tv'"), (['--size', '10', '10'], 'size is 10 10'), (['--http', '0'], 'port is 0')])
def test_wrong_words_are_one_line(words, says):
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=60)
    assert done.returncode and not done.stdout and says in done.stderr and len(done.stderr.splitlines()) == 1

"Sessions with tools: one home, every failure where it belongs, tools of MCP servers, a session as an MCP server."
import asyncio, socket, sys, textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import uvicorn
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.server.mcpserver import MCPServer

from tests.escapes import LIMITS
from uitars_nb.agent.loop import OracleAgent, run_episode
from uitars_nb.agent.memory import Memory, MemoryConfig, estimate_tokens
from uitars_nb.agent.policy_agent import PolicyAgent
from uitars_nb.core.types import Action, EventKind, Observation, StopReason, TaskSpec
from uitars_nb.model.dialects import DIALECTS
from uitars_nb.sandbox.base import ActionError, EnvironmentFailure, Session
from uitars_nb.sandbox.browser.session import BrowserConfig, BrowserSession
from uitars_nb.sandbox.browser.chromium import launch
from uitars_nb.sandbox.browser.clock import ClockConfig
from uitars_nb.sandbox.jail.jail import Jail, JailConfig
from uitars_nb.sandbox.mcp_server import serve
from uitars_nb.sandbox.tools.mcp_tools import Toolbox, ToolServer
from uitars_nb.sandbox.tools.search import PageCorpus, WebPage
from uitars_nb.sandbox.tools.session import ToolConfig, ToolSession
from uitars_nb.tasks.base import Outcome

pytestmark = pytest.mark.timeout(180)
CONFIG = ToolConfig(JailConfig(LIMITS))

PYTHONS = ''.join(f'{o}\n' for o in sorted({Path(p).parts[2] for p in (sys.prefix, sys.base_prefix) if Path(p).is_relative_to('/tmp')}))  # where the jail shows them


def bash(command): return Action('execute_bash', dict(command=command))
def python(code, **args): return Action('execute_python', dict(code=code, **args))
def editor(**args): return Action('str_replace_editor', args)


async def do(session, *actions):
    "The text after actions."
    for action in actions: await session.act(action)
    return (await session.observe()).text


@pytest.fixture
async def session():
    session = ToolSession(CONFIG)
    await session.reset()
    yield session
    await session.close()


async def test_one_home_for_all_tools(session):
    assert isinstance(session, Session)
    await do(session, bash('seq 5 > numbers.txt'), python('total = sum(map(int, open("numbers.txt")))\nopen("total.txt", "w").write(str(total))'))
    assert '15' in await do(session, editor(command='view', path='/home/user/total.txt'))
    text = await do(session, bash('cat total.txt'), python('total'))
    assert text == 'execute_bash:\n15\n[exit code 0]\nexecute_python:\n15'


async def test_observations(session):
    await session.act(bash('echo hi'))
    obs = await session.observe()
    assert obs.text == 'hi\n[exit code 0]' and [e.kind for e in obs.events] == [EventKind.TOOL] and obs.screenshot.shape == (64, 64, 3)
    again = await session.observe()
    assert again.text == '' and again.events == () and again.clock_ms >= obs.clock_ms


async def test_a_reset_leaves_nothing(session):
    await do(session, bash('touch file; x=1; sleep 600 & cd /tmp; touch here'), python('y = 1'), editor(command='create', path='/home/user/a', file_text='a'))
    await session.reset()
    assert await do(session, bash('ls -A ~ /tmp /dev/shm; pgrep sleep; echo "[$x]"; pwd')) == f'/dev/shm:\n\n/home/user:\n\n/tmp:\n{PYTHONS}[]\n/home/user\n[exit code 0]'
    assert 'NameError' in await do(session, python('y'))
    with pytest.raises(ActionError, match='no edit'): await session.act(editor(command='undo_edit', path='/home/user/a'))


async def test_files_at_the_beginning():
    session = ToolSession(replace(CONFIG, files={'data/a.txt': b'7'}))
    await session.reset()
    assert '7' in await do(session, bash('cat data/a.txt'))
    await session.reset()
    assert '7' in await do(session, bash('cat data/a.txt'))
    await session.close()


BAD = {'no function': Action('click', dict(point=(1, 1))), 'there is no parameter': Action('execute_bash', dict(order='x')), 'required but missing': Action('execute_bash'),
       'no command is running': bash(''), 'is one of': editor(command='delete', path='/x'), 'needs file_text': editor(command='create', path='/home/user/x'),
       'cannot be reached': Action('LinkReader', dict(url='http://127.0.0.1:22/')), 'time is at least': Action('wait', dict(time=-1))}


@pytest.mark.parametrize('words', BAD)
async def test_what_is_refused_says_why(session, words):
    with pytest.raises(ActionError, match=words): await session.act(BAD[words])


async def test_half_a_character_is_refused_and_ends_nothing(session):
    "No file, pipe or connection could carry it."
    for action in (bash("echo '\ud800'"), python("'\ud800'"), editor(command='view', path='/home/user/\ud800'), editor(command='create', path='/home/user/a', file_text='\udfff')):
        with pytest.raises(ActionError, match='surrogate'): await session.act(action)
    assert 'still here' in await do(session, bash('echo still here'))


async def test_endless_work_is_the_policys_own(session):
    session.config = replace(CONFIG, bash_seconds=.5, seconds=1.)
    await session.observe()
    assert 'still running after 0.5 s' in await do(session, bash('sleep 600'))
    assert '[exit code 130]' in await do(session, bash('C-c'))
    for action in (python('while True: pass'), bash('sleep 600')):
        try: await session.act(action)
        except ActionError as e: assert 'go on in the next turn' in str(e); break
    else: pytest.fail('a turn takes for ever')
    assert 'interrupted' in (await session.observe()).text


async def test_the_death_of_the_jail_is_the_environments(session):
    session.jail.process.kill()
    await asyncio.sleep(.2)
    for action in (bash('echo'), python('1'), editor(command='view', path='/home/user')):
        with pytest.raises(EnvironmentFailure) as e: await session.act(action)
        assert e.value.reason is StopReason.ENV_CRASH
    await session.reset()
    assert 'back' in await do(session, bash('echo back'))


async def test_before_and_after(session):
    fresh = ToolSession(CONFIG)
    with pytest.raises(EnvironmentFailure): await fresh.act(bash('echo'))
    await fresh.close()


async def test_what_kills_everything_kills_only_itself(session):
    await do(session, python('x = 1'))
    assert 'ended' in await do(session, bash('kill -9 -1; kill -9 $$'))
    assert 'alive' in await do(session, bash('echo alive'))
    assert 'NameError' in await do(session, python('x'))


class Own:
    "A provider with one page."
    async def search(self, query, n): return [WebPage('https://a.example', 'A', f'about {query}')]
    async def read(self, url): return WebPage(url, 'A', 'all')


async def test_providers(session):
    assert 'Olympus Mons' in (await do(session, Action('Search', dict(query='highest mountain')))).splitlines()[0]
    assert '1564' in await do(session, Action('LinkReader', dict(url='https://corpus.example/galileo-galilei', description='birth')))
    assert 'Nothing was found' in await do(session, Action('Search', dict(query='xyzzy')))
    session.provider = Own()
    assert 'https://a.example' in await do(session, Action('Search', dict(query='x')))
    with pytest.raises(FileNotFoundError, match='come with the repository'): PageCorpus('/nowhere/pages.jsonl')


# Episodes

class Sums:
    "Add numbers in a file; the answer is in another."
    name = 'sums'
    async def setup(self, session, spec):
        await session.reset()
        await session.jail.write('numbers.txt', b'1\n2\n3\n')
        return replace(spec, instruction='Write the sum of the numbers in numbers.txt to sum.txt.')

    async def verify(self, session, spec):
        try: right = (await session.jail.read('sum.txt')).strip() == b'6'
        except FileNotFoundError: right = False
        return Outcome(float(right), right, right)

    async def oracle(self, session, spec):
        yield bash('cat numbers.txt')
        yield bash('sleep 1; echo later')
        yield python('open("sum.txt", "w").write(str(sum(map(int, open("numbers.txt")))))')


async def test_an_episode(session):
    traj = await run_episode(session, Sums(), TaskSpec('test/sums'), OracleAgent)
    assert traj.success and traj.stop is StopReason.TERMINATED and len(traj.steps) == 3
    assert traj.steps[1].observation.text == '1\n2\n3\n[exit code 0]'


async def test_looking_at_a_running_command_is_no_loop(session):
    class Patient:
        def __init__(self, *o): self.n = 0
        async def act(self, steps, obs):
            from uitars_nb.agent.loop import Reply
            self.n += 1
            return Reply(actions=(bash('for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep .3; done') if self.n == 1 else bash(''),))
    session.config = replace(CONFIG, bash_seconds=.3)
    traj = await run_episode(session, Sums(), TaskSpec('test/sums', max_steps=7), Patient)
    assert traj.stop is StopReason.STEP_LIMIT


# MCP

def account():
    server = MCPServer('bank')
    @server.tool()
    def double(amount: int, note: str | None = None) -> str:
        "Twice an amount."
        if amount < 0: raise ValueError('no debts')
        return f'{2 * amount}'
    @server.tool()
    async def slow(seconds: float) -> str:
        "Wait."
        await asyncio.sleep(seconds)
        return 'done'
    return server


@pytest.fixture
async def http():
    with socket.create_server(('127.0.0.1', 0)) as s: port = s.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(account().streamable_http_app(), '127.0.0.1', port, log_level='error'))
    task = asyncio.create_task(server.serve())
    while not server.started: await asyncio.sleep(.02)
    yield f'http://127.0.0.1:{port}/mcp', server
    server.should_exit = True
    await task


TIME = ToolServer('time', (sys.executable, '-m', 'mcp_server_time', '--local-timezone', 'UTC'))


async def test_a_reference_server_in_the_jail():
    session = ToolSession(replace(CONFIG, jail=JailConfig(), servers=(TIME,)))
    await session.reset()
    assert {o.name for o in session.functions} == {'time__get_current_time', 'time__convert_time'}
    text = await do(session, Action('time__convert_time', dict(source_timezone='Europe/Vienna', time='12:00', target_timezone='Asia/Tokyo')))
    assert '"day_of_week"' in text and 'Asia/Tokyo' in text
    assert '[the tool failed]' in await do(session, Action('time__get_current_time', dict(timezone='Middle/Earth')))
    with pytest.raises(ActionError, match='required but missing'): await session.act(Action('time__get_current_time'))
    assert 'mcp_server_time' in await do(session, bash('ps -ef 2>/dev/null || cat /proc/*/cmdline'))
    await do(session, bash('kill -9 -1'))
    assert 'has ended; the next call starts it again' in await do(session, Action('time__get_current_time', dict(timezone='UTC')))
    assert '"timezone": "UTC"' in await do(session, Action('time__get_current_time', dict(timezone='UTC')))
    await session.reset()
    assert '"timezone": "UTC"' in await do(session, Action('time__get_current_time', dict(timezone='UTC')))
    await session.close()


async def test_a_server_out_here():
    box = Toolbox(replace(TIME, jailed=False))
    await box.start()
    assert '"timezone": "UTC"' in await box.call('get_current_time', dict(timezone='UTC'))
    await box.close()


async def test_a_server_over_http(http):
    url, server = http
    session = ToolSession(replace(CONFIG, bash_seconds=1., servers=(ToolServer('bank', url=url),)))
    await session.reset()
    assert await do(session, Action('bank__double', dict(amount=21))) == '42'
    assert '[the tool failed]' in await do(session, Action('bank__double', dict(amount=-1)))
    assert 'no answer within 1 s' in await do(session, Action('bank__slow', dict(seconds=60)))
    assert await do(session, Action('bank__double', dict(amount=2))) == '4'
    server.should_exit = True
    await asyncio.sleep(.5)
    with pytest.raises(EnvironmentFailure): await session.act(Action('bank__double', dict(amount=21)))
    await session.close()


@pytest.mark.parametrize('server, words', [(ToolServer('x', url='http://127.0.0.1:9/mcp'), 'tool server x'), (ToolServer('x', ('no-such-program',)), 'no-such-program'),
                                           (replace(TIME, tools=('get_time',)), 'it has no tool get_time; it has convert_time'), (ToolServer('x', ('sleep', '60'), start_timeout=.5), 'no answer in 0.5 s')])
async def test_servers_that_do_not_work(server, words):
    session = ToolSession(ToolConfig(servers=(server,)))
    with pytest.raises(EnvironmentFailure, match=words) as e: await session.reset()
    assert e.value.reason is StopReason.ENV_RESET
    await session.close()


async def test_the_prompt_shows_the_tools(http):
    session = ToolSession(replace(CONFIG, servers=(ToolServer('bank', url=http[0]),)))
    await session.reset()
    dialect = DIALECTS['ui-tars-2']
    policy = PolicyAgent(None, dialect, None)
    agent = policy(session, None, TaskSpec('x', instruction='x'))
    obs = await session.observe()
    prompt = str(agent.policy.memory.recall('x', (), obs, 100).messages[0])
    assert 'bank__double' in prompt and 'Twice an amount.' in prompt and 'bank__double' not in policy.space
    parsed = dialect.parse('<seed:tool_call><function=bank__double><parameter=amount>4</parameter></function></seed:tool_call>', (64, 64), agent.policy.space)
    assert await do(session, *parsed.actions) == '8'
    await session.close()


async def test_a_session_as_a_server_over_pipes():
    program = 'from uitars_nb.cli.main import main; raise SystemExit(main(["mcp", "--screen", "none"]))'
    async with Client(StdioServerParameters(command=sys.executable, args=['-c', program])) as client:
        assert [o.name for o in (await client.list_tools()).tools][:2] == ['look', 'execute_bash']
        assert (await client.call_tool('execute_bash', dict(command='echo $((6 * 7))'))).content[0].text == '42\n[exit code 0]'
        assert (await client.call_tool('execute_bash', {})).is_error


# With a browser

@pytest.fixture
async def chromium():
    browser = await launch()
    yield browser
    await browser.close()


@pytest.fixture(params=['paused', 'real'])
async def both(chromium, request):
    session = ToolSession(CONFIG, BrowserSession(chromium, BrowserConfig((320, 240), clock=ClockConfig(request.param))))
    await session.reset()
    yield session
    await session.close()


PAGE = '''<body style="margin:0"><a download="table.csv" href="data:text/csv,name%2Cage%0Aada%2C36%0Aben%2C41%0A" style="display:block;height:100px;background:#ccc">Download</a>
<input type=file onchange="this.files[0].text().then(t => document.title = t)" style="display:block;height:100px;width:320px"></body>'''


async def until(session, check):
    for attempt in range(40):
        await session.act(Action('wait', dict(time=.2)))
        if check(obs := await session.observe()): return obs
        await asyncio.sleep(.05)
    pytest.fail('it never happened')


async def test_one_home_for_browser_and_tools(both, tmp_path):
    (tmp_path/'page.html').write_text(PAGE)
    await both.screen.goto((tmp_path/'page.html').as_uri())
    await both.act(Action('click', dict(point=(500, 200))))
    await until(both, lambda obs: any(e.kind is EventKind.DOWNLOAD for e in obs.events))
    assert 'ben,41' in await do(both, bash('tail -n +2 ~/Downloads/table.csv | sort -r > oldest.txt; cat oldest.txt'))
    assert '     1\tben,41' in await do(both, editor(command='view', path='/home/user/oldest.txt'))
    await both.act(Action('click', dict(point=(150, 600))))
    obs = await until(both, lambda obs: both.screen.page.dialog)
    assert {'oldest.txt', 'table.csv'} <= set(both.screen.page.dialog.files)
    await both.act(Action('type', dict(content='oldest.txt\n')))
    await until(both, lambda obs: 'ben,41' in obs.title)


async def test_services_are_seen_in_the_browser(both):
    host = await asyncio.start_server(lambda r, w: (w.write(b'HTTP/1.0 200 OK\r\n\r\nthe host'), w.close()), '127.0.0.1', 0)
    port = host.sockets[0].getsockname()[1]
    await do(both, bash('mkdir site; echo "<title>from the jail</title><script src=late.js></script>" > site/index.html; echo "document.title += \' with a script\'" > site/late.js'))
    await do(both, bash(f'cd site; python -m http.server 8000 > /dev/null 2>&1 & (cd ~/site; python -m http.server {port} > /dev/null 2>&1) & sleep 1.5'))
    for url in ('http://localhost:8000/', f'http://127.0.0.1:{port}/', 'http://sandbox:8000/index.html'):
        await both.act(Action('navigate', dict(content=url)))
        await until(both, lambda obs: obs.title == 'from the jail with a script' and obs.url == url)
    await both.act(Action('navigate', dict(content='http://localhost:8999/')))
    obs = await until(both, lambda obs: obs.url.startswith('http://localhost:8999'))
    assert 'nothing answers on port 8999' in await both.screen.evaluate('document.body.innerText')
    with pytest.raises(ActionError): await both.act(Action('navigate', dict(content='http://example.org/')))
    host.close()


async def test_a_browser_session_as_a_server(chromium):
    session = ToolSession(CONFIG, BrowserSession(chromium, BrowserConfig((320, 240), allow=('data:',))))
    await session.reset()
    async with Client(serve(session)) as client:
        result = await client.call_tool('navigate', dict(content='data:text/html,<title>here</title>'))
        assert 'here' in result.content[0].text and result.content[1].mime_type == 'image/png'
        assert (await client.call_tool('click', dict(point='<point>2000 1</point>'))).is_error
        assert not (await client.call_tool('click', dict(point=[500, 500]))).is_error
        assert len((await client.call_tool('look', {})).content) == 2
    await session.close()


async def test_what_a_task_does_counts(session):
    jail = session.jail
    await session.reset()
    assert session.jail is jail, 'a fresh session is not reset again'
    await session.jail.write('left.txt', b'x')
    await session.reset()
    assert session.jail is not jail and 'left.txt' not in await session.jail.listing()


# With a desktop

async def test_one_home_for_desktop_and_tools():
    import uitars_nb.sandbox.desktop.hosts as hosts
    import uitars_nb.sandbox.desktop.session as desktop
    config = hosts.jail_for_desktop(JailConfig())
    async with Jail(config) as jail:
        screen = await desktop.DesktopSession(desktop.DesktopConfig(size=(640, 480)), jail).start()
        session = ToolSession(ToolConfig(), screen, jail=jail)
        await session.reset()
        before = (await session.observe()).screenshot
        await session.act(bash('sleep 600 & echo "made in the shell" > note.txt; cat note.txt'))
        await session.act(Action('click', dict(point=(500, 500))))
        obs = await session.observe()
        assert obs.screenshot.shape == (480, 640, 3) and obs.text.startswith('[1]') and 'made in the shell' in obs.text
        await screen.place.begin(['xterm', '-e', 'sh', '-c', 'cat ~/note.txt | tee ~/seen.txt; sleep 600'])
        for attempt in range(100):
            await asyncio.sleep(.1)
            if 'seen.txt' in await jail.listing() and (await session.observe()).screenshot.tobytes() != before.tobytes(): break
        assert await do(session, bash('cat seen.txt')) == 'made in the shell\n[exit code 0]'
        await session.reset()
        assert await do(session, bash('ls *.txt; pgrep sleep; pgrep xterm; echo none')) == "ls: cannot access '*.txt': No such file or directory\nnone\n[exit code 0]"
        await session.close()
    hosts.drop_sockets(config)


@pytest.mark.parametrize('make, words', [
    (lambda: ToolServer('a__b', ('true',)), 'single _'), (lambda: ToolServer('a_', ('true',)), 'single _'),
    (lambda: ToolConfig(servers=(ToolServer('a', ('true',)), ToolServer('a', ('true',)))), "called 'a'")])
def test_names_of_tool_servers_are_told_apart(make, words):
    with pytest.raises(ValueError, match=words): make()


async def test_long_output_says_how_much_is_missing(session):
    text = await do(session, python('print("x" * 1_000_000)'))
    left = int(text.partition('[... ')[2].partition(' ')[0])
    assert left + text.count('x') == 1_000_000


async def test_an_edit_does_not_guess_between_overlapping_places(session):
    await do(session, python("open('/home/user/a.js', 'w').write('}\\n}\\n}\\n')"))
    with pytest.raises(ActionError, match='occurs twice'): await session.act(editor(command='str_replace', path='/home/user/a.js', old_str='}\n}\n', new_str='X'))


def test_an_ending_is_no_tool(both):
    from uitars_nb.sandbox.mcp_server import offered_functions
    assert 'click' in (space := offered_functions(both)) and not {'finished', 'call_user', 'infeasible'} & {o.name for o in space}

"Answers of MCP servers that are longer than anybody reads: the server and its state live on."
import json
import shutil

import pytest

from uitars_nb.sandbox.tools import mcp_tools
from uitars_nb.sandbox.jail.jail import Jail
from uitars_nb.sandbox.tools.mcp_tools import Toolbox, ToolServer

pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(not shutil.which('bwrap'), reason='no bubblewrap')]

BANK = '''
import base64
from mcp.server.mcpserver import MCPServer
from mcp_types import ImageContent
server, asked = MCPServer("bank"), 0

@server.tool()
def count() -> str:
    "How often anything was asked."
    global asked
    asked += 1
    return f"{asked} times"

@server.tool()
def say(n: int) -> str:
    "A long text."
    count()
    return "\\u00fc" + "x" * n

@server.tool()
def draw(n: int) -> list[ImageContent]:
    "A large picture."
    count()
    return [ImageContent(type="image", data=base64.b64encode(bytes(n)).decode(), mime_type="image/png")]

server.run()
'''

# A server by hand: `way` says what it writes before or in place of the answer to a call
ODD = '''
import json, sys
LONG = "x" * 2_000_000
say = lambda o: print(o if isinstance(o, str) else json.dumps(o), flush=True)
for line in sys.stdin:
    o = json.loads(line)
    id, method = o.get("id"), o.get("method")
    if method == "initialize":
        say(dict(jsonrpc="2.0", id=id, result=dict(protocolVersion=o["params"]["protocolVersion"], capabilities=dict(tools={}), serverInfo=dict(name="odd", version="1"))))
    elif method == "tools/list":
        say(dict(jsonrpc="2.0", id=id, result=dict(tools=[dict(name="odd", inputSchema=dict(type="object"))])))
    elif method == "tools/call":
        way, ok = o["params"]["arguments"]["way"], dict(content=[dict(type="text", text="fine")])
        long = dict(content=[dict(type="text", text=LONG)])
        if way == "id first": say(dict(jsonrpc="2.0", id=id, result=long))
        elif way == "id last": say(dict(result=long, jsonrpc="2.0", id=id))
        elif way == "id in between": say(dict(jsonrpc="2.0", result=long, id=id))
        elif way == "error": say(dict(jsonrpc="2.0", id=id, error=dict(code=-1, message=LONG)))
        elif way == "forged":   # the text of the answer looks like the end of another one
            say(dict(jsonrpc="2.0", id=id, result=dict(content=[dict(type="text", text=LONG + ', "id": 999}')])))
        else:
            if way == "notification": say(dict(jsonrpc="2.0", method="notifications/message", params=dict(level="info", data=LONG)))
            elif way == "request": say(dict(jsonrpc="2.0", id=id, method="sampling/createMessage", params=dict(a=LONG)))
            elif way == "request, id last": say(dict(method="sampling/createMessage", params=dict(a=LONG, result=1), jsonrpc="2.0", id=id))
            elif way == "no JSON": say(LONG)
            elif way == "lines": say((LONG[:1000] + chr(10)) * 50)
            say(dict(jsonrpc="2.0", id=id, result=ok))
    elif id is not None: say(dict(jsonrpc="2.0", id=id, error=dict(code=-32601, message="no such method")))
'''


@pytest.fixture
async def boxes():
    async with Jail() as jail:
        made = []
        async def make(name, source):
            await jail.write(f'{name}.py', source.encode())
            made.append(box := Toolbox(ToolServer(name, ('python', f'{name}.py')), jail))
            await box.start()
            return box
        yield make
        for box in made: await box.close()


async def test_long_texts_and_pictures_are_cut_or_left_out(boxes, monkeypatch):
    bank = await boxes('bank', BANK)
    assert await bank.call('count', {}) == '1 times'
    for n in (2_200_000, 6_000_000):
        said = await bank.call('say', dict(n=n))
        assert said.startswith('\u00fcxxx') and len(said) < 20_000
    assert await bank.call('draw', dict(n=3_200_000)) == '[image/png, not shown]'
    monkeypatch.setattr(mcp_tools, 'MOST', 8 << 20)   # read at every start
    await bank.close()
    await bank.start()
    assert await bank.call('count', {}) == '1 times'
    said = await bank.call('say', dict(n=9_000_000))
    assert said.startswith('[the tool failed]') and 'left out' in said and str(mcp_tools.MOST) in said
    assert await bank.call('count', {}) == '3 times', 'nothing of its state was lost'


@pytest.mark.parametrize('way, left', [('id first', True), ('id last', True), ('id in between', True), ('error', True), ('forged', True), ('notification', False), ('request', False),
                                       ('request, id last', False), ('no JSON', False), ('lines', False)])
async def test_any_line_may_be_long(boxes, monkeypatch, way, left):
    monkeypatch.setattr(mcp_tools, 'MOST', 1 << 20)
    odd = await boxes('odd', ODD)
    pid = odd.process.pid
    said = await odd.call('odd', dict(way=way), timeout=10)
    assert ('left out' in said) == left and (left or said == 'fine'), said[:200]
    assert await odd.call('odd', dict(way='fine'), timeout=10) == 'fine' and odd.process.pid == pid


async def test_a_line_without_an_end(boxes, monkeypatch):
    monkeypatch.setattr(mcp_tools, 'MOST', 1 << 20)
    odd = await boxes('endless', ODD.replace('elif way == "error"', 'elif way == "endless": [sys.stdout.write(LONG) for _ in range(20)]\n        elif way == "error"'))
    assert await odd.call('odd', dict(way='endless'), timeout=2) == '[no answer within 2 s]'
    assert 'ended' not in await odd.call('odd', dict(way='lines'), timeout=10)


async def test_lines_are_read_as_they_are_cut():
    import asyncio
    stream, text = asyncio.StreamReader(), b''.join(bytes([97 + i % 26]) * n + b'\n' for i, n in enumerate((0, 1, 9999, 70_000, 200_000, 3))) + b'no end'
    for i in range(0, len(text), 777): stream.feed_data(text[i:i + 777])
    stream.feed_eof()
    seen = [o async for o in mcp_tools.lines(stream, most=100_000)]
    assert [(len(line) + left, left > 0) for line, left in seen] == [(0, False), (1, False), (9999, False), (70_000, False), (200_000, True), (3, False), (6, False)]
    assert seen[3][0] == b'd' * 70_000 and seen[-1] == (b'no end', 0) and json.dumps(seen[4][0][:3].decode()) == '"eee"'

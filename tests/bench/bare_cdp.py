"""The least that a click and a look can cost: DevTools commands over a websocket, no session, no clock, no events, nothing awaited that need not be."""
import base64, contextlib, io, itertools, json, shutil, subprocess, tempfile, time, urllib.request

import numpy as np
import websocket
from PIL import Image

from uitars_nb.sandbox.chromium import find_chromium, flags


@contextlib.contextmanager
def chromium(size):
    "A Chromium with the project's flags and a debugging port; gives the address of a blank page's websocket."
    folder = tempfile.mkdtemp()
    ours = [f for f in flags() if f != '--remote-debugging-pipe']
    process = subprocess.Popen([find_chromium(), *ours, f'--user-data-dir={folder}', '--remote-debugging-port=0', '--window-size=%d,%d' % size, 'about:blank'],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        port = next(line for line in process.stderr if 'DevTools listening' in line).split('/')[2]
        pages = json.load(urllib.request.urlopen(f'http://{port}/json'))
        yield next(p for p in pages if p['type'] == 'page')['webSocketDebuggerUrl']
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


class Bare:
    "A blocking client: `call` waits for its answer, `send` does not."
    def __init__(self, address, size):
        self.ws, self.ids = websocket.create_connection(address, suppress_origin=True, skip_utf8_validation=True), itertools.count(1)
        self.call('Page.enable')
        self.call('Emulation.setDeviceMetricsOverride', width=size[0], height=size[1], deviceScaleFactor=1, mobile=False)

    def send(self, method, **params):
        id = next(self.ids)
        self.ws.send(json.dumps(dict(id=id, method=method, params=params)))
        return id

    def wait(self, id):
        while (message := json.loads(self.ws.recv())).get('id') != id: pass
        return message['result']

    def call(self, method, **params): return self.wait(self.send(method, **params))

    def evaluate(self, js): return self.call('Runtime.evaluate', expression=js, returnByValue=True, awaitPromise=True)['result'].get('value')

    def goto(self, url):
        self.call('Page.navigate', url=url)
        while json.loads(self.ws.recv()).get('method') != 'Page.loadEventFired': pass

    def step(self, x, y, do):
        "Click and look: `do` is `call` (each command waits for its answer) or `send` (all leave at once)."
        for type, count in ('mouseMoved', 0), ('mousePressed', 1), ('mouseReleased', 1):
            do('Input.dispatchMouseEvent', type=type, x=x, y=y, button='left' if count else 'none', buttons=int(type == 'mousePressed'), clickCount=count)
        shot = self.call('Page.captureScreenshot', format='png', optimizeForSpeed=True)
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(shot['data']))).convert('RGB'))

    def steps(self, n, x, y, pipelined):
        "Milliseconds of `n` steps."
        do, times = self.send if pipelined else self.call, []
        for _ in range(n):
            t = time.perf_counter()
            image = self.step(x, y, do)
            times.append(1000 * (time.perf_counter() - t))
        assert image.ndim == 3
        return times

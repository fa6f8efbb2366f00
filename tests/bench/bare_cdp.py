"""The least that a click and a look can cost: DevTools commands over a websocket, no session, no clock, no events, nothing awaited that need not be."""
import base64, contextlib, io, itertools, json, shutil, subprocess, tempfile, time, urllib.request

import numpy as np
import websocket
from PIL import Image

from uitars_nb.sandbox.browser.chromium import find_chromium, flags


def ask(port, what): return json.load(urllib.request.urlopen(f'http://127.0.0.1:{port}/json/{what}'))


def new_page(port, **how):
    "The address of a new blank page's websocket."
    browser = websocket.create_connection(ask(port, 'version')['webSocketDebuggerUrl'], suppress_origin=True)
    browser.send(json.dumps(dict(id=1, method='Target.createTarget', params=dict(url='about:blank', **how))))
    while (made := json.loads(browser.recv())).get('id') != 1: pass
    browser.close()
    return f'ws://127.0.0.1:{port}/devtools/page/{made["result"]["targetId"]}'


@contextlib.contextmanager
def chromium(size, on_demand=False):
    "A Chromium with the project's flags and a debugging port; gives the address of a blank page's websocket."
    folder = tempfile.mkdtemp()
    ours = [f for f in flags(on_demand=on_demand) if f != '--remote-debugging-pipe']
    process = subprocess.Popen([find_chromium(), *ours, f'--user-data-dir={folder}', '--remote-debugging-port=0', '--window-size=%d,%d' % size, 'about:blank'],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        port = next(line for line in process.stderr if 'DevTools listening' in line).split('/')[2].split(':')[1]
        yield new_page(port, enableBeginFrameControl=on_demand)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


class Bare:
    "A blocking client: `call` waits for its answer, `send` does not."
    def __init__(self, address, size):
        self.ws, self.ids, self.answers = websocket.create_connection(address, suppress_origin=True, skip_utf8_validation=True), itertools.count(1), {}
        self.call('Page.enable')
        for domain in ('DOM', 'Overlay'): self.call(f'{domain}.enable')  # mouse moves do not wait for frames
        self.call('Emulation.setDeviceMetricsOverride', width=size[0], height=size[1], deviceScaleFactor=1, mobile=False)

    def send(self, method, **params):
        id = next(self.ids)
        self.ws.send(json.dumps(dict(id=id, method=method, params=params)))
        return id

    def wait(self, id):
        while id not in self.answers:
            message = json.loads(self.ws.recv())
            if 'id' in message: self.answers[message['id']] = message['result']
        return self.answers.pop(id)

    def call(self, method, **params): return self.wait(self.send(method, **params))

    def evaluate(self, js): return self.call('Runtime.evaluate', expression=js, returnByValue=True, awaitPromise=True)['result'].get('value')

    def goto(self, url):
        self.call('Page.navigate', url=url)
        while json.loads(self.ws.recv()).get('method') != 'Page.loadEventFired': pass

    def click(self, x, y, do):
        "What `do` gives for each command of a click."
        return [do('Input.dispatchMouseEvent', type=type, x=x, y=y, button='left' if count else 'none', buttons=int(type == 'mousePressed'), clickCount=count)
            for type, count in (('mouseMoved', 0), ('mousePressed', 1), ('mouseReleased', 1))]

    def shoot(self):
        "Base64 of a screenshot, as Chromium takes it by itself."
        return self.call('Page.captureScreenshot', format='png', optimizeForSpeed=True)['data']

    def step(self, x, y, how):
        "Click and look. `sequential`: each command waits for its answer. `pipelined`: all leave at once. `frames`: at once, then a frame on demand when they are answered."
        sent = self.click(x, y, self.call if how == 'sequential' else self.send)
        if how == 'frames':
            for id in sent: self.wait(id)
        data = self.call('HeadlessExperimental.beginFrame', screenshot=dict(format='png', optimizeForSpeed=True))['screenshotData'] if how == 'frames' else self.shoot()
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert('RGB'))

    def steps(self, n, x, y, how):
        "Milliseconds of `n` steps."
        times = []
        for _ in range(n):
            t = time.perf_counter()
            image = self.step(x, y, how)
            times.append(1000 * (time.perf_counter() - t))
        assert image.ndim == 3
        return times

"""Our end of the line: the peers' virtual environment, and a peer running in it."""
import asyncio, json, os, shutil, subprocess, sys
from pathlib import Path

from uitars_nb.sandbox.browser.chromium import find_chromium

HERE = Path(__file__).parent
HOME = Path(os.environ.get('UITARS_PEERS', 'runs/peers')).absolute()  # the peers' virtual environment
NO_DRIVER = 'chromedriver is missing, so nothing can be compared with Selenium: `apt-get install chromium-driver` (Ubuntu: chromium-chromedriver), ' \
    'of the same version as the browser, or set MINIWOB_CHROMEDRIVER'


class MissingPeer(Exception):
    "A peer cannot run here; the message says what to install."


def ensure_peers():
    "Build the peers' environment where it is missing or its requirements have changed; the path of its Python."
    wanted, stamp = (HERE/'requirements.txt').read_text(), HOME/'requirements.txt'
    if stamp.exists() and stamp.read_text() == wanted: return HOME/'bin/python'
    print(f'building the peers\' environment in {HOME} (once, about a minute)', flush=True)
    try:
        subprocess.run([sys.executable, '-m', 'venv', '--clear', HOME], check=True)
        subprocess.run([HOME/'bin/pip', 'install', '-q', '--disable-pip-version-check', '-r', HERE/'requirements.txt'], check=True)
    except (subprocess.CalledProcessError, OSError) as e: raise MissingPeer(f"the peers' environment could not be built ({e}); it needs pip and a package index") from e
    stamp.write_text(wanted)
    return HOME/'bin/python'


def chromedriver():
    "Path of chromedriver."
    found = os.environ.get('MINIWOB_CHROMEDRIVER') or shutil.which('chromedriver') or shutil.which('chromedriver', path='/usr/lib/chromium:/usr/lib/chromium-browser')
    if not found: raise MissingPeer(NO_DRIVER)
    return found


def playwright_browsers():
    "A folder in which BrowserGym's old Playwright finds our Chromium under the name it looks for; its chat window cannot be told another path."
    name = 'import json, pathlib, playwright as p; d = json.loads((pathlib.Path(p.__file__).parent/"driver/package/browsers.json").read_text())["browsers"]; ' \
        'print(next(b["revision"] for b in d if b["name"] == "chromium"))'
    revision = subprocess.run([HOME/'bin/python', '-c', name], check=True, capture_output=True, text=True).stdout.strip()
    chrome = HOME/'browsers'/f'chromium-{revision}'/'chrome-linux'/'chrome'
    chrome.parent.mkdir(parents=True, exist_ok=True)
    chrome.unlink(missing_ok=True)
    chrome.symlink_to(find_chromium(shell=False))
    return HOME/'browsers'


def surroundings(name):
    "Environment variables of a peer: the full browser beside our headless shell."
    common = dict(UITARS_CHROMIUM=find_chromium(shell=False), PYTHONWARNINGS='ignore')
    if name == 'selenium_env': return common | dict(MINIWOB_CHROME_BINARY=find_chromium(shell=False), MINIWOB_CHROMEDRIVER=chromedriver())
    return common | dict(PLAYWRIGHT_BROWSERS_PATH=str(playwright_browsers()))


class Peer:
    "A peer's script in its own process; `await peer('step', n=3)` runs its method of that name."
    def __init__(self, name): self.name = name

    async def __aenter__(self):
        python, more = ensure_peers(), surroundings(self.name)
        self.process = await asyncio.create_subprocess_exec(python, HERE/f'{self.name}.py', stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=os.environ | more, limit=2**24)
        try: await self.answer(60)
        except BaseException: await self.__aexit__(); raise
        return self

    async def __call__(self, method, timeout=300, **args):
        self.process.stdin.write(json.dumps(dict(do=method, **args)).encode() + b'\n')
        return await self.answer(timeout)

    async def answer(self, timeout):
        line = await asyncio.wait_for(self.process.stdout.readline(), timeout)
        answer = json.loads(line) if line else dict(error='it ended', trace='')
        if 'error' in answer: raise RuntimeError(f'{self.name}: {answer["error"]}\n{answer["trace"]}')
        return answer['result']

    async def __aexit__(self, *exc):
        self.process.stdin.close()
        try: await asyncio.wait_for(self.process.wait(), 20)
        except TimeoutError: self.process.kill()

"The site builds without a warning and holds in a real browser: no console error, no dead link, a search that finds."
import functools
import http.server
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urldefrag, urljoin, urlparse

import pytest
from playwright.async_api import async_playwright

from uitars_nb.sandbox.browser.chromium import find_chromium

root = Path(__file__).resolve().parents[1]
site = root/'_docs'


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args): pass


pytestmark = pytest.mark.timeout(700)


@pytest.fixture(scope='module')
def built():
    done = subprocess.run([sys.executable, '.ci/site/build.py'], cwd=root, capture_output=True, text=True, timeout=600)   # a build takes two minutes, and five beside other tests
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return site


@pytest.fixture(scope='module')
def address(built):
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(Quiet, directory=str(built)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}/'
    server.shutdown()


@pytest.fixture
async def page():
    "A page of a browser that may reach this machine only, with what it complained of in `page.complaints`."
    async with async_playwright() as p:
        browser = await p.chromium.launch(executable_path=find_chromium(), args=['--no-sandbox', '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1'])
        page = await browser.new_page()
        page.complaints = []
        page.on('console', lambda m: page.complaints.append(f'{page.url}: {m.text}') if m.type in ('error', 'warning') else None)
        page.on('pageerror', lambda e: page.complaints.append(f'{page.url}: {e}'))
        page.on('requestfailed', lambda r: page.complaints.append(f'{page.url}: no {r.url}'))
        yield page
        await browser.close()


FACTS = '''() => ({links: [...document.querySelectorAll('a[href]')].map(a => a.href), ids: [...document.querySelectorAll('[id]')].map(e => e.id),
    wide: document.documentElement.scrollWidth - innerWidth, lost: [...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src)})'''


async def crawl(page, address):
    "Page -> its links, ids, lost images and overhang, for every page that can be reached from home."
    facts, todo = {}, [address + 'index.html']
    while todo:
        url = todo.pop()
        answer = await page.goto(url, wait_until='load')
        assert answer.status == 200, f'{url}: status {answer.status}'
        facts[url] = await page.evaluate(FACTS)
        linked = {urldefrag(o)[0] for o in facts[url]['links'] if o.startswith(address)}
        todo += [o for o in linked if o.endswith('.html') and o not in facts and o not in todo]
    return facts


async def test_every_page_is_whole(page, address):
    await page.set_viewport_size(dict(width=390, height=844))
    facts = await crawl(page, address)
    dead = [f'{url} -> {link}' for url, fact in facts.items() for link in fact['links'] if link.startswith(address) and is_dead(link, facts)]
    assert dead == []
    assert page.complaints == []
    assert {url: f['lost'] for url, f in facts.items() if f['lost']} == {}
    assert {url: f['wide'] for url, f in facts.items() if f['wide'] > 0} == {}, 'pages wider than a phone'
    assert len(facts) >= len(list((root/'nbs').rglob('[0-9]*.ipynb'))), 'pages that no link leads to'


def is_dead(link, facts):
    "Whether a link leads to no file, or to a place that its page does not have."
    page, place = urldefrag(link)
    path = site/urlparse(page).path.lstrip('/')
    if page in facts: return bool(place) and place not in facts[page]['ids']
    return not (path.is_file() or (path/'index.html').is_file())


async def test_search_finds(page, address):
    await page.goto(urljoin(address, 'search.html?q=TaskSpec'))
    await page.wait_for_selector('ul.search li a')
    found = await page.eval_on_selector_all('ul.search li a', 'links => links.map(a => a.getAttribute("href"))')
    assert any('core/types.html' in o for o in found)
    assert page.complaints == []


async def heads(page): return await page.eval_on_selector_all('article table', 'all => all.map(t => [...t.querySelectorAll("th")].map(h => h.innerText).join(" "))')


async def test_home_and_reference_show_their_tables(page, address):
    await page.goto(address)
    assert await heads(page) == ['policy six demonstrated tasks eight others', 'what measured, with 95 % interval compared with report']
    await page.goto(urljoin(address, 'reference/notebooks.html'))
    assert await heads(page) == ['layer notebook what it shows']
    links = await page.eval_on_selector_all('article table a', 'all => all.map(a => a.getAttribute("href"))')
    assert '../core/types.html' in links and '../sandbox/browser/tabs.html' in links


async def test_api_tables_come_from_docments(page, address):
    await page.goto(urljoin(address, 'tasks/base.html'))
    rows = await page.eval_on_selector_all('section:has(> h3:text-is("seeds")) tr', 'rows => rows.map(r => [...r.children].map(c => c.innerText))')
    assert ['name', 'str', "''", 'task name; each task has different seeds'] in rows


async def test_hidden_cells_and_directives_stay_away(page, address):
    await page.goto(urljoin(address, 'tasks/base.html'))
    text = await page.inner_text('article')
    assert '#|' not in text and 'test_eq, test_fail' not in text and 'def split_of' in text


async def test_navigation_begins_with_tutorials_and_folds_layers(page, address):
    await page.goto(urljoin(address, 'train/configs.html'))
    parts = await page.eval_on_selector_all('.sidebar-tree .caption', 'all => all.map(o => [o.textContent.trim(), !o.nextElementSibling.checkVisibility()])')
    assert [name for name, _ in parts[:3]] == ['Tutorials', 'Reference', 'Experiments']
    assert [name for name, folded in parts if not folded] == ['Tutorials', 'Train']
    await page.click('.sidebar-tree .caption:has-text("Core")')
    assert await page.is_visible('.sidebar-tree a[href$="core/types.html"]')


async def test_no_line_of_code_is_cut_off(page, address):
    "Long ones go on below themselves, and what is copied is what was written."
    await page.goto(urljoin(address, 'train/configs.html'))
    cut = await page.eval_on_selector_all('.cell_input pre', 'all => all.filter(o => o.scrollWidth > o.clientWidth).map(o => o.textContent.slice(0, 80))')
    assert cut == []
    texts = await page.eval_on_selector_all('.cell_input pre', 'all => all.map(o => o.textContent)')
    assert any("    updates: int = 100                  # updates of the policy\n    epochs: int = 2                     # passes over the samples of an update\n" in o for o in texts)


def test_no_page_is_left_of_a_notebook_that_is_gone(built):
    pages = {o.relative_to(built).with_suffix('') for o in built.rglob('*.html') if '_static' not in o.parts}
    assert {str(o) for o in pages if not (root/'_proc'/o).with_suffix('.ipynb').exists()} <= {'genindex', 'search'}

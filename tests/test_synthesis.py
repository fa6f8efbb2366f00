"Synthesised tasks on sites made for the test: every question has one answer, every order is carried out or refused."
import random

import pytest

from uitars_nb.agent.loop import OracleAgent, run_episode
from uitars_nb.cli.main import main
from uitars_nb.core.types import TaskSpec
from uitars_nb.sandbox.browser.pool import BrowserPool
from uitars_nb.tasks.base import SANDBOXES, SPLITS, get_task, register, seeds, suite
from uitars_nb.tasks.synthesis import questions
from uitars_nb.tasks.synthesis.form_fields import all_forms, read_forms
from uitars_nb.tasks.synthesis.forms import FormTask, draw_order, has_order, make_order, order_words, register_forms, submitted
from uitars_nb.tasks.synthesis.questions import Condition, describe, gives_away, make_question, plain, same_answer, solve, split_of_page
from uitars_nb.tasks.synthesis.site import home_of, paths_from, read_site
from uitars_nb.tasks.synthesis.tasks import KINDS, register_site


def write_site(folder, seed, n=100):
    "Pages of people: town, trade, age and friends drawn at random."
    rng, people = random.Random(seed), [f'{chr(65 + k % 26)}{"aeiou"[k // 26]}{"lmnr"[k % 4]}o Li{k:02}' for k in range(n)]
    towns, trades = [f'Town {o}' for o in 'KLMNPQ'], ['baker', 'smith', 'tailor', 'miller']
    for k, name in enumerate(people):
        friends = ''.join(f'<li><a href="p{j}.html">{people[j]}</a></li>' for j in sorted(rng.sample(range(n), 3)))
        (folder/f'p{k}.html').write_text(f'<h1>{name}</h1><table><tr><th>Town</th><td>{rng.choice(towns)}</td></tr><tr><th>Trade</th><td>{rng.choice(trades)}</td></tr>'
            f'<tr><th>Age</th><td>{rng.randrange(18, 90)} years</td></tr><tr><th>Boss</th><td><a href="p{rng.randrange(n)}.html">see there</a></td></tr>'
            f'<tr><th>Badge</th><td>N{rng.randrange(10**6):06}</td></tr></table><dl><dt>Friends</dt><dd><ul>{friends}</ul></dd></dl>')
    (folder/'index.html').write_text('<h1>Register</h1>' + ''.join(f'<p><a href="p{k}.html">{o}</a></p>' for k, o in enumerate(people)))
    return folder


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('kind', KINDS)
def test_every_question_has_one_answer_that_it_does_not_tell(tmp_path, kind, seed):
    site = read_site(write_site(tmp_path, seed))
    for split in SPLITS:
        for k in seeds(split, 10, kind):
            q = make_question(site, k, split, *KINDS[kind])
            assert solve(q, site) == {q.answer} and plain(q.answer) not in plain(q.instruction).split()
            assert split_of_page(q.evidence[-1]) == split and len(q.evidence) == len(q.hops) + 1
            if split == 'train': assert {split_of_page(o) for o in q.evidence} == {'train'}
            assert not {c.value for c in q.conditions} & {site[o].title for o in q.evidence[1:]}   # nor where the links lead
            assert q == make_question(site, k, split, *KINDS[kind])
            if q.conditions:   # each alone leaves several pages, and none is needless
                assert all(sum(map(c.holds, site.values())) >= questions.LEAST for c in q.conditions)
                for c in q.conditions: assert sum(all(o.holds(p) for o in q.conditions if o != c) for p in site.values()) > 1


def test_conditions_never_name_their_subject():
    site = read_site(SANDBOXES/'atlas')
    for path, page in site.items():
        for k in range(3):
            for c in describe(page, site, random.Random(k)): assert not gives_away(c.value, page.title), (path, c)


@pytest.mark.parametrize('given, right, same', [
    ('LIMA', 'Lima', True), ('Lima.', 'Lima', True), ('lima peru', 'Lima', False), ('', 'Lima', False), ('...', '!!', False), ('147181', '147,181 km²', True), ('147,181 km2', '147,181 km²', True),
    ('147,181 m', '147,181 km²', False), ('147.181', '147,181 km²', False), ('1.50', '1.5', True), ('-3 °C', '-3 °C', True), ('3 °C', '-3 °C', False), ('C', 'C++', False), ('C#', 'C', False), ('A+', 'A-', False), ('UTC+3', 'UTC-3', False), ('3/4', '3.4', False),
    ('12', '12 Main Street', False), ('12 main street', '12 Main Street', True), ('7', '007', False), ('1 285 216', '1,285,216 km²', True), ('the Danube', 'Danube', True), ('the', 'the', True)])
def test_answers_are_compared_by_what_they_mean(given, right, same): assert same_answer(given, right) is same


def test_a_range_covers_numbers_of_its_unit_alone():
    c = Condition('Age', low=20, high=40, unit='years')
    page = lambda text: read_site_page(f'<h1>x</h1><table><tr><th>Age</th><td>{text}</td></tr></table>')
    assert [c.holds(page(o)) for o in ('20 years', '40 years', '41 years', '30 months', 'thirty years')] == [True, True, False, False, False]


def read_site_page(html):
    import tempfile, pathlib
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder)/'a.html').write_text(html)
        return read_site(folder)['a.html']


def test_links_stay_in_the_site(tmp_path):
    (tmp_path/'site'/'sub').mkdir(parents=True)
    (tmp_path/'secret.html').write_text('<h1>secret</h1>')
    (tmp_path/'site'/'sub'/'b.html').write_text('<a href="../../secret.html">x</a><a href="//evil.example/a.html">y</a><a href="c%20d.html#part">z</a><a href="missing.html">m</a><a href="">e</a>')
    (tmp_path/'site'/'sub'/'c d.html').write_text('<a href="b.html?q=1">back</a>')
    site = read_site(tmp_path/'site')
    assert site['sub/b.html'].links == ('sub/c d.html',) and site['sub/c d.html'].links == ('sub/b.html',)
    assert home_of(site) in site and set(paths_from(site, 'sub/b.html')) == set(site)


FORM = '''<h1>Settings</h1><form><input type="hidden" name="token" value="t"><label for="u">User</label> <input id="u" name="user" value="old name">
<label><input type="checkbox" name="news" checked> News</label><label><input type="checkbox" name="ads" value="1"> Adverts</label>
<label>Colour <select name="colour"><option value="r">Red</option><option value="g" selected>Green</option><option value="b">Blue</option></select></label>
<label>Size <input type="number" name="size" min="3" max="5" value="4"></label><label>Note <textarea name="note">first</textarea></label>
<fieldset><legend>Speed</legend><label><input type="radio" name="speed" value="s"> Slow</label><label><input type="radio" name="speed" value="f"> Fast</label></fieldset>
<p style="height:1500px"></p><input type="submit" value="Store it"></form>'''


async def test_orders_are_carried_out_and_what_else_changes_is_seen(tmp_path):
    (tmp_path/'index.html').write_text(FORM)
    names = register_forms(tmp_path, 'own-forms')
    task = get_task(names[0])
    assert names == ['own-forms/index'] and task.form.button == 'Store it'
    async with BrowserPool(task.browser) as pool:
        async with pool.session() as session:
            seen = set()
            for spec in suite('own-forms', 'train', 8):
                await session.reset()
                traj = await run_episode(session, task, spec, OracleAgent)
                assert traj.success and traj.stop.value == 'terminated', (traj.task.instruction, traj.info)
                seen |= set(task.order(spec))
                # the same submission is no success of an order that differs in one field
                for field in task.form.fields:
                    other = next(s for s in range(1000) if submitted(task.form, make_order(task.form, s)).get(field.name) != traj.info['given'].get(field.name)) if field.name != 'token' else None
                    if other is not None: assert not (await task.verify(session, TaskSpec(task.name, other))).success
            assert seen == {'user', 'news', 'ads', 'colour', 'size', 'note', 'speed'}   # and never the hidden one


def test_orders_say_all_and_change_what_they_say(tmp_path):
    (tmp_path/'index.html').write_text(FORM)
    form, = read_forms(tmp_path)
    default = submitted(form, {})
    assert default == dict(token='t', user='old name', news='on', colour='g', size='4', note='first')
    for k in range(200):
        order = draw_order(form, random.Random(k))
        sent, said = submitted(form, order), order_words(form, order)
        assert {o for o in {*sent, *default} if sent.get(o) != default.get(o)} == set(order)
        for f in form.fields: assert (f'"{f.label}"' in said and bool(f.label)) == (f.name in order) or not f.label


def test_what_real_sites_hold_is_read_as_a_browser_reads_it(tmp_path):
    (tmp_path/'people').mkdir()
    (tmp_path/'people'/'index.html').write_text('<h1>People</h1>')
    (tmp_path/'a (b), c.html').write_text('<h1>Odd name</h1>')
    (tmp_path/'old.html').write_bytes('<meta charset="windows-1252"><title>Caf\xe9</title><script>var x = "hidden"</script><p>b<b>o</b>ld</p>'.encode('latin-1'))
    (tmp_path/'index.html').write_text('''<h1>Start</h1><table><tr><th>Capital<td><a href="people/">Lima</a>, <a href="a%20%28b%29%2C%20c.html">Rome</a><tr><th>Born<td>in <a href="people/">Lima</a> in 1950
        <tr><th>Water<td>H<sub>2</sub>O<tr><th>People<td>34,000,000<sup><a href="#n">[1]</a></sup><tr><th><td>nothing<tr><td>a<td>b</table><dl><div><dt>Size<dd>9<dd>10</div></dl>
        <a href="photo.jpg">p</a><a href="http://[x]/y">q</a><a href="a%00b">r</a><a href="''' + 'x' * 300 + '''">s</a><a href="mailto:a@b">t</a>''')
    (tmp_path/'photo.jpg').write_bytes(b'')
    site = read_site(tmp_path)
    assert [(o.relation, o.value, o.link) for o in site['index.html'].facts] == [('Capital', 'Lima', ''), ('Capital', 'Rome', 'a (b), c.html'), ('Born', 'in Lima in 1950', ''),
        ('Water', 'H2O', ''), ('People', '34,000,000', ''), ('Size', '9', ''), ('Size', '10', '')]
    assert site['index.html'].links == ('a (b), c.html',) and site['old.html'].title == 'Café' and site['old.html'].text == 'bold'
    assert set(paths_from(site, 'index.html')) == {'index.html', 'a (b), c.html'}   # a folder shows its files, not its index.html


async def test_the_oracle_follows_links_with_odd_names(tmp_path):
    write_site(tmp_path, 5, 60)
    index = (tmp_path/'index.html').read_text()
    for k in range(60):
        (tmp_path/f'p{k}.html').rename(tmp_path/f'p ({k}), x.html')
        index = index.replace(f'"p{k}.html"', f'"p%20({k}),%20x.html"')
    for file in tmp_path.glob('p *.html'):
        text = file.read_text()
        for k in range(60): text = text.replace(f'"p{k}.html"', f'"p%20%28{k}%29%2C%20x.html"')
        file.write_text('<svg width="9" height="9"><a href="x.html"><rect width="9" height="9"/></a></svg>' + text)
    (tmp_path/'index.html').write_text(index.replace('<p><a', '<p style="display:none"><a', 3) + index)   # hidden links come first
    task = get_task(register_site(tmp_path, 'own-odd', ['one-hop'])[0])
    async with BrowserPool(task.browser) as pool:
        async with pool.session() as session:
            traj = await run_episode(session, task, suite(task.name, 'train')[0], OracleAgent)
            assert traj.success, traj.info


@pytest.mark.parametrize('field, sent', [
    ('<input name="n" type="number" min="100" aria-label="N">', {str(o) for o in range(100, 109)}), ('<input name="n" type="number" min="" max="" step="5" aria-label="N">', {str(o) for o in range(0, 45, 5)}),
    ('<select name="n" aria-label="N"><option value="">Choose<option value="1">One<option disabled value="2">Two</select>', {'1'}), ('<textarea name="n" aria-label="N" required></textarea>', None),
    ('<input name="n" type="number" value="1" step="2" aria-label="N">', {'3', '5', '7', '9', '11', '13', '15', '17'}), ('<input name="n" type="email" aria-label="Contact">', None), ('<input name="n" type="tel" aria-label="N">', None), ('<input name="n" maxlength="12" aria-label="N">', None),
    (''.join(f'<input type="radio" name="n" value="{o}" {"checked" * (o in "ab")} {"disabled" * (o == "z")} aria-label="{o.upper()}">' for o in 'abcdefghijklz'), {*'acdefghijkl'})])
async def test_what_is_ordered_is_what_chromium_submits(tmp_path, field, sent):
    (tmp_path/'index.html').write_text(f'<meta charset=utf-8><form><input name="first" value="x" readonly><input name="off" value="y" disabled>{field}<button type="button">Clear</button><button name="go" value="1">Send</button></form>')
    (tmp_path/'list.html').write_text('<h1>List</h1>')
    task = register(FormTask('own-field/index', tmp_path.resolve(), 'index.html'))
    assert task.form.button == 'Send'
    async with BrowserPool(task.browser) as pool:
        async with pool.session() as session:
            got = set()
            for spec in [o for split in SPLITS if has_order(task.form, split) for o in suite(task.name, split, 2)]:   # few orders fill few splits
                traj = await run_episode(session, task, spec, OracleAgent)
                assert traj.success and traj.info['given'].keys() == {'first', 'n', 'go'}, traj.info
                got.add(traj.info['given']['n'])
            assert sent is None or got <= sent
            spec = await task.setup(session, spec)   # an address with a query on another page is no submission
            await session.goto((tmp_path/'list.html').as_uri() + '?first=x&n=1&go=1')
            assert not (await task.verify(session, spec)).done


def test_a_form_may_name_its_own_page(tmp_path):
    (tmp_path/'b.html').write_text('<form action="b.html"><input name="a" aria-label="A"><button>Go</button></form>')
    assert [o.button for o in read_forms(tmp_path)] == ['Go']


def test_a_form_of_two_choices_ends_no_other(tmp_path, capsys):
    (tmp_path/'index.html').write_text(FORM)
    (tmp_path/'sort.html').write_text('<form><select name="s" aria-label="S"><option>a<option>b</select><button>Go</button></form>')
    assert [main(['synthesize', str(tmp_path), '--split', o, '--tasks', '3']) for o in SPLITS] == [0, 0, 0]
    said = capsys.readouterr().out
    assert said.count('form index.html: 3 different tasks of 3') == 3 and said.count('form sort.html: left out') == 2


def test_orders_of_one_split_do_not_occur_in_another(tmp_path):
    (tmp_path/'index.html').write_text(FORM)
    form, = read_forms(tmp_path)
    drawn = {split: {order_words(form, make_order(form, k, split)) for k in range(200)} for split in SPLITS}
    assert not drawn['train'] & drawn['test'] and not drawn['train'] & drawn['validation'] and all(len(o) > 100 for o in drawn.values())


@pytest.mark.parametrize('html', ['<form method="post"><input name="a" aria-label="A"><button>Go</button></form>', '<form action="https://example.org"><input name="a" aria-label="A"><button>Go</button></form>',
    '<form><input name="a" type="password" aria-label="A"><button>Go</button></form>', '<form><input name="a" aria-label="A"></form>', '<form><input name="a"><button>Go</button></form>', '<form></form>',
    '<form><input name="a" aria-label="A" pattern="x"><button>Go</button></form>', '<form><input name="a" aria-label="A" minlength="3"><button>Go</button></form>', '<form><input type="number" step="0.5" name="a" aria-label="A"><button>Go</button></form>', '<form><input name="a" aria-label="A"><button>Go</button><button>Stop</button></form>',
    '<form><input name="a" aria-label="A"><input name="b" aria-label="A"><button>Go</button></form>', '<form><input type="checkbox" name="a" aria-label="A" checked><button>Go</button></form>',
    '<form><input name="a" aria-label="A"><input name="b" required><button>Go</button></form>', '<form><select name="a" aria-label="A"></select><button>Go</button></form>',
    '<form><select name="a" aria-label="A"><option>One</select><button>Go</button></form>', '<form><input type=number min=5 max=5 value=5 name="a" aria-label="A"><button>Go</button></form>'])
def test_forms_that_no_task_can_use_are_left_out(tmp_path, html):
    (tmp_path/'index.html').write_text(html)
    assert read_forms(tmp_path) == () and register_forms(tmp_path, 'none') == [] and len(all_forms(tmp_path.resolve())[1]) == 1


@pytest.mark.parametrize('size', [(160, 210), (1024, 768)])
async def test_the_oracle_answers_on_a_site_with_subfolders_at_any_size(tmp_path, size):
    (tmp_path/'people').mkdir()
    write_site(tmp_path/'people', 1, 60)
    (tmp_path/'index.html').write_text('<h1>Start</h1><p style="height:900px"></p><a href="people/index.html">All people</a>')
    names = register_site(tmp_path, f'own-{size[0]}')
    assert len(names) == len(KINDS)
    task = get_task(names[2])
    async with BrowserPool(task.browser.resized(size)) as pool:
        async with pool.session() as session:
            spec = suite(names[2], 'test')[0]
            traj = await run_episode(session, task, spec, OracleAgent)
            assert traj.success and traj.stop.value == 'finished' and traj.info['given'] == traj.info['right']
            assert 'answer' not in traj.task.params   # not stored where a policy could read it
            wrong = await task.verify(session, spec)
            assert (wrong.success, wrong.reward, wrong.info['given']) == (False, 0., '')


def test_a_site_without_facts_says_so(tmp_path, capsys):
    (tmp_path/'a.html').write_text('<h1>Nothing</h1>')
    with pytest.raises(LookupError, match='too few facts'): register_site(tmp_path, 'none')
    with pytest.raises(FileNotFoundError, match='no HTML files'): read_site(tmp_path/'absent')
    assert main(['synthesize', str(tmp_path)]) == 1 and 'yields no train tasks' in capsys.readouterr().err


async def test_questions_are_answered_by_search_and_links_too(tmp_path):
    from uitars_nb.tasks.base import opener_of
    from uitars_nb.tasks.synthesis.search import SiteCorpus, register_site_search
    write_site(tmp_path, 2, 60)
    names = register_site_search(tmp_path, 'own-search', ['two-hops', 'conditions'])
    assert opener_of(names[0]) is opener_of(names[1])   # one pool of sessions for both
    corpus, root = SiteCorpus(tmp_path), tmp_path.resolve()
    for page in read_site(tmp_path).values():
        text = (await corpus.read((root/page.path).as_uri() + '#top')).text
        assert page.text in text and all(f.value in text and (not f.link or (root/f.link).as_uri() in text) for f in page.facts)
    async with opener_of(names[0])() as session:
        for name in names:
            await session.reset()
            traj = await run_episode(session, get_task(name), suite(name, 'validation')[0], OracleAgent)
            assert traj.success and traj.steps[-1].observation.text, traj.info


async def test_questions_of_a_file_are_played_in_turn(tmp_path):
    import json
    from uitars_nb.tasks.synthesis.tasks import register_questions
    write_site(tmp_path, 3, 30)
    rows = [dict(split='test', instruction=f'What is the trade of number {k}?', answer=('smith', 'baker')[k % 2], evidence=[f'p{k}.html']) for k in range(4)]
    (tmp_path/'q.jsonl').write_text('\n'.join(map(json.dumps, [*rows, dict(rows[0], split='train'), dict(kind='form', submitted={})])) + '\n')
    task = get_task(register_questions(tmp_path, tmp_path/'q.jsonl', 'own/file'))
    assert {task.question(o).wording for o in suite('own/file', 'test', 4)} == {o['instruction'] for o in rows}
    async with BrowserPool(task.browser) as pool:
        async with pool.session() as session:
            traj = await run_episode(session, task, suite('own/file', 'test')[0], OracleAgent)
            assert traj.success and 'What is the trade' in traj.task.instruction
    with pytest.raises(LookupError, match='no question of the validation split'): task.question(suite('own/file', 'validation')[0])
    (tmp_path/'bad.jsonl').write_text(json.dumps(dict(rows[0], evidence=['none.html'])) + '\n')
    with pytest.raises(ValueError, match='none.html, which no link'): register_questions(tmp_path, tmp_path/'bad.jsonl', 'own/bad')
    (tmp_path/'worse.jsonl').write_text('{"split": "test"}\n')
    with pytest.raises(ValueError, match='line 1.*instruction'): register_questions(tmp_path, tmp_path/'worse.jsonl', 'own/worse')
    (tmp_path/'typo.jsonl').write_text('\n{"split": "test",}\n')
    with pytest.raises(ValueError, match='line 2 is no JSON'): register_questions(tmp_path, tmp_path/'typo.jsonl', 'own/typo')
    with pytest.raises(FileNotFoundError): register_questions(tmp_path, tmp_path/'absent.jsonl', 'own/absent')


def test_a_model_that_loses_a_fact_or_tells_the_answer_changes_nothing(tmp_path, capsys):
    import json, threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Model(BaseHTTPRequestHandler):
        "Rewrites every third question well, loses the facts of the next and tells the answer of none."
        asked = 0
        def log_message(self, *_): pass
        def do_GET(self): self.reply(dict(data=[dict(id='rule')]))
        def do_POST(self):
            text = json.loads(self.rfile.read(int(self.headers['content-length'])))['messages'][0]['content']
            Model.asked += 1
            self.reply(dict(choices=[dict(message=dict(content='Tell me, please: ' + text.split('\n\n')[-1] if Model.asked % 3 == 0 else 'What is it?'))]))
        def reply(self, body):
            body = json.dumps(body).encode()
            self.send_response(200); self.send_header('content-type', 'application/json'); self.send_header('content-length', str(len(body))); self.end_headers(); self.wfile.write(body)

    server = ThreadingHTTPServer(('127.0.0.1', 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    write_site(tmp_path, 4)
    args = ['synthesize', str(tmp_path), '--tasks', '9', '--show', '0', '--out', str(tmp_path/'q.jsonl')]
    try: assert not main([*args, '--rewrite', f'http://127.0.0.1:{server.server_port}/v1'])
    finally: server.shutdown()
    assert '3 of 9 put into other words' in capsys.readouterr().out
    rows = [json.loads(o) for o in (tmp_path/'q.jsonl').read_text().splitlines()]
    assert sum(o['instruction'].startswith('Tell me') for o in rows) == len(rows) // 3 and not any(o['instruction'] == 'What is it?' for o in rows)

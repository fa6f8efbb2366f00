"Labels against the pixels they speak of, and questions against the labels."
import random, re
from collections import Counter

import numpy as np
import pytest, pytest_asyncio
from hypothesis import given, strategies as st

from uitars_nb.flywheel.perception.labels import CELL, COLOURS, KINDS, SHAPES, Element, LabelledPage, char_cells, char_class, colour_name, element_cells, load_pages, save_pages, soften, target_cells
from uitars_nb.flywheel.perception.pages import SIZE, label_screen, label_task, render_sheet, sheet_session
from uitars_nb.flywheel.perception.probes import PROBES, is_right, probe_pages, probes, tally
from uitars_nb.flywheel.perception.questions import ask, changes
from uitars_nb.sandbox.browser.session import BrowserConfig, BrowserSession
from uitars_nb.flywheel.perception.words import FAMILIES, hits, normalised_text, words
from uitars_nb.model.dialects import DIALECTS, get_dialect
from uitars_nb.tasks.base import seeds
from uitars_nb.tasks.miniwob.task import BROWSER

pytestmark = [pytest.mark.timeout(180)]
browser_test = pytest.mark.asyncio(loop_scope='module')
GRID = get_dialect('ui-tars-2')
SEEDS = seeds('train', 50, 'sheet', 999_000)
ADOPT = "(() => { const s = new CSSStyleSheet(); s.replaceSync(%r); document.adoptedStyleSheets.push(s) })()"
PLAIN = '* { text-decoration: none !important; list-style-type: none !important }'   # lines and bullets are ink, and no characters
BARE = '''* { -webkit-text-fill-color: transparent !important } svg text { fill: transparent !important } ::placeholder, option { -webkit-text-fill-color: transparent !important; color: transparent !important }'''.replace('\n', ' ')


@pytest_asyncio.fixture(loop_scope='module', scope='module')
async def sheet():
    async with sheet_session(5) as session: yield session

@pytest_asyncio.fixture(loop_scope='module', scope='module')
async def pages(sheet): return await render_sheet(sheet, SEEDS)

@pytest_asyncio.fixture(loop_scope='module')
async def small(sheet):
    session = BrowserSession(sheet.browser, BROWSER)
    yield session
    await session.close()


# ---- labels and pixels
@browser_test
async def test_every_character_has_ink_in_its_box_and_none_outside():
    async with sheet_session(5) as session:
        await session.evaluate(ADOPT % PLAIN)
        pages = await render_sheet(session, SEEDS)
        await session.evaluate(ADOPT % BARE)
        bare = (await session.observe()).screenshot
    clean = total = 0
    for i, page in enumerate(pages):
        ink = np.abs(page.screen.astype(int) - bare[i // 10 * 210:, i % 10 * 160:][:210, :160]).sum(-1) > 60
        near = np.zeros_like(ink)
        for code, x0, y0, x1, y1 in page.chars.tolist():
            assert ink[y0:y1, x0:x1].any(), f'nothing of {chr(code)!r} can be seen at {x0, y0} of page {page.seed}'
            near[max(0, y0 - 1):y1 + 1, max(0, x0 - 1):x1 + 1] = True
        outside, total = (ink & ~near).sum(), total + ink.sum()
        hidden = any({'cut', 'covered'} & set(o.states) for o in page.elements) or any(o.box[3] >= 208 or o.box[2] >= 158 for o in page.elements if o.owner < 0)
        clean += not hidden
        assert outside <= (.3 * ink.sum() if hidden else 2), f'{outside} px of text without a label on page {page.seed}'
    assert clean >= 10 and total > 50_000

@browser_test
async def test_a_page_is_a_function_of_its_seed_and_level(sheet, pages):
    for a, b in zip(await render_sheet(sheet, SEEDS), pages):
        assert np.array_equal(a.screen, b.screen) and np.array_equal(a.chars, b.chars) and a.elements == b.elements
    for a, b in zip(await render_sheet(sheet, SEEDS[7:] + SEEDS[:7]), pages[7:] + pages[:7]):  # elsewhere a few smooth edges are rounded otherwise
        assert (a.screen != b.screen).any(-1).sum() < 100 and np.array_equal(a.chars, b.chars) and a.elements == b.elements
    easy, = await render_sheet(sheet, SEEDS[:1], 0.)
    assert not np.array_equal(easy.screen, pages[0].screen)
    assert len({o.screen.tobytes() for o in pages}) == len(pages)

@browser_test
async def test_levels_go_from_few_large_characters_to_many_small_ones(sheet):
    (few, tall), (many, low) = [(np.mean([len(o.chars) for o in p]), np.median(np.concatenate([o.chars[:, 4] - o.chars[:, 2] for o in p]))) for p in [await render_sheet(sheet, SEEDS, level) for level in (0., 1.)]]
    assert many > 2 * few and tall > 1.4 * low

@browser_test
async def test_colours_and_ticks_are_what_the_pixels_show(pages):
    shapes = boxes = 0
    for page in pages:
        for o in page.elements:
            if {'covered', 'disabled'} & set(o.states): continue
            x0, y0, x1, y1 = o.box
            seen = {colour_name(c) for c in np.unique(page.screen[y0:y1, x0:x1].reshape(-1, 3), axis=0)}
            if o.kind in SHAPES and o.colour:
                assert o.colour in seen, (page.seed, o)
                shapes += 1
            if o.kind in ('checkbox', 'radio') and min(x1 - x0, y1 - y0) >= 10:
                assert ('checked' in o.states) == bool((np.abs(page.screen[y0:y1, x0:x1].astype(int) - (0, 117, 255)).sum(-1) < 40).any()), (page.seed, o)
                boxes += 1
    assert shapes > 50 and boxes > 30

HARD = '''<!doctype html><style>body { margin: 0; font: 12px Arial } div { position: absolute }</style>
<div style="left: 5px; top: 5px">under <b>bold</b></div><div style="left: 0; top: 0; width: 40px; height: 25px; background: red"></div>
<div style="left: 5px; top: 30px; width: 30px; overflow: hidden; white-space: nowrap">clipped away</div><div style="left: 5px; top: 50px; visibility: hidden">hidden</div>
<div style="left: 5px; top: 65px; text-transform: uppercase">upper</div><div style="left: 5px; top: 80px; opacity: 0">clear</div>
<div style="left: 5px; top: 95px"><label>Name <input id="f" value="Ada" style="width: 60px"></label></div><div style="left: 5px; top: 120px"><textarea style="width: 80px; height: 30px; resize: none">one two three four five six</textarea></div>
<div style="left: 5px; top: 160px"><select><option>first<option selected>second</select></div><div style="left: 100px; top: 60px; font-size: 0">none</div><div style="left: 150px; top: 200px">edge</div>
<div style="left: 90px; top: 160px"><input type="password" value="abc" style="width: 40px"></div>'''

@browser_test
async def test_only_what_can_be_seen_is_labelled(small, tmp_path):
    (tmp_path / 'a.html').write_text(HARD)
    await small.start((tmp_path / 'a.html').as_uri())
    await small.evaluate('document.getElementById("f").focus()')
    page = await label_screen(small)
    lines = [o.text for o in page.elements if o.kind == 'text']
    assert not {'hidden', 'clear', 'none'} & set(lines) and 'UPPER' in lines and 'Ada' in lines and 'second' in lines and '•••' in lines
    spelled = ''.join(map(chr, page.chars[:, 0]))
    assert 'u' + 'nder' not in spelled and 'bold' in spelled and 'clipped' not in spelled
    cut = next(o for o in page.elements if o.text and 'clipped'.startswith(o.text) and o.kind == 'text')
    assert 'cut' in cut.states and cut.box[2] <= 36
    field = next(o for o in page.elements if o.kind == 'field' and o.text == 'Ada')
    assert field.label == 'Name' and 'focused' in field.states
    assert next(o for o in page.elements if o.kind == 'textarea').text.startswith('one two')
    assert (page.chars[:, 1:] >= 0).all() and (page.chars[:, 3] <= 160).all() and (page.chars[:, 4] <= 210).all()

@browser_test
@pytest.mark.parametrize('name', ['miniwob/click-checkboxes', 'miniwob/click-option', 'miniwob/login-user', 'miniwob/click-tab-2', 'miniwob/email-inbox', 'miniwob/grid-coordinate'])
async def test_task_pages_are_labelled_as_they_are(small, name):
    async for page in label_task(small, name, seeds('train', 2, name)):
        assert page.size == SIZE and page.source == name and page.instruction
        query = next(o for o in page.elements if o.kind == 'query')
        assert normalised_text(query.text) == normalised_text(page.instruction) or name == 'miniwob/grid-coordinate'
        boxes = [o for o in page.elements if o.kind in ('checkbox', 'radio')]
        truth = await small.evaluate('[...document.querySelectorAll("input[type=checkbox], input[type=radio]")].map(e => e.checked)')
        assert ['checked' in o.states for o in boxes] == truth[:len(boxes)] and len(boxes) == len(truth)

@browser_test
async def test_an_episode_begun_anew_shows_the_page_of_its_seed(small):
    name = 'miniwob/click-checkboxes'
    first, _, third = [page async for page in label_task(small, name, seeds('train', 3, name))]
    fresh, = [page async for page in label_task(small, name, seeds('train', 3, name)[2:])]
    assert third.elements == fresh.elements and first.elements != third.elements


# ---- splits
@browser_test
async def test_no_seed_of_another_split_is_labelled_or_read(small, sheet, tmp_path):
    name = 'miniwob/click-test'
    for split in ('validation', 'test'):
        with pytest.raises(ValueError, match=f'of the {split} split'): await anext(label_task(small, name, seeds('train', 1, name) + seeds(split, 1, name)))
        save_pages(tmp_path / 'a.npz', await render_sheet(sheet, SEEDS[:2] + seeds(split, 1, 'sheet')))
        with pytest.raises(ValueError, match=f'of the {split} split'): load_pages(tmp_path / 'a.npz')
    with pytest.raises(ValueError, match='not trained on'): await probe_pages(sheet, 'words', 1, 'train')


# ---- dense targets
boxes = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 30), st.integers(0, 30)).map(lambda o: (o[0], o[1], o[0] + o[2], o[1] + o[3]))

@given(st.lists(st.tuples(st.sampled_from([33, 65, 126, 233, 0x1F600]), boxes), max_size=6), st.integers(20, 75), st.integers(20, 75))
def test_a_cell_belongs_to_the_character_over_its_centre(chars, w, h):
    cells = char_cells(np.array([(c, *b) for c, b in chars], np.int32).reshape(-1, 5), (w, h))
    assert cells.shape == (-(-h // 4), -(-w // 2))
    for i, j in np.ndindex(cells.shape):
        over = [c for c, (x0, y0, x1, y1) in chars if x0 <= (j + .5) * CELL[0] < x1 and y0 <= (i + .5) * CELL[1] < y1]
        assert cells[i, j] == (char_class(over[-1]) if over else 0)

@given(st.lists(st.tuples(st.sampled_from(KINDS[1:]), boxes, st.sampled_from(['', *COLOURS[1:]])), max_size=5))
def test_the_smallest_element_owns_a_cell(things):
    elements = [Element(kind, box, colour=colour, ink=colour) for kind, box, colour in things]
    kinds, colours, _ = element_cells(elements, (60, 60), (4, 4))
    area = lambda o: (o.box[2] - o.box[0]) * (o.box[3] - o.box[1])
    for i, j in np.ndindex(kinds.shape):
        over = [o for o in elements if o.box[0] <= 4 * j + 2 < o.box[2] and o.box[1] <= 4 * i + 2 < o.box[3]]
        least = [o for o in over if area(o) == min(map(area, over))]
        assert (KINDS[kinds[i, j]], COLOURS[colours[i, j]]) in ({(o.kind, o.colour or 'none') for o in least} or {('none', 'none')})

@given(boxes)
def test_target_cells_share_out_the_box(box):
    assert target_cells(box, (80, 80)).sum() * 256 == pytest.approx((box[2] - box[0]) * (box[3] - box[1]), abs=.1)


# ---- storing
@browser_test
async def test_a_shard_holds_what_was_put_in(pages, tmp_path):
    save_pages(tmp_path / 'exact.npz', pages, exact=True)
    save_pages(tmp_path / 'soft.npz', pages)
    for exact, soft, page in zip(load_pages(tmp_path / 'exact.npz'), load_pages(tmp_path / 'soft.npz'), pages, strict=True):
        assert np.array_equal(exact.screen, page.screen) and np.array_equal(soft.screen, soften(page.screen))
        assert np.array_equal(exact.chars, page.chars) and exact.chars.dtype == np.int32 and exact.elements == page.elements
        assert (exact.seed, exact.source, exact.instruction) == (page.seed, page.source, page.instruction)
        assert np.abs(soft.screen.astype(int) - page.screen).max() <= 19
    assert (tmp_path / 'soft.npz').stat().st_size < .85 * (tmp_path / 'exact.npz').stat().st_size

def test_what_cannot_be_stored_is_refused(tmp_path):
    page = lambda w: LabelledPage(np.zeros((20, w, 3), np.uint8), np.zeros((0, 5), np.int32), ())
    for bad in ([], [page(20), page(30)]):
        with pytest.raises(ValueError, match='one size'): save_pages(tmp_path / 'a.npz', bad)
    assert not list(tmp_path.iterdir())
    save_pages(tmp_path / 'a.npz', [page(20)] * 2)
    assert [o.chars.shape for o in load_pages(tmp_path / 'a.npz')] == [(0, 5)] * 2


# ---- questions
def under(page, box):
    "What the characters in a box spell, without spaces."
    x, y = page.chars[:, [1, 3]].mean(1), page.chars[:, [2, 4]].mean(1)
    return ''.join(map(chr, page.chars[(x > box[0]) & (x < box[2]) & (y > box[1]) & (y < box[3]), 0]))

def at(question): return tuple(map(int, re.search(r'<point>(\d+) (\d+)</point>', question.instruction).groups()))

@browser_test
async def test_answers_are_true(pages):
    count, odd = Counter(), 0
    for page in pages:
        spelled = Counter(o.text for o in words(page))
        for q in ask(page, random.Random(page.seed), 60):
            count[q.kind] += 1
            if q.kind == 'locate': assert hits(tuple(map(int, re.findall(r'\d+', q.answer))), q.box, page.size)
            elif q.box:
                assert q.action.name == 'click' and all(v % 5 == 0 for v in q.action.args['point'])
                for dialect in DIALECTS.values():
                    action, = dialect.parse(q.reply(dialect, page.size), page.size).actions
                    assert action.name == 'click' and hits(action.args['point'], q.box, page.size)
            if q.about and '<point>' in q.instruction: assert hits(at(q), q.about, page.size)
            if q.kind in ('point_word', 'read_word', 'name'): odd += under(page, q.about) != (re.search(r'"(.*)"</think>', q.answer)[1] if q.box else q.answer)
            if q.kind == 'point_word': assert spelled[re.search(r'"(.*)"</think>', q.answer)[1]] == 1
            if q.kind == 'colour_at': assert q.answer in {colour_name(c) for c in page.screen[q.about[1]:q.about[3], q.about[0]:q.about[2]].reshape(-1, 3)}
            if q.kind == 'point_shape':
                colour, kind = re.search(r'click (\w+) (\w+)</think>', q.answer).groups()
                assert [o.box for o in page.elements if (o.colour, o.kind) == (colour, kind)] == [q.box]
            if q.kind == 'checked': assert (q.answer == 'yes') == ('checked' in next(o.states for o in page.elements if o.box == q.about and o.kind in ('checkbox', 'radio')))
    assert odd <= .02 * (count['point_word'] + count['read_word'] + count['name'])  # letters of an overlapping line may have their centres in the box
    assert sum(count.values()) > 800 and len(count) >= len(FAMILIES) - 3

@browser_test
async def test_questions_repeat_with_their_generator_and_not_within_a_page(pages):
    for page in pages[:20]:
        a, b = (ask(page, random.Random(5), 30) for _ in range(2))
        assert a == b and len({(q.instruction, q.answer) for q in a}) >= .9 * len(a)
    assert {q.kind for q in ask(pages[0], random.Random(0), 9, ['read_word'])} <= {'read_word'}
    with pytest.raises(KeyError): ask(pages[0], random.Random(0), 1, ['smell'])

@browser_test
async def test_nothing_changes_between_equal_screens_and_every_tick_is_told(pages):
    from dataclasses import replace
    told = 0
    for page in pages:
        assert changes(page, page) == []
        for i, o in enumerate(page.elements):
            if o.kind != 'checkbox' or not o.label or sum(p.label == o.label for p in page.elements) > 1: continue
            states = tuple(set(o.states) ^ {'checked'})
            after = replace(page, elements=(*page.elements[:i], replace(o, states=states), *page.elements[i + 1:]))
            assert changes(page, after) == [f'box "{o.label}" is {"now" if "checked" in states else "no longer"} checked']
            told += 1
    assert told > 10


# ---- probes
@browser_test
async def test_the_suite_takes_right_answers_only(sheet):
    pages = [o for kind in ('words', 'colours', 'boxes') for o in await probe_pages(sheet, kind, 20, 'test')]
    suite = probes(pages)
    assert Counter(o.kind for o in suite) == {kind: 20 for kind in PROBES}
    for dialect in DIALECTS.values():
        assert tally(suite, [o.question.reply(dialect, o.page.size) for o in suite], dialect) == {kind: (20, 20) for kind in PROBES}
    for probe in suite:
        q = probe.question
        assert q.kind not in ('point_word', 'point_colour') or q.n >= 5
        assert not is_right(probe, '', GRID) and not is_right(probe, q.answer + ' x' if not q.box else q.answer.replace('</function>', ''), GRID)
        if q.box:
            away = next(o for o in [(5, 5), (995, 5), (5, 995), (995, 995)] if not hits(o, q.box, probe.page.size))
            assert not is_right(probe, re.sub(r'<point>.*</point>', '<point>{} {}</point>'.format(*away), q.answer), GRID)
        if probe.kind in ('point_string', 'read_string'): assert len(under(probe.page, q.about)) == 4
    assert len({o.question.answer for o in suite if o.kind == 'read_string'}) >= 19
    with pytest.raises(ValueError): tally(suite, [], GRID)

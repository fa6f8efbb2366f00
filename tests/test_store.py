"""core.store: lossless, whole or not at all, readable by others, and still there after a SIGKILL."""
import io, os, signal, subprocess, sys, time, warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image

from uitars_nb.core import shards
from uitars_nb.core.shards import from_rows, read_rows
from uitars_nb.core.store import DamagedShard, DoubleId, Store, StrayShard
from uitars_nb.core.types import Action, Completion, Event, EventKind, Observation, Step, StopReason, Tab, TaskSpec, Trajectory

# texts with everything, half surrogate pairs and NULs included
texts = st.text(st.characters(codec=None), max_size=20) | st.sampled_from(['', '\ud83d', 'a\x00b', '\U0001f600 \u202e', '{"json": [1]}'])
numbers = st.floats(allow_nan=False) | st.integers(-2**53, 2**53)
jsonish = st.recursive(st.none() | st.booleans() | numbers | texts, lambda o: st.lists(o, max_size=3) | st.dictionaries(texts, o, max_size=3), max_leaves=5)
details = st.dictionaries(texts, jsonish, max_size=3)
clock = st.floats(0, 1e9)
actions = st.builds(Action, st.sampled_from(['click', 'type', 'wait', 'made_up']), details | st.just(dict(point=(1, 1000))))

def arrays(dtype, n): return st.lists(st.integers(-2**31, 2**31 - 1) if dtype == np.int32 else st.floats(width=32, allow_nan=False), min_size=n, max_size=n).map(lambda o: np.array(o, dtype))

@st.composite
def screens(draw, size):
    rng = np.random.default_rng(draw(st.integers(0, 3)))  # few seeds: equal screens do occur
    return rng.integers(0, 256, (*size, 3), np.uint8)

@st.composite
def observations(draw, size=None):
    size = size or draw(st.tuples(st.integers(1, 30), st.integers(1, 30)))
    return draw(st.builds(Observation, screens(size), texts, texts, st.lists(st.builds(Tab, texts, texts, st.booleans()), max_size=2).map(tuple), clock,
                          st.lists(st.builds(Event, st.sampled_from(EventKind), texts, details), max_size=2).map(tuple), texts))

@st.composite
def completions(draw):
    n, p = draw(st.integers(0, 4)), draw(st.integers(0, 6))
    return Completion(draw(texts), draw(arrays(np.int32, p)), draw(arrays(np.int32, n)), draw(arrays(np.float32, n)), draw(arrays(np.int32, n)),
                      draw(st.lists(st.integers(0, 9), max_size=3).map(tuple)), draw(st.sampled_from(['stop', 'length'])),
                      draw(st.dictionaries(texts, st.floats(0, 1e6), max_size=3)))

@st.composite
def trajectories(draw, id='one'):
    steps = draw(st.lists(st.builds(Step, observations(), texts, st.lists(actions, max_size=2).map(tuple), st.none() | completions(), texts,
                                    st.floats(-1, 1), st.lists(completions(), max_size=2).map(tuple)), max_size=4).map(tuple))
    task = draw(st.builds(TaskSpec, texts, st.integers(0, 2**31), texts, st.sampled_from(['train', 'validation', 'test']), st.integers(1, 100), details))
    stop = draw(st.sampled_from(StopReason))
    reward = None if stop.is_environment else draw(st.floats(-1, 1))
    return Trajectory(id, task, steps, stop, reward, not stop.is_environment and draw(st.booleans()), draw(st.none() | observations()), draw(texts),
                      draw(st.integers(0, 2**40)), draw(details))

def tiny(id, n=2, value=0, **kwargs):
    "A trajectory of `n` steps whose screens tell which one it is."
    look = [Observation(np.full((8, 9, 3), (value + k) % 256, np.uint8), clock_ms=float(k)) for k in range(n + 1)]
    steps = tuple(Step(o, f'thought {k}', (Action('click', dict(point=(k, k))),)) for k, o in enumerate(look[:-1]))
    return Trajectory(id, TaskSpec('demo/tiny', value), steps, StopReason.FINISHED, 1., True, look[-1], **kwargs)

def noisy(id, n, size, seed=0):
    "A trajectory whose screens hardly compress."
    rng = np.random.default_rng(seed)
    look = [Observation(rng.integers(0, 256, (*size, 3), np.uint8)) for _ in range(n + 1)]
    return replace(tiny(id), steps=tuple(Step(o) for o in look[:-1]), final=look[-1])

@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large])
@given(first=trajectories('first'), second=trajectories('second'))
def test_what_comes_back_is_what_went_in(tmp_path, first, second):
    path = tmp_path/os.urandom(8).hex()
    Store(path).extend([first, second])
    loaded = list(Store(path))
    assert loaded == [first, second]
    for a, b in zip(loaded, (first, second)):
        assert [type(o.observation.screenshot.dtype) for o in a.steps] == [type(o.observation.screenshot.dtype) for o in b.steps]

def test_shards_from_before_a_column_was_added_are_read(tmp_path):
    c = Completion('hi', *(np.zeros(1, o) for o in (np.int32, np.int32, np.float32, np.int32)), seconds=dict(decode=.25))
    traj = replace(tiny('old'), steps=(replace(tiny('old').steps[0], completion=c),))
    Store(tmp_path).append(traj)
    path, = tmp_path.glob('*.parquet')
    pq.write_table(pq.read_table(path).drop_columns(['seconds']), path)
    assert Store(tmp_path)['old'] == replace(traj, steps=(replace(traj.steps[0], completion=replace(c, seconds={})),))

@pytest.mark.parametrize('group', [1, 500, 5000, 1 << 24])
def test_rows_of_a_trajectory_are_found_however_groups_fall(tmp_path, monkeypatch, group):
    monkeypatch.setattr(shards, 'GROUP', group)
    trajs = [tiny(f't{k}', n=k % 5, value=k) for k in range(20)]
    store = Store(tmp_path)
    store.extend(trajs)
    meta = pq.ParquetFile(next(tmp_path.glob('*.parquet'))).metadata
    assert (meta.num_row_groups == 1) == (group == 1 << 24)
    assert list(store) == trajs
    assert [store[o.id] for o in reversed(trajs)] == trajs[::-1]

def test_a_trajectory_larger_than_a_shard(tmp_path):
    big, small = noisy('big', 12, (1080, 1920)), tiny('small')
    store = Store(tmp_path)
    store.extend([big, small])
    assert store['big'] == big and store['small'] == small

def test_equal_screens_are_stored_once(tmp_path):
    same, other = noisy('one', 1, (200, 300)), noisy('many', 1, (200, 300))
    same = replace(same, steps=same.steps * 20, final=same.steps[0].observation)
    Store(tmp_path/'a').append(replace(other, steps=(), final=other.final))
    Store(tmp_path/'b').append(same)
    size = {k: sum(o.stat().st_size for o in (tmp_path/k).iterdir()) for k in 'ab'}
    assert size['b'] < 1.2 * size['a']
    loaded = Store(tmp_path/'b')['one']
    assert all(o.observation.screenshot is loaded.final.screenshot for o in loaded.steps)

def test_pandas_and_datasets_open_the_shards(tmp_path, monkeypatch):
    trajs = [tiny('a', value=1), tiny('b', n=3, value=7), replace(tiny('c', n=0), stop=StopReason.ENV_RESET, reward=None, success=False, final=None)]
    Store(tmp_path/'s').extend(trajs)
    frame = pd.read_parquet(tmp_path/'s')
    assert len(frame) == 3 + 4 + 1
    screen = np.asarray(Image.open(io.BytesIO(frame.screen[4]['bytes'])))
    assert (screen == trajs[1].steps[1].observation.screenshot).all()
    assert pd.read_parquet(tmp_path/'s', filters=[('id', '==', 'b')], columns=['step']).step.tolist() == [0, 1, 2, 3]
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    datasets = pytest.importorskip('datasets')
    data = datasets.load_dataset('parquet', data_files=str(tmp_path/'s'/'*.parquet'), split='train', cache_dir=str(tmp_path/'cache'))
    assert isinstance(data.features['screen'], datasets.Image)
    assert (np.asarray(data[4]['screen']) == screen).all()
    assert data[7]['screen'] is None and data[7]['stop'] == 'env_reset'
    assert data.filter(lambda o: o['id'] == 'a').num_rows == 3

def test_filters(tmp_path):
    store = Store(tmp_path)
    store.extend([tiny(f'p{k}', value=k, policy='ab'[k % 2], policy_version=k) for k in range(6)])
    store.append(replace(tiny('broken'), stop=StopReason.ENV_CRASH, reward=None, success=False))
    assert [o.id for o in store.select(policy='a')] == ['p0', 'p2', 'p4']
    assert [o.id for o in store.select(policy_version=[1, 2], policy='b')] == ['p1']
    assert [o.id for o in store.select((pc.field('policy_version') >= 3) & (pc.field('reward') > .5))] == ['p3', 'p4', 'p5']
    assert [o.id for o in store.select(env_failure=True)] == ['broken']
    assert store.index(reward=None).id.tolist() == ['broken']
    assert list(store.select(split='test')) == []
    with pytest.raises(KeyError, match='no column'): store.index(colour='red')

def shard(store): return sorted(store.path.glob('*.parquet'))

@pytest.fixture
def three(tmp_path):
    "A store of three shards, two trajectories each."
    store = Store(tmp_path/'three')
    for k in range(3): store.extend([noisy(f'{k}a', 2, (40, 50), k), noisy(f'{k}b', 2, (40, 50), k + 10)])
    return store

@pytest.mark.parametrize('keep', [0, 3, 200, .5, .99, -1])
def test_a_truncated_shard_is_named_and_skipped(three, keep):
    bad = shard(three)[1]
    data = bad.read_bytes()
    bad.write_bytes(data[:int(keep * len(data)) if isinstance(keep, float) else keep])
    store = Store(three.path)
    with pytest.warns(DamagedShard, match=bad.name): assert [o.id for o in store] == ['0a', '0b', '2a', '2b']
    assert list(store.damaged) == [bad.name]
    with warnings.catch_warnings(): warnings.simplefilter('error'); assert len(store) == 4  # said once

def test_other_files_do_no_harm(three):
    (three.path/'notes.txt').write_text('hello')
    (three.path/'.half.parquet.123.tmp').write_bytes(b'PAR1')
    pd.DataFrame(dict(x=[1])).to_parquet(three.path/'foreign.parquet')
    store = Store(three.path)
    with pytest.warns(DamagedShard, match='foreign'): assert len(list(store)) == 6

def test_a_checkout_of_a_report_does_not_mix_two_runs(tmp_path):
    "Git brings the older run's shard and list back, and leaves the newer shard beside it, which it does not know."
    git = lambda *o: subprocess.run(['git', '-c', 'user.name=a', '-c', 'user.email=a@b', *o], cwd=tmp_path, check=True, capture_output=True)
    git('init')
    for k in 'ab':
        store = Store.anew(tmp_path/'films')
        store.extend([noisy(k, 1, (4, 5), ord(k))])
        store.seal()
        if k == 'a': git('add', 'films'); git('commit', '-m', 'a')
    newer = shard(store)[0].name
    git('checkout', '--', 'films')
    old = Store(tmp_path/'films')
    with pytest.warns(StrayShard, match=f'{newer} is no shard of it'): assert [o.id for o in old] == ['a']
    with warnings.catch_warnings(): warnings.simplefilter('error'); assert len(old) == 1   # said once
    with pytest.raises(FileExistsError, match='is sealed'): old.append(noisy('c', 1, (4, 5), 3))
    assert not old.damaged and len(shard(old)) == 2

def test_a_listed_shard_that_is_missing_is_damage(three):
    three.seal()
    shard(three)[0].unlink()
    with pytest.warns(DamagedShard): assert [o.id for o in Store(three.path)] == ['1a', '1b', '2a', '2b']

def test_damaged_pixels_do_not_hide_the_index(three):
    "Also shows that the index reads no image: with all pixels of a shard destroyed it is still whole."
    bad = shard(three)[1]
    meta = pq.ParquetFile(bad).metadata
    column = next(meta.row_group(0).column(i) for i in range(meta.num_columns) if meta.row_group(0).column(i).path_in_schema == 'screen.bytes')
    data, start = bytearray(bad.read_bytes()), column.dictionary_page_offset
    data[start:start + column.total_compressed_size] = b'\xff' * column.total_compressed_size
    bad.write_bytes(data)
    store = Store(three.path)
    assert store.index().id.tolist() == ['0a', '0b', '1a', '1b', '2a', '2b'] and not store.damaged
    with pytest.warns(DamagedShard, match=bad.name): assert [o.id for o in store] == ['0a', '0b', '2a', '2b']
    with pytest.raises(OSError, match=bad.name): store['1a']

def test_one_flipped_bit_never_gives_a_wrong_trajectory(three):
    whole = {o.id: o for o in three}
    bad, rng = shard(three)[1], np.random.default_rng(0)
    good, silent = bad.read_bytes(), 0
    for k in range(60):
        data = bytearray(good)
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        copy = bad.with_name(f'{bad.stem}x{k:02}.parquet')  # another name: readers keep what they have read
        bad.unlink(missing_ok=True); copy.write_bytes(data)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            read = list(Store(three.path))
        silent += not caught
        assert all(whole.get(o.id) == o for o in read)
        assert {'0a', '0b', '2a', '2b'} <= {o.id for o in read}
        copy.unlink()
    assert silent < 20

def test_double_ids(tmp_path):
    store, rival = Store(tmp_path), Store(tmp_path)
    store.append(tiny('x', value=1))
    with pytest.raises(ValueError, match='stored already'): rival.append(tiny('x', value=2))
    with pytest.raises(ValueError, match='stored already'): rival.extend([tiny('y'), tiny('y')])
    with rival.writer() as writer: writer.append(tiny('x', value=3))  # a writer that did not look
    fresh = Store(tmp_path)
    with pytest.warns(DoubleId, match='x is stored twice'): assert [o.task.seed for o in fresh] == [1, 0]
    assert len(fresh) == len(fresh.index()) == 2

def test_many_double_ids_are_told_at_once(tmp_path):
    for value in (1, 2):
        with Store(tmp_path).writer() as writer:
            for name in 'xyz': writer.append(tiny(name, value=value))
    with pytest.warns(DoubleId) as told: assert len(Store(tmp_path)) == 3
    assert [str(o.message) for o in told] == ['x is stored twice, and so are 2 others; the older one counts']

def test_what_cannot_be_stored_is_refused_alone(tmp_path):
    c = Completion('hi', np.zeros(3, np.int64), np.zeros(1, np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32))
    store = Store(tmp_path)
    with store.writer(seconds=60) as writer:
        writer.append(tiny('a')); writer.append(tiny('b'))
        with pytest.raises(TypeError, match='bad cannot be stored: prompt_ids of a completion is int32, not int64'):
            writer.append(replace(tiny('bad'), steps=(replace(tiny('bad').steps[0], completion=c),)))
        with pytest.raises(TypeError, match='worse cannot be stored'): writer.append(tiny('worse', info=dict(x=object())))
    assert [o.id for o in store] == ['a', 'b']

def test_writer_flushes_on_size_time_and_close(tmp_path):
    def shards(): return len(list(tmp_path.glob('*.parquet')))
    writer = Store(tmp_path).writer(size=3 * 40 * 50 * 3 * 4, seconds=60)
    writer.append(noisy('0', 2, (40, 50)));  assert shards() == 1  # nothing had been flushed for ever
    for k in range(1, 5): writer.append(noisy(f'{k}', 2, (40, 50), k))
    assert shards() == 2                                           # size
    writer.append(tiny('late')); assert shards() == 2
    writer.seconds = 0.
    time.sleep(.01)
    writer.append(tiny('later')); assert shards() == 3             # time
    writer.seconds = 60.
    with writer: writer.append(tiny('last'))
    assert shards() == 4                                           # close
    writer.flush(); assert shards() == 4                           # nothing left to write
    assert len(Store(tmp_path)) == 8

def test_a_reader_follows_a_writer(tmp_path):
    reader, writer = Store(tmp_path), Store(tmp_path)
    for k in range(4):
        writer.append(tiny(f'{k}'))
        assert f'{k}' in reader and len(reader) == k + 1

# Writers in processes of their own: they print an id once the store has acknowledged it.
WRITER = '''
import sys, numpy as np
sys.path.insert(0, {tests!r})
from test_store import noisy
from uitars_nb.core.store import Store
name, path, n = sys.argv[1:]
store = Store(path)
writer = store.writer(seconds=float('inf'))
for k in range(int(n)):
    writer.append(noisy(f'{{name}}{{k}}', 2, (60, 80), k))
    if k % 3 == 2:
        writer.flush()
        print('\\n'.join(f'{{name}}{{j}}' for j in range(k - 2, k + 1)), flush=True)
'''

def start(name, path, n):
    code = WRITER.format(tests=os.path.dirname(__file__))
    return subprocess.Popen([sys.executable, '-c', code, name, str(path), str(n)], stdout=subprocess.PIPE, text=True)

def test_writers_killed_at_any_moment_lose_and_double_nothing(tmp_path):
    procs = {name: start(name, tmp_path, 100_000) for name in 'ab'}
    acknowledged = []
    try:
        for k, (name, proc) in enumerate(procs.items()):
            acknowledged += [proc.stdout.readline().strip() for _ in range(30)]
            time.sleep(.013 * (k + 1))
            proc.send_signal(signal.SIGKILL)
            acknowledged += proc.stdout.read().split()
    finally:
        for proc in procs.values(): proc.kill(); proc.wait(10)
    with warnings.catch_warnings(): warnings.simplefilter('error'); trajs = list(Store(tmp_path))
    ids = [o.id for o in trajs]
    assert len(ids) == len(set(ids)) and len(acknowledged) >= 60
    assert set(acknowledged) <= set(ids)
    assert len(ids) - len(acknowledged) in (0, 3, 6)  # a shard on disk that its writer no longer lived to report: whole, or not there
    assert all(o == noisy(o.id, 2, (60, 80), int(o.id[1:])) for o in trajs)

def test_a_write_that_dies_half_way_leaves_nothing_to_read(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.append(tiny('a'))
    monkeypatch.setattr(os, 'replace', lambda *_: (_ for _ in ()).throw(OSError('power cut')))
    with pytest.raises(OSError, match='power cut'): store.append(tiny('b'))
    monkeypatch.undo()
    with warnings.catch_warnings(): warnings.simplefilter('error'); assert [o.id for o in Store(tmp_path)] == ['a']

@pytest.mark.slow
def test_several_writers_in_one_directory(tmp_path):
    procs = [start(name, tmp_path, 60) for name in 'abcd']
    try: said = [line for proc in procs for line in proc.communicate(timeout=100)[0].split()]
    finally:
        for proc in procs: proc.kill()
    assert sorted(said) == sorted(o.id for o in Store(tmp_path)) and len(said) == 240

def test_rows_stand_alone(tmp_path):
    "`read_rows` and `from_rows` need nothing but the shard."
    store = Store(tmp_path)
    store.extend([tiny('a', n=1), tiny('b', n=4, value=9)])
    assert from_rows(read_rows(shard(store)[0], 2, 7)) == tiny('b', n=4, value=9)

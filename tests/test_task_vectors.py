"Merging through task vectors: against plain arithmetic over flat vectors, streamed from files, and what is refused."
import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from uitars_nb.train.merging import merge_states
from uitars_nb.train.task_vectors import CHANGED, count_changes, dare, ram, slerp, task_arithmetic

SHAPES = dict(a=(3, 4), b=(5,), c=(2, 2, 2))


def sparse_policies(seed, n, density, dtype=torch.float32):
    "A start and `n` policies that changed a share of its weights."
    g = torch.Generator().manual_seed(seed)
    start = {k: torch.randn(o, generator=g).to(dtype) for k, o in SHAPES.items()}
    changed = lambda x: x + (torch.randn(x.shape, generator=g) * (torch.rand(x.shape, generator=g) < density)).to(dtype)
    return start, [{k: changed(x) for k, x in start.items()} for _ in range(n)]


def flat(state): return torch.cat([o.flatten().double() for o in state.values()])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 5), st.floats(0, 1), st.sampled_from([0., .1, 1.]))
def test_ram_is_its_definition_weight_by_weight(seed, n, density, rescale):
    start, policies = sparse_policies(seed, n, density)
    base, deltas = flat(start), [flat(o) - flat(start) for o in policies]
    counts = count_changes(start, policies)
    got = flat(dict(merge_states(start, policies, ram(counts, rescale))))
    for i in range(len(base)):
        mine = [k for k in range(n) if abs(deltas[k][i]) > CHANGED]
        if len(mine) == 1:
            k, = mine
            shared = sum(abs(deltas[k][j]) > CHANGED and any(abs(deltas[o][j]) > CHANGED for o in range(n) if o != k) for j in range(len(base)))
            unique = sum(abs(deltas[k][j]) > CHANGED for j in range(len(base))) - shared
            wanted = base[i] + deltas[k][i] * (1 + rescale * min(.2, shared / unique))
        else: wanted = base[i] + sum(deltas[k][i] for k in mine) / max(len(mine), 1)
        assert abs(got[i] - wanted) < 2e-5


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 4), st.floats(0, 2))
def test_task_arithmetic_and_dare_without_dropping_are_one(seed, n, scale):
    start, policies = sparse_policies(seed, n, 1.)
    wanted = flat(start) + scale * sum(flat(o) - flat(start) for o in policies)
    for method in (task_arithmetic(scale), dare(0., scale)):
        torch.testing.assert_close(flat(dict(merge_states(start, policies, method))), wanted, rtol=1e-5, atol=1e-5)


def test_dare_keeps_the_expectation_and_its_seed():
    start, policies = sparse_policies(0, 2, 1.)
    runs = [flat(dict(merge_states(start, policies, dare(.7, .5, seed)))) for seed in range(4000)]
    mean = flat(dict(merge_states(start, policies, task_arithmetic(.5))))
    spread = torch.stack(runs).std(0) / 4000**.5
    assert ((torch.stack(runs).mean(0) - mean).abs() < 5 * spread + 1e-6).all()
    assert torch.equal(runs[3], flat(dict(merge_states(start, policies, dare(.7, .5, 3))))) and not torch.equal(runs[3], runs[2])
    for wrong in (1., -.1):
        with pytest.raises(ValueError, match='drop is'): dare(wrong)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.floats(0, 1))
def test_slerp_keeps_length_and_divides_the_angle(seed, t):
    g = torch.Generator().manual_seed(seed)
    a, b = (o / o.norm() for o in (torch.randn(50, generator=g) for _ in range(2)))
    got = dict(merge_states(dict(w=a), [dict(w=a), dict(w=b)], slerp(t)))['w']
    angle = lambda x, y: torch.acos((x @ y / x.norm() / y.norm()).clamp(-1, 1)).item()
    assert abs(got.norm().item() - 1) < 1e-4 and abs(angle(a, got) - t * angle(a, b)) < 2e-3


def test_slerp_of_parallel_tensors_is_linear_and_takes_two():
    a = torch.tensor([1., 2.])
    assert torch.allclose(slerp(.25)(a, [a, 3 * a]), 1.5 * a)
    with pytest.raises(ValueError): slerp()(a, [a] * 3)


def test_files_are_streamed_and_keep_their_dtype(tmp_path):
    start, policies = sparse_policies(1, 3, .3, torch.bfloat16)
    for k, state in enumerate([start, *policies]): save_file(state | dict(steps=torch.tensor(7)), tmp_path/f'{k}.safetensors')
    class Lazy:
        "Tensors of a file, read when they are asked for."
        def __init__(self, path): self.file, self.read = safe_open(path, 'pt'), []
        def keys(self): return self.file.keys()
        def __getitem__(self, name): self.read.append(name); return self.file.get_tensor(name)
    lazy = [Lazy(tmp_path/f'{k}.safetensors') for k in range(4)]
    stream = merge_states(lazy[0], lazy[1:], ram())
    next(stream)
    assert all(o.read == ['a'] for o in lazy)   # one tensor of each, and no more
    got = {**dict([('a', dict(merge_states(start, policies, ram()))['a'])]), **dict(stream)}
    wanted = dict(merge_states(start, policies, ram()))
    assert got['steps'] == 7 and all(torch.equal(got[k], wanted[k]) and got[k].dtype == torch.bfloat16 for k in SHAPES)


@pytest.mark.parametrize('change, words', [
    (lambda o: o.pop('a'), 'in the start and not in policy 2: a'), (lambda o: o.update(z=o['a']), 'in policy 2 and not in the start: z'),
    (lambda o: o.update(a=o['a'][:2]), r'a has shape \(3, 4\) in the start and \(2, 4\) in policy 2'), (lambda o: o.update(n=torch.tensor(2)), 'n holds torch.int64 numbers that differ')])
def test_what_has_no_sum_is_refused_by_name(change, words):
    start, policies = sparse_policies(2, 2, .5)
    for o in (start, *policies): o['n'] = torch.tensor(1)
    change(policies[1])
    with pytest.raises(ValueError, match=words): dict(merge_states(start, policies, ram()))


def test_counts_of_disjoint_and_equal_policies():
    start = dict(w=torch.zeros(4))
    disjoint = [dict(w=torch.tensor(o)) for o in ([1., 0, 0, 0], [0, 1., 1, 0])]
    assert [(o.sparsity, o.overlap) for o in count_changes(start, disjoint)] == [(.75, 0), (.5, 0)]
    assert [o.overlap for o in count_changes(start, [disjoint[0]] * 2)] == [float('inf')] * 2
    assert [o.overlap for o in count_changes(start, [start] * 2)] == [0, 0]

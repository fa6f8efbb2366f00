"""Merging: every tensor once, whatever it is stored in."""
import json
import shutil

import pytest
import torch
from hypothesis import given, strategies as st
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from tests.tiny_models import write_checkpoint

from uitars_nb.model.checkpoints import merge_adapter
from uitars_nb.model.nano.nano import new_policy
from uitars_nb.model.policy import Policy
from uitars_nb.model.nano.tokenizer import make_tokenizer
from uitars_nb.model.tensor_files import TensorFiles
from uitars_nb.train.merging import check_weights, mean, merge_checkpoints, merge_states, search_weights

KINDS = 'UI-TARS-1.5-7B', 'Qwen3-VL', 'nano'


@pytest.fixture(scope='module')
def home(tmp_path_factory): return tmp_path_factory.mktemp('merging')


def write(folder, kind, seed):
    if kind != 'nano': return write_checkpoint(folder, kind, seed=seed)
    sizes = dict(hidden=32, layers=2, heads=2, inner=48, stem_channels=16, stem_blocks=1)
    Policy(*new_policy(make_tokenizer(['Click on the button.', 'Enter text.']), seed, **sizes), 'ui-tars-2', 'nano').save(folder)
    return folder


@pytest.fixture(scope='module')
def three(home):
    "Of each kind, three checkpoints from three seeds."
    known = {}
    def get(kind):
        if kind not in known: known[kind] = [write(home/f'{kind}-{seed}', kind, seed) for seed in range(3)]
        return known[kind]
    return get


def state(folder, **kw): return Policy.from_pretrained(folder, **kw).model.state_dict()


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('weights', [None, [.2, .3, .5], [0, 0, 1]])
def test_every_tensor_is_the_weighted_mean(three, tmp_path, kind, weights):
    merge_checkpoints(three(kind), tmp_path/'out', weights and mean(weights))
    made, parts = state(tmp_path/'out'), [state(o) for o in three(kind)]
    assert [*made] == [*parts[0]]
    for name, got in made.items():
        wanted = sum(a * o[name].double() for a, o in zip(weights or [1 / 3] * 3, parts))
        assert got.dtype == parts[0][name].dtype
        torch.testing.assert_close(got, wanted.to(got.dtype), rtol=1e-2 if got.dtype == torch.bfloat16 else 1e-6, atol=1e-6)


@pytest.mark.parametrize('kind', KINDS)
def test_a_merged_checkpoint_has_the_files_and_tensors_of_the_first(three, tmp_path, kind):
    merge_checkpoints(three(kind), tmp_path/'out')
    assert {o.name for o in (tmp_path/'out').iterdir()} - {'policy.json'} == {o.name for o in three(kind)[0].iterdir()} - {'policy.json', 'README.md'}
    made, first = TensorFiles(tmp_path/'out'), TensorFiles(three(kind)[0])
    assert {k: (o.dtype, o.shape, o.file.name) for k, o in made.places.items()} == {k: (o.dtype, o.shape, o.file.name) for k, o in first.places.items()}


def test_a_tensor_that_one_lacks_is_an_error_before_anything_is_written(three, tmp_path):
    folder = shutil.copytree(three('nano')[0], tmp_path/'less')
    tensors = load_file(folder/'model.safetensors')
    del tensors['target.weight']
    save_file(tensors, folder/'model.safetensors', dict(format='pt'))
    for pair, words in (([folder, three('nano')[1]], 'in policy 2 and not in policy 1: target.weight'), ([three('nano')[1], folder], 'in policy 1 and not in policy 2: target.weight')):
        with pytest.raises(ValueError, match=words): merge_checkpoints(pair, tmp_path/'out')
    assert not (tmp_path/'out').exists() and {o.name for o in tmp_path.iterdir()} == {'less'}


def test_one_tensor_of_each_policy_is_read_at_a_time():
    class Lazy(dict):
        def __getitem__(self, name): read.append(name); return super().__getitem__(name)
    read, states = [], [Lazy(a=torch.full((2,), x), b=torch.full((2,), -x)) for x in (1., 3.)]
    stream = merge_states(states[0], states, mean([.5, .5]))
    assert next(stream)[1].tolist() == [2, 2] and read == ['a', 'a']
    assert next(stream)[1].tolist() == [-2, -2] and read == ['a', 'a', 'b', 'b']


def test_modules_that_an_adapter_trained_whole_take_their_places(three, tmp_path):
    base = three('Qwen3-VL')[0]
    policy = Policy.from_pretrained(base, dtype='float32', adapter=LoraConfig(r=2, target_modules=['q_proj'], modules_to_save=['k_norm']))
    trained = [k for k, p in policy.model.named_parameters() if 'modules_to_save' in k]
    with torch.no_grad():
        for k in trained: policy.model.get_parameter(k).fill_(7.)
    policy.save(tmp_path/'adapter')
    made = merge_adapter(Policy.from_pretrained(tmp_path/'adapter', dtype='float32').model)
    names = {k.replace('.modules_to_save.default', '') for k in trained}
    assert names and all((made.state_dict()[k] == 7).all() for k in names) and made.state_dict().keys() == state(base).keys()


def test_an_adapter_counts_with_its_base(three, tmp_path):
    torch.manual_seed(0)   # of the adapter: what rounding makes of the sum depends on its size
    base = three('Qwen3-VL')[0]
    policy = Policy.from_pretrained(base, dtype='float32', adapter=LoraConfig(r=2, target_modules=['q_proj'], init_lora_weights=False))
    policy.save(tmp_path/'adapter')
    merge_checkpoints([base, tmp_path/'adapter'], tmp_path/'out')
    merge_checkpoints([tmp_path/'adapter', base], tmp_path/'swapped')
    assert all(torch.equal(o, state(tmp_path/'out')[k]) for k, o in state(tmp_path/'swapped').items())
    made, plain = state(tmp_path/'out', dtype='float32'), state(base, dtype='float32')
    lora = {k: v for k, v in policy.model.state_dict().items() if 'lora' in k}
    moved = [k for k in plain if not torch.equal(made[k], plain[k])]
    assert moved and all('q_proj' in k for k in moved)
    for name in moved:
        a, b = (lora[name.removesuffix('weight') + f'lora_{o}.default.weight'] for o in 'AB')
        scale = policy.model.peft_config['default'].lora_alpha / 2
        torch.testing.assert_close(made[name], plain[name] + scale * (b @ a) / 2, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize('weights', [[1.], [.5, .6], [-.5, 1.5], [float('nan'), .5], [float('inf'), .5]])
def test_weights_that_cannot_be_meant(weights):
    with pytest.raises(ValueError, match='weights'): check_weights(weights, 2)


def test_strangers_are_told_apart(three, tmp_path):
    a, b = three('Qwen3-VL')[0], three('UI-TARS-1.5-7B')[0]
    with pytest.raises(ValueError, match='architecture'): merge_checkpoints([a, b], tmp_path/'out')
    with pytest.raises(ValueError, match='two checkpoints'): merge_checkpoints([a], tmp_path/'out')
    assert not (tmp_path/'out').exists()


def rewritten(folder, to, **fields):
    "A copy of a checkpoint with other values in its configuration; `text.` is the part of the decoder, `vision.` that of the eyes."
    shutil.copytree(folder, to)
    config = json.loads((to/'config.json').read_text())
    for name, value in fields.items():
        part, _, field = name.rpartition('.')
        (config[f'{part}_config'] if part else config)[field] = value
    (to/'config.json').write_text(json.dumps(config))
    return to


@pytest.mark.parametrize('kind, fields, why', [
    ('nano', {'text.rms_norm_eps': 1e-3}, 'text_config.rms_norm_eps is 1e-06 and 0.001'), ('nano', {'text.hidden_act': 'relu'}, "text_config.hidden_act is 'silu' and 'relu'"),
    ('nano', {'text.max_position_embeddings': 512}, 'text_config.max_position_embeddings is 4096 and 512'), ('nano', {'text.rope_parameters': dict(rope_type='default', rope_theta=5e5)}, 'rope_theta is 10000.0 and 500000.0'),
    ('nano', {'text.eos_token_id': 3}, 'text_config.eos_token_id is [0-9]+ and 3'), ('UI-TARS-1.5-7B', {'vision.fullatt_block_indexes': [0]}, r'vision_config.fullatt_block_indexes is \[.*\] and \[0\]')])
def test_models_that_compute_differently_are_not_mixed(three, tmp_path, kind, fields, why):
    "Their tensors have the same names and shapes."
    folders = [three(kind)[0], rewritten(three(kind)[1], tmp_path/'other', **fields)]
    with pytest.raises(ValueError, match=why): merge_checkpoints(folders, tmp_path/'out')
    assert not (tmp_path/'out').exists()


@pytest.mark.parametrize('file, change, why', [
    ('config.json', lambda o: o.update(quantization_config=dict(quant_method='fp8')), 'other is quantised'),
    ('preprocessor_config.json', lambda o: o.update(image_mean=[.5] * 3), r'process images differently: image_mean is .* and \(0.5, 0.5, 0.5\)'),
    ('chat_template.json', lambda o: o.update(chat_template=o['chat_template'].replace('user', 'person') + ' '), 'different chat templates')])
def test_checkpoints_that_see_or_speak_otherwise_are_not_mixed(three, tmp_path, file, change, why):
    "Their configurations of the model are equal."
    folder = shutil.copytree(three('UI-TARS-1.5-7B')[1], tmp_path/'other')
    data = json.loads((folder/file).read_text())
    change(data)
    (folder/file).write_text(json.dumps(data))
    if file == 'chat_template.json':   # it stands in two files
        config = json.loads((folder/'tokenizer_config.json').read_text())
        (folder/'tokenizer_config.json').write_text(json.dumps(config | data))
    with pytest.raises(ValueError, match=why): merge_checkpoints([three('UI-TARS-1.5-7B')[0], folder], tmp_path/'out')
    assert not (tmp_path/'out').exists()


def test_memory_settings_of_merged_policies_are_kept_and_have_to_agree(three, tmp_path):
    own = []
    for k, name in enumerate(three('nano')[:2]):
        policy = Policy.from_pretrained(name)
        policy.memory = dict(chunk=1)
        policy.save(tmp_path/str(k))
        own.append(tmp_path/str(k))
    merge_checkpoints(own, tmp_path/'out')
    assert Policy.from_pretrained(tmp_path/'out').memory == dict(chunk=1)
    with pytest.raises(ValueError, match="differ in memory settings: .'chunk': 1., ..$"): merge_checkpoints([own[0], three('nano')[1]], tmp_path/'no')


def test_models_of_another_layout_are_told_why(three, tmp_path):
    sizes = dict(hidden=32, layers=2, heads=2, inner=48, stem_channels=16, stem_blocks=1)
    Policy(*new_policy(make_tokenizer(['Click on the button.', 'Enter text.']), 0, glimpses=1, **sizes), 'ui-tars-2', 'nano').save(tmp_path/'one')
    with pytest.raises(ValueError, match=r'one compute differently.*num_hidden_layers is 4 and 3.*glimpses is \[2, 3\] and \[2\]'): merge_checkpoints([three('nano')[0], tmp_path/'one'], tmp_path/'out')


@pytest.mark.parametrize('odd', [float('nan'), float('inf')])
def test_a_checkpoint_with_a_number_that_is_none_is_refused_by_tensor(three, tmp_path, odd):
    folder = shutil.copytree(three('nano')[0], tmp_path/'broken')
    tensors = load_file(folder/'model.safetensors')
    tensors['target.weight'][0, 3] = odd
    save_file(tensors, folder/'model.safetensors', dict(format='pt'))
    with pytest.raises(ValueError, match='target.weight holds NaN or infinity in policy 2'): merge_checkpoints([three('nano')[1], folder], tmp_path/'out')


def test_a_folder_that_is_merged_may_be_replaced(three, tmp_path):
    mine = shutil.copytree(three('Qwen3-VL')[0], tmp_path/'mine')
    before = state(mine)
    merge_checkpoints([mine, three('Qwen3-VL')[1]], mine, mean([0, 1]))
    after, wanted = state(mine), state(three('Qwen3-VL')[1])
    assert all(torch.equal(after[k], wanted[k]) for k in after) and any(not torch.equal(after[k], before[k]) for k in after)


@given(st.integers(2, 4), st.integers(5, 30), st.randoms(use_true_random=False))
def test_a_search_stays_on_the_simplex_within_its_tries_and_asks_once(count, tries, rng):
    "Whatever it is told; what it takes is no worse than any policy alone, or their mean."
    asked = []
    def score(o): asked.append(o); return rng.choice([0., .5, 1., rng.random()])
    found = search_weights(score, count, tries)
    assert [*found] == asked and len({*asked}) == len(asked) <= tries
    assert all(check_weights(o, count) == [*o] for o in asked)   # what is merged is checked so
    assert max(found.values()) >= max([*found.values()][:count + 1])


@given(st.lists(st.floats(.05, 1), min_size=2, max_size=4))
def test_a_search_climbs_a_hill(shares):
    top = [o / sum(shares) for o in shares]
    found = search_weights(lambda o: -sum((a - b)**2 for a, b in zip(o, top)), len(top), 200, least=.02)
    assert max(abs(a - b) for a, b in zip(max(found, key=found.get), top)) < .08

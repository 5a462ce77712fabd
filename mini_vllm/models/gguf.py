"""A GGUF file: config, weights and tokenizer in one, under names of its own.

The tokenizer is in the file's fields: vocabulary and merges as lists, the rule that splits a text only by name.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from mini_vllm.backend import is_cpu, mx
from mini_vllm.models.config import FieldError, LoadError, ModelConfig
from mini_vllm.models.gguf_file import GGUFFile
from mini_vllm.models.tokenizer import Tokenizer, TokenizerError

#: Parameter names of a GGUF file → those of a Hugging Face checkpoint
GGUF_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}

#: Fields of a config.json → what a GGUF file calls them, after the name of the architecture
GGUF_FIELDS = {
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length", "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon", "rope_theta": "rope.freq_base",
    "rope_scaling.rope_type": "rope.scaling.type", "rope_scaling.factor": "rope.scaling.factor",
    "rope_scaling.original_max_position_embeddings": "rope.scaling.original_context_length",
    "rope_scaling.beta_fast": "rope.scaling.yarn_beta_fast", "rope_scaling.beta_slow": "rope.scaling.yarn_beta_slow",
}
#: Fields about rotation that change nothing, or are checked below; others are refused.
OTHER_ROPE_FIELDS = {"rope.dimension_count", "rope.scaling.finetuned"}
#: A tensor that divides the rotary frequencies, in the files of Llama 3.1 and later
ROPE_FACTORS = "rope_freqs.weight"

#: ``tokenizer.ggml.token_type``: the text of these tokens becomes one id, unchanged. Control tokens are not shown.
CONTROL, USER_DEFINED = 3, 4

_CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")
_GPT2_WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_ONLY_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

#: ``tokenizer.ggml.pre`` names the rule that splits a text into words before any merge. They differ mostly in digits.
SPLITS = {
    "default": (_GPT2_WORDS,),
    "gpt-2": (_GPT2_WORDS,),
    "smollm": (pre_tokenizers.Digits(individual_digits=True), _GPT2_WORDS),
    "llama-bpe": (pre_tokenizers.Split(Regex(_CL100K % "{1,3}"), "isolated"), _ONLY_BYTES),
    "qwen2": (pre_tokenizers.Split(Regex(_CL100K % ""), "isolated"), _ONLY_BYTES),
}

T = TypeVar("T")


def read_gguf(file: Path) -> tuple[ModelConfig, dict[str, mx.array], Tokenizer]:
    """Read a GGUF file. Raise LoadError or TokenizerError that names the missing or invalid field as in the file."""
    content = GGUFFile(file)
    config, weights = _read_config(file, content.fields), dict[str, mx.array]()
    for name, arrays in content.tensors(mx.float32 if is_cpu() else mx.float16):
        if name == ROPE_FACTORS:
            factors, num_pairs = np.array(arrays[name], np.float32), config.head_dim // 2
            if factors.shape != (num_pairs,) or not np.all((factors > 0) & (factors < np.inf)):
                raise LoadError(f"{file}: the tensor {name} must have {num_pairs} numbers above 0, one per pair")
            config = replace(config, rope_factors=tuple(factors.tolist()))
        else:
            weights.update((_name_from_gguf(part), array) for part, array in arrays.items())
    return config, weights, tokenizer_from_gguf(content.fields)


def _read_config(file: Path, metadata: Mapping[str, object]) -> ModelConfig:
    architecture = metadata.get("general.architecture")
    keys = {field: f"{architecture}.{key}" for field, key in GGUF_FIELDS.items()}
    tokens = metadata.get("tokenizer.ggml.tokens")
    try:
        config = ModelConfig.from_dict({
            **{field: metadata.get(key) for field, key in keys.items() if "." not in field},
            "model_type": architecture, "rope_scaling": _read_scaling(architecture, metadata, keys),
            "vocab_size": len(tokens) if tokens and isinstance(tokens, list) else 1,  # the tokenizer will complain
            # Files of the llama architecture store queries and keys in the order of interleaved pairs.
            "rope_traditional": architecture == "llama"})
        rotated = f"{architecture}.rope.dimension_count"
        if metadata.get(rotated, config.head_dim) != config.head_dim:
            raise FieldError(rotated, f"is {metadata[rotated]}, supported: {config.head_dim}, the size of a head")
        return config
    except FieldError as error:
        raise LoadError(f"{file}: {keys.get(error.field, error.field)} {error.complaint}") from None
    except ValueError as error:
        raise LoadError(f"{file}: {error}") from None


def _read_scaling(architecture: object, metadata: Mapping[str, object],
                  keys: Mapping[str, str]) -> dict[str, object] | None:
    """Return ``rope_scaling`` as in a config.json. As in llama.cpp, a factor without a type scales linearly."""
    known = {*keys.values(), *(f"{architecture}.{field}" for field in OTHER_ROPE_FIELDS)}
    for key, value in metadata.items():
        if key.startswith(f"{architecture}.rope.") and key not in known:
            raise FieldError(key, f"is {value!r}, which is not supported")
    scaling = {field.partition(".")[2]: metadata.get(key) for field, key in keys.items() if "." in field}
    if scaling["rope_type"] is None and scaling["factor"] is not None:
        scaling["rope_type"] = "linear"
    return None if scaling["rope_type"] in (None, "none") else scaling


def _name_from_gguf(name: str) -> str:
    """Translate a name: ``blk.3.attn_q.weight`` → ``model.layers.3.self_attn.q_proj.weight``"""
    stem, _, kind = name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if block:
        return f"model.layers.{block[1]}.{GGUF_NAMES.get(block[2], block[2])}.{kind}"
    return f"{GGUF_NAMES.get(stem, stem)}.{kind}"


def tokenizer_from_gguf(fields: Mapping[str, object]) -> Tokenizer:
    """Build the tokenizer. Raise TokenizerError that names the missing or invalid field."""
    kind = _field(fields, "model", str)
    if kind != "gpt2":
        raise TokenizerError(f"tokenizer.ggml.model is {reprlib.repr(kind)}, supported: 'gpt2' (byte-level BPE)")
    pre = _field(fields, "pre", str, "default")
    if pre not in SPLITS:
        raise TokenizerError(f"tokenizer.ggml.pre is {reprlib.repr(pre)}, supported: {', '.join(sorted(SPLITS))}")
    tokens = _field(fields, "tokens", list)
    ids = {}
    for name in ("bos", "eos", "eot", "eom"):  # they begin a text, and end a text, a turn and a message
        token_id = _field(fields, f"{name}_token_id", int, None)
        if token_id is not None:
            if not 0 <= token_id < len(tokens):
                raise TokenizerError(f"tokenizer.ggml.{name}_token_id is {token_id}, must be from 0 to "
                                     f"{len(tokens) - 1}")
            ids[name] = token_id
    backend = _make_backend(fields, tokens, pre)
    if _field(fields, "add_bos_token", bool, pre == "llama-bpe"):
        if "bos" not in ids:
            raise TokenizerError("tokenizer.ggml.bos_token_id is missing, but every text must begin with it")
        backend.post_processor = processors.TemplateProcessing("BOS $A", special_tokens=[("BOS", ids["bos"])])
    bos_token, eos_token = (tokens[ids[name]] if name in ids else None for name in ("bos", "eos"))
    eos_token_ids = frozenset(ids[name] for name in ("eos", "eot", "eom") if name in ids)
    template = fields.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise TokenizerError(f"tokenizer.chat_template is {reprlib.repr(template)}, must be a text")
    return Tokenizer(backend, bos_token, eos_token, eos_token_ids, template)


def _make_backend(fields: Mapping[str, object], tokens: list[str], pre: str) -> tokenizers.Tokenizer:
    types, merges = _field(fields, "token_type", list), _field(fields, "merges", list)
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if not len(types) == len(tokens) == len(vocab):
        raise TokenizerError(f"tokenizer.ggml.token_type has {len(types)} entries, tokenizer.ggml.tokens has "
                             f"{len(tokens)}, {len(vocab)} of them different: all three must be equal")
    try:
        pairs = [tuple(merge.split(" ", 1)) for merge in merges]
        # In Llama 3, a word that is itself a token becomes this token, and no merges are applied.
        backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre == "llama-bpe"))
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"tokenizer.ggml.merges do not fit tokenizer.ggml.tokens: {error}") from error
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence([*SPLITS[pre]])
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(token, special=token_type == CONTROL, normalized=False)
                        for token, token_type in zip(tokens, types) if token_type in (CONTROL, USER_DEFINED)])
    return backend


def _field(fields: Mapping[str, object], name: str, kind: type[T], *default: Any) -> T:
    """Return ``tokenizer.ggml.<name>``, or the default for a missing field, if there is one."""
    value = fields.get(f"tokenizer.ggml.{name}")
    if value is None and default:
        return default[0]  # type: ignore[no-any-return]
    if type(value) is not kind:  # a bool is not a whole number here
        is_what = "is missing" if value is None else f"is {reprlib.repr(value)}"
        raise TokenizerError(f"tokenizer.ggml.{name} {is_what}, must be of type {kind.__name__}")
    return value

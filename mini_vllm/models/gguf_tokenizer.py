"""The tokenizer in a GGUF file's metadata: vocabulary and merges as lists, the split rule only by name."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from mini_vllm.models.tokenizer import Tokenizer, TokenizerError

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


def tokenizer_from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
    """Build the tokenizer. Raise TokenizerError that names the missing or invalid field."""
    fields = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in metadata.items()
              if name.startswith("tokenizer.")}
    kind = _required(fields, "tokenizer.ggml.model", str)
    if kind != "gpt2":
        raise TokenizerError(f"tokenizer.ggml.model is {reprlib.repr(kind)}, supported: 'gpt2' (byte-level BPE)")
    pre = _optional(fields, "tokenizer.ggml.pre", str)
    pre = "default" if pre is None else pre
    if pre not in SPLITS:
        raise TokenizerError(f"tokenizer.ggml.pre is {reprlib.repr(pre)}, supported: {', '.join(sorted(SPLITS))}")
    tokens = _required(fields, "tokenizer.ggml.tokens", list)
    ids = _special_ids(fields, len(tokens))
    backend = _make_backend(fields, tokens, pre)
    add_bos = _optional(fields, "tokenizer.ggml.add_bos_token", bool)
    if pre == "llama-bpe" if add_bos is None else add_bos:
        if "bos" not in ids:
            raise TokenizerError("tokenizer.ggml.bos_token_id is missing, but every text must begin with it")
        backend.post_processor = processors.TemplateProcessing("BOS $A", special_tokens=[("BOS", ids["bos"])])
    bos_token, eos_token = (tokens[ids[name]] if name in ids else None for name in ("bos", "eos"))
    eos_token_ids = frozenset(ids[name] for name in ("eos", "eot", "eom") if name in ids)
    return Tokenizer(backend, bos_token, eos_token, eos_token_ids, _optional(fields, "tokenizer.chat_template", str))


def _make_backend(fields: Mapping[str, object], tokens: list[str], pre: str) -> tokenizers.Tokenizer:
    types = _required(fields, "tokenizer.ggml.token_type", list)
    if len(types) != len(tokens):
        raise TokenizerError(f"tokenizer.ggml.token_type has {len(types)} entries, must be {len(tokens)}, "
                             "as many as tokenizer.ggml.tokens")
    merges = _required(fields, "tokenizer.ggml.merges", list)
    vocab = _make_vocab(tokens)
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


def _make_vocab(tokens: Sequence[str]) -> dict[str, int]:
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        twice = next(token for token_id, token in enumerate(tokens) if vocab[token] != token_id)
        raise TokenizerError(f"tokenizer.ggml.tokens has {reprlib.repr(twice)} more than once")
    return vocab


def _special_ids(fields: Mapping[str, object], num_tokens: int) -> dict[str, int]:
    """Return the ids that begin a text and end a text, a turn and a message, as far as the file has them."""
    ids = {}
    for name in ("bos", "eos", "eot", "eom"):
        field = f"tokenizer.ggml.{name}_token_id"
        token_id = _optional(fields, field, int)
        if token_id is not None:
            if not 0 <= token_id < num_tokens:
                raise TokenizerError(f"{field} is {token_id}, must be from 0 to {num_tokens - 1}")
            ids[name] = token_id
    return ids


def _required(fields: Mapping[str, object], name: str, kind: type[T]) -> T:
    if name not in fields:
        raise TokenizerError(f"{name} is missing from the GGUF metadata")
    value = fields[name]
    if type(value) is not kind:  # a bool is not a whole number here
        raise TokenizerError(f"{name} is {reprlib.repr(value)}, must be of type {kind.__name__}")
    return value


def _optional(fields: Mapping[str, object], name: str, kind: type[T]) -> T | None:
    return _required(fields, name, kind) if name in fields else None

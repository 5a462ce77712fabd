"""The most characters that one token can stand for. With this number, a prompt that is too long can be rejected before
it is encoded.

A server that gets a text of many megabytes can reject it unread: the text has at least as many tokens as its length
divided by that of the longest token. This holds only if every character of a text ends up in some token, so each part
of a tokenizer is examined, and only parts known to keep all characters are accepted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

#: Normal form C combines at most this many characters into one: a letter and three marks above or below it.
MAX_COMPOSED = 4
ONLY_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

#: A normalizer or pre-tokenizer as its library writes it to JSON.
Part = Mapping[str, object]


def longest_token(backend: tokenizers.Tokenizer, longest_piece: int) -> int | None:
    """Return the most characters of a text that a token can stand for; None if there is no bound.

    The vocabulary's longest entry is the bound if nothing is dropped, merged or replaced by an "unknown" token on the
    way.
    """
    model = backend.model
    before_words, words = _parts_of(backend.normalizer), _parts_of(backend.pre_tokenizer)
    has_bytes = _is_byte_level(words) and None not in map(backend.token_to_id, _later_bytes())
    has_all = isinstance(model, models.BPE) and (
        has_bytes or model.byte_fallback or (model.unk_token is not None and not model.fuse_unk))
    keeps_all = all(_keeps_all_characters(part) for part in (*before_words, *words))
    swallows = any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values())
    if not has_all or not keeps_all or swallows:
        return None
    num_composed = MAX_COMPOSED if any(part["type"] == "NFC" for part in before_words) else 1
    return num_composed * longest_piece


def lost_characters(backend: tokenizers.Tokenizer) -> list[str]:
    """Return the one-byte characters that have no token in a vocabulary of bytes, and vanish."""
    if not _is_byte_level(_parts_of(backend.pre_tokenizer)):
        return []
    return [chr(code) for code in range(128) if not backend.encode(chr(code), add_special_tokens=False).ids]


def _parts_of(component: normalizers.Normalizer | pre_tokenizers.PreTokenizer | None) -> list[Part]:
    """Return the parts of ``component`` if it is a sequence; else a list that contains only ``component``."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())
    parts: list[Part] = state.get("normalizers", state.get("pretokenizers")) if state["type"] == "Sequence" else [state]
    return parts


def _is_byte_level(words: Iterable[Part]) -> bool:
    return any(part["type"] == "ByteLevel" for part in words)


def _later_bytes() -> set[str]:
    """Return the symbols of the continuation bytes of UTF-8: if all have a token, no multi-byte character vanishes."""
    return {ONLY_BYTES.pre_tokenize_str(chr(code))[0][0][-1] for code in range(0x80, 0xC0)}


def _keeps_all_characters(part: Part) -> bool:
    """Check whether this part of a normalizer or pre-tokenizer drops no character, apart from NFC's composition."""
    kind = part["type"]
    if kind == "Replace":
        pattern = part["pattern"]
        return isinstance(pattern, dict) and len(pattern.get("String", "")) == 1 and part["content"] != ""
    if kind == "Split":
        return part["behavior"] != "Removed"
    return kind in ("NFC", "Prepend", "ByteLevel", "Digits", "Metaspace")

"""Log-probabilities of tokens, in the two formats of OpenAI's API.

An answer may contain hundreds of thousands of them, so they are written as JSON in pieces: between two pieces the event
loop can serve other requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

from mini_vllm.request import Logprob, SamplingParams, TokenLogprob
from mini_vllm.server.errors import ApiError

#: Stands for minus infinity, which JSON does not have: the token cannot occur at all.
LOWEST = -9999.0
#: The maximum number of log-probabilities of an answer; each takes about 350 bytes until it is written.
MAX_LOGPROBS = 2**18
#: A piece contains this many tokens: with 20 alternatives each, writing them takes two milliseconds.
TOKENS_PER_PIECE = 32


def check_num_logprobs(params: SamplingParams, num_texts: int, max_model_len: int) -> None:
    """Raise ApiError if the answer could contain more than ``MAX_LOGPROBS`` log-probabilities."""
    if params.logprobs is None:
        return
    num_tokens = max_model_len if params.max_tokens is None else min(params.max_tokens, max_model_len)
    num_logprobs = num_texts * num_tokens * (params.logprobs + 1)
    if num_logprobs > MAX_LOGPROBS:
        raise ApiError(400, f"logprobs is {params.logprobs}, so the answer could contain {num_logprobs} "
                       f"log-probabilities, must be at most {MAX_LOGPROBS}: there are {num_texts} texts (prompts times "
                       f"n) of up to {num_tokens} tokens, with {params.logprobs + 1} log-probabilities per token; "
                       "reduce the texts, max_tokens or logprobs", param="logprobs", code="too_many_logprobs")


def text_logprobs(entries: Sequence[TokenLogprob], first_offset: int) -> Iterator[str]:
    """Yield the format of completions, columns. ``text_offset`` counts characters from ``first_offset``."""
    offsets, offset = [], first_offset
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.text or "")
    yield '{"tokens":'
    yield from _listed(entries, lambda entry: entry.text or "")
    yield ',"token_logprobs":'
    yield from _listed(entries, lambda entry: _finite(entry.logprob))
    yield ',"top_logprobs":'
    yield from _listed(entries, _by_text)
    yield f',"text_offset":{json.dumps(offsets)}}}'


def chat_logprobs(entries: Sequence[TokenLogprob]) -> Iterator[str]:
    """Yield the format of chats, an object per token."""
    yield '{"content":'
    yield from _listed(entries, _with_others)
    yield ',"refusal":null}'


def _listed(entries: Sequence[TokenLogprob], shape: Callable[[TokenLogprob], object]) -> Iterator[str]:
    """Yield a JSON list in pieces."""
    yield "["
    for start in range(0, len(entries), TOKENS_PER_PIECE):
        piece = json.dumps([shape(entry) for entry in entries[start:start + TOKENS_PER_PIECE]], separators=(",", ":"))
        yield f"{',' if start else ''}{piece[1:-1]}"
    yield "]"


def _by_text(entry: TokenLogprob) -> dict[str, float]:
    """Return the likeliest tokens and the chosen one, by text.

    If several have the same text, as parts of characters do, keep the likeliest.
    """
    found: dict[str, float] = {}
    entries: list[Logprob | TokenLogprob] = [*entry.top.values(), entry]
    for each in entries:
        text = each.text or ""
        found[text] = max(_finite(each.logprob), found.get(text, LOWEST))
    return found


def _with_others(entry: TokenLogprob) -> dict[str, object]:
    return {**_token(entry), "top_logprobs": [_token(each) for each in entry.top.values()]}


def _token(entry: Logprob | TokenLogprob) -> dict[str, object]:
    """Describe a token. One that is a part of a character has no text, and its bytes are not known here."""
    text = entry.text or ""
    return {"token": text, "logprob": _finite(entry.logprob),
            "bytes": None if "\N{REPLACEMENT CHARACTER}" in text else list(text.encode("utf-8", "replace"))}


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)

"""Log-probabilities of tokens in the two shapes that OpenAI's API has for them."""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.request import Logprob, TokenLogprob

#: JSON has no number for what cannot come at all.
LOWEST = -9999.0


def text_logprobs(entries: Sequence[TokenLogprob], first_offset: int) -> dict[str, object]:
    """For completions: columns. ``text_offset`` counts characters from ``first_offset``."""
    offsets, offset = [], first_offset
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.text or "")
    return {"tokens": [entry.text or "" for entry in entries],
            "token_logprobs": [_finite(entry.logprob) for entry in entries],
            "top_logprobs": [_by_text(entry) for entry in entries],
            "text_offset": offsets}


def _by_text(entry: TokenLogprob) -> dict[str, float]:
    """The likeliest tokens and the chosen one. Of those that read alike, as parts of characters do, the likeliest."""
    found: dict[str, float] = {}
    entries: list[Logprob | TokenLogprob] = [*entry.top.values(), entry]
    for each in entries:
        text = each.text or ""
        found[text] = max(_finite(each.logprob), found.get(text, LOWEST))
    return found


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, object]:
    """For chats: an object a token."""
    return {"content": [{**_token(entry), "top_logprobs": [_token(each) for each in entry.top.values()]}
                        for entry in entries], "refusal": None}


def _token(entry: Logprob | TokenLogprob) -> dict[str, object]:
    """A token that is a part of a character has no text of its own, and its bytes are not known here."""
    text = entry.text or ""
    return {"token": text, "logprob": _finite(entry.logprob),
            "bytes": None if "\N{REPLACEMENT CHARACTER}" in text else list(text.encode("utf-8", "replace"))}


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)

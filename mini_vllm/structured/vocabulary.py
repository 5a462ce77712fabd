"""The tokens of a model as bytes, and what is computed from them once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property


class Vocabulary:
    """The bytes of every token. Tokens that are not text, such as the end of a turn, have none."""

    def __init__(self, token_bytes: Sequence[bytes], eos_token_ids: Collection[int], num_rows: int | None = None,
                 not_first: Collection[int] = (), encode: Callable[[str], list[int]] | None = None) -> None:
        """Create it from the bytes of each token.

        ``num_rows``, if larger, is the number of logits of a row. Tokens of ``not_first`` have another text at the
        beginning of an output, so they are not allowed there. ``encode`` is the model's own way to split a text.
        """
        self._encode = encode
        #: Row i of the logits belongs to token i. All rows after the tokens, and the ends of a text, have no bytes.
        self.num_rows = max(len(token_bytes), num_rows or 0)
        self.eos_token_ids = [token_id for token_id in sorted(eos_token_ids) if token_id < self.num_rows]
        self.token_bytes = [*token_bytes, *[b""] * (self.num_rows - len(token_bytes))]
        for token_id in self.eos_token_ids:
            self.token_bytes[token_id] = b""
        self.not_first = sorted(not_first)
        #: What grammars compute from the vocabulary alone, by name: each is made once, and all grammars share it.
        self.shared: dict[str, object] = {}

    @classmethod
    def of_bytes(cls) -> Vocabulary:
        """Return a vocabulary of one token per byte. Token 256 is the end of the text."""
        return cls([*(bytes([byte]) for byte in range(256)), b""], [256])

    @cached_property
    def single_bytes(self) -> set[int]:
        """The bytes that are a token."""
        return {each[0] for each in self.token_bytes if len(each) == 1}

    @cached_property
    def used_bytes(self) -> set[int]:
        """The bytes that are in some token."""
        return set(b"".join(self.token_bytes))

    @cached_property
    def longest(self) -> int:
        """The number of bytes of the longest token."""
        return max(map(len, self.token_bytes))

    def tokens_of(self, text: str) -> list[int]:
        """Return the tokens that spell ``text``: the model's own, or else the longest ones from left to right.

        The model's own do not spell the text if it names special tokens. Raise ValueError if no tokens do.
        """
        if self._encode is not None:
            token_ids = self._encode(text)
            if b"".join(self.token_bytes[token_id] for token_id in token_ids) == text.encode():
                return token_ids
        by_bytes = self.shared.setdefault("by bytes", {each: index for index, each in enumerate(self.token_bytes)})
        assert isinstance(by_bytes, dict)
        rest, token_ids = text.encode(), []
        while rest:
            word = next((rest[:size] for size in range(min(self.longest, len(rest)), 0, -1) if rest[:size] in by_bytes),
                        None)
            if word is None:
                raise ValueError(f"no token of this model begins like {rest[:8]!r}")
            token_ids.append(by_bytes[word])
            rest = rest[len(word):]
        return token_ids

"""The tokens of a model as bytes, and what is computed from them once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mini_vllm.structured.automaton import ByteAutomaton


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


class TokenTrie:
    """A trie of the tokens that have bytes.

        tokens   a  an  and  b        ┌─ a ─▶ node 1 (token a) ── n ─▶ node 3 (token an) ── d ─▶ node 4 (token and)
                                 root ┤
                                      └─ b ─▶ node 2 (token b)

    An automaton that walks the trie reads a beginning that many tokens share only once. The nodes are numbered level by
    level, so one operation on arrays walks a whole level.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        words = vocabulary.token_bytes
        nodes: dict[bytes, int] = {b"": 0}
        parents, edges = [0], [0]
        #: Where each level begins.
        self._levels = [0, 1]
        for length in range(1, vocabulary.longest + 1):
            words = [each for each in words if len(each) >= length]
            for prefix in dict.fromkeys(each[:length] for each in words):
                nodes[prefix] = len(nodes)
                parents.append(nodes[prefix[:-1]])
                edges.append(prefix[-1])
            self._levels.append(len(nodes))
        self._parents, self._edges = np.array(parents), np.array(edges)
        # Tokens without bytes get the node after the last, which no walk reaches.
        self._node_of_token = np.array([nodes[each] if each else len(nodes) for each in vocabulary.token_bytes])

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> TokenTrie:
        """Return the trie of a vocabulary, which is made once."""
        if "trie" not in vocabulary.shared:
            vocabulary.shared["trie"] = cls(vocabulary)
        trie = vocabulary.shared["trie"]
        assert isinstance(trie, TokenTrie)
        return trie

    def walk(self, automaton: ByteAutomaton, state: int) -> NDArray[np.int16]:
        """Return the state after each token, from ``state`` on; DEAD for tokens without bytes."""
        table = automaton.table
        states = np.full(len(self._parents) + 1, -1, dtype=np.int16)
        states[0] = state
        for start, end in zip(self._levels[1:], self._levels[2:]):
            states[start:end] = table[states[self._parents[start:end]], self._edges[start:end]]
        after: NDArray[np.int16] = states[self._node_of_token]
        return after

"""A trie of the tokens of a vocabulary.

    tokens   a  an  and  b        ┌─ a ─▶ node 1 (token a) ── n ─▶ node 3 (token an) ── d ─▶ node 4 (token and)
                             root ┤
                                  └─ b ─▶ node 2 (token b)

An automaton that walks the trie reads a beginning that many tokens share only once. The nodes are numbered level by
level, so one operation on arrays walks a whole level.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mini_vllm.structured.automaton import ByteAutomaton
from mini_vllm.structured.vocabulary import Vocabulary


class TokenTrie:
    """The tokens that have bytes."""

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

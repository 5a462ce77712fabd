"""Which tokens may come next, so that the output matches.

    state 0 ──▶ mask: the tokens whose bytes lead from state 0 to some state ──▶ sampler ──▶ token ──▶ next state

A state is a number of the automaton. Nothing else is needed to continue, so a state is copied when a sequence is
forked, kept when it is preempted, and simply not used when a drafted token is rejected. All requests with the same
grammar share it, and with it the masks, which are computed once per state.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from mini_vllm.structured.automaton import DEAD, ByteAutomaton, TooLargeError
from mini_vllm.structured.regex_tree import Node
from mini_vllm.structured.vocabulary import TokenTrie, Vocabulary

Mask = NDArray[np.bool_]
#: The bytes of masks and next states that a grammar keeps.
MAX_KEPT_BYTES = 2**24
#: States whose next tokens are looked at to find the shortest output. For 50,000 tokens, each takes one or two ms.
MAX_SEARCHED = 128


class UnreachableError(ValueError):
    """The tokens of the model cannot spell any text that matches."""


class RegexGrammar:
    """An automaton over bytes, as one over the tokens of a vocabulary."""

    #: The state of an output without tokens.
    start = 0

    def __init__(self, tree: Node, vocabulary: Vocabulary) -> None:
        """Build the automaton of ``tree``. Raise ValueError if it is too large, or if no output could ever match."""
        self.automaton, self.vocabulary = ByteAutomaton(tree), vocabulary
        self._trie = TokenTrie.of(vocabulary)
        self._max_kept = max(MAX_KEPT_BYTES // (3 * vocabulary.num_rows), 1)
        self._kept: dict[int, tuple[Mask, NDArray[np.int16]]] = {}
        self._is_live: Mask | None = None
        if not self._used_bytes() <= vocabulary.single_bytes:
            self._leave_out_missing_bytes()
            if not self._used_bytes() <= vocabulary.single_bytes:
                self._check_size()
                self._is_live = self._live_states([self._trie.walk(self.automaton, state)
                                                   for state in range(self.automaton.num_states)])

    def allowed(self, state: int) -> Mask:
        """Return for every token whether it may come next. The end of the text may, exactly if the output matches.

        All callers get the same array, which cannot be written to.
        """
        return self._look_up(state)[0]

    def advance(self, state: int, token_id: int) -> int:
        """Return the state after a token; DEAD if the token is not allowed. The end of the text leads nowhere new."""
        if state == DEAD:
            return DEAD
        if token_id in self.vocabulary.eos_token_ids:
            return state if self.is_accepting(state) else DEAD
        return int(self._look_up(state)[1][token_id])

    def is_accepting(self, state: int) -> bool:
        """Check whether the output matches if it ends here."""
        return self.automaton.is_accepting(state)

    def is_complete(self, state: int) -> bool:
        """Check whether the output matches and no token can continue it."""
        return self.is_accepting(state) and bool((self.automaton.table[state] == DEAD).all())

    def num_tokens_needed(self) -> int:
        """Return the number of tokens of the shortest output that matches; less than that for a large expression.

        Every state takes a walk through the vocabulary. After ``MAX_SEARCHED`` of them, the bytes of the shortest
        output are counted instead, as if the rest were made of the longest tokens.
        """
        known, todo = {self.start: 0}, deque([self.start])
        num_searched = 0
        while todo:
            state = todo.popleft()
            if self.is_accepting(state):
                return known[state]
            num_searched += 1
            if num_searched > MAX_SEARCHED:
                return max(known[state], -(-self._num_bytes_needed() // self.vocabulary.longest))
            for following in np.unique(self._look_up(state)[1]).tolist():
                if following not in known and following != DEAD:
                    known[following] = known[state] + 1
                    todo.append(following)
        raise UnreachableError("the tokens of this model cannot spell any output that matches")

    def _num_bytes_needed(self) -> int:
        """Return the number of bytes of the shortest text that matches."""
        level, seen, num_bytes = np.array([self.start]), {self.start}, 0
        while not self.automaton.accepting[level].any():
            following = set(np.unique(self.automaton.table[level]).tolist()) - seen - {DEAD}
            seen |= following
            level, num_bytes = np.array(sorted(following)), num_bytes + 1
        return num_bytes

    def _look_up(self, state: int) -> tuple[Mask, NDArray[np.int16]]:
        """Return the mask of a state, and the state after each token."""
        kept = self._kept.get(state)
        if kept is None:
            following = self._trie.walk(self.automaton, state)
            if self._is_live is not None:
                following[~self._is_live[following]] = DEAD
            mask = following != DEAD
            mask[self.vocabulary.eos_token_ids] = self.is_accepting(state)
            mask.flags.writeable = False
            if len(self._kept) >= self._max_kept:
                del self._kept[next(iter(self._kept))]
            kept = self._kept[state] = mask, following
        return kept

    def _check_size(self) -> None:
        """Raise TooLargeError if walking through the vocabulary from every state would take too long.

        If every byte is a token, no walk is needed: some token always goes on. Otherwise the last token may lead into a
        state from which only bytes that no token begins with would go on.
        """
        num_states = self.automaton.num_states
        if num_states > MAX_SEARCHED:
            raise TooLargeError(f"the expression needs {num_states} states, must need at most {MAX_SEARCHED} with a "
                                "vocabulary in which some bytes are only inside of tokens")

    def _used_bytes(self) -> set[int]:
        return set(np.flatnonzero((self.automaton.table != DEAD).any(axis=0)).tolist())

    def _leave_out_missing_bytes(self) -> None:
        """Remove the bytes that no token contains, and all ways that only such bytes would complete.

        Many vocabularies lack some control characters, and bytes that begin only very rare characters.
        """
        table = self.automaton.table
        table[:, [byte for byte in range(256) if byte not in self.vocabulary.used_bytes]] = DEAD
        is_live = self._live_states(list(table[:-1]))
        table[~is_live[table]] = DEAD

    def _live_states(self, following: list[NDArray[np.int16]]) -> Mask:
        """Return for every state, and at the end for DEAD, whether a matching output can be reached from it.

        ``following`` holds the states that come right after each state. Raise UnreachableError if the first is dead.
        """
        num_states = self.automaton.num_states
        before: list[list[int]] = [[] for _ in range(num_states)]
        for state, reached in enumerate(following):
            for after in np.unique(reached).tolist():
                if after != DEAD:
                    before[after].append(state)
        is_live = np.zeros(num_states + 1, dtype=bool)
        todo = np.flatnonzero(self.automaton.accepting).tolist()
        while todo:
            state = todo.pop()
            if not is_live[state]:
                is_live[state] = True
                todo += before[state]
        if not is_live[self.start]:
            raise UnreachableError("the tokens of this model cannot spell any output that matches")
        return is_live

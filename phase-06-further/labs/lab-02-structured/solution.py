"""Output that must parse: from a regular expression to the tokens that may come next.

    expression ─▶ tree ─▶ automaton over bytes ─┐
      [0-9]+…     given        task 1           ├─▶ mask: which tokens may come next ─▶ sampler ─▶ token ─▶ next state
    tokens ─▶ bytes of each token ─▶ trie ──────┘        task 3                          task 4
                      given          task 2

The rules of this lab:

 1. **Bytes.** The automaton reads bytes, because tokens are made of bytes. A character may take several bytes. A token
    may end inside of a character, and the next one may begin there.
 2. **A state is a number.** It stands for all places of the expression to which the bytes so far can have led. ``DEAD``
    is the state of a text that no further bytes can save.
 3. **A token is allowed if it leads somewhere.** Its bytes must lead from the current state to one that is not DEAD.
    The end of the text is allowed exactly in states in which the text matches.
 4. **Nothing is computed twice.** Tokens that begin alike are read together, along a trie. The trie is built once per
    vocabulary, and a mask is computed once per state.
 5. **The mask is the last word.** A token that is not allowed gets the logit -inf. No other logit changes.

The tree of an expression is given: ``parse_regex("ab|c*")`` returns nodes of four classes.

    Characters(ranges)         one character, whose code point is in one of the ranges (first, last)
    InOrder(parts)             all parts, one after the other; the empty text if there are none
    Either(options)            one of the options
    Repeat(node, least, most)  the node, least to most times; any number of times from least on if most is None

``utf8_sequences(ranges)`` is given as well. It yields the encodings of these characters, as sequences of ranges of
bytes: ``[(0xE0, 0xFF)]`` is encoded as ``[(0xC3, 0xC3), (0xA0, 0xBF)]``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mini_vllm.backend import mx
from mini_vllm.structured.regex_tree import Characters, Either, InOrder, Node, Repeat
from mini_vllm.structured.utf8 import utf8_sequences
from mini_vllm.structured.vocabulary import Vocabulary

#: There is no next state: the text cannot match any more.
DEAD = -1
#: A larger automaton is refused.
MAX_STATES = 2**13


class TooLargeError(ValueError):
    """The automaton of an expression would be too large. Given."""


# ---- Task 1: the automaton


class ByteAutomaton:
    """Reads a text byte by byte. A state is a number; 0 is the first.

        ab|ac      a     b                       a         b, c
                ┌─────▶○─────┐               0 ─────▶ 1 ─────────▶ 2
                ○            ├▶◉            {○}     {○,○}         {◉}
                └─────▶○─────┘
                   a     c

    On the left: the *places* of the expression, with one place ◉ at its end. After ``a`` the text may be at two of
    them. On the right: the states. Each is a set of places.
    """

    def __init__(self, tree: Node) -> None:
        """Find all states that texts can lead to, and where each byte leads from each of them.

        Before:
        - ``tree`` consists of the four classes of nodes; see the top of this file
        After:
        - state 0 is the state before the first byte
        - texts that lead to the same set of places lead to the same state, so a loop has few states; only places that
          a byte leads on from count, and the place at the end
        - all states are known: ``next_state`` only looks one up
        Raises:
        - TooLargeError if there are more than ``MAX_STATES`` states, not counting DEAD; places need no limit here

        Example: the automaton of ``a*`` needs one or two states, however long the text is.
        """
        # TASK 1: ByteAutomaton.__init__
        places = _Places(tree)
        first = places.closure({0})
        numbers, states = {first: 0}, [first]
        #: Row s holds the next state for each byte.
        self._table: list[list[int]] = []
        for state in states:  # the list grows while it is read
            row = [DEAD] * 256
            for byte, reached in places.steps(state).items():
                following = places.closure(reached)
                if following not in numbers:
                    numbers[following] = len(states)
                    states.append(following)
                row[byte] = numbers[following]
            if len(states) > MAX_STATES:
                raise TooLargeError(f"the expression needs more than {MAX_STATES} states")
            self._table.append(row)
        self._is_accepting = [places.end in state for state in states]
        # END TASK

    def next_state(self, state: int, byte: int) -> int:
        """Return the state after one more byte.

        Returns:
        - the state to which ``byte``, a number from 0 to 255, leads from ``state``
        - DEAD if no text that matches goes on like that
        - DEAD if ``state`` is DEAD

        Example::

            >>> from mini_vllm.structured.regex_tree import parse_regex
            >>> automaton = ByteAutomaton(parse_regex("ab"))
            >>> automaton.next_state(0, ord("b"))
            -1
        """
        # TASK 1: ByteAutomaton.next_state
        return DEAD if state == DEAD else self._table[state][byte]
        # END TASK

    def is_accepting(self, state: int) -> bool:
        """Check whether the text that led to ``state`` matches.

        Returns:
        - True if the text matches as it is, even if more bytes could follow
        - False otherwise, also if ``state`` is DEAD

        Example: the automaton of ``ab?`` accepts after ``a`` and after ``ab``, and not before the first byte.
        """
        # TASK 1: ByteAutomaton.is_accepting
        return state != DEAD and self._is_accepting[state]
        # END TASK

    def matches(self, text: bytes) -> bool:
        """Check whether the whole text matches, as ``re.fullmatch(pattern, text, re.ASCII)`` does for characters.

        Returns:
        - True if the automaton accepts after the last byte
        - False otherwise: also for bytes that are not UTF-8, and for a text that ends inside of a character

        Example::

            >>> from mini_vllm.structured.regex_tree import parse_regex
            >>> automaton = ByteAutomaton(parse_regex("é+"))
            >>> automaton.matches("éé".encode()), automaton.matches("é".encode()[:1])
            (True, False)
        """
        # TASK 1: ByteAutomaton.matches
        state = 0
        for byte in text:
            state = self.next_state(state, byte)
        return self.is_accepting(state)
        # END TASK


# SOLUTION ONLY
class _Places:
    """The places of an expression: edges with a range of bytes lead from one to another, and so do free edges."""

    def __init__(self, tree: Node) -> None:
        #: Place → (first byte, last byte, the place that they lead to).
        self._edges: list[list[tuple[int, int, int]]] = [[]]
        #: Place → places that are reached from it without a byte.
        self._free: list[list[int]] = [[]]
        self.end = self._add(tree, 0)

    def _new(self) -> int:
        self._edges.append([])
        self._free.append([])
        return len(self._edges) - 1

    def _add(self, node: Node, start: int) -> int:
        """Add ways that lead from ``start`` through ``node``, and return the place after it."""
        if isinstance(node, InOrder):
            for part in node.parts:
                start = self._add(part, start)
            return start
        if isinstance(node, Characters):
            return self._add_characters(node, start)
        if isinstance(node, Either):
            end = self._new()
            for option in node.options:
                self._free[self._add(option, start)].append(end)
            return end
        return self._add_repeat(node, start)

    def _add_characters(self, node: Characters, start: int) -> int:
        end = self._new()
        for sequence in utf8_sequences(node.ranges):
            place = start
            for first, last in sequence[:-1]:
                inside = self._new()
                self._edges[place].append((first, last, inside))
                place = inside
            first, last = sequence[-1]
            self._edges[place].append((first, last, end))
        return end

    def _add_repeat(self, node: Repeat, start: int) -> int:
        for _ in range(node.least):
            start = self._add(node.node, start)
        end = self._new()
        self._free[start].append(end)
        if node.most is None:
            self._free[self._add(node.node, end)].append(end)
        else:
            for _ in range(node.most - node.least):
                start = self._add(node.node, start)
                self._free[start].append(end)
        return end

    def closure(self, places: set[int]) -> frozenset[int]:
        """Return the places and all that free edges lead to, as far as bytes lead on from there or the text ends."""
        reached, todo = set(places), list(places)
        while todo:
            for place in self._free[todo.pop()]:
                if place not in reached:
                    reached.add(place)
                    todo.append(place)
        return frozenset(place for place in reached if self._edges[place] or place == self.end)

    def steps(self, state: frozenset[int]) -> dict[int, set[int]]:
        """Return for each byte that leads on the places that it leads to."""
        reached: dict[int, set[int]] = {}
        for place in state:
            for first, last, target in self._edges[place]:
                for byte in range(first, last + 1):
                    reached.setdefault(byte, set()).add(target)
        return reached
# END SOLUTION ONLY


# ---- Task 2: the trie


class TokenTrie:
    """The bytes of all tokens as a tree: tokens that begin alike share the beginning of their path.

        tokens   a  an  and  b        ┌─ a ─▶ (token a) ── n ─▶ (token an) ── d ─▶ (token and)
                                 root ┤
                                      └─ b ─▶ (token b)
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Put the bytes of every token into the tree.

        ``vocabulary.token_bytes[i]`` holds the bytes of token i, for all ``vocabulary.num_rows`` rows of the logits.
        They are empty for rows that have no text: ends of a text, other special tokens, and rows after the last token.
        Several tokens may have the same bytes.
        """
        # TASK 2: TokenTrie.__init__
        self._num_rows = vocabulary.num_rows
        self._root = _Node()
        for token_id, word in enumerate(vocabulary.token_bytes):
            if word:
                node = self._root
                for byte in word:
                    node = node.children.setdefault(byte, _Node())
                node.token_ids.append(token_id)
        # END TASK

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> TokenTrie:
        """Return the trie of a vocabulary, which all grammars share. Keep it in the dict ``vocabulary.shared``,
        under a key such as ``"trie"``.

        After:
        - ``vocabulary.token_bytes`` has been read by the first call with this vocabulary, and by no later one
        Returns:
        - the trie of ``vocabulary``; another vocabulary has another one

        Example: two grammars with the vocabulary of one model use one trie.
        """
        # TASK 2: TokenTrie.of
        if "trie" not in vocabulary.shared:
            vocabulary.shared["trie"] = cls(vocabulary)
        trie = vocabulary.shared["trie"]
        assert isinstance(trie, TokenTrie)
        return trie
        # END TASK

    def walk(self, automaton: ByteAutomaton, state: int) -> Sequence[int]:
        """Read every token from ``state`` on. Ask only ``automaton.next_state``, and keep nothing of the automaton.

        Before:
        - ``state`` is not DEAD
        After:
        - ``next_state`` was called at most once for each edge of the trie: a beginning that several tokens share has
          been read once
        - no token has been read further after a byte that leads to DEAD
        Returns:
        - for each row of the logits, the state after the bytes of that token
        - DEAD for a token whose bytes lead to DEAD
        - DEAD for a row without bytes

        Example: with the tokens of the picture and the automaton of ``an*``, four calls of ``next_state`` tell that
        ``a`` and ``an`` lead on, and that ``and`` and ``b`` do not.
        """
        # TASK 2: TokenTrie.walk
        after = [DEAD] * self._num_rows
        todo = [(self._root, state)]
        while todo:
            node, state = todo.pop()
            for token_id in node.token_ids:
                after[token_id] = state
            for byte, child in node.children.items():
                following = automaton.next_state(state, byte)
                if following != DEAD:
                    todo.append((child, following))
        return after
        # END TASK


# SOLUTION ONLY
class _Node:
    """A node of the trie: where further bytes lead, and the tokens that end here."""

    def __init__(self) -> None:
        self.children: dict[int, _Node] = {}
        self.token_ids: list[int] = []
# END SOLUTION ONLY


# ---- Task 3: the grammar


class RegexGrammar:
    """Which tokens may come next, so that the output matches. All requests with the same expression share one.

        state 0 ──▶ mask ──▶ sampler ──▶ token ──▶ advance ──▶ state 5 ──▶ mask …

    A state is a number of the automaton, and it is all that a request remembers. So a fork copies the number, a
    preempted request keeps it, and a rejected draft leaves it as it was.
    """

    #: The state of an output without tokens. Given.
    start = 0

    def __init__(self, tree: Node, vocabulary: Vocabulary) -> None:
        """Build the automaton of ``tree``, and find the trie of ``vocabulary``.

        Before:
        - every byte is a token of ``vocabulary``, so an output that can go on in bytes can go on in tokens
        After:
        - a second grammar with the same vocabulary has not built a second trie

        Example: the engine builds ``RegexGrammar(parse_regex("yes|no"), vocabulary)`` when the first request with this
        expression arrives.
        """
        # TASK 3: RegexGrammar.__init__
        self._automaton, self._vocabulary = ByteAutomaton(tree), vocabulary
        self._trie = TokenTrie.of(vocabulary)
        #: State → its mask, and the state after each token.
        self._known: dict[int, tuple[NDArray[np.bool_], Sequence[int]]] = {}
        # END TASK

    def allowed(self, state: int) -> NDArray[np.bool_]:
        """Return the mask of ``state``: for every row of the logits, whether that token may come next.

        ``vocabulary.eos_token_ids`` are the ends of a text. There may be several, and they have no bytes.

        Before:
        - ``state`` is not DEAD
        After:
        - the trie has been walked once for this state, however often and for however many requests it was asked
        - if the caller writes into the array, that fails or has no effect on what is returned later
        Returns:
        - an array of bools of shape ``[vocabulary.num_rows]``
        - True for a token whose bytes lead from ``state`` to another state than DEAD
        - True for every end of a text if the output so far matches, and False for all of them if it does not
        - False for all other tokens, also for those without bytes

        Example: for ``ab?`` and the tokens ``a``, ``b``, ``ab``, ``ba`` and an end of text, the mask of the first state
        allows ``a`` and ``ab``. After ``a`` it allows ``b`` and the end.
        """
        # TASK 3: RegexGrammar.allowed
        return self._look_up(state)[0]
        # END TASK

    def advance(self, state: int, token_id: int) -> int:
        """Return the state of the output after one more token.

        After:
        - nothing has changed: the state of another request with this grammar is still valid
        Returns:
        - the state after the bytes of the token
        - DEAD if the token is not allowed in ``state``
        - for an end of a text that is allowed: ``state`` itself
        - DEAD if ``state`` is DEAD

        Example: for ``ab?``, the token ``ab`` leads from the first state to the state after ``a`` and then ``b``.
        """
        # TASK 3: RegexGrammar.advance
        if state == DEAD or not self._look_up(state)[0][token_id]:
            return DEAD
        if token_id in self._vocabulary.eos_token_ids:
            return state
        return self._look_up(state)[1][token_id]
        # END TASK

    def is_accepting(self, state: int) -> bool:
        """Check whether the output matches if it ends here.

        Returns:
        - True if it matches, and False if not or if ``state`` is DEAD

        Example: for ``ab?``, True after the token ``a`` and after ``ab``.
        """
        # TASK 3: RegexGrammar.is_accepting
        return self._automaton.is_accepting(state)
        # END TASK

    def is_complete(self, state: int) -> bool:
        """Check whether the output must end here. The engine then ends it, without computing an end of text.

        Returns:
        - True if the output matches and no further byte is possible
        - False if it does not match, if it may go on, or if ``state`` is DEAD

        Example: for ``ab?``, True after ``ab``, and False after ``a``.
        """
        # TASK 3: RegexGrammar.is_complete
        return self.is_accepting(state) and all(self._automaton.next_state(state, byte) == DEAD for byte in range(256))
        # END TASK

    # SOLUTION ONLY
    def _look_up(self, state: int) -> tuple[NDArray[np.bool_], Sequence[int]]:
        """Return the mask of a state, and the state after each token."""
        if state not in self._known:
            after = self._trie.walk(self._automaton, state)
            mask = np.array(after) != DEAD
            mask[self._vocabulary.eos_token_ids] = self.is_accepting(state)
            mask.flags.writeable = False
            self._known[state] = mask, after
        return self._known[state]
    # END SOLUTION ONLY


# ---- Task 4: the mask in the sampler


def keep_allowed(logits: mx.array, masks: Sequence[NDArray[np.bool_] | None]) -> mx.array:
    """Return the logits ``[num_rows, vocab_size]`` with -inf for every token that the mask of its row does not allow.

    Row i has the mask ``masks[i]``, an array of bools ``[vocab_size]``. None is the mask of a request whose output is
    free.

    After:
    - ``logits`` and ``masks`` have not changed
    Returns:
    - an array with the shape and type of ``logits``
    - a token that is allowed has its old logit, even if that is -inf
    - a token that is not allowed has -inf, whatever its logit was: also if it was +inf or NaN
    - a row whose mask is None is as before, whatever the masks of the other rows are

    Example::

        >>> logits = mx.array([[1.0, 2.0], [3.0, 4.0]])
        >>> keep_allowed(logits, [np.array([True, False]), None]).tolist()
        [[1.0, -inf], [3.0, 4.0]]
    """
    # TASK 4: keep_allowed
    all_tokens = np.ones(logits.shape[1], dtype=np.bool_)
    every = np.stack([all_tokens if mask is None else mask for mask in masks])
    return mx.where(mx.array(every), logits, -math.inf)
    # END TASK

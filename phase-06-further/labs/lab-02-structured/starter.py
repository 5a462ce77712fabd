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
        raise NotImplementedError("Task 1: ByteAutomaton.__init__")

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
        raise NotImplementedError("Task 1: ByteAutomaton.next_state")

    def is_accepting(self, state: int) -> bool:
        """Check whether the text that led to ``state`` matches.

        Returns:
        - True if the text matches as it is, even if more bytes could follow
        - False otherwise, also if ``state`` is DEAD

        Example: the automaton of ``ab?`` accepts after ``a`` and after ``ab``, and not before the first byte.
        """
        raise NotImplementedError("Task 1: ByteAutomaton.is_accepting")

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
        raise NotImplementedError("Task 1: ByteAutomaton.matches")




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
        raise NotImplementedError("Task 2: TokenTrie.__init__")

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
        raise NotImplementedError("Task 2: TokenTrie.of")

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
        raise NotImplementedError("Task 2: TokenTrie.walk")




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
        raise NotImplementedError("Task 3: RegexGrammar.__init__")

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
        raise NotImplementedError("Task 3: RegexGrammar.allowed")

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
        raise NotImplementedError("Task 3: RegexGrammar.advance")

    def is_accepting(self, state: int) -> bool:
        """Check whether the output matches if it ends here.

        Returns:
        - True if it matches, and False if not or if ``state`` is DEAD

        Example: for ``ab?``, True after the token ``a`` and after ``ab``.
        """
        raise NotImplementedError("Task 3: RegexGrammar.is_accepting")

    def is_complete(self, state: int) -> bool:
        """Check whether the output must end here. The engine then ends it, without computing an end of text.

        Returns:
        - True if the output matches and no further byte is possible
        - False if it does not match, if it may go on, or if ``state`` is DEAD

        Example: for ``ab?``, True after ``ab``, and False after ``a``.
        """
        raise NotImplementedError("Task 3: RegexGrammar.is_complete")



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
    raise NotImplementedError("Task 4: keep_allowed")

"""Choose the next token of a text from the scores that a language model gives to all of them.

    "Once upon a"  ─▶  the model  ─▶  one score per token: its logit     ─▶  most_likely  ─▶  " time"

                                      id      0     1     2     3    4
                                      token  " "  " a"  " the" " time" "."
                                      logit  -2.0   1.3   0.4   9.1   -5.7

A *token* is a piece of text with a number, its id. The model never chooses: it scores every token that it knows, and
the program around it picks one. That program is yours now.
"""

from __future__ import annotations

from collections.abc import Sequence

# ---------------------------------------------------------------------------------------------- Task 1


def most_likely(logits: Sequence[float]) -> int:
    """The id of the token with the largest logit. ``logits[i]`` is the logit of token ``i``.

    If several tokens share the largest logit, return the smallest of them.
    A logit can be negative, and ``-inf`` for a token that must not be chosen.

    >>> most_likely([-2.0, 1.3, 0.4, 9.1, -5.7])
    3
    """
    raise NotImplementedError("Task 1: most_likely")


# ---------------------------------------------------------------------------------------------- Task 2


def most_likely_first(logits: Sequence[float], k: int) -> list[int]:
    """The ids of the ``k`` tokens with the largest logits, the largest first; of equal logits, the smaller id first.

    If there are fewer than ``k`` tokens, return all of them. ``logits`` is not changed.

    >>> most_likely_first([-2.0, 1.3, 0.4, 9.1, -5.7], 2)
    [3, 1]
    """
    raise NotImplementedError("Task 2: most_likely_first")

"""Choose the next token of a text: a language model scores all tokens, and this code picks one of them.

    "Once upon a"  ─▶  the model  ─▶  one score per token: its logit     ─▶  most_likely  ─▶  " time"

                                      id      0     1     2     3    4
                                      token  " "  " a"  " the" " time" "."
                                      logit  -2.0   1.3   0.4   9.1   -5.7

A *token* is a piece of text with a number, its id. The model never chooses: it scores every token that it knows, and
the program around the model picks one. In this lab you write that program.
"""

from __future__ import annotations

from collections.abc import Sequence

# ---------------------------------------------------------------------------------------------- Task 1


def most_likely(logits: Sequence[float]) -> int:
    """Return the id of the token with the largest logit. ``logits[i]`` is the logit of token ``i``.

    If several tokens share the largest logit, return the smallest of their ids.
    A logit can be negative. The logit of a token that must not be chosen is ``-inf``.

    >>> most_likely([-2.0, 1.3, 0.4, 9.1, -5.7])
    3
    """
    # TASK 1: most_likely
    return max(range(len(logits)), key=lambda token_id: logits[token_id])
    # END TASK


# ---------------------------------------------------------------------------------------------- Task 2


def most_likely_first(logits: Sequence[float], k: int) -> list[int]:
    """Return the ids of the ``k`` tokens with the largest logits, the largest logit first.

    If logits are equal, the smaller id comes first. If there are fewer than ``k`` tokens, return all of them.
    ``logits`` is not changed.

    >>> most_likely_first([-2.0, 1.3, 0.4, 9.1, -5.7], 2)
    [3, 1]
    """
    # TASK 2: most_likely_first
    ranked = sorted(range(len(logits)), key=lambda token_id: logits[token_id], reverse=True)
    return ranked[:k]
    # END TASK

"""Speculative decoding: guess the next tokens cheaply, and let one step of the model check all of them.

    request      … the king said to | the king        the drafter guesses: the king had three
    one step       computes "king" and the guess, and draws a token after each of them
                   drawn:   had   three   daughters    the guess had "the king had three": "had" and "three" were right
    the request    … the king said to the king had three daughters          three tokens in one step

A guess never changes a token. The model draws its own token at every position, with the noise of that position, and a
guess counts only if it is that token. So outputs with and without guesses are the same, greedy or sampled.

``drafts`` guesses without a model and says which tokens count, ``model_drafter`` guesses with one, and ``Speculation``
decides how much of a guess is worth computing, and gives unused slots back. Options of commands that draft are here.
"""

from __future__ import annotations

import argparse
from typing import Any

#: With the newest token, 8 tokens per request: as many as attention handles together (``MAX_TOGETHER``).
NUM_SPECULATIVE_TOKENS = 7


def add_draft_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--draft", metavar="ngram|MODEL", help="guess tokens and check several per step; the texts are "
                        "the same. ngram: from the request's own text; MODEL: by a smaller model of the same "
                        "vocabulary")
    parser.add_argument("--num-speculative-tokens", type=int, metavar="N", help="tokens to guess per step, with "
                        f"--draft (default: {NUM_SPECULATIVE_TOKENS})")


def draft_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of EngineConfig for ``--draft``. Raise ValueError for a number without ``--draft``."""
    if arguments.draft is None:
        if arguments.num_speculative_tokens is not None:
            raise ValueError("--num-speculative-tokens needs --draft")
        return {}
    number = arguments.num_speculative_tokens
    return {"draft": arguments.draft, "num_speculative_tokens": NUM_SPECULATIVE_TOKENS if number is None else number}

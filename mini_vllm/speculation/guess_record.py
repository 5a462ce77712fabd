"""How the guesses for one request turned out, and how many tokens of the next one are worth computing."""

from __future__ import annotations

from collections.abc import Sequence

#: How much the guesses so far count when another one is judged.
MEMORY = 0.9
#: Steps until a costly drafter is asked again: the first time, the second time if it is wrong again, and so on.
RESTS = (8, 16, 32, 64)


class GuessRecord:
    """The guesses for one request: those that were right, and the rest from a costly drafter that keeps failing."""

    def __init__(self) -> None:
        #: Tokens guessed and judged, and those of them that were right, with older ones counting less.
        self.num_judged = 0.0
        self.num_right = 0.0
        #: Rests since the last right guess, and the steps until the current rest ends.
        self._num_rests = 0
        self._num_resting = 0

    @property
    def rate(self) -> float:
        """How often a guessed token is expected to be right. Before the first guess it is one half."""
        return (self.num_right + 1) / (self.num_judged + 2)

    def judge(self, guess: Sequence[int], token_ids: Sequence[int]) -> None:
        """Compare ``guess`` with ``token_ids``, which the request got.

        The tokens after the first wrong one are not judged: they were guessed after a token that is not there.
        """
        num_compared = min(len(guess), len(token_ids))
        if num_compared == 0:
            return
        num_right = next((i for i in range(num_compared) if guess[i] != token_ids[i]), num_compared)
        self.num_right = MEMORY * self.num_right + num_right
        self.num_judged = MEMORY * self.num_judged + min(num_right + 1, num_compared)
        if num_right:
            self._num_rests = 0

    def length(self, cost: float, max_tokens: int) -> int:
        """Return how many tokens to draft if each costs ``cost`` of a plain token.

        Token i of a draft is accepted with probability ``rate ** i``, and is worth computing if that is more than it
        costs.
        """
        length, chance = 0, self.rate
        while length < max_tokens and chance > cost:
            length += 1
            chance *= self.rate
        return length

    def is_rested(self) -> bool:
        """Count a step in which a costly drafter was not asked. Return whether it may be asked for one token now."""
        if self._num_resting == 0:
            self._num_resting = RESTS[min(self._num_rests, len(RESTS) - 1)]
            self._num_rests += 1
        self._num_resting -= 1
        return self._num_resting == 0

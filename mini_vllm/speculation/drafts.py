"""Drafts without a model: how they are guessed, which of their tokens count, and how long the next one should be."""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.logit_rules import SamplerRow, row_after
from mini_vllm.request import Request

#: The number of equal tokens that make a match.
NUM_MATCHING = 2
#: How much the guesses so far count when another one is judged.
MEMORY = 0.9
#: Steps until a costly drafter is asked again: the first time, the second time if it is wrong again, and so on.
RESTS = (8, 16, 32, 64)


class NgramDrafter:
    """Guesses that a request goes on as it did after the last occurrence of its newest tokens.

        prompt   the king said to the queen : the king            the newest two tokens are "the king"
                 └───────┘ └──────────────┘       └───────┘
                 last seen  the guess: said to the queen

    Quoting, editing and repeating are easy to guess this way; new text is not. Each token costs one lookup and one
    entry in a dictionary, however long the text is.
    """

    #: What a guessed token costs, in steps of the engine: next to nothing.
    cost_per_token = 0.0

    def __init__(self, num_matching: int = NUM_MATCHING) -> None:
        """Match ``num_matching`` tokens."""
        self._num_matching = num_matching
        self._texts: dict[str, _Text] = {}

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        """Guess the next tokens of ``request``, at most ``max_tokens``; an empty list without a match.

        If the guess reaches the end of the text, it goes on in the guess itself: a text that repeats itself is
        expected to repeat itself again.
        """
        text = self._follow(request)
        if text.match is None:
            return []
        tokens, guess = request.all_token_ids, list[int]()
        num_tokens = len(tokens)
        for position in range(text.match, text.match + max_tokens):
            guess.append(tokens[position] if position < num_tokens else guess[position - num_tokens])
        return guess

    def propose_all(self, requests: Sequence[Request], max_tokens: Sequence[int]) -> list[list[int]]:
        return [self.propose(request, number) if number else [] for request, number in zip(requests, max_tokens)]

    def advance(self, request: Request, token_ids: list[int]) -> None:
        """Take note of ``token_ids``, which the request has got since the last call."""
        self._follow(request)

    def forget(self, request: Request) -> None:
        """Drop everything about a request that has ended."""
        self._texts.pop(request.request_id, None)

    def _follow(self, request: Request) -> _Text:
        """Read the tokens of ``request`` that have not been read yet. The first call reads the prompt."""
        text = self._texts.setdefault(request.request_id, _Text())
        text.read(request.all_token_ids, self._num_matching)
        return text


class _Text:
    """The tokens of one request that have been read, and where each n-gram ended last."""

    def __init__(self) -> None:
        self.num_read = 0
        #: The position of the token that followed the last occurrence of the newest tokens; None without one.
        self.match: int | None = None
        self._positions: dict[tuple[int, ...], int] = {}

    def read(self, tokens: list[int], num_matching: int) -> None:
        """Read the tokens from ``num_read`` on.

        A match that continues is kept, even if its newest tokens occurred again later: the longer match counts.
        """
        for end in range(self.num_read + 1, len(tokens) + 1):
            newest = tuple(tokens[max(end - num_matching, 0):end])
            if self.match is not None and tokens[self.match] == tokens[end - 1]:
                self.match += 1
            else:
                self.match = self._positions.get(newest)
            if len(newest) == num_matching:
                self._positions[newest] = end
        self.num_read = len(tokens)


class Verifier:
    """Lets the model draw its own token at every position of a draft, and keeps what it draws.

    A draft of k tokens gives k + 1 rows: the token after the request's own, and the one after each drafted token. The
    sampler draws each with the noise of its position, so a row whose drafted tokens are right gives the very token
    that decoding without a draft would have given there.
    """

    def rows(self, row: SamplerRow, draft: Sequence[int]) -> list[SamplerRow]:
        """Return the rows to draw: row i is that of the request after it has got ``draft[:i]``."""
        return [row_after(row, draft[:num_before]) for num_before in range(len(draft) + 1)]

    def accept(self, draft: Sequence[int], drawn: Sequence[int]) -> list[int]:
        """Return the tokens that a request gets: those drawn up to and including the first that is not in the draft.

        ``drawn[i]`` was drawn after ``draft[:i]``, so it counts only if all of these were right. ``drawn`` may be
        shorter than the draft.

            draft   had  four  sons          had  four  sons
            drawn   had  three …    …        had  four  sons  and
            result  had  three               had  four  sons  and
        """
        num_right = 0
        while num_right < min(len(draft), len(drawn) - 1) and draft[num_right] == drawn[num_right]:
            num_right += 1
        return list(drawn[:num_right + 1])


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

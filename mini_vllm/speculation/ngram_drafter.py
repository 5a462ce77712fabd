"""A drafter without a model: what followed the newest tokens when they last occurred in this request."""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.request import Request

#: The number of equal tokens that make a match.
NUM_MATCHING = 2


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

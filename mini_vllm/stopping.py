"""Stop conditions: the end of an output, and the text that may be shown before it.

A stop string can arrive in pieces, and none of it may have been shown by the time it is complete. So the end of the
text is held back while it might still become a stop string, and no longer:

    stop = "###"     text so far: The end. ##
                                  └ shown ┘└┴─ held back: the longest end of the text that begins a stop string

The next piece decides. ``#`` completes the stop string: the held characters and the piece are dropped, and the output
ends. Anything else releases the held characters.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from mini_vllm.checks import texts
from mini_vllm.request import SamplingParams


class StopChecker:
    """The stop conditions of one output.

    It is fed every token in turn, and says what to show and whether the output ends.

    ``finish_reason`` is None while the output continues, then "stop" or "length". ``stop_reason`` is the stop string or
    the stop id that matched; it is None for the end of the text itself.
    """

    def __init__(self, params: SamplingParams, eos_token_ids: Collection[int]) -> None:
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self._stop_strings = texts("stop", params.stop)
        self._stop_token_ids = frozenset(params.stop_token_ids or ())
        self._eos_token_ids = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        self._min_tokens = params.min_tokens
        self._max_tokens = math.inf if params.max_tokens is None else params.max_tokens
        self.shows_stop = params.include_stop_str_in_output
        #: Not shown yet: it may be the beginning of a stop string.
        self._held = ""

    def ends_by_id(self, token_id: int, num_output_tokens: int) -> bool:
        """Check whether this token ends the output, whatever its text is. ``num_output_tokens`` includes the token."""
        is_stop = token_id in self._eos_token_ids or token_id in self._stop_token_ids
        return is_stop and num_output_tokens >= self._min_tokens

    def add(self, token_id: int, new_text: str, num_output_tokens: int, before: str = "") -> str:
        """Take the next token and return the text that may be shown now.

        ``new_text`` is the text that this token completed, and ``before`` the end of the text before it, if that was
        not passed yet; ``num_output_tokens`` includes the token. A token that ends the output by its id shows none of
        its own text, nor does a stop string, unless the parameters ask for it (``shows_stop``). Of several stop strings
        the one that begins first wins, then the longest. Before ``min_tokens`` nothing stops the output, and a stop
        string completed there is ordinary text. Raise RuntimeError, and change nothing, if the output has already
        ended.
        """
        if self.finish_reason is not None:
            raise RuntimeError(f"token {token_id} comes after the end of the output ({self.finish_reason})")
        ends_by_id = self.ends_by_id(token_id, num_output_tokens)
        new_text = before if ends_by_id and not self.shows_stop else before + new_text
        if num_output_tokens >= self._min_tokens and not (ends_by_id and self.shows_stop):
            match = self._first_match(new_text)
            if match is not None:
                start, stop_string = match
                end = start + len(stop_string) if self.shows_stop else start
                return self._stop(stop_string, shown=(self._held + new_text)[:end])
        if ends_by_id:
            stop_id = None if token_id in self._eos_token_ids else token_id
            return self._stop(stop_id, shown=self._held + new_text)
        if num_output_tokens >= self._max_tokens:
            self.finish_reason = "length"
        text = self._held + new_text
        num_shown = len(text) - self._num_undecided(text)
        self._held = text[num_shown:]
        return text[:num_shown]

    def finish(self) -> str:
        """Return the text still held back.

        The output ended by length or was aborted, so it cannot become a stop string.
        """
        rest, self._held = self._held, ""
        return rest

    def _stop(self, reason: str | int | None, shown: str) -> str:
        self.finish_reason, self.stop_reason, self._held = "stop", reason, ""
        return shown

    def _first_match(self, new_text: str) -> tuple[int, str] | None:
        """Find the winning stop string in held plus new text. Return its start and itself; None if none is complete.

        Only a match that ends in ``new_text`` counts. A match inside the held text was completed earlier, before
        ``min_tokens``, and was allowed.
        """
        text = self._held + new_text
        matches = []
        for stop_string in self._stop_strings:
            start = text.find(stop_string, max(0, len(self._held) - len(stop_string) + 1))
            if start >= 0:
                matches.append((start, stop_string))
        return min(matches, key=lambda match: (match[0], -len(match[1])), default=None)

    def _num_undecided(self, text: str) -> int:
        """Return the length of the longest end of ``text`` that begins a stop string without completing it."""
        longest = max(map(len, self._stop_strings), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stop_strings):
                return length
        return 0

"""Speculative decoding: guess the next tokens, let one step of the model check the guess, and keep what is right.

    the text       the king had three sons . one day the king        the drafter guesses: had three sons
    one step       computes "king" and the guess, and draws a token after each of them
                   drawn:   had   three   daughters   …
    the request    … one day the king had three daughters            three tokens from one step

The rules of this lab:

 1. **A guess never changes a token.** The model draws its own token at every position of the draft, with the noise of
    that position (lab 5.2). A drafted token counts only if it is the token that the model drew there. So the output is
    the same with and without drafts, greedy or sampled.
 2. **A guess is cheap.** The drafter enters each token into a dictionary once, and never searches the text.
 3. **A draft is as long as its tokens are worth.** If a request's guesses are right at a rate r, token i of a draft is
    accepted with probability r ** i. It is worth computing if that is more than what it costs.
 4. **Drafts that keep failing stop.** The rate follows the newest guesses. A drafter whose guesses cost time is asked
    again only after a rest, which doubles as long as it fails.
 5. **Unused slots go back.** A draft needs slots in the KV cache before it is checked. Afterwards the request keeps the
    slots of its computed tokens and no others, and only those tokens can be found by other requests.

The engine has the rest. It drafts only with budget and blocks that its plan has left over, never while requests wait.
It draws all rows of a step at once, and appends the accepted tokens.

In tests and grading, ``from course.base import lab_3_4`` imports the solution of that lab. In ``course run`` it imports
your own file, if it passes lab 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence

from course.base import lab_3_4 as base
from mini_vllm.logit_rules import SamplerRow, row_after
from mini_vllm.request import Request

#: The number of equal tokens that make a match.
NUM_MATCHING = 2
#: How much the guesses so far count when another one is judged.
MEMORY = 0.9
#: Steps until a costly drafter is asked again: the first time, the second time if it is wrong again, and so on.
RESTS = (8, 16, 32, 64)


# ---- Task 1: the drafter


class NgramDrafter:
    """Guesses that a request goes on as it did after an earlier occurrence of its newest tokens.

        text     the king said to the queen : the king         the newest two tokens are "the king"
                 └──────┘ └───────────────┘   └──────┘
                 earlier  the guess           newest

    For each request it keeps a *match*: the position of the token that is expected next. Reading a token updates the
    match, and costs one lookup and one entry in a dictionary.
    """

    #: What a guessed token costs, in steps of the engine: next to nothing. Given; the engine reads it.
    cost_per_token = 0.0

    def __init__(self) -> None:
        """Start without texts."""
        # TASK 1: NgramDrafter.__init__
        self._texts: dict[str, _Text] = {}  # by request id: its text as far as it has been read
        # END TASK

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        """Guess the next tokens of ``request``.

        The text of a request is ``request.all_token_ids``: the prompt and all tokens so far. The first three cases
        under After define the match once the token at position p has been read; the first that applies counts.

        Before:
        - ``max_tokens`` is at least 0
        After:
        - if there was a match, and the token at the match equals the token at p: one position further. A match that
          keeps being right is kept, even if the newest tokens occurred again later
        - else, if the tokens at p - 1 and p (``NUM_MATCHING`` of them) occurred before: the position after their last
          earlier occurrence, which may overlap them: in ``5 5 5``, the first ``5 5`` is an earlier occurrence
        - else: no match
        - the tokens of ``request`` that were not read yet have been read; on the first call, that is the whole prompt
        - a token is entered into the dictionary once: the cost of a call depends on the number of new tokens and on
          ``max_tokens``, and not on the length of the text
        - ``request`` has not changed
        Returns:
        - ``max_tokens`` tokens: the token at the match, and those after it
        - if the guess reaches the end of the text, it goes on with the guess itself: a text that repeats itself is
          expected to repeat itself again
        - an empty list if there is no match
        - the texts of other requests do not matter

        Example::

            >>> drafter = NgramDrafter()
            >>> drafter.propose(Request("r", [1, 2, 3, 4, 5, 1, 2]), 3)
            [3, 4, 5]
            >>> drafter.propose(Request("s", [7, 8, 7, 8]), 5)
            [7, 8, 7, 8, 7]
            >>> drafter.propose(Request("t", [1, 2, 3, 4]), 5)
            []
        """
        # TASK 1: NgramDrafter.propose
        text = self._read(request)
        if text.match is None:
            return []
        tokens, guess = request.all_token_ids, list[int]()
        for position in range(text.match, text.match + max_tokens):
            guess.append(tokens[position] if position < text.num_read else guess[position - text.num_read])
        return guess
        # END TASK

    def advance(self, request: Request, token_ids: list[int]) -> None:
        """Take note of ``token_ids``, which ``request`` has got since the last call.

        The engine calls this after each step. ``request`` already has these tokens, so they can be read now or when the
        next guess is asked for. A drafter that runs a model would compute them here.

        After:
        - the next guess takes ``token_ids`` into account
        - no token is entered twice

        Example::

            >>> drafter, request = NgramDrafter(), Request("r", [1, 2, 3, 1])
            >>> drafter.propose(request, 2)
            []
            >>> request.append_output_token(2)
            >>> drafter.advance(request, [2])
            >>> drafter.propose(request, 2)
            [3, 1]
        """
        # TASK 1: NgramDrafter.advance
        self._read(request)
        # END TASK

    def forget(self, request: Request) -> None:
        """Drop everything about ``request``, which has ended.

        After:
        - nothing of the request's text is kept
        - a new request with the same id starts with an empty text
        - a request that was never seen is accepted, and changes nothing

        Example: request "r" repeated itself, and has ended. After ``forget``, a new request "r" with two tokens has no
        match.
        """
        # TASK 1: NgramDrafter.forget
        self._texts.pop(request.request_id, None)
        # END TASK

    # SOLUTION ONLY
    def _read(self, request: Request) -> _Text:
        """Read the tokens of ``request`` that have not been read yet."""
        text = self._texts.setdefault(request.request_id, _Text())
        text.read(request.all_token_ids)
        return text
    # END SOLUTION ONLY


# SOLUTION ONLY
class _Text:
    """The tokens of one request that have been read."""

    def __init__(self) -> None:
        self.num_read = 0
        #: The position of the token that is expected next, or None.
        self.match: int | None = None
        #: The newest tokens → the position after them.
        self._positions: dict[tuple[int, ...], int] = {}

    def read(self, tokens: Sequence[int]) -> None:
        for end in range(self.num_read + 1, len(tokens) + 1):
            newest = tuple(tokens[max(end - NUM_MATCHING, 0):end])
            if self.match is not None and tokens[self.match] == tokens[end - 1]:
                self.match += 1
            else:
                self.match = self._positions.get(newest)
            if len(newest) == NUM_MATCHING:
                self._positions[newest] = end
        self.num_read = len(tokens)
# END SOLUTION ONLY


# ---- Task 2: checking a draft


class Verifier:
    """Says which rows are drawn to check a draft, and which of the drawn tokens count."""

    def rows(self, row: SamplerRow, draft: Sequence[int]) -> list[SamplerRow]:
        """Return the rows to draw for a request with ``draft``: one for its next token, and one per drafted token.

        A ``SamplerRow`` is what the sampler knows of a request (lab 5.2). The number of its ``output_token_ids`` is the
        position whose noise is used, and penalties depend on *which* tokens these are. ``row_after(row, token_ids)``
        returns a row in which ``token_ids`` follow the output tokens so far.

        After:
        - ``row`` and ``draft`` have not changed
        Returns:
        - ``len(draft) + 1`` rows: row i is the row of the request after it has got the first i tokens of ``draft``
        - everything but ``output_token_ids`` is as in ``row``: parameters, prompt, key

        Example: the output so far is ``[5, 6]`` and the draft is ``[7, 8]``. The rows have the output tokens
        ``[5, 6]``, ``[5, 6, 7]`` and ``[5, 6, 7, 8]``.
        """
        # TASK 2: Verifier.rows
        return [row_after(row, draft[:num_before]) for num_before in range(len(draft) + 1)]
        # END TASK

    def accept(self, draft: Sequence[int], drawn: Sequence[int]) -> list[int]:
        """Return the tokens that the request gets in this step.

        ``drawn[i]`` is the token that the model drew after ``draft[:i]``. It is the request's own next token only if
        all of ``draft[:i]`` were right. There may be fewer tokens than rows: if the parameters of a request leave no
        token to draw after part of the draft, ``drawn`` ends before it.

        Before:
        - ``drawn`` has at least one token
        After:
        - ``draft`` and ``drawn`` have not changed
        Returns:
        - the drawn tokens up to and including the first that differs from the draft
        - all drawn tokens if none differs: also the one after the last drafted token

        Example::

            >>> Verifier().accept([1, 2, 3], [1, 9, 3, 4])
            [1, 9]
            >>> Verifier().accept([1, 2, 3], [1, 2, 3, 4])
            [1, 2, 3, 4]
        """
        # TASK 2: Verifier.accept
        num_right = 0
        while num_right < min(len(draft), len(drawn) - 1) and draft[num_right] == drawn[num_right]:
            num_right += 1
        return list(drawn[:num_right + 1])
        # END TASK


# ---- Tasks 3 and 4: when to draft


class GuessRecord:
    """How the guesses for one request turned out. The engine makes one per request."""

    def __init__(self) -> None:
        """Start without guesses. Given."""
        #: Guessed tokens that were judged, and those of them that were right. Older ones count less.
        self.num_judged = 0.0
        self.num_right = 0.0
        #: For task 4: rests that have begun since the last right guess, and the steps until the current rest ends.
        self._num_rests = 0
        self._num_resting = 0

    @property
    def rate(self) -> float:
        """How often a guessed token is expected to be right: ``(num_right + 1) / (num_judged + 2)``. Given.

        A new record has rate 0.5.
        """
        return (self.num_right + 1) / (self.num_judged + 2)

    def judge(self, guess: Sequence[int], token_ids: Sequence[int]) -> None:
        """Compare ``guess`` with ``token_ids``, the tokens that the request got.

        The drafter may guess more tokens than a step computes. The engine lets the whole guess be judged by the tokens
        that came. A guess may be longer or shorter than ``token_ids``; only positions that both have can be compared.
        Tokens after the first wrong one say nothing: they were guessed for a text that does not exist.

        After:
        - ``num_right`` is ``MEMORY`` times the old one, plus the number of right tokens before the first wrong one
        - ``num_judged`` is ``MEMORY`` times the old one, plus that number, plus 1 if there is a wrong one
        - if ``guess`` or ``token_ids`` is empty, nothing has changed
        - task 4: if at least one token was right, the next rest is again the shortest one

        Example: a new record judges the guess ``[1, 2, 3]`` after the request got ``[1, 9]``. Now ``num_right`` is 1
        and ``num_judged`` is 2.
        """
        # TASK 3: GuessRecord.judge
        num_compared = min(len(guess), len(token_ids))
        if num_compared == 0:
            return
        num_right = next((i for i in range(num_compared) if guess[i] != token_ids[i]), num_compared)
        self.num_right = MEMORY * self.num_right + num_right
        self.num_judged = MEMORY * self.num_judged + min(num_right + 1, num_compared)
        if num_right:
            self._num_rests = 0
        # END TASK

    def length(self, cost: float, max_tokens: int) -> int:
        """Return how many tokens the next draft should have, at most ``max_tokens``.

        ``cost`` is what one more token in a step costs, as a fraction of a whole step. The i-th token of a draft is
        accepted with probability ``rate ** i``, because all tokens before it must be right as well.

        Before:
        - ``max_tokens`` is at least 0
        After:
        - nothing has changed
        Returns:
        - the largest length, at most ``max_tokens``, all of whose tokens are worth computing
        - token i, counted from 1, is worth computing if ``rate ** i`` is more than ``cost``; if both are equal, it is
          not

        Example: with rate 0.5, tokens 1, 2 and 3 are accepted with probability 0.5, 0.25 and 0.125. At a cost of 0.2
        the length is 2.
        """
        # TASK 3: GuessRecord.length
        length, chance = 0, self.rate
        while length < max_tokens and chance > cost:
            length += 1
            chance *= self.rate
        return length
        # END TASK

    def is_rested(self) -> bool:
        """Count one step without a draft. Return whether a rest ends with it, so that one token may be asked for.

        The engine calls this only for a drafter whose guesses cost time, in each step in which ``length`` gives no
        draft. Without it, such a request would never draft again, even if its text has become easy to guess.

        Returns:
        - True in the last step of a rest, and False in the steps before it
        - the first rest takes ``RESTS[0]`` steps: of the first 8 calls, only the eighth returns True
        - the next rest takes ``RESTS[1]`` steps, and so on; after the last of ``RESTS``, every rest takes as long as
          that one
        - if ``judge`` saw a right token since the last rest began, the next rest takes ``RESTS[0]`` steps again
        - a rest that has begun is not cut short

        Example::

            >>> record = GuessRecord()
            >>> [number for number in range(1, 30) if record.is_rested()]
            [8, 24]
        """
        # TASK 4: GuessRecord.is_rested
        if self._num_resting == 0:
            self._num_resting = RESTS[min(self._num_rests, len(RESTS) - 1)]
            self._num_rests += 1
        self._num_resting -= 1
        return self._num_resting == 0
        # END TASK


# ---- Task 5: giving slots back


class KVCacheManager(base.KVCacheManager):
    """The manager of lab 3.4, with tables that can become shorter.

    The base class provides ``block_pool``, ``block_size``, ``_tables`` (request id → list of blocks),
    ``_num_blocks_for(num_tokens)`` and ``_index_full_blocks(request, num_tokens)``.
    """

    def give_back_slots(self, request: Request) -> None:
        """Give back the slots after the computed tokens of ``request``: those of drafted tokens that were wrong.

        ``allocate_slots`` made slots for the draft before the step, and indexed none of its tokens: they did not belong
        to the request yet. The step has run, and the tokens that were accepted have been appended and counted. So the
        blocks that they filled are verified now. Another request can find them at once, and not only after the next
        ``allocate_slots``.

        Before:
        - the step has run, and ``finish_step`` has been called
        - ``request.num_computed_tokens`` counts the tokens whose K/V is right: all but the newest token
        After:
        - the table has exactly the blocks that ``request.num_computed_tokens`` tokens need: its first ones, in order
        - each removed block has one owner fewer; the last block of the table is freed first
        - every block that computed tokens fill can be found by a request with the same tokens
        - no other token can be found
        - ``request`` has not changed
        - a request without a table is accepted, and nothing changes

        Example, with blocks of 4 tokens::

            >>> manager = KVCacheManager(num_blocks=9, block_size=4)
            >>> request = Request("r", [1, 2, 3])
            >>> taken = manager.allocate_slots(request, 3 + 6)      # three tokens, and a draft of six
            >>> manager.finish_step()
            >>> request.num_computed_tokens = 4                     # one drafted token was right
            >>> for token_id in (4, 50):
            ...     request.append_output_token(token_id)
            >>> manager.give_back_slots(request)
            >>> manager.get_block_ids("r"), manager.block_pool.get_num_free_blocks()
            ([1], 7)
        """
        # TASK 5: KVCacheManager.give_back_slots
        table = self._tables.get(request.request_id)
        if table is None:
            return
        num_kept = self._num_blocks_for(request.num_computed_tokens)
        unused = table[num_kept:]
        del table[num_kept:]
        self.block_pool.free_blocks(reversed(unused))
        self._index_full_blocks(request, request.num_computed_tokens)
        # END TASK

"""Which of a draft's tokens count: the rows that are drawn, and the comparison with what was drawn."""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.sampling.row import SamplerRow, row_after


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

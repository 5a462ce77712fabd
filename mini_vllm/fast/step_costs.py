"""What drafts cost a step, for the choice between drafting and not drafting: a table, not a clock."""

from __future__ import annotations

import sys
from bisect import bisect_right
from typing import NamedTuple


class DraftCost(NamedTuple):
    """The cost of drafts in a step of at least ``num_requests`` requests. The unit is that step without drafts."""

    num_requests: int
    #: What the step costs more as soon as it has drafts: operations for one token per request are faster.
    first: float
    #: What one more token for each request costs.
    per_token: float
    #: The most tokens per request for which that holds; further ones cost more than they gain.
    longest: int = sys.maxsize


class StepCosts(NamedTuple):
    """The costs of drafts by the number of requests, and the cost of doing without look-ahead."""

    #: Ascending by the number of requests; the last entry also holds for more requests.
    drafts: tuple[DraftCost, ...]
    #: What a step costs more if it could have been started early and was not.
    no_lookahead: float = 0.0

    def of(self, num_requests: int) -> DraftCost:
        """Return the costs of a step with ``num_requests`` requests."""
        place = bisect_right(self.drafts, num_requests, key=lambda cost: cost.num_requests)
        return self.drafts[max(place - 1, 0)]

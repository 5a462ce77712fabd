"""Lab 4.4: an upper bound of the goodput. No policy has more good requests, even one that knows the future.

**The relaxation.** Forget the blocks, the order of the tokens, and that a step is one piece: a good request is only an
amount of work, which the machine must do between the request's arrival and the moment when it is due.

*Work.* A step that computes n tokens, of k requests, takes ``step_us`` + n ``token_us`` + (attended tokens) /
``attended_per_us``. Since k <= ``max_num_seqs`` =: S, each of the k requests can be charged ``step_us`` / S, and the
charges of all are at most the step's time. (Since n <= ``max_num_batched_tokens`` =: B, each token can be charged
``step_us`` / B instead.) A request with p prompt tokens and o output tokens takes part in at least ceil(p / B) steps
until its first token, and in o - 1 more until its last, and computes p and o - 1 tokens in them. What its tokens attend
to does not depend on the chunks. So its charges are at least a known number, ``first_us`` until the first token and
``all_us`` until the last.

*Windows.* A good request, arrival a, has its first token by a + F, where F is ``max_first_token_us``, and its last by
D = a + F + (o - 1) ``max_token_us``. It takes part in no step that starts before a.

*An interval* [s, e]. Let a good request be inside if a >= s and a + F <= e. All its steps until its first token are
inside [s, e], and if D <= e, all its steps are. Steps do not overlap, so the charges of these steps are together at
most e - s. Hence the good requests inside have works (``all_us`` if D <= e, else ``first_us``) that add up to at most
e - s. The largest number of requests with this property is found by taking the smallest works first. The other
requests inside, at least ``misses``, are not good, whatever the policy does.

*Disjoint intervals.* No request is inside two intervals that overlap in no more than a point, because its window has a
positive length. So their misses add up. The bound is the number of requests, less the largest sum of misses over
disjoint intervals, which dynamic programming finds. A request that would be late even if it had the machine to itself
is left out from the start.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from course.goodput.arena import Arrival, Limits, Trace, num_attended

#: The work of a request that is not inside an interval: more than any interval has room for.
_NEVER = 1 << 60


class Window(NamedTuple):
    """What a good request asks of the machine; whole microseconds."""

    arrival_us: int
    #: When the first and the last token are due.
    first_due_us: int
    last_due_us: int
    #: The least work until the first and until the last token.
    first_us: int
    all_us: int


@functools.lru_cache(maxsize=128)
def most_good(trace: Trace) -> int:
    """Return the bound: no policy has more good requests on ``trace``."""
    possible = [each for each in trace.arrivals if _is_possible(each, trace.limits)]
    misses: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for is_per_token in (False, True):
        windows = [window(each, trace.limits, is_per_token) for each in possible]
        for start_us, end_us, num_missed in _all_misses(windows):
            misses[end_us].append((start_us, num_missed))
    most, most_until = 0, {0: 0}  # the most misses of disjoint intervals, as far as this time
    times = sorted({*misses, *(each.arrival_us for each in possible)})
    for now_us in times:
        most = max([most, *(most_until[start_us] + num_missed for start_us, num_missed in misses[now_us])])
        most_until[now_us] = most
    return len(possible) - most


def window(arrival: Arrival, limits: Limits, is_per_token: bool) -> Window:
    """Return the window and the work of a request. The time of a step is charged per request, or per token."""
    num_first, num_more = arrival.num_prompt_tokens, arrival.num_output_tokens - 1
    if is_per_token:
        shares = (num_first, num_more, limits.max_num_batched_tokens)
    else:
        shares = (_num_steps(num_first, limits), num_more, limits.max_num_seqs)
    works = []
    for num_computed, num_tokens, num_shares in ((0, num_first, shares[0]), (num_first, num_more, shares[1])):
        works.append(limits.token_us * num_tokens + limits.step_us * num_shares // shares[2]
                     + num_attended(num_computed, num_tokens) // limits.attended_per_us)
    first_due_us = arrival.arrival_us + arrival.max_first_token_us
    return Window(arrival.arrival_us, first_due_us, first_due_us + num_more * arrival.max_token_us, works[0],
                  sum(works))


def _num_steps(num_tokens: int, limits: Limits) -> int:
    return -(-num_tokens // limits.max_num_batched_tokens)


def _is_possible(arrival: Arrival, limits: Limits) -> bool:
    """Check whether the request would be good if it had the machine to itself."""
    num_first, num_more = arrival.num_prompt_tokens, arrival.num_output_tokens - 1
    first_us = (limits.step_us * _num_steps(num_first, limits) + limits.token_us * num_first
                + num_attended(0, num_first) // limits.attended_per_us)
    more_us = (limits.step_us + limits.token_us) * num_more + (num_attended(num_first, num_more)
                                                               // limits.attended_per_us)
    return first_us <= arrival.max_first_token_us and more_us <= num_more * arrival.max_token_us


def _all_misses(windows: list[Window]) -> list[tuple[int, int, int]]:
    """Return (start, end, misses) of every interval with misses, from an arrival to the moment when a token is due."""
    columns = np.array(windows, dtype=np.int64).reshape(-1, 5).T
    arrivals, first_dues, last_dues, first_works, all_works = columns
    ends = np.unique(columns[1:3])
    found = []
    for start in np.unique(arrivals):
        later = ends[ends > start][:, None]
        is_inside = (arrivals >= start) & (first_dues <= later)
        works = np.where(last_dues <= later, all_works, first_works)
        works = np.sort(np.where(is_inside, works, _NEVER), axis=1)
        works = np.minimum(works, _NEVER // (len(windows) + 1))  # so that their sum is exact
        num_kept = (np.cumsum(works, axis=1) <= later - start).sum(axis=1)
        num_missed = is_inside.sum(axis=1) - num_kept
        found += [(int(start), int(end), int(missed)) for end, missed in zip(later[:, 0], num_missed) if missed]
    return found

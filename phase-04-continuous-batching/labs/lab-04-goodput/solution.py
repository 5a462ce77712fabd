"""Lab 4.4: goodput. A naive scheduling policy, the arithmetic of a step, and a policy that you invent.

    plan(now_us, requests) -> (num_scheduled_tokens, preempted)

The arena calls ``plan`` before every step. ``requests`` contains every request that has arrived and not ended, in the
order of arrival. The result is a dict, request id → number of tokens to compute, and a list: the ids of the running
requests that lose their blocks before the step. All times are whole microseconds.

A plan is legal if

- it computes at least 1 token, and at most ``max_num_batched_tokens``
- it gives a request at least 1 token, and at most its uncomputed tokens (``num_tokens - num_computed_tokens``)
- every id in it belongs to one of ``requests``, and no request is both preempted and given tokens
- it preempts only running requests, each once; these hold no blocks then, and none of their tokens are computed
- after the step, at most ``max_num_seqs`` requests hold blocks, and together at most ``num_blocks``
- it admits no request while another one waits that arrived more than ``max_overtaking_us`` earlier;
  a request that is preempted in this step waits

A run may take at most 4 steps per token of its trace, prompts and outputs together.

A request holds one block per ``block_size`` computed tokens, rounded up. It is *running* if it holds blocks, even in a
step in which it computes nothing; otherwise it waits, and it is *admitted* in the step that computes its first tokens.
A step that computes the last uncomputed token of a request makes its next output token.
"""

from __future__ import annotations

from collections.abc import Iterable

from course.goodput_arena import Limits, RequestState

# ---------------------------------------------------------------------------------------------- Task 1


class StaticBatches:
    """The naive policy: take a batch of requests, serve it until all of them have ended, then take the next.

    A batch is the first requests in the order of arrival, no more than ``max_num_seqs``, and no more than fit into the
    pool when each reserves blocks for its prompt and ``max_tokens`` of output. The first request that does not fit ends
    the batch. Nothing is preempted, and a request that arrives later waits for the next batch.
    """

    def __init__(self, limits: Limits) -> None:
        """Make a policy without a batch."""
        # TASK 1: StaticBatches.__init__
        self._limits = limits
        self._batch: set[int] = set()
        # END TASK

    def plan(self, now_us: int, requests: tuple[RequestState, ...]) -> tuple[dict[int, int], list[int]]:
        """Plan the next step of the batch; if no request of it is left, take the next batch first.

        Returns:
        - the tokens: in the order of arrival, each request of the batch gets all its uncomputed tokens, or what is left
          of ``max_num_batched_tokens``; a request that would get none is left out
        - an empty list

        Example::

            >>> policy = StaticBatches(Limits(num_blocks=8, block_size=16, max_num_seqs=2, max_num_batched_tokens=64,
            ...                               step_us=5000, token_us=500, attended_per_us=2, max_overtaking_us=0))
            >>> requests = [RequestState(i, 0, 50, 50, 0, 0, 10, 400_000, 25_000, -1) for i in range(3)]
            >>> policy.plan(0, tuple(requests))
            ({0: 50, 1: 14}, [])
        """
        # TASK 1: StaticBatches.plan
        limits = self._limits
        if not any(request.request_id in self._batch for request in requests):
            num_free = limits.num_blocks
            self._batch = set()
            for request in requests[:limits.max_num_seqs]:
                num_free -= -(-(request.num_prompt_tokens + request.max_tokens) // limits.block_size)
                if num_free < 0:
                    break
                self._batch.add(request.request_id)
        budget = limits.max_num_batched_tokens
        tokens = {}
        for request in requests:
            n = min(request.num_tokens - request.num_computed_tokens, budget)
            if request.request_id in self._batch and n:
                tokens[request.request_id] = n
                budget -= n
        return tokens, []
        # END TASK


# ---------------------------------------------------------------------------------------------- Task 2


def num_new_blocks(limits: Limits, request: RequestState, n: int) -> int:
    """Return how many blocks ``request`` needs for its next ``n`` tokens, in addition to those that it holds."""
    # TASK 2: num_new_blocks
    return -(-(request.num_computed_tokens + n) // limits.block_size) - request.num_blocks
    # END TASK


def step_time_us(limits: Limits, parts: Iterable[tuple[RequestState, int]]) -> int:
    """Return how long a step takes that computes ``n`` more tokens of each request, given as pairs (request, n).

    It is ``step_us``, plus ``token_us`` per token, plus the attention: a token attends to all tokens of its request
    before it and to itself. The sum of these numbers over the whole step, divided by ``attended_per_us`` and rounded
    up, is the time in microseconds.

    Example::

        >>> limits = Limits(num_blocks=8, block_size=16, max_num_seqs=2, max_num_batched_tokens=64, step_us=5000,
        ...                 token_us=500, attended_per_us=2, max_overtaking_us=20_000_000)
        >>> request = RequestState(0, 0, 30, 31, 30, 2, 10, 400_000, 25_000, 90_000)
        >>> step_time_us(limits, [(request, 1)])
        5516
    """
    # TASK 2: step_time_us
    total_us, num_attended = limits.step_us, 0
    for request, n in parts:
        total_us += limits.token_us * n
        num_attended += n * request.num_computed_tokens + n * (n + 1) // 2
    return total_us + -(-num_attended // limits.attended_per_us)
    # END TASK


def due_us(request: RequestState) -> int:
    """Return when the next output token of ``request`` is due, if that token is its last.

    The first one is due ``max_first_token_us`` after the arrival. The one after k output tokens is due k times
    ``max_token_us`` after the first one was ready.
    """
    # TASK 2: due_us
    num_output_tokens = request.num_tokens - request.num_prompt_tokens
    if num_output_tokens == 0:
        return request.arrival_us + request.max_first_token_us
    return request.first_token_at_us + num_output_tokens * request.max_token_us
    # END TASK


def slack_us(limits: Limits, request: RequestState, now_us: int) -> int:
    """Return how long ``request`` can wait from now on, so that its next output token is still ready when it is due.

    When it has waited, it runs alone: in each step it computes all its uncomputed tokens, or
    ``max_num_batched_tokens``. The result is negative if the token will be late even if the request runs at once.
    """
    # TASK 2: slack_us
    end_us, left = now_us, request
    while left.num_computed_tokens < left.num_tokens:
        n = min(left.num_tokens - left.num_computed_tokens, limits.max_num_batched_tokens)
        end_us += step_time_us(limits, [(left, n)])
        left = left._replace(num_computed_tokens=left.num_computed_tokens + n)
    return due_us(request) - end_us
    # END TASK


# ---------------------------------------------------------------------------------------------- Task 3


# SOLUTION ONLY
#: A prompt takes this much longer than alone, because others decode in the same steps.
CROWDED = 1.6
#: Blocks that must be free beyond a waiting request's own when it is admitted, to grow into.
NUM_SPARE_BLOCKS = 2


# END SOLUTION ONLY
class SchedulingPolicy:
    """Your own policy. It must follow these rules; beyond them, a better goodput gives more points (see the README).

    - Every plan is legal, whatever the limits, and every request ends.
    - Within one Python process, the same calls get the same plans, no matter which requests come later. Two policies
      know nothing about each other.
    - It is fast enough: a test may use 30 s of CPU time and calls ``plan`` up to 18,000 times, about 1,000 times per
      trace. On average 1 ms per call is fast enough.
    """

    # SOLUTION ONLY
    # Requests are served in the order in which their next token is due. Three decisions matter more than that order:
    # a request that has become late is *hopeless*, and is served with what the others leave; if the unfinished
    # prompts cannot all be in time, the one that needs most time is treated as hopeless too (the rule of Moore and
    # Hodgson); and a prompt is computed in chunks so small that no decoding request becomes late during the step.
    # END SOLUTION ONLY
    def __init__(self, limits: Limits) -> None:
        """Make a policy for a machine with these limits."""
        # TASK 3: SchedulingPolicy.__init__
        self._limits = limits
        # END TASK

    def plan(self, now_us: int, requests: tuple[RequestState, ...]) -> tuple[dict[int, int], list[int]]:
        """Return a legal plan for the next step: the tokens to compute, and the running requests to preempt first."""
        # TASK 3: SchedulingPolicy.plan
        limits = self._limits
        hopeful, hopeless = self._split(now_us, requests)
        hopeless.sort(key=lambda request: (request.num_tokens - request.num_computed_tokens > 1, request.arrival_us))
        # Requests that have waited so long that others may not overtake them come first, by arrival.
        order = sorted(hopeful + hopeless,
                       key=lambda request: min(request.arrival_us, now_us - limits.max_overtaking_us))
        first_late_us = min((due_us(request) for request in hopeful
                             if request.num_tokens - request.num_computed_tokens == 1), default=None)
        num_free = limits.num_blocks - sum(request.num_blocks for request in requests)
        num_seats = limits.max_num_seqs - sum(request.num_blocks > 0 for request in requests)
        oldest_us = min((request.arrival_us for request in requests if not request.num_blocks), default=now_us)
        tokens: dict[int, int] = {}
        preempted: list[int] = []
        end_us, budget = now_us + limits.step_us, limits.max_num_batched_tokens
        for place, request in enumerate(order):
            is_waiting = request.num_blocks == 0
            if request.request_id in preempted or is_waiting and (
                    request.arrival_us - oldest_us > limits.max_overtaking_us):
                continue
            n = min(request.num_tokens - request.num_computed_tokens, budget)
            while n and tokens and first_late_us is not None and end_us + self._work_us(request, n) > first_late_us:
                n = n * 3 // 4
            if n == 0:
                continue
            num_needed = num_new_blocks(limits, request, n)
            if is_waiting:
                num_all = num_new_blocks(limits, request, request.num_tokens)
                num_needed = min(num_all + NUM_SPARE_BLOCKS, limits.num_blocks)
            for victim in reversed(order[place + 1:]):
                if num_needed <= num_free and num_seats >= is_waiting:
                    break
                may_lose = not is_waiting or not tokens or request in hopeful and victim in hopeless
                if victim.num_blocks and victim.request_id not in preempted and may_lose:
                    preempted.append(victim.request_id)
                    num_free, num_seats = num_free + victim.num_blocks, num_seats + 1
                    oldest_us = min(oldest_us, victim.arrival_us)
            if num_needed <= num_free and num_seats >= is_waiting:
                tokens[request.request_id] = n
                num_free, num_seats = num_free - num_new_blocks(limits, request, n), num_seats - is_waiting
                end_us, budget = end_us + self._work_us(request, n), budget - n
        return tokens, preempted
        # END TASK

    # SOLUTION ONLY
    def _work_us(self, request: RequestState, n: int) -> int:
        """Return by how much ``n`` tokens of ``request`` make a step longer."""
        return step_time_us(self._limits, [(request, n)]) - self._limits.step_us

    def _split(self, now_us: int, requests: tuple[RequestState, ...]
               ) -> tuple[list[RequestState], list[RequestState]]:
        """Return the requests that should be in time, in the order in which they are due, and the hopeless ones."""
        hopeless, chosen = [], []
        end_us: float = now_us
        for request in sorted(requests, key=due_us):
            is_late = request.first_token_at_us > request.arrival_us + request.max_first_token_us
            if is_late or slack_us(self._limits, request, now_us) < 0:
                hopeless.append(request)
                continue
            num_left = request.num_tokens - request.num_computed_tokens
            cost_us = 0.0 if num_left == 1 else CROWDED * self._work_us(request, num_left) + self._limits.step_us
            chosen.append((cost_us, request))
            end_us += cost_us
            if cost_us and end_us > due_us(request):
                worst = max(chosen, key=lambda pair: pair[0])
                chosen.remove(worst)
                end_us -= worst[0]
                hopeless.append(worst[1])
        return [request for _, request in chosen], hopeless
    # END SOLUTION ONLY

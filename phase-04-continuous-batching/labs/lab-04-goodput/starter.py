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
        raise NotImplementedError("Task 1: StaticBatches.__init__")

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
        raise NotImplementedError("Task 1: StaticBatches.plan")


# ---------------------------------------------------------------------------------------------- Task 2


def num_new_blocks(limits: Limits, request: RequestState, n: int) -> int:
    """Return how many blocks ``request`` needs for its next ``n`` tokens, in addition to those that it holds."""
    raise NotImplementedError("Task 2: num_new_blocks")


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
    raise NotImplementedError("Task 2: step_time_us")


def due_us(request: RequestState) -> int:
    """Return when the next output token of ``request`` is due, if that token is its last.

    The first one is due ``max_first_token_us`` after the arrival. The one after k output tokens is due k times
    ``max_token_us`` after the first one was ready.
    """
    raise NotImplementedError("Task 2: due_us")


def slack_us(limits: Limits, request: RequestState, now_us: int) -> int:
    """Return how long ``request`` can wait from now on, so that its next output token is still ready when it is due.

    When it has waited, it runs alone: in each step it computes all its uncomputed tokens, or
    ``max_num_batched_tokens``. The result is negative if the token will be late even if the request runs at once.
    """
    raise NotImplementedError("Task 2: slack_us")


# ---------------------------------------------------------------------------------------------- Task 3


class SchedulingPolicy:
    """Your own policy. It must follow these rules; beyond them, a better goodput gives more points (see the README).

    - Every plan is legal, whatever the limits, and every request ends.
    - Within one Python process, the same calls get the same plans, no matter which requests come later. Two policies
      know nothing about each other.
    - It is fast enough: a test may use 30 s of CPU time and calls ``plan`` up to 18,000 times, about 1,000 times per
      trace. On average 1 ms per call is fast enough.
    """

    def __init__(self, limits: Limits) -> None:
        """Make a policy for a machine with these limits."""
        raise NotImplementedError("Task 3: SchedulingPolicy.__init__")

    def plan(self, now_us: int, requests: tuple[RequestState, ...]) -> tuple[dict[int, int], list[int]]:
        """Return a legal plan for the next step: the tokens to compute, and the running requests to preempt first."""
        raise NotImplementedError("Task 3: SchedulingPolicy.plan")


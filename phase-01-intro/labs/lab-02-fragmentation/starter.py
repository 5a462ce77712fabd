"""Three ways to allocate cache memory to requests of unknown final length, and how much each of them wastes.

    reserve the maximum      |AAAA............|BB..............|CCCCCCC.........|    every request gets the maximum
    exact, in one piece      |AAAA|BB|CCCCCCC|                                       must know the length; leaves holes
    pages of 4               |AAAA|BB..|CCCC|CCC.|                                   a table says where the pages are

A slot holds the K and V of one token. A page is a block of slots. All sizes in this file are numbers of slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: The longest text that the model of this lab takes, prompt and answer together.
MAX_LEN = 2048


@dataclass(frozen=True)
class RequestLengths:
    """The final lengths of a request. The engine knows the first number at once, but the second only at the end."""

    num_prompt_tokens: int
    num_output_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


@dataclass(frozen=True)
class SlotUse:
    """The number of slots of each kind in some reservations. ``total`` is their sum."""

    #: Slots that hold a token now.
    used: int
    #: Slots that hold no token yet, but will before the request ends.
    reserved: int
    #: Slots that will never hold a token.
    internal: int

    @property
    def total(self) -> int:
        return self.used + self.reserved + self.internal


def make_trace(num_requests: int, seed: int) -> list[RequestLengths]:
    """Make requests with lengths like those of chat traffic. This function is given.

    Most requests are short, a few are very long, and none is longer than ``MAX_LEN``. The lengths of prompts and
    outputs are log-normal with medians of 200 and 220 tokens, rounded and clipped.
    """
    rng = np.random.default_rng(seed)
    prompts = np.clip(np.rint(rng.lognormal(np.log(200.0), 1.0, num_requests)), 4, MAX_LEN * 3 // 4)
    outputs = np.clip(np.rint(rng.lognormal(np.log(220.0), 0.8, num_requests)), 1, MAX_LEN - prompts)
    return [RequestLengths(int(prompt), int(output)) for prompt, output in zip(prompts, outputs)]


def check_lengths(lengths: Sequence[int], max_len: int | None = None) -> None:
    """Raise ValueError if ``lengths`` is empty or contains an invalid length. This function is given.

    A length is invalid if it is below 1 or above ``max_len``. If ``max_len`` is None, there is no upper limit.
    """
    if len(lengths) == 0:
        raise ValueError("needs at least 1 length, got 0")
    for length in lengths:
        if length < 1:
            raise ValueError(f"a length must be at least 1, got {length}")
        if max_len is not None and length > max_len:
            raise ValueError(f"a length must be at most {max_len}, got {length}")


def check_at_least(minimum: int, **arguments: int) -> None:
    """Raise ValueError for the first argument that is below ``minimum``. This function is given.

        check_at_least(1, num_slots=8, block_size=0)    ValueError: block_size must be at least 1, got 0
    """
    for name, value in arguments.items():
        if value < minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {value}")


def check_progress(requests: Sequence[RequestLengths], num_generated: Sequence[int], max_len: int) -> None:
    """Raise ValueError unless these can be the arguments of ``split_reservation``. This function is given.

    - ``num_generated`` must contain one number per request
    - that number must be at least 0 and at most the request's ``num_output_tokens``
    - no request may have more than ``max_len`` tokens
    """
    if len(requests) != len(num_generated):
        raise ValueError(f"{len(requests)} requests, but {len(num_generated)} numbers of generated tokens")
    for request, generated in zip(requests, num_generated):
        if request.num_tokens > max_len:
            raise ValueError(f"a request must have at most {max_len} tokens, got {request.num_tokens}")
        if not 0 <= generated <= request.num_output_tokens:
            raise ValueError(f"generated tokens must be between 0 and {request.num_output_tokens}, got {generated}")


# ---------------------------------------------------------------------------------------------- Task 1


def waste_of_reserving(lengths: Sequence[int], max_len: int) -> float:
    """Return the share of slots, 0.0 to 1.0, that never hold a token if every request gets ``max_len`` slots.

    ``lengths`` contains the final length of each request. Raises ValueError for lengths that
    ``check_lengths(lengths, max_len)`` rejects.

    Example::

        >>> waste_of_reserving([10, 20, 30], max_len=100)
        0.8
    """
    raise NotImplementedError("Task 1: waste_of_reserving")


def split_reservation(requests: Sequence[RequestLengths], num_generated: Sequence[int], max_len: int) -> SlotUse:
    """Count the used, the reserved and the internal slots of all requests at one moment.

    Every request has ``max_len`` slots. At that moment, the slots of request i hold its whole prompt and
    ``num_generated[i]`` output tokens. Here is an example with one request::

        prompt 3, output 4, generated 1, max_len 10

        |P P P o . . . - - -|      used 4 (P and o), reserved 3 (.), internal 3 (-)

    Returns:
    - the number of slots of each kind; ``SlotUse`` defines the kinds
    - all three numbers are 0 if there are no requests; this is not an error
    Raises:
    - ValueError for arguments that ``check_progress`` rejects

    Example::

        >>> split_reservation([RequestLengths(num_prompt_tokens=3, num_output_tokens=4)], [1], max_len=10)
        SlotUse(used=4, reserved=3, internal=3)
    """
    raise NotImplementedError("Task 1: split_reservation")


# ---------------------------------------------------------------------------------------------- Task 2


def blocks_needed(num_tokens: int, block_size: int) -> int:
    """Return the number of blocks that ``num_tokens`` tokens need. Each block has ``block_size`` slots.

    The last block may be partly empty.

    Returns:
    - an int that is exact for numbers of any size; 0 for 0 tokens
    Raises:
    - ValueError if ``num_tokens`` is below 0 (``check_at_least``)
    - ValueError if ``block_size`` is below 1, even if there are 0 tokens (``check_at_least``)

    Example::

        >>> blocks_needed(32, 16), blocks_needed(33, 16)
        (2, 3)
    """
    raise NotImplementedError("Task 2: blocks_needed")


def waste_of_paging(lengths: Sequence[int], block_size: int) -> float:
    """Return the share of slots, 0.0 to 1.0, that never hold a token if every request gets only the blocks it needs.

    It is a share of all allocated slots, not a mean over requests. ``lengths`` contains the final length of each
    request.

    Raises:
    - ValueError for lengths that ``check_lengths(lengths)`` rejects
    - ValueError if ``block_size`` is below 1

    Example: 5 and 8 tokens take one block of 8 slots each, and 3 of these 16 slots stay empty::

        >>> waste_of_paging([5, 8], block_size=8)
        0.1875
    """
    raise NotImplementedError("Task 2: waste_of_paging")


# ---------------------------------------------------------------------------------------------- Tasks 3 and 4


class ContiguousAllocator:
    """An allocator of runs of neighbouring slots. It uses first fit: the leftmost hole that is large enough.

        slot   0         10    16        26             41
               | A        |hole | B       |     hole     | C ...
        _holes      = [(10, 6), (26, 15)]           (start, size), sorted by start; no two touch
        _allocated  = {0: 10, 16: 10, 41: ...}      start → size
    """

    def __init__(self, num_slots: int) -> None:
        check_at_least(1, num_slots=num_slots)
        self.num_slots = num_slots
        self._holes: list[tuple[int, int]] = [(0, num_slots)]
        self._allocated: dict[int, int] = {}

    @property
    def holes(self) -> list[tuple[int, int]]:
        """A new list of all holes as (start, size), sorted by start."""
        return list(self._holes)

    @property
    def num_free_slots(self) -> int:
        return sum(size for _, size in self._holes)

    @property
    def largest_hole(self) -> int:
        """The size of the largest hole, 0 if there is none."""
        return max((size for _, size in self._holes), default=0)

    def allocate(self, num_slots: int) -> int | None:
        """Take ``num_slots`` neighbouring slots: the first slots of the leftmost hole that has at least ``num_slots``.

        After:
        - these slots are in no hole; a hole that has no slots left is removed
        - if no hole is large enough, nothing has changed
        Returns:
        - the number of the first of these slots, which is the argument of ``free``
        - None if no hole is large enough, even if ``num_slots`` exceeds the size of the whole memory
        Raises:
        - ValueError if ``num_slots`` is below 1 (``check_at_least``); the message contains the number, and nothing has
          changed

        Example::

            >>> allocator = ContiguousAllocator(10)
            >>> allocator.allocate(4), allocator.allocate(7), allocator.allocate(2)
            (0, None, 4)
            >>> allocator.holes
            [(6, 4)]
        """
        raise NotImplementedError("Task 3: ContiguousAllocator.allocate")

    def free(self, start: int) -> None:
        """Free the run of slots that begins at ``start``, where ``start`` is a number that ``allocate`` returned.

        After:
        - the run's slots are a hole, merged with the hole on the left and the hole on the right if these touch the run
        Raises:
        - RuntimeError if no allocated run begins at ``start``; the message contains the number, and nothing has changed

        Example::

            >>> allocator = ContiguousAllocator(10)
            >>> a, b = allocator.allocate(3), allocator.allocate(3)
            >>> allocator.free(a)
            >>> allocator.holes
            [(0, 3), (6, 4)]
            >>> allocator.free(b)
            >>> allocator.holes
            [(0, 10)]
        """
        raise NotImplementedError("Task 4: ContiguousAllocator.free")


@dataclass(frozen=True)
class ChurnReport:
    """The refusals while requests arrived and ended. In a refusal *with room* enough slots were free, but in pieces."""

    num_refusals: int
    num_refusals_with_room: int
    #: These three describe the refusal with room in which the most slots were free. All are 0 if there was none.
    wanted: int
    num_free_slots: int
    largest_hole: int


def churn(num_slots: int, lengths: Sequence[int], seed: int) -> ChurnReport:
    """Serve requests in order, each in one piece of its exact length, and report the refusals. This function is given.

    When a request is refused, a random running request ends, and the refused request tries again. The function needs
    Tasks 3 and 4. No length may be above ``num_slots``.
    """
    if max(lengths) > num_slots:
        raise ValueError(f"a length of {max(lengths)} can never fit {num_slots} slots")
    rng = np.random.default_rng(seed)
    allocator = ContiguousAllocator(num_slots)
    running: list[int] = []
    num_refusals = num_with_room = 0
    worst = (0, 0, 0)
    for length in lengths:
        while (start := allocator.allocate(length)) is None:
            num_refusals += 1
            if allocator.num_free_slots >= length:
                num_with_room += 1
                worst = max(worst, (allocator.num_free_slots, allocator.largest_hole, length))
            if not running:
                raise RuntimeError(f"churn: all requests have ended, so all {num_slots} slots must be one hole. There "
                                   f"are {len(allocator.holes)} holes, the largest has {allocator.largest_hole} slots, "
                                   f"and allocate({length}) gave None. Does free merge holes that touch?")
            allocator.free(running.pop(int(rng.integers(len(running)))))
        running.append(start)
    return ChurnReport(num_refusals, num_with_room, wanted=worst[2], num_free_slots=worst[0], largest_hole=worst[1])


# ---------------------------------------------------------------------------------------------- Task 5


def num_that_fit_reserving(lengths: Sequence[int], num_slots: int, max_len: int) -> int:
    """Return how many requests, in the order given, can run at once if each takes ``max_len`` slots.

    Returns:
    - a number from 0 to ``len(lengths)``; 0 if there are 0 slots
    Raises:
    - ValueError for lengths that ``check_lengths(lengths, max_len)`` rejects
    - ValueError if ``num_slots`` is below 0 (``check_at_least``)

    Example::

        >>> num_that_fit_reserving([7, 1, 3], num_slots=25, max_len=10)
        2
    """
    raise NotImplementedError("Task 5: num_that_fit_reserving")


def num_that_fit_paged(lengths: Sequence[int], num_slots: int, block_size: int) -> int:
    """Return how many requests, in the order given, can run at once if each takes the blocks for its final length.

    The memory is cut into whole blocks; a remainder smaller than a block is not used. Requests are admitted first
    come, first served: the first request that does not fit ends the count, even if a later request would fit.

    Returns:
    - the number of requests before the one that ends the count; ``len(lengths)`` if all fit, 0 if there are 0 slots
    Raises:
    - ValueError for lengths that ``check_lengths(lengths)`` rejects, including lengths after the request that ends the
      count
    - ValueError if ``block_size`` is below 1, or ``num_slots`` is below 0 (``check_at_least``)

    Example: 19 slots are 4 blocks of 4. The first request takes 2 blocks, and the second would need 3::

        >>> num_that_fit_paged([8, 9, 4], num_slots=19, block_size=4)
        1
    """
    raise NotImplementedError("Task 5: num_that_fit_paged")


# ---------------------------------------------------------------------------------------------- Task 6


@dataclass(frozen=True)
class SweepRow:
    """The costs of one block size. A request's block table has one entry per block."""

    block_size: int
    waste: float
    mean_table_len: float
    longest_table: int


def sweep_block_sizes(lengths: Sequence[int], block_sizes: Sequence[int]) -> list[SweepRow]:
    """Return one row per block size, in the order given: the waste of paging, the mean and the longest table length.

    A size that is given twice gets two rows. Raises ValueError for arguments that ``waste_of_paging`` rejects.

    Example: in blocks of 8, requests of 5 and 10 tokens need 1 and 2 blocks, so their tables have 1 and 2 entries::

        >>> sweep_block_sizes([5, 10], block_sizes=[8])
        [SweepRow(block_size=8, waste=0.375, mean_table_len=1.5, longest_table=2)]
    """
    raise NotImplementedError("Task 6: sweep_block_sizes")


# ---------------------------------------------------------------------------------------------- look at it


def print_report(num_requests: int, seed: int, num_slots: int) -> None:
    trace = make_trace(num_requests, seed)
    lengths = [request.num_tokens for request in trace]
    print(f"{num_requests} requests: {min(lengths)} to {max(lengths)} tokens, median {np.median(lengths):.0f}, "
          f"mean {np.mean(lengths):.0f}, the model takes {MAX_LEN}\n")

    print(f"reserve the maximum: {waste_of_reserving(lengths, MAX_LEN):.1%} of the slots never hold a token")
    use = split_reservation(trace, [request.num_output_tokens // 2 for request in trace], MAX_LEN)
    print(f"  halfway through every answer: used {use.used / use.total:.1%}, reserved {use.reserved / use.total:.1%}, "
          f"internal {use.internal / use.total:.1%}\n")

    report = churn(num_slots, lengths, seed)
    print(f"exact lengths in one piece, {num_slots} slots: {report.num_refusals} refusals, "
          f"{report.num_refusals_with_room} of them with enough free slots in total")
    print(f"  the worst: {report.wanted} wanted, {report.num_free_slots} free, largest hole {report.largest_hole}\n")

    print("pages")
    print(f"{'block size':>10} | {'waste':>6} | {'mean table':>10} | {'longest':>7} | {'fit in ' + str(num_slots):>12}")
    for row in sweep_block_sizes(lengths, [1, 4, 8, 16, 32, 64, 128, 256, 512, MAX_LEN]):
        num_fit = num_that_fit_paged(lengths, num_slots, row.block_size)
        print(f"{row.block_size:>10} | {row.waste:>6.1%} | {row.mean_table_len:>10.1f} | {row.longest_table:>7} | "
              f"{num_fit:>12}")
    num_fit = num_that_fit_reserving(lengths, num_slots, MAX_LEN)
    print(f"\nif each request reserves the maximum, {num_fit} requests fit in {num_slots} slots")


if __name__ == "__main__":
    print_report(num_requests=1000, seed=0, num_slots=32768)

"""Three ways to hand out cache memory to requests whose length nobody knows yet, and what each of them wastes.

    reserve to the maximum   |AAAA............|BB..............|CCCCCCC.........|    a place each, sized for the worst
    exact, in one piece      |AAAA|BB|CCCCCCC|                                       needs the future, leaves holes
    pages of 4               |AAAA|BB..|CCCC|CCC.|                                   a table finds the pieces again

A slot holds the K/V of one token. All sizes here are counted in slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import bisect

import numpy as np

#: The longest text, prompt and answer together, that the model of this lab takes.
MAX_LEN = 2048


@dataclass(frozen=True)
class RequestLengths:
    """How long one request turns out to be. The engine knows the first number at once, the second at the end."""

    num_prompt_tokens: int
    num_output_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


@dataclass(frozen=True)
class SlotUse:
    """Where the slots of some reservations are. ``total`` is all of them."""

    #: Holds a token now.
    used: int
    #: Holds none yet, but will before the request ends.
    reserved: int
    #: Will never hold one.
    internal: int

    @property
    def total(self) -> int:
        return self.used + self.reserved + self.internal


def make_trace(num_requests: int, seed: int) -> list[RequestLengths]:
    """Lengths as chat traffic has them: most are short, a few are very long, none is above ``MAX_LEN``. Given.

    Prompts and outputs are log-normal with medians of 200 and 220 tokens, rounded and clipped.
    """
    rng = np.random.default_rng(seed)
    prompts = np.clip(np.rint(rng.lognormal(np.log(200.0), 1.0, num_requests)), 4, MAX_LEN * 3 // 4)
    outputs = np.clip(np.rint(rng.lognormal(np.log(220.0), 0.8, num_requests)), 1, MAX_LEN - prompts)
    return [RequestLengths(int(prompt), int(output)) for prompt, output in zip(prompts, outputs)]


def check_lengths(lengths: Sequence[int], max_len: int | None = None) -> None:
    """Raise ValueError if there are no lengths, or if one is below 1 or above ``max_len`` (None: no bound). Given."""
    if len(lengths) == 0:
        raise ValueError("needs at least 1 length, got 0")
    for length in lengths:
        if length < 1:
            raise ValueError(f"a length must be at least 1, got {length}")
        if max_len is not None and length > max_len:
            raise ValueError(f"a length must be at most {max_len}, got {length}")


# ---------------------------------------------------------------------------------------------- Task 1


def waste_of_reserving(lengths: Sequence[int], max_len: int) -> float:
    """The share of slots that never hold a token, 0.0 to 1.0, if every request is given ``max_len`` slots.

    ``lengths`` are final lengths. Raises ValueError for what ``check_lengths(lengths, max_len)`` refuses.
    """
    check_lengths(lengths, max_len)
    return 1 - sum(lengths) / (max_len * len(lengths))


def split_reservation(requests: Sequence[RequestLengths], num_generated: Sequence[int], max_len: int) -> SlotUse:
    """Sort all slots of all requests at one moment into used, reserved and internal; each request has ``max_len``.

    ``num_generated[i]`` is how many output tokens request i has at that moment. Its prompt is always there::

        prompt 3, output 4, generated 1, max_len 10

        |P P P o . . . - - -|      used 4 (P and o), reserved 3 (.), internal 3 (-)

    No requests have no slots: 0, 0 and 0.
    Raises ValueError if the two sequences differ in length; if a request is longer than ``max_len``; if a number of
    generated tokens is not within 0 and that request's ``num_output_tokens``.
    """
    if len(requests) != len(num_generated):
        raise ValueError("not as many requests as numbers")
    prompts = np.array([r.num_prompt_tokens for r in requests], dtype=object)
    outputs = np.array([r.num_output_tokens for r in requests], dtype=object)
    done = np.array(list(num_generated), dtype=object)
    if ((prompts + outputs) > max_len).any() or (done < 0).any() or (done > outputs).any():
        raise ValueError("a request does not fit its numbers")
    return SlotUse(used=int((prompts + done).sum()), reserved=int((outputs - done).sum()),
                   internal=int((max_len - prompts - outputs).sum()))


# ---------------------------------------------------------------------------------------------- Task 2


def blocks_needed(num_tokens: int, block_size: int) -> int:
    """How many blocks of ``block_size`` slots hold ``num_tokens`` tokens. The last one may be partly empty.

    0 tokens need 0 blocks. Whole-number arithmetic: right for numbers of any size.
    Raises ValueError if ``num_tokens`` is negative; if ``block_size`` is below 1.
    """
    if block_size < 1:
        raise ValueError(f"block_size={block_size}")
    if num_tokens < 0:
        raise ValueError(f"num_tokens={num_tokens}")
    return (num_tokens + block_size - 1) // block_size


def waste_of_paging(lengths: Sequence[int], block_size: int) -> float:
    """The share of slots that never hold a token, 0.0 to 1.0, if every request is given just the blocks it needs.

    It is a share of all slots that were given out, not a mean over requests. ``lengths`` are final lengths.
    Raises ValueError for what ``check_lengths(lengths)`` refuses; if ``block_size`` is below 1.
    """
    if block_size < 1:
        raise ValueError(f"block_size={block_size}")
    check_lengths(lengths)
    slots = sum(map(lambda length: blocks_needed(length, block_size) * block_size, lengths))
    return 1.0 - sum(lengths) / slots


# ---------------------------------------------------------------------------------------------- Tasks 3 and 4


class ContiguousAllocator:
    """Hands out runs of neighbouring slots, first fit: the leftmost hole that is large enough.

        slot   0         10    16        26             41
               | A        |hole | B       |     hole     | C ...
        _holes      = [(10, 6), (26, 15)]           (start, size), by start; no two of them touch
        _allocated  = {0: 10, 16: 10, 41: ...}      start → size
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots must be at least 1, got {num_slots}")
        self.num_slots = num_slots
        self._holes: list[tuple[int, int]] = [(0, num_slots)]
        self._allocated: dict[int, int] = {}

    @property
    def holes(self) -> list[tuple[int, int]]:
        """All holes as (start, size), by start. A list of the caller's own."""
        return list(self._holes)

    @property
    def num_free_slots(self) -> int:
        return sum(size for _, size in self._holes)

    @property
    def largest_hole(self) -> int:
        """The size of the largest hole, 0 if there is none."""
        return max((size for _, size in self._holes), default=0)

    def allocate(self, num_slots: int) -> int | None:
        """Take ``num_slots`` neighbouring slots and return where they start, or None if no hole is large enough.

        They are the first slots of the leftmost hole that has at least that many. A hole that is used up is gone. More
        slots than there are in all is None, too. After None nothing has changed.
        Raises ValueError, with the number in the message, if ``num_slots`` is below 1; nothing changes then.
        """
        if num_slots < 1:
            raise ValueError(f"allocate({num_slots})")
        found = None
        for position in range(len(self._holes) - 1, -1, -1):
            if self._holes[position][1] >= num_slots:
                found = position
        if found is None:
            return None
        start, size = self._holes.pop(found)
        if size > num_slots:
            bisect.insort(self._holes, (start + num_slots, size - num_slots))
        self._allocated[start] = num_slots
        return start

    def free(self, start: int) -> None:
        """Give back the run that ``allocate`` returned as ``start``.

        After: its slots are a hole, merged with the hole on its left and the hole on its right, if they touch it.
        Raises RuntimeError, with the number in the message, if no run begins at ``start`` now; nothing changes then.
        """
        size = self._allocated.get(start)
        if size is None:
            raise RuntimeError(f"free({start})")
        self._allocated = {s: n for s, n in self._allocated.items() if s != start}
        merged = []
        for hole, length in sorted([*self._holes, (start, size)]):
            if merged and merged[-1][0] + merged[-1][1] == hole:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((hole, length))
        self._holes = merged


@dataclass(frozen=True)
class ChurnReport:
    """What happened while requests came and went. A refusal *with room* had enough free slots, but in pieces."""

    num_refusals: int
    num_refusals_with_room: int
    #: Of the refusal with room that left most slots idle; all 0 if there was none.
    wanted: int
    num_free_slots: int
    largest_hole: int


def churn(num_slots: int, lengths: Sequence[int], seed: int) -> ChurnReport:
    """Requests come in order, each takes exactly its length in one piece; when one is refused, a random one ends.

    Given: it needs Tasks 3 and 4. No length may be above ``num_slots``.
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
                                   f"and allocate({length}) gave None. Do holes that touch become one?")
            allocator.free(running.pop(int(rng.integers(len(running)))))
        running.append(start)
    return ChurnReport(num_refusals, num_with_room, wanted=worst[2], num_free_slots=worst[0], largest_hole=worst[1])


# ---------------------------------------------------------------------------------------------- Task 5


def num_that_fit_reserving(lengths: Sequence[int], num_slots: int, max_len: int) -> int:
    """How many requests, in the order given, can run at once if each takes ``max_len`` slots.

    Never more than ``len(lengths)``; in 0 slots none fits.
    Raises ValueError for what ``check_lengths(lengths, max_len)`` refuses; if ``num_slots`` is negative.
    """
    check_lengths(lengths, max_len)
    if num_slots < 0:
        raise ValueError(f"num_slots={num_slots}")
    return len(lengths[:num_slots // max_len])


def num_that_fit_paged(lengths: Sequence[int], num_slots: int, block_size: int) -> int:
    """How many requests, in the order given, can run at once if each takes the blocks for its final length.

    The memory is cut into whole blocks; a rest smaller than a block is lost. Requests are admitted first come, first
    served: the first one that does not fit ends the count, even if a later one would fit. In 0 slots none fits.
    Raises ValueError for what ``check_lengths(lengths)`` refuses, wherever in the list it stands; if ``block_size`` is
    below 1; if ``num_slots`` is negative.
    """
    if block_size < 1 or num_slots < 0:
        raise ValueError(f"block_size={block_size}, num_slots={num_slots}")
    check_lengths(lengths)
    free = num_slots - num_slots % block_size
    for number, length in enumerate(lengths):
        free -= blocks_needed(length, block_size) * block_size
        if free < 0:
            return number
    return len(lengths)


# ---------------------------------------------------------------------------------------------- Task 6


@dataclass(frozen=True)
class SweepRow:
    """What one block size costs. A request's table has one entry a block."""

    block_size: int
    waste: float
    mean_table_len: float
    longest_table: int


def sweep_block_sizes(lengths: Sequence[int], block_sizes: Sequence[int]) -> list[SweepRow]:
    """One row for each block size, in the order given: the waste of paging, the mean and the longest table.

    A size that is given twice has two rows.
    Raises ValueError for what ``waste_of_paging`` refuses.
    """
    check_lengths(lengths)
    tables = {b: [blocks_needed(n, b) for n in lengths] for b in block_sizes}
    return [SweepRow(b, waste_of_paging(lengths, b), float(np.mean(tables[b])), max(tables[b])) for b in block_sizes]


# ---------------------------------------------------------------------------------------------- look at it


def print_report(num_requests: int, seed: int, num_slots: int) -> None:
    trace = make_trace(num_requests, seed)
    lengths = [request.num_tokens for request in trace]
    print(f"{num_requests} requests: {min(lengths)} to {max(lengths)} tokens, median {np.median(lengths):.0f}, "
          f"mean {np.mean(lengths):.0f}, the model takes {MAX_LEN}\n")

    print(f"reserve to the maximum: {waste_of_reserving(lengths, MAX_LEN):.1%} of the slots never hold a token")
    use = split_reservation(trace, [request.num_output_tokens // 2 for request in trace], MAX_LEN)
    print(f"  halfway through every answer: used {use.used / use.total:.1%}, reserved {use.reserved / use.total:.1%}, "
          f"internal {use.internal / use.total:.1%}\n")

    report = churn(num_slots, lengths, seed)
    print(f"exact lengths in one piece, {num_slots} slots: {report.num_refusals} refusals, "
          f"{report.num_refusals_with_room} of them with enough free slots in all")
    print(f"  the worst: {report.wanted} wanted, {report.num_free_slots} free, largest hole {report.largest_hole}\n")

    print("pages")
    print(f"{'block size':>10} | {'waste':>6} | {'mean table':>10} | {'longest':>7} | {'fit in ' + str(num_slots):>12}")
    for row in sweep_block_sizes(lengths, [1, 4, 8, 16, 32, 64, 128, 256, 512, MAX_LEN]):
        num_fit = num_that_fit_paged(lengths, num_slots, row.block_size)
        print(f"{row.block_size:>10} | {row.waste:>6.1%} | {row.mean_table_len:>10.1f} | {row.longest_table:>7} | "
              f"{num_fit:>12}")
    num_fit = num_that_fit_reserving(lengths, num_slots, MAX_LEN)
    print(f"\nreserved to the maximum, {num_fit} requests fit in {num_slots}")


if __name__ == "__main__":
    print_report(num_requests=1000, seed=0, num_slots=32768)

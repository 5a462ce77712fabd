"""A recorded run in words: what it was, what it cost, how long it took."""

from __future__ import annotations

from collections.abc import Iterable

from mini_vllm.trace.files import allowed_of
from mini_vllm.trace.history import History, count, leader_of

#: Statuses of requests that ended normally.
GOOD_ENDS = ("stop", "length")
#: The parts of a step's time, and the moments between which each is measured.
PARTS = (("planning", "start_s", "planned_s"), ("model and sampling", "planned_s", "computed_s"),
         ("text and the rest", "computed_s", "end_s"))


def headline(history: History) -> str:
    """Return one line that says what the run was."""
    header, num_all = history.trace.header, len(history.trace.steps)
    num_requests = len({leader_of(request_id, history.rows) for request_id in history.rows})
    requests = count(num_requests, "request")
    if len(history.rows) > num_requests:
        requests += f" ({count(len(history.rows), 'sequence')})"
    run = f"{header['model']} serves {requests}" if header.get("model") else f"{requests} served"
    seconds = duration_s(history)
    took = f", {tell_time(seconds)}" if seconds else ""
    if len(history.steps) < num_all:
        return f"Steps {history.shown.start} to {history.shown.stop - 1} of {num_all}: {run}{took}"
    return f"{run} in {count(num_all, 'step')}{took}"


def facts(history: History) -> list[str]:
    """Return what the run cost, one line per fact; zero counts are left out."""
    num_again = sum(each.num_again for each in history.totals)
    num_preempted = sum(len(step["preempted"]) for step in history.steps)
    num_copied = sum(len(step["copies"]) for step in history.steps)
    num_early = sum(status not in GOOD_ENDS for _, _, status in history.ends)
    num_found = sum(history.found.get(request_id, 0) for request_id in history.rows)
    num_drafted, num_accepted = drafted_tokens(history)
    told = [count(sum(each.num_tokens for each in history.totals), "token") + " computed"
            + (f", {num_again} of them again" if num_again else "")]
    told += [f"{num_accepted} of {count(num_drafted, 'drafted token')} accepted"] * bool(num_drafted)
    told += bound_outputs(history)
    told += [f"{count(num_found, 'token')} found in the cache"] * bool(num_found)
    told += [f"at most {max(each.num_used_blocks for each in history.totals)} of "
             f"{count(history.trace.header['num_blocks'] - 1, 'block')} in use"]
    told += [count(num_preempted, "preemption")] * bool(num_preempted)
    told += [f"{count(num_copied, 'block')} copied"] * bool(num_copied)
    told += [f"{num_early} ended early"] * bool(num_early)
    return told


def drafted_tokens(history: History) -> tuple[int, int]:
    """Return the number of drafted tokens, and how many of them were accepted."""
    return sum(each.num_drafted for each in history.totals), sum(each.num_accepted for each in history.totals)


def bound_outputs(history: History) -> list[str]:
    """Return how many tokens were allowed at a time, if outputs had to match something."""
    bound = {request_id for step in history.steps for request_id in step.get("allowed", {})}
    nums = [num for step in history.steps for request_id in bound for num in allowed_of(step, request_id)]
    if not nums:
        return []
    least, most = min(nums), max(nums)
    span = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    total = history.trace.header.get("vocab_size")
    of = f" of {total:,}" if total else ""
    return [f"{count(len(bound), 'output')} had to match, with {span}{of} tokens allowed at a time"]


def sizes(history: History) -> str:
    header = history.trace.header
    return (f"blocks of {count(header['block_size'], 'token')}; a step computes at most "
            f"{count(header['max_num_batched_tokens'], 'token')} of {count(header['max_num_seqs'], 'sequence')}")


def duration_s(history: History) -> float:
    """Return the time from the beginning of the first step to the end of the last; 0 if there was no clock."""
    return history.steps[-1]["end_s"] - history.steps[0]["start_s"]


def time_shares(history: History) -> dict[str, float]:
    """Return the fraction of the steps' own time that each part took."""
    spent = {name: sum(step[end] - step[start] for step in history.steps)  # type: ignore[literal-required]
             for name, start, end in PARTS}
    total = sum(spent.values())
    return {name: seconds / total if total else 0.0 for name, seconds in spent.items()}


def tell_time(seconds: float) -> str:
    """Format a time with two or three digits: ``"0.4 ms"``, ``"54 ms"``, ``"1.25 s"``."""
    if seconds < 0.00995:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.2f} s" if seconds < 9.995 else \
        f"{seconds:.0f} s" if seconds >= 99.5 else f"{seconds:.1f} s"


def tell_ranges(numbers: Iterable[int]) -> list[range]:
    """Group whole numbers into ranges without gaps: 1, 2, 3, 7 → 1 to 3, 7 to 7."""
    stretches: list[range] = []
    for number in sorted(numbers):
        if stretches and stretches[-1].stop == number:
            stretches[-1] = range(stretches[-1].start, number + 1)
        else:
            stretches.append(range(number, number + 1))
    return stretches

"""The output of the benchmark, printed and saved."""

from __future__ import annotations

from dataclasses import asdict

from mini_vllm.benchmark.gpu.agreement import MAX_NOISES, Agreement
from mini_vllm.benchmark.gpu.steps import StepTimes
from mini_vllm.benchmark.gpu.workloads import WorkloadPair

#: The number of differences that are shown.
MAX_SHOWN = 5


#: Above the rows of a table. A row is printed when it is known: the next may take minutes.
STEPS = f"{'requests':>8} {'ours, ms':>9} {'mlx-lm':>8} {'ratio':>7} {'floor':>7} {'of memory':>10}"
WORKLOADS = f"{'tokens/s':<10} {'ours':>6} {'mlx-lm':>7} {'ratio':>7} {'gap, ms':>8} {'worst':>7} {'over':>6}"


def format_step(row: StepTimes) -> str:
    share = None if row.floor_ms is None else row.floor_ms / row.ours_ms
    return (f"{row.num_requests:>8} {row.ours_ms:>9.2f} {_or_dash(row.peer_ms, '.2f'):>8} "
            f"{_or_dash(row.ratio, '.2f', 'x'):>7} {_or_dash(row.floor_ms, '.2f'):>7} {_or_dash(share, '.0%'):>10}")


def format_workload(pair: WorkloadPair) -> str:
    """Format a workload with the time between two tokens of a request: the median, the worst, and their ratio."""
    between = pair.ours.between_tokens_s
    theirs = None if pair.peer is None else pair.peer.output_tokens_per_s
    return (f"{pair.ours.workload:<10} {pair.ours.output_tokens_per_s:>6.0f} {_or_dash(theirs, '.0f'):>7} "
            f"{_or_dash(pair.ratio, '.2f', 'x'):>7} {between[50] * 1000:>8.1f} {between[100] * 1000:>7.1f} "
            f"{pair.worst_gap:>5.1f}x")


def format_agreement(found: Agreement) -> str:
    lines = [f"{found.num_tokens} tokens; different from mlx-lm's first choice: {len(found.differences)}"]
    if found.differences:
        lines.append(f"  a near-tie is a difference of at most {MAX_NOISES:g} times the noise of mlx-lm's own scores, "
                     f"which is {found.noise:.2g}")
    worst = sorted(found.differences, key=lambda each: -each.num_noises)
    lines += [f"  {each}" for each in worst[:MAX_SHOWN]]
    if len(worst) > MAX_SHOWN:
        lines.append(f"  and {len(worst) - MAX_SHOWN} smaller differences")
    return "\n".join([*lines, "" if found.is_good else "THE TOKENS DO NOT AGREE"]).rstrip()


def step_dict(row: StepTimes) -> dict[str, object]:
    return {**asdict(row), "ratio": row.ratio}


def workload_dict(pair: WorkloadPair) -> dict[str, object]:
    return {"ours": pair.ours.to_dict(), "peer": None if pair.peer is None else pair.peer.to_dict(),
            "ratio": pair.ratio, "worst_gap": pair.worst_gap}


def agreement_dict(found: Agreement) -> dict[str, object]:
    return {"num_tokens": found.num_tokens, "is_good": found.is_good, "noise": found.noise,
            "differences": [asdict(each) for each in found.differences]}


def _or_dash(number: float | None, form: str, unit: str = "") -> str:
    return "-" if number is None else f"{number:{form}}{unit}"

"""The numbers of one way of serving with one workload, the table of all, and the file that keeps them.

A file is JSON, with what a reader needs to trust it:

    command    what was run
    tree       git's tree id of the source that was measured. Another commit of the same files has the same id
    modified   the files that differed from that tree
    machine    the device and the versions
    noise      cores that other programs used, how much the machine's own speed varied, and the cause if it was loud
    sha256     of everything else, so that nothing in the file changes later

A file in ``benchmarks/`` is written only if the tree is unmodified. ``tools/tables.py`` refuses one that breaks this
rule. Any other file is scratch.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mini_vllm.benchmark.machine import ROOT, Noise, NoiseWatch, provenance, source, warn_if_busy
from mini_vllm.benchmark.peer_script import Watch
from mini_vllm.benchmark.workloads import QUICK, Workload
from mini_vllm.checks import writable_file
from mini_vllm.native.advice import tell_slow_blas

ONE_AT_A_TIME, BATCHED, PEER = "one at a time", "mini_vllm", "mlx-lm"
ARMS = (ONE_AT_A_TIME, BATCHED, PEER)
#: Our batching a second time, with drafts.
DRAFTED = "mini_vllm with drafts"
#: Engines that run in environments of their own. vLLM has an arm per type of its numbers.
VLLM_TYPES = {"vLLM float32": "float32", "vLLM bfloat16": "bfloat16"}
LLAMA = "llama.cpp"
#: Arms that compute in another precision than ours, and so may choose other tokens.
ROUNDED = ("vLLM bfloat16", LLAMA)
PERCENTILES = (50, 90, 99, 100)
#: The results that the documents show.
KEPT = ROOT / "benchmarks"


@dataclass
class BenchmarkResult:
    """The numbers of one way of serving one workload. For several rounds: the median of each number."""

    workload: str
    arm: str
    num_requests: int
    num_output_tokens: int
    seconds: float
    #: Percentile → seconds. The 100th is the worst.
    first_token_s: dict[int, float]
    #: If a step gives a request several tokens, as with drafts, they count as one.
    between_tokens_s: dict[int, float]
    #: The worst time between two tokens of a request while a later one waited for its first token; 0 without such.
    worst_gap_beside_prompt_s: float
    num_preemptions: int = 0
    #: Tokens computed a second time after a preemption.
    num_recomputed_tokens: int = 0
    #: Tokens that were guessed and checked, and those of them that were right.
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    #: How many requests had other tokens than in the first arm.
    num_different: int = 0
    num_rounds: int = 1

    @property
    def output_tokens_per_s(self) -> float:
        return self.num_output_tokens / self.seconds

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "output_tokens_per_s": self.output_tokens_per_s}


#: What an arm returns for a workload: its numbers, and the token ids of each request.
Served = tuple[BenchmarkResult, list[list[int]]]
#: An arm: our engine, mlx-lm, vLLM or llama.cpp.
Arm = Callable[[Workload], Served]


def result_of(workload: Workload, arm: str, watch: Watch) -> BenchmarkResult:
    """Compute the numbers from the times of the tokens, alike for every engine."""
    times_s = watch.token_times_s
    first = [times[0] - arrived_s for times, arrived_s in zip(times_s, watch.arrived_s)]
    between = [later - earlier for times in times_s for earlier, later in zip(times, times[1:]) if later > earlier]
    return BenchmarkResult(
        workload.name, arm, len(workload.items), workload.num_output_tokens, max(times[-1] for times in times_s),
        percentiles(first), percentiles(between or [0.0]), _worst_gap_beside_prompt_s(workload, watch))


def _worst_gap_beside_prompt_s(workload: Workload, watch: Watch) -> float:
    gaps_s = [0.0]
    for late, start_s, (end_s, *_) in zip(workload.items, watch.arrived_s, watch.token_times_s):
        for item, times in zip(workload.items, watch.token_times_s):
            if item.after_tokens < late.after_tokens:
                gaps_s += [after_s - before_s for before_s, after_s in zip(times, times[1:])
                           if start_s < after_s and before_s < end_s]
    return max(gaps_s)


def percentiles(values: Sequence[float]) -> dict[int, float]:
    """Return percentile → the smallest value that this percentage of all values does not exceed."""
    ordered = sorted(values)
    return {p: ordered[max(-(-p * len(ordered) // 100) - 1, 0)] for p in PERCENTILES}


def median_of(results: Sequence[BenchmarkResult]) -> BenchmarkResult:
    """Return the median of every number, and the most requests that differed. Counts hardly vary between rounds."""
    all_values = [asdict(result) for result in results]
    found = dict(all_values[0])
    for name, value in found.items():
        values = [each[name] for each in all_values]
        if isinstance(value, dict):
            found[name] = {key: statistics.median(each[key] for each in values) for key in value}
        elif name == "num_different":
            found[name] = max(values)
        elif isinstance(value, (int, float)):
            found[name] = type(value)(statistics.median(values))
    return BenchmarkResult(**{**found, "num_rounds": len(results)})


class Table:
    """A table whose rows can be printed one by one: the next may take minutes."""

    def __init__(self, *columns: tuple[str, str]) -> None:
        """Create a table with columns of (title, format). A column is as wide as its title; the first is on the
        left."""
        self._columns = columns
        self.title = "  ".join(title for title, _ in columns)

    def row(self, *cells: object) -> str:
        """Format a row; a cell that is None becomes a dash."""
        texts = [("-" if cell is None else form.format(cell)).rjust(len(title))
                 for cell, (title, form) in zip(cells, self._columns)]
        return "  ".join([f"{cells[0]:<{len(texts[0])}}", *texts[1:]])


def format_ratios(ratios: Sequence[float]) -> str:
    """Format the median, and the lowest and the highest ratio of all rounds."""
    spread = f" ({min(ratios):.2f}–{max(ratios):.2f})" if len(ratios) > 1 else ""
    return f"{statistics.median(ratios):.2f}x{spread}"


# ---- the file


class Results:
    """Writes the results of a benchmark to the file that ``--output`` names, if any, and watches the machine."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Raise ValueError, before any work is done, if the output file cannot be written."""
        self._command: str = arguments.typed
        self._path: Path | None = arguments.output
        self._watch, self._watching = NoiseWatch(), contextlib.ExitStack()
        if self._path is None:
            return
        writable_file(self._path)
        self._source = source()
        self._is_kept = self._path.resolve().parent == KEPT
        if self._is_kept and (fault := self._fault(arguments.quick)):
            raise ValueError(f"{self._path}: {fault}; to try something, write to a file outside of {KEPT.name}/")

    def _fault(self, is_quick: bool) -> str:
        """Say why this source cannot give a result that is kept; empty if it can."""
        if is_quick:
            return "--quick is only a smoke test"
        if self._source["tree"] is None:
            return "a result names the source that was measured, and this is no git checkout"
        if modified := self._source["modified"]:
            more = f" and {len(modified) - 1} more" if len(modified) > 1 else ""
            return f"a result comes from an unmodified tree, but {modified[0]}{more} differs from the last commit"
        return ""

    def __enter__(self) -> Results:
        self._watching.enter_context(self._watch.over())
        return self

    def __exit__(self, *_: object) -> None:
        self._watching.close()

    def noise(self) -> Noise:
        """Return the noise so far."""
        self._watching.close()
        self._watching.enter_context(self._watch.over())
        return self._watch.noise()

    def save(self, data: Mapping[str, Any]) -> None:
        """Write the results so far. A long run calls this repeatedly, so that it keeps what it has if it is stopped."""
        if self._path is None:
            return
        if self._is_kept and source() != self._source:
            raise ValueError(f"{self._path} is not written: the source has changed since the run began")
        record = {"command": self._command, **self._source, "machine": provenance(), "noise": self.noise().to_dict(),
                  **data}
        text = json.dumps({**record, "sha256": digest(record)}, indent=2, ensure_ascii=False)
        self._path.write_text(f"{text}\n", encoding="utf-8")


def digest(record: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record's content without its own ``sha256``."""
    content = json.loads(json.dumps(record))
    content.pop("sha256", None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def announce(arguments: argparse.Namespace, *lines: str) -> None:
    """Print what is measured, and warn if the machine is slower than it could be, or busy."""
    print("\n".join([QUICK] * arguments.quick + list(lines)), flush=True)
    tell_slow_blas()
    warn_if_busy()

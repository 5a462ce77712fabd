"""The numbers of one way of serving with one workload: how they are taken, their median, and the table of all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from mini_vllm.benchmark.workloads import Workload

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

#: Called with the number of requests that finished and of tokens that were generated.
OnToken = Callable[[int, int], None]


@dataclass
class BenchmarkResult:
    """The numbers of one way of serving one workload. For several rounds: the median of each number."""

    workload: str
    arm: str
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    seconds: float
    #: Percentile → seconds. The 100th is the worst.
    first_token_s: dict[int, float]
    #: If a step gives a request several tokens, as with drafts, they count as one.
    between_tokens_s: dict[int, float]
    #: The worst time between two tokens of a request while a later one waited for its first token; 0 without such.
    worst_gap_beside_prompt_s: float
    #: The average fraction of the held K/V memory that contains no token; None if the engine does not tell.
    kv_waste: float | None = None
    #: The fraction of all computed token rows that no request asked for; None if it was not measured.
    padding: float | None = None
    num_preemptions: int = 0
    #: Tokens computed a second time after a preemption.
    num_recomputed_tokens: int = 0
    #: Where the time of a run went, in seconds; only for our own arms.
    profile_s: dict[str, float] = field(default_factory=dict)
    #: Tokens that were guessed and checked, and those of them that were right.
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    #: How many requests had other tokens than in the first arm; None if the arm draws its own.
    num_different: int | None = 0
    num_rounds: int = 1

    @property
    def output_tokens_per_s(self) -> float:
        return self.num_output_tokens / self.seconds

    @property
    def total_tokens_per_s(self) -> float:
        return (self.num_prompt_tokens + self.num_output_tokens) / self.seconds

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "output_tokens_per_s": self.output_tokens_per_s,
                "total_tokens_per_s": self.total_tokens_per_s}


#: What an arm returns for a workload: its numbers, and the token ids of each request.
Served = tuple[BenchmarkResult, list[list[int]]]
#: An arm: our engine, mlx-lm, vLLM or llama.cpp.
Arm = Callable[[Workload, OnToken], Served]


class Watch:
    """The events of each request while a workload is served, and their times, measured alike for every engine."""

    def __init__(self, workload: Workload, on_token: OnToken) -> None:
        self.workload, self.items = workload, workload.items
        self.arrived_s: list[float] = []
        self.token_times_s: list[list[float]] = [[] for _ in self.items]
        self.token_ids: list[list[int]] = [[] for _ in self.items]
        self._num_tokens = 0
        self._on_token = on_token
        self.start_s = time.perf_counter()

    def arrivals(self) -> list[int]:
        """Return the requests that arrive now. Items are in the order of their arrival."""
        first = len(self.arrived_s)
        while self.num_to_come and self.items[len(self.arrived_s)].after_tokens <= self._num_tokens:
            self.arrived_s.append(time.perf_counter())
        return list(range(first, len(self.arrived_s)))

    @property
    def num_to_come(self) -> int:
        return len(self.items) - len(self.arrived_s)

    def tokens(self, index: int, token_ids: Sequence[int]) -> None:
        """Record new tokens of a request."""
        self.token_ids[index] += token_ids
        self.token_times_s[index] += [time.perf_counter()] * len(token_ids)
        self._num_tokens += len(token_ids)
        self._on_token(int(len(self.token_ids[index]) == self.items[index].num_tokens), len(token_ids))

    def result(self, arm: str) -> BenchmarkResult:
        first = [times[0] - arrived_s for times, arrived_s in zip(self.token_times_s, self.arrived_s)]
        between = [later - earlier for times in self.token_times_s for earlier, later in zip(times, times[1:])
                   if later > earlier]
        return BenchmarkResult(
            self.workload.name, arm, len(self.items), self.workload.num_prompt_tokens, self.workload.num_output_tokens,
            max(times[-1] for times in self.token_times_s) - self.start_s, percentiles(first),
            percentiles(between or [0.0]), self._worst_gap_beside_prompt_s())

    def _worst_gap_beside_prompt_s(self) -> float:
        gaps_s = [0.0]
        for late, start_s, (end_s, *_) in zip(self.items, self.arrived_s, self.token_times_s):
            for item, times in zip(self.items, self.token_times_s):
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
        elif isinstance(value, (int, float)) and name != "num_different":
            found[name] = type(value)(statistics.median(values))
    counts = [result.num_different for result in results if result.num_different is not None]
    found["num_different"] = max(counts) if len(counts) == len(results) else None
    found["num_rounds"] = len(results)
    return BenchmarkResult(**found)


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

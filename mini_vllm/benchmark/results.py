"""The numbers of one way of serving with one workload, and the median of several rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

ONE_AT_A_TIME, BATCHED, PEER = "one at a time", "mini_vllm", "mlx-lm"
ARMS = (ONE_AT_A_TIME, BATCHED, PEER)
#: Engines that run in environments of their own. vLLM has an arm per type of its numbers.
VLLM_TYPES = {"vLLM float32": "float32", "vLLM bfloat16": "bfloat16"}
LLAMA = "llama.cpp"
#: Arms that compute in another precision than ours, and so may choose other tokens.
ROUNDED = ("vLLM bfloat16", LLAMA)
#: Our batching a second time, with drafts; and its name in tables, which have little room.
DRAFTED = "mini_vllm with drafts"
SHORT_NAMES = {DRAFTED: "with drafts"}
PERCENTILES = (50, 90, 99, 100)


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
    kv_waste: float | None
    #: The fraction of all computed token rows that no request asked for; None if the engine does not tell.
    padding: float | None
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
    def short_name(self) -> str:
        return SHORT_NAMES.get(self.arm, self.arm)

    @property
    def output_tokens_per_s(self) -> float:
        return self.num_output_tokens / self.seconds

    @property
    def total_tokens_per_s(self) -> float:
        return (self.num_prompt_tokens + self.num_output_tokens) / self.seconds

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "output_tokens_per_s": self.output_tokens_per_s,
                "total_tokens_per_s": self.total_tokens_per_s}


def percentiles(values: Sequence[float]) -> dict[int, float]:
    """Return percentile → the smallest value that this percentage of all values does not exceed."""
    ordered = sorted(values)
    return {p: ordered[max(-(-p * len(ordered) // 100) - 1, 0)] for p in PERCENTILES}


def median_of(results: list[BenchmarkResult]) -> BenchmarkResult:
    """Return the median of every number, and the most requests that differed. Counts hardly vary between rounds."""
    first = asdict(results[0])
    for name, value in first.items():
        values = [asdict(result)[name] for result in results]
        if isinstance(value, dict):
            first[name] = {key: statistics.median(each[key] for each in values) for key in value}
        elif isinstance(value, float):
            first[name] = statistics.median(values)
        elif isinstance(value, int):
            first[name] = int(statistics.median(values))
    counts = [result.num_different for result in results if result.num_different is not None]
    first["num_different"] = max(counts) if len(counts) == len(results) else None
    first["num_rounds"] = len(results)
    return BenchmarkResult(**first)

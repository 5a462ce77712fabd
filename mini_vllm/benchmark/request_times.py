"""The events of each request while a workload is served, and their times, measured alike for every server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from mini_vllm.backend import mx
from mini_vllm.benchmark.results import BenchmarkResult, percentiles
from mini_vllm.benchmark.workloads import Item, Workload

#: Called with the number of requests that finished and of tokens that were generated.
OnToken = Callable[[int, int], None]


class Watch:
    """The events of each request of a run, and their times."""

    def __init__(self, items: Sequence[Item], on_token: OnToken) -> None:
        self.items = items
        self.arrived_s: dict[int, float] = {}
        self.token_times_s: list[list[float]] = [[] for _ in items]
        self.token_ids: list[list[int]] = [[] for _ in items]
        self.num_tokens = 0
        self._next = 0
        self._on_token = on_token
        #: K/V slots that were held, and those that contained a token, summed over the steps.
        self.kv_held = self.kv_used = 0.0
        self.start_s = time.perf_counter()

    def arrivals(self) -> list[int]:
        """Return the requests that arrive now. Items are in the order of their arrival."""
        new = []
        while self._next < len(self.items) and self.items[self._next].after_tokens <= self.num_tokens:
            self.arrived_s[self._next] = time.perf_counter()
            new.append(self._next)
            self._next += 1
        return new

    @property
    def num_to_come(self) -> int:
        return len(self.items) - self._next

    def tokens(self, index: int, token_ids: Sequence[int]) -> None:
        """Record new tokens of a request."""
        now_s = time.perf_counter()
        for token_id in token_ids:
            self.token_ids[index].append(token_id)
            self.token_times_s[index].append(now_s)
        self.num_tokens += len(token_ids)
        self._on_token(int(len(self.token_ids[index]) == self.items[index].num_tokens), len(token_ids))

    def result(self, workload: Workload, arm: str, num_rows: int, num_asked: int) -> BenchmarkResult:
        """Return the result.

        ``num_rows`` is the number of token rows that were computed, and ``num_asked`` the number that the requests
        needed.
        """
        seconds = time.perf_counter() - self.start_s
        first = [times[0] - self.arrived_s[index] for index, times in enumerate(self.token_times_s)]
        between = [later - earlier for times in self.token_times_s for earlier, later in zip(times, times[1:])
                   if later > earlier]
        return BenchmarkResult(
            workload.name, arm, len(self.items), workload.num_prompt_tokens, workload.num_output_tokens, seconds,
            percentiles(first), percentiles(between or [0.0]), self._worst_gap_beside_prompt_s(),
            1 - self.kv_used / self.kv_held if self.kv_held else 0.0,
            max(1 - num_asked / num_rows, 0.0) if num_rows else 0.0)

    def _worst_gap_beside_prompt_s(self) -> float:
        worst_s = 0.0
        for late, item in enumerate(self.items):
            start_s, end_s = self.arrived_s[late], self.token_times_s[late][0]
            for other, times in zip(self.items, self.token_times_s):
                if other.after_tokens < item.after_tokens:
                    worst_s = max([worst_s, *(later - earlier for earlier, later in zip(times, times[1:])
                                              if start_s < later and earlier < end_s)])
        return worst_s


class CountingModel:
    """A model, ours or mlx-lm's, that counts the token rows it computes."""

    def __init__(self, model: Callable[..., mx.array]) -> None:
        self._model, self.num_rows = model, 0

    def __call__(self, token_ids: mx.array, *args: object, **options: object) -> mx.array:
        self.num_rows += token_ids.size
        return self._model(token_ids, *args, **options)

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)


def check_all_decode(num_requests: int, num_decoding: Iterable[int]) -> None:
    """Raise ValueError unless every request got a token in each of the timed steps.

    ``num_decoding`` is the number of requests that got one in each step. With fewer, a step does less work than
    reported, and takes less time.
    """
    least = min(num_decoding)
    if least < num_requests:
        raise ValueError(f"all {num_requests} requests must decode in every timed step, but in one step only {least} "
                         "got a token; the measurement does not count")

"""One workload served by each arm in turn, round after round; and how many times as fast our batching was."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace

from mini_vllm.benchmark.cpu_time import CpuReading, process_cpu_s, read_cpu
from mini_vllm.benchmark.drawing import GREEDY, Drawing
from mini_vllm.benchmark.machine_noise import Noise, NoiseWatch
from mini_vllm.benchmark.mlx_lm_peer import load_peer, serve_by_peer
from mini_vllm.benchmark.peers.process import Peer
from mini_vllm.benchmark.request_times import OnToken
from mini_vllm.benchmark.results import ARMS, BATCHED, DRAFTED, PEER, BenchmarkResult, median_of
from mini_vllm.benchmark.speculation import NUM_ROUNDS, check_draft
from mini_vllm.benchmark.throughput import serve
from mini_vllm.benchmark.workloads import Settings, Workload
from mini_vllm.models.loader import LoadedModel

#: The default number of rounds, if the first takes less than this time.
CHEAP_ROUNDS, CHEAP_ROUND_S = 3, 20.0


class Comparison:
    """Serves a workload, and holds the results of every arm in every round."""

    def __init__(self, loaded: LoadedModel, workload: Workload, arms: Iterable[str] = ARMS, drawing: Drawing = GREEDY,
                 watch: NoiseWatch | None = None, draft: Settings | None = None,
                 others: Mapping[str, Peer] | None = None) -> None:
        """Create a comparison. With the settings ``draft``, our batching is also measured with drafts.

        ``others`` maps arms to engines in processes of their own.
        Raise ValueError for an unknown arm, or a draft model that does not fit.
        """
        self.loaded, self.workload, self.drawing = loaded, workload, drawing
        self.arms, self._others = list(arms), others or {}
        known = (*ARMS, *self._others)
        unknown = [arm for arm in self.arms if arm not in known]
        if unknown or not self.arms:
            raise ValueError(f"there is no arm {unknown[0]!r}, only {', '.join(known)}" if unknown else
                             "no arm is given")
        self._drafting = replace(workload, settings={**workload.settings, **(draft or {})})
        if draft:
            check_draft(loaded, draft)
            self.arms.insert(self.arms.index(BATCHED) + 1, DRAFTED)
        #: The arm that is compared with the others.
        self.ours = DRAFTED if draft else BATCHED
        self._peer = load_peer(loaded)[0] if PEER in self.arms else None
        self._watch = NoiseWatch(self._read_cpu) if watch is None else watch
        #: One dict per round, by arm.
        self._taken: list[dict[str, BenchmarkResult]] = []
        #: The tokens of the first arm in the first round: the others are compared with them.
        self._token_ids: list[list[int]] | None = None

    def _read_cpu(self) -> CpuReading:
        """Read the clocks, and count the processes of the other engines as ours."""
        reading = read_cpu()
        return replace(reading, own_s=reading.own_s + sum(process_cpu_s(other.process_id) or 0.0
                                                          for other in self._others.values()))

    def serve_round(self, on_token: OnToken) -> None:
        of_round = {}
        for arm in self.arms:
            with self._watch.over(arm):
                result, token_ids = self._serve(arm, on_token)
            if arm == PEER and not self.drawing.is_greedy:
                result.num_different = None
            else:
                self._token_ids = self._token_ids or token_ids
                result.num_different = sum(mine != first for mine, first in zip(token_ids, self._token_ids))
            of_round[arm] = result
        self._taken.append(of_round)

    def _serve(self, arm: str, on_token: OnToken) -> tuple[BenchmarkResult, list[list[int]]]:
        if arm in self._others:
            return self._others[arm].serve(self.workload, on_token)
        if arm != PEER:
            workload = self._drafting if arm == DRAFTED else self.workload
            return serve(self.loaded, workload, arm, on_token, self.drawing)
        assert self._peer is not None
        return serve_by_peer(self._peer, self.loaded, self.workload, on_token, self.drawing)

    # ---- the results

    @property
    def num_rounds(self) -> int:
        return len(self._taken)

    @property
    def first_round_s(self) -> float:
        return sum(result.seconds for result in self._taken[0].values())

    def num_rounds_worth(self) -> int:
        """Return how many rounds there should be, once the first has been served: several if that costs little.

        Drafts may gain or lose little, so they are measured as often as ``bench speculation`` does.
        """
        if DRAFTED in self.arms:
            return NUM_ROUNDS
        return CHEAP_ROUNDS if self.first_round_s < CHEAP_ROUND_S else 1

    def results(self) -> list[BenchmarkResult]:
        """Return the median of all rounds for each arm."""
        return [median_of([of_round[arm] for of_round in self._taken]) for arm in self.arms]

    def ratios(self) -> dict[str, list[float]]:
        """Return for every other arm how many times as fast ours was, round by round."""
        if self.ours not in self.arms:
            return {}
        return {arm: [of_round[arm].seconds / of_round[self.ours].seconds for of_round in self._taken]
                for arm in self.arms if arm != self.ours}

    def speed_ups(self) -> dict[str, float]:
        """Return the medians of ``ratios``."""
        return {arm: statistics.median(ratios) for arm, ratios in self.ratios().items()}

    def noise(self) -> Noise:
        return self._watch.noise()


def run_comparison_benchmark(loaded: LoadedModel, workload: Workload, arms: Iterable[str] = ARMS, rounds: int = 1,
                             on_token: OnToken = lambda num_finished, num_tokens: None,
                             drawing: Drawing = GREEDY) -> tuple[list[BenchmarkResult], dict[str, float]]:
    """Run a ``Comparison`` in one call: serve a workload ``rounds`` times by each arm.

    Return its results and speed-ups.
    """
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}, must be at least 1")
    comparison = Comparison(loaded, workload, arms, drawing)
    for _ in range(rounds):
        comparison.serve_round(on_token)
    return comparison.results(), comparison.speed_ups()

"""The metrics of a server for Prometheus; docs/serving.md says what each number means.

Engines have their own counters, which are read when the metrics are requested. Latencies are measured here, as clients
see them: from when a request has been read to when its output is about to be sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from mini_vllm.server.api.prompt_outputs import Batch
from mini_vllm.server.engine_state import EngineState, StateCollector
from mini_vllm.server.errors import ApiError

FIRST_TOKEN_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
NEXT_TOKEN_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)


class Metrics:
    """All metrics of one server, in its own registry: a process may have several servers."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._registry = registry = CollectorRegistry()
        self._states = StateCollector()
        registry.register(self._states)
        self.first_token = Histogram("mini_vllm_time_to_first_token_seconds", "Time from a request to its first token.",
                                     ["model"], registry=registry, buckets=FIRST_TOKEN_BUCKETS_S)
        self.next_token = Histogram("mini_vllm_inter_token_seconds", "Time between two tokens of a request.",
                                    ["model"], registry=registry, buckets=NEXT_TOKEN_BUCKETS_S)
        self.tokens = Counter("mini_vllm_tokens", "Tokens of prompts and of outputs; cached: prompt tokens found in "
                              "the cache.", ["model", "kind"], registry=registry)
        self.requests = Counter("mini_vllm_requests", "Requests by how they ended.", ["model", "outcome"],
                                registry=registry)
        # The label has only a few values: 400, 404, 429, 500, 503.
        self.errors = Counter("mini_vllm_errors", "Requests that ended in an error, by its status.",
                              ["model", "status"], registry=registry)

    @contextmanager
    def request(self, model: str) -> Iterator[RequestMeter]:
        """Follow one request until it has ended."""
        meter = RequestMeter(self, model, self._clock)
        try:
            yield meter
            meter.has_ended = True
        except ApiError as error:
            meter.note_failure(error.status)
            raise
        except Exception:
            meter.note_failure(500)
            raise
        finally:
            meter.close()

    def render(self, states: Mapping[str, EngineState]) -> bytes:
        """Return all metrics in Prometheus' text format."""
        self._states.states = states
        return generate_latest(self._registry)


class RequestMeter:
    """One request: the times and the number of its tokens."""

    def __init__(self, metrics: Metrics, model: str, clock: Callable[[], float]) -> None:
        self._metrics, self._model, self._clock = metrics, model, clock
        self._next_token = metrics.next_token.labels(model)
        self._start_s = clock()
        #: For each prompt: the time of its latest token, and its usage.
        self._last_s: dict[int, float] = {}
        self._usage: dict[int, tuple[int, int, int]] = {}
        #: Whether it was served to its end. If not, and there is no error status, its client disconnected.
        self.has_ended = False
        self._error_status: int | None = None

    @property
    def outcome(self) -> str:
        if self._error_status is None:
            return "answered" if self.has_ended else "disconnected"
        return "refused" if self._error_status < 500 else "failed"

    def note(self, batch: Batch) -> None:
        """Record outputs. Tokens of a prompt that arrive together count as one gap, as the client sees it."""
        now_s = self._clock()
        for index, output in batch:
            last_s = self._last_s.get(index)
            if last_s is None:
                self._metrics.first_token.labels(self._model).observe(now_s - self._start_s)
            else:
                self._next_token.observe(now_s - last_s)
            self._last_s[index] = now_s
            usage = output.usage
            self._usage[index] = (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens,
                                  usage.completion_tokens)

    def note_failure(self, status: int) -> None:
        """Record that the request ends in an error of this status.

        A stream that had already started was sent with status 200, but still counts under this one.
        """
        self._error_status = status

    def close(self) -> None:
        """Count the outcome and the tokens, which were also computed if the client has disconnected."""
        self._metrics.requests.labels(self._model, self.outcome).inc()
        if self._error_status is not None:
            self._metrics.errors.labels(self._model, str(self._error_status)).inc()
        for numbers in self._usage.values():
            for kind, number in zip(("prompt", "cached", "output"), numbers):
                self._metrics.tokens.labels(self._model, kind).inc(number)

"""A request, as the queue, the scheduler and the cache manager see it."""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass


class Priority(enum.IntEnum):
    """Who goes first. A smaller number is served sooner."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class RequestStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "stop"
    FINISHED_LENGTH = "length"
    FINISHED_ABORTED = "abort"
    FINISHED_ERROR = "error"

    @property
    def is_finished(self) -> bool:
        return self.name.startswith("FINISHED")


@dataclass(frozen=True)
class SamplingParams:
    """How to continue a prompt."""

    max_tokens: int = 16

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}, must be at least 1")


class Request:
    """A sequence of tokens and how much of it has been computed.

    There are no prefill and decode phases. A request has ``num_tokens`` and ``num_computed_tokens``; a step computes
    some of the difference.

        all_token_ids   [ prompt ........................ | output ........ ]
        computed        [ K/V written ............. ]
                                          num_computed_tokens     num_tokens
    """

    def __init__(self, request_id: str, prompt_token_ids: Sequence[int], sampling_params: SamplingParams | None = None,
                 priority: Priority = Priority.NORMAL, arrival_time: float | None = None,
                 extra_keys: tuple | None = None) -> None:
        if len(prompt_token_ids) == 0:
            raise ValueError(f"request {request_id!r}: the prompt is empty, it needs at least 1 token")
        self.request_id = request_id
        self.prompt_token_ids = list(prompt_token_ids)
        self.sampling_params = sampling_params or SamplingParams()
        self.priority = Priority(priority)
        self.arrival_time = time.monotonic() if arrival_time is None else arrival_time
        #: Requests share cached blocks only if these agree: a tenant's salt, say.
        self.extra_keys = extra_keys
        self.status = RequestStatus.WAITING
        #: Tokens whose K/V is in the cache. The scheduler alone advances it.
        self.num_computed_tokens = 0
        #: How many of them were found there instead of being computed.
        self.num_cached_tokens = 0
        self.output_token_ids: list[int] = []
        self.all_token_ids = list(prompt_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    def append_output_token(self, token_id: int) -> None:
        self.output_token_ids.append(token_id)
        self.all_token_ids.append(token_id)

    def __repr__(self) -> str:
        return (f"Request({self.request_id!r}, prompt={self.num_prompt_tokens}, output={len(self.output_token_ids)}, "
                f"computed={self.num_computed_tokens}, {self.status.name})")

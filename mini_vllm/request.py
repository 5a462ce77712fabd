"""A request, as the queue, the scheduler and the cache manager see it."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field


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
    #: It has grown until the whole pool could not hold it.
    FINISHED_KV_CACHE_FULL = "kv_cache_full"

    @property
    def is_finished(self) -> bool:
        return self.name.startswith("FINISHED")


@dataclass(frozen=True)
class SamplingParams:
    """How to continue a prompt. The defaults sample from the model's own distribution."""

    max_tokens: int = 16
    #: Until so many tokens exist, neither the end of the text nor a stop id is sampled.
    min_tokens: int = 0
    #: 0 is greedy. Below 1 sharper, above 1 flatter.
    temperature: float = 1.0
    #: Keep the k most likely tokens; 0 keeps all.
    top_k: int = 0
    #: Keep the fewest most likely tokens whose probabilities reach this.
    top_p: float = 1.0
    #: Keep tokens at least this fraction as likely as the most likely one.
    min_p: float = 0.0
    #: Above 1 makes tokens that occurred already, in prompt or output, less likely.
    repetition_penalty: float = 1.0
    #: Added to the logits of these token ids.
    logit_bias: Mapping[int, float] | None = None
    #: The same seed gives the same tokens, whatever else is in the batch. None: another text each time.
    seed: int | None = None
    #: How many of the likeliest tokens to report with their log-probability, beside the chosen one.
    logprobs: int | None = None
    #: Text that ends the output; it is not part of it.
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    #: How many continuations of the same prompt.
    n: int = 1

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        self._check("max_tokens", _is_int(self.max_tokens) and self.max_tokens >= 1, "a whole number, at least 1")
        self._check("min_tokens", _is_int(self.min_tokens) and 0 <= self.min_tokens <= self.max_tokens,
                    f"a whole number from 0 to max_tokens ({self.max_tokens})")
        self._check("temperature", _is_real(self.temperature) and 0 <= self.temperature < math.inf, "0 or more, finite")
        self._check("top_k", _is_int(self.top_k) and self.top_k >= 0, "a whole number; 0 keeps all tokens")
        self._check("top_p", _is_real(self.top_p) and 0 < self.top_p <= 1, "above 0 and at most 1")
        self._check("min_p", _is_real(self.min_p) and 0 <= self.min_p <= 1, "from 0 to 1")
        self._check("repetition_penalty", _is_real(self.repetition_penalty) and 0 < self.repetition_penalty < math.inf,
                    "above 0 and finite")
        self._check("logit_bias", all(_is_int(token) and token >= 0 and _is_real(bias) and not math.isnan(bias)
                                      for token, bias in (self.logit_bias or {}).items()),
                    "a mapping from token ids to numbers")
        self._check("seed", self.seed is None or (_is_int(self.seed) and self.seed >= 0), "None or 0 or more")
        self._check("logprobs", self.logprobs is None or (_is_int(self.logprobs) and 0 <= self.logprobs <= 20),
                    "None or a whole number from 0 to 20")
        self._check("stop", all(isinstance(text, str) and text for text in stop), "texts that are not empty")
        self._check("stop_token_ids", all(_is_int(token) and token >= 0 for token in self.stop_token_ids),
                    "token ids, 0 or more")
        self._check("n", _is_int(self.n) and self.n >= 1, "a whole number, at least 1")

    def _check(self, name: str, is_fine: bool, bound: str) -> None:
        if not is_fine:
            raise ValueError(f"{name} is {getattr(self, name)!r}, must be {bound}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


@dataclass(frozen=True)
class PromptTokensDetails:
    #: Prompt tokens whose K/V was found instead of computed.
    cached_tokens: int = 0


@dataclass(frozen=True)
class Usage:
    """What a request cost, in the words of the OpenAI API."""

    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __getitem__(self, name: str) -> object:
        """``usage["prompt_tokens"]``, as in the API's JSON."""
        return self.to_dict()[name]

    def to_dict(self) -> dict:
        return {**asdict(self), "total_tokens": self.total_tokens}


@dataclass(frozen=True)
class TokenLogprob:
    """The chosen token's log-probability, and those of the likeliest tokens, before any filtering."""

    token_id: int
    logprob: float
    top: dict[int, float] = field(default_factory=dict)


@dataclass
class CompletionOutput:
    """One continuation of a prompt, as far as it has come."""

    index: int
    text: str
    token_ids: list[int]
    #: None while it goes on; then ``stop``, ``length``, ``abort``, ``error`` or ``kv_cache_full``.
    finish_reason: str | None = None
    #: The stop text or stop id that ended it, if one did.
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprob] | None = None


@dataclass
class RequestOutput:
    """What a request has produced so far. With ``n`` above 1, ``outputs`` has one entry a continuation."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    usage: Usage
    #: Why the request was refused or failed; None if all is well.
    error: str | None = None

    @property
    def text(self) -> str:
        return self.outputs[0].text if self.outputs else ""

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids if self.outputs else []

    @property
    def finish_reason(self) -> str | None:
        return self.outputs[0].finish_reason if self.outputs else ("error" if self.error else None)


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
        #: Seconds, by the clock of the queue that it waits in; the queue sets it if it is None.
        self.arrival_time = arrival_time
        #: Requests share cached blocks only if these agree: a tenant's salt, say.
        self.extra_keys = extra_keys
        self.status = RequestStatus.WAITING
        #: Tokens whose K/V is in the cache. The scheduler alone advances it.
        self.num_computed_tokens = 0
        #: How many of them were found there instead of being computed.
        self.num_cached_tokens = 0
        #: How often its blocks were taken away again.
        self.num_preemptions = 0
        #: How many sequences it will be: it is forked into so many once its prompt has been computed.
        self.num_sequences = 1
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

"""A request as the queue, the scheduler and the cache manager see it, its parameters, and its outputs.

The module is longer than most: callers and labs import these names together, and they only hold and check data.
"""

from __future__ import annotations

import enum
import numbers
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields

from mini_vllm.checks import (
    an_instance,
    flag,
    is_hashable,
    is_number,
    real_number,
    refusal,
    texts,
    token_ids,
    whole_number,
    whole_number_or_none,
)
from mini_vllm.structured.params import StructuredOutputsParams

NO_END = "ignore_eos is True, must be False with structured_outputs: an output that matches must be able to end"
STRUCTURED_FIELDS = tuple(each.name for each in fields(StructuredOutputsParams))


class Priority(enum.IntEnum):
    """The order of service. A smaller number is served sooner."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


def checked_priority(priority: object) -> Priority:
    """Return a Priority, given one or its number. Raise ValueError for anything else."""
    if not isinstance(priority, numbers.Integral) or isinstance(priority, bool) or priority not in list(Priority):
        raise refusal("priority", priority, "Priority.HIGH, NORMAL or LOW (0, 1 or 2)")
    return Priority(int(priority))


def checked_extra_keys(extra_keys: object) -> tuple[Hashable, ...] | None:
    """Return ``extra_keys``, which keep equal texts apart: a tuple of hashable values, or None.

    Raise ValueError for anything else.
    """
    if extra_keys is not None and not (isinstance(extra_keys, tuple) and is_hashable(extra_keys)):
        raise refusal("extra_keys", extra_keys, "a tuple of hashable values, or None")
    return extra_keys


class RequestStatus(enum.Enum):
    """The state of a request. The value of a finished state is the finish reason."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "stop"
    FINISHED_LENGTH = "length"
    FINISHED_ABORTED = "abort"
    FINISHED_ERROR = "error"
    #: The request has grown until the whole pool could not hold it.
    FINISHED_KV_CACHE_FULL = "kv_cache_full"

    @property
    def is_finished(self) -> bool:
        return self.name.startswith("FINISHED")


@dataclass(frozen=True)
class SamplingParams:
    """The parameters of a continuation. The defaults sample from the model's own distribution."""

    #: None: as many as the context holds.
    max_tokens: int | None = 16
    #: Until the output has this many tokens, neither the end of the text nor a stop id is sampled.
    min_tokens: int = 0
    #: 0 is greedy. Below 1 is sharper, above 1 flatter.
    temperature: float = 1.0
    #: Keep the k most likely tokens; 0 or -1 keeps all.
    top_k: int = 0
    #: Keep the smallest set of most likely tokens whose probabilities sum to at least this.
    top_p: float = 1.0
    #: Keep tokens whose probability is at least this fraction of the most likely token's.
    min_p: float = 0.0
    #: Above 1 makes tokens that already occur in the prompt or the output less likely.
    repetition_penalty: float = 1.0
    #: Subtracted from the logits of tokens that are already in the output; below 0 makes them more likely.
    presence_penalty: float = 0.0
    #: Subtracted once for each time that the token occurs in the output.
    frequency_penalty: float = 0.0
    #: Added to the logits of these token ids.
    logit_bias: Mapping[int, float] | None = None
    #: Only these tokens are sampled. None allows all.
    allowed_token_ids: Sequence[int] | None = None
    #: Texts that must not appear in the output, with or without a space before them. Each text is blocked as the token
    #: sequence it is tokenized into; the same letters split into other tokens can still appear.
    bad_words: str | Sequence[str] | None = None
    #: The same seed gives the same tokens, whatever else is in the batch. None: a different text each time.
    seed: int | None = None
    #: How many of the likeliest tokens to report with their log-probability, in addition to the chosen one.
    logprobs: int | None = None
    #: The same for every prompt token except the first. The whole prompt is computed for it, bypassing the cache.
    prompt_logprobs: int | None = None
    #: Texts that end the output.
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = ()
    #: Whether the text that ended the output is included in it.
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    #: Whether special tokens, such as the end of a turn, are left out of the text.
    skip_special_tokens: bool = True
    #: How many continuations of the prompt to generate.
    n: int = 1
    #: What the output must match: one of several texts, a regular expression, a JSON schema or a grammar.
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        """Check every field by name, and convert it to the type that the engine relies on."""
        max_tokens = whole_number_or_none("max_tokens", self.max_tokens, 1)
        checked: dict[str, object] = {
            "max_tokens": max_tokens,
            "min_tokens": whole_number("min_tokens", self.min_tokens, 0, max_tokens),
            "temperature": real_number("temperature", self.temperature, 0),
            "top_k": max(whole_number("top_k", self.top_k, -1), 0),
            "top_p": real_number("top_p", self.top_p, at_most=1, above=0),
            "min_p": real_number("min_p", self.min_p, 0, 1),
            "repetition_penalty": real_number("repetition_penalty", self.repetition_penalty, above=0),
            "presence_penalty": real_number("presence_penalty", self.presence_penalty, -2, 2),
            "frequency_penalty": real_number("frequency_penalty", self.frequency_penalty, -2, 2),
            "logit_bias": _checked_bias(self.logit_bias),
            "bad_words": texts("bad_words", self.bad_words),
            "seed": whole_number_or_none("seed", self.seed, 0),
            "logprobs": whole_number_or_none("logprobs", self.logprobs, 0, 20),
            "prompt_logprobs": whole_number_or_none("prompt_logprobs", self.prompt_logprobs, 0, 20),
            "stop": texts("stop", self.stop),
            "stop_token_ids": _different("stop_token_ids", () if self.stop_token_ids is None else self.stop_token_ids),
            "include_stop_str_in_output": flag("include_stop_str_in_output", self.include_stop_str_in_output),
            "ignore_eos": flag("ignore_eos", self.ignore_eos),
            "skip_special_tokens": flag("skip_special_tokens", self.skip_special_tokens),
            "n": whole_number("n", self.n, 1),
        }
        if self.allowed_token_ids is not None:
            allowed = _different("allowed_token_ids", self.allowed_token_ids)
            if not allowed:
                raise refusal("allowed_token_ids", self.allowed_token_ids, "None or a list of at least 1 token id")
            checked["allowed_token_ids"] = allowed
        if self.structured_outputs is not None:
            checked["structured_outputs"] = _checked_structure(self.structured_outputs)
            if self.ignore_eos:
                raise ValueError(NO_END)
        for name, value in checked.items():
            object.__setattr__(self, name, value)


def _checked_structure(value: object) -> StructuredOutputsParams:
    """Return the parameters, given them or a mapping of their fields."""
    if isinstance(value, Mapping):
        unknown = next((name for name in value if name not in STRUCTURED_FIELDS), None)
        if unknown is not None:
            raise ValueError(f"structured_outputs has the field {unknown!r}, must have one of "
                             f"{', '.join(STRUCTURED_FIELDS)}")
        return StructuredOutputsParams(**value)
    return an_instance("structured_outputs", value, StructuredOutputsParams)


def _different(name: str, value: object) -> tuple[int, ...]:
    """Return the distinct token ids, at most as many as the vocabulary has."""
    return tuple(dict.fromkeys(token_ids(name, value)))


def _checked_bias(bias: object) -> dict[int, float] | None:
    if bias is None:
        return None
    if not isinstance(bias, Mapping):
        raise refusal("logit_bias", bias, "a mapping from token ids to numbers")
    for value in bias.values():
        if not is_number(value):
            raise refusal("logit_bias", bias, "a mapping from token ids to numbers")
    return dict(zip(token_ids("logit_bias", list(bias)), map(float, bias.values())))


@dataclass(frozen=True)
class PromptTokensDetails:
    """The part of the prompt that did not have to be computed."""

    #: Prompt tokens whose K/V was found in the cache.
    cached_tokens: int = 0


@dataclass(frozen=True)
class CompletionTokensDetails:
    """Drafted tokens that were right, and those that were wrong."""

    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


@dataclass(frozen=True)
class Usage:
    """Token counts of a request, with the field names of the OpenAI API."""

    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __getitem__(self, name: str) -> object:
        """Return a field by name, as in the API's JSON: ``usage["prompt_tokens"]``."""
        return self.to_dict()[name]

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "total_tokens": self.total_tokens}


@dataclass(frozen=True)
class Logprob:
    """A token's log-probability before any filtering, its rank among all tokens (1 is the likeliest), and its text."""

    logprob: float
    rank: int
    text: str | None = None


@dataclass(frozen=True)
class TokenLogprob:
    """The Logprob of the chosen token, and those of the likeliest tokens by token id."""

    token_id: int
    logprob: float
    top: dict[int, Logprob] = field(default_factory=dict)
    rank: int = 1
    text: str | None = None


@dataclass(frozen=True)
class RequestTimings:
    """Where the time of a request went, in seconds. None for values that are not known yet."""

    #: From the arrival in the engine to the first computation.
    queue_s: float | None = None
    #: From the first computation to the first token.
    first_token_s: float | None = None
    #: From the first token to the latest one.
    rest_s: float | None = None

    @property
    def total_s(self) -> float:
        return sum(part for part in (self.queue_s, self.first_token_s, self.rest_s) if part is not None)


@dataclass
class CompletionOutput:
    """One continuation of a prompt, as far as it has been generated."""

    index: int
    text: str
    token_ids: list[int]
    #: None while the output is unfinished; then ``stop``, ``length``, ``abort``, ``error`` or ``kv_cache_full``.
    finish_reason: str | None = None
    #: The stop text or stop id that ended the output, if one did.
    stop_reason: str | int | None = None
    #: One entry per token if log-probabilities were requested; else None.
    logprobs: list[TokenLogprob] | None = None
    #: The sum of the tokens' log-probabilities, if they were requested.
    cumulative_logprob: float | None = None


@dataclass
class RequestOutput:
    """The output of a request so far. With ``n`` above 1, ``outputs`` has one entry per continuation."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    usage: Usage
    #: Why the request was rejected or failed; None without an error.
    error: str | None = None
    #: If requested, one entry per prompt token, as far as they are computed; the first is None.
    prompt_logprobs: list[TokenLogprob | None] | None = None
    timings: RequestTimings = RequestTimings()

    @property
    def text(self) -> str:
        return self.outputs[0].text if self.outputs else ""

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids if self.outputs else []

    @property
    def finish_reason(self) -> str | None:
        return self.outputs[0].finish_reason if self.outputs else ("error" if self.error else None)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens whose K/V was found in the cache."""
        return self.usage.prompt_tokens_details.cached_tokens


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
                 extra_keys: tuple[Hashable, ...] | None = None) -> None:
        if len(prompt_token_ids) == 0:
            raise ValueError(f"request {request_id!r}: the prompt is empty, it needs at least 1 token")
        self.request_id = request_id
        self.prompt_token_ids = list(prompt_token_ids)
        self.sampling_params = sampling_params or SamplingParams()
        self.priority = checked_priority(priority)
        #: Seconds, by the clock of the queue in which the request waits; the queue sets it if it is None.
        self.arrival_time = arrival_time
        #: Requests share cached blocks only if these agree: for example, a tenant's salt.
        self.extra_keys = extra_keys
        self.status = RequestStatus.WAITING
        #: Tokens whose K/V is in the cache. When a step is planned, the tokens that it will write
        #: already count. Only the scheduler advances it.
        self.num_computed_tokens = 0
        #: Prompt tokens that were found in the cache instead of being computed.
        self.num_cached_tokens = 0
        #: How often the request lost its blocks.
        self.num_preemptions = 0
        #: The number of sequences: the request is forked into that many once its prompt has been computed.
        self.num_sequences = 1
        #: Tokens that were guessed and checked by the model, and those of them that were right; see ``speculation``.
        self.num_drafted_tokens = 0
        self.num_accepted_tokens = 0
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

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
    check_fields,
    is_number,
    refusal,
    setting,
    texts,
    token_ids,
    whole_number,
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
    if extra_keys is None:
        return None
    try:
        hash(extra_keys)
        return an_instance("extra_keys", extra_keys, tuple)
    except (TypeError, ValueError):
        raise refusal("extra_keys", extra_keys, "a tuple of hashable values, or None") from None


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


def _checked_bias(name: str, bias: object) -> dict[int, float] | None:
    if bias is None:
        return None
    if not isinstance(bias, Mapping) or not all(map(is_number, bias.values())):
        raise refusal(name, bias, "a mapping from token ids to numbers")
    return dict(zip(token_ids(name, list(bias)), map(float, bias.values())))


def _different(name: str, ids: object) -> tuple[int, ...]:
    """Return the distinct token ids, at most as many as the vocabulary has."""
    return tuple(dict.fromkeys(token_ids(name, () if ids is None else ids)))


def _checked_allowed(name: str, ids: object) -> tuple[int, ...] | None:
    if ids is None:
        return None
    if not (allowed := _different(name, ids)):
        raise refusal(name, ids, "None or a list of at least 1 token id")
    return allowed


def _checked_structure(name: str, value: object) -> StructuredOutputsParams | None:
    """Return the parameters, given them or a mapping of their fields."""
    if isinstance(value, Mapping):
        unknown = next((each for each in value if each not in STRUCTURED_FIELDS), None)
        if unknown is not None:
            raise ValueError(f"{name} has the field {unknown!r}, must have one of {', '.join(STRUCTURED_FIELDS)}")
        return StructuredOutputsParams(**value)
    return None if value is None else an_instance(name, value, StructuredOutputsParams)


@dataclass(frozen=True)
class SamplingParams:
    """The parameters of a continuation. The defaults sample from the model's own distribution."""

    #: None: as many as the context holds.
    max_tokens: int | None = setting(16, "end the output after N tokens", at_least=1)
    #: Until then, neither the end of the text nor a stop id is sampled. At most ``max_tokens``.
    min_tokens: int = setting(0, "do not end the output before N tokens", lambda name, value: value)
    temperature: float = setting(1.0, "0: always the likeliest token; above 1: more random than the model", at_least=0)
    #: 0 and -1 keep all tokens.
    top_k: int = setting(0, "draw from the N likeliest tokens; 0: from all", at_least=-1)
    top_p: float = setting(1.0, "draw from the smallest set of likeliest tokens whose probabilities add up to X",
                           above=0, at_most=1)
    min_p: float = setting(0.0, "draw from tokens at least X times as likely as the likeliest", at_least=0, at_most=1)
    repetition_penalty: float = setting(1.0, "above 1: tokens of prompt and output are less likely to appear again",
                                        above=0)
    presence_penalty: float = setting(0.0, "-2 to 2, subtracted from the logits of tokens that the output contains",
                                      at_least=-2, at_most=2)
    frequency_penalty: float = setting(0.0, "like --presence-penalty, but subtracted once per occurrence of the token",
                                       at_least=-2, at_most=2)
    logit_bias: Mapping[int, float] | None = setting(None, "add X to the logit of this token id", _checked_bias)
    #: None allows all.
    allowed_token_ids: Sequence[int] | None = setting(None, "draw only these tokens", _checked_allowed)
    #: With or without a space before them. Each text is blocked as the token sequence it is tokenized into; the same
    #: letters split into other tokens can still appear.
    bad_words: str | Sequence[str] | None = setting(None, "text that must not appear in the output", texts,
                                                    "--bad-word")
    #: The same seed gives the same tokens, whatever else is in the batch.
    seed: int | None = setting(None, "the same seed gives the same text (default: a different text each time)",
                               at_least=0)
    #: The chosen token is reported in addition to these.
    logprobs: int | None = setting(None, "with --json: also print the log-probability of every token, and of the N "
                                   "likeliest tokens at its position", at_least=0, at_most=20)
    #: For every prompt token except the first. The whole prompt is computed for it, bypassing the cache.
    prompt_logprobs: int | None = setting(None, "like --logprobs, for the prompt's tokens", at_least=0, at_most=20)
    stop: str | Sequence[str] | None = setting(None, "text that ends the output", texts)
    stop_token_ids: Sequence[int] | None = setting((), "token id that ends the output", _different, "--stop-token-id")
    include_stop_str_in_output: bool = setting(False, "show the stop text or token that ended the output")
    ignore_eos: bool = setting(False, "do not stop at the model's end of text")
    #: Special tokens are, for example, the end of a turn.
    skip_special_tokens: bool = setting(True, "also show special tokens", option="--keep-special-tokens")
    n: int = setting(1, "number of continuations per prompt", at_least=1)
    #: What the output must match: one of several texts, a regular expression, a JSON schema or a grammar.
    structured_outputs: StructuredOutputsParams | None = setting(None, "", _checked_structure,
                                                                 "--choice, --regex or --json-schema")

    def __post_init__(self) -> None:
        """Check every field by name, and convert it to the type that the engine relies on."""
        check_fields(self)
        object.__setattr__(self, "min_tokens", whole_number("min_tokens", self.min_tokens, 0, self.max_tokens))
        object.__setattr__(self, "top_k", max(self.top_k, 0))
        if self.structured_outputs is not None and self.ignore_eos:
            raise ValueError(NO_END)


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
        #: already count. The scheduler advances it, and the engine for accepted drafts.
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

"""The settings of an engine, its replaceable parts, and its sizes: settings that fit the model and the machine."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from mini_vllm.attention import PagedKVCache
from mini_vllm.block_pool import BlockPool
from mini_vllm.checks import an_instance, check_fields, one_of, refusal, setting
from mini_vllm.fast import tuning
from mini_vllm.fast.attention import FastAttention
from mini_vllm.fast.step_costs import StepCosts
from mini_vllm.gpu.select_runner import uses_native
from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE, KVCacheManager
from mini_vllm.model_runner import ModelRunner
from mini_vllm.models.loader import DEFAULT_MODEL, LoadedModel
from mini_vllm.native.runner import EXACT, PRECISIONS, cache_class
from mini_vllm.parts import (
    AttentionPart,
    BlockPoolPart,
    DrafterPart,
    GuessRecordPart,
    KVCacheManagerPart,
    ModelRunnerPart,
    RequestQueuePart,
    SamplerPart,
    SchedulerPart,
    VerifierPart,
)
from mini_vllm.prefix_tree import PrefixIndex, PrefixTree
from mini_vllm.request_queue import DEFAULT_AGING_RATE, PriorityQueueWithAging
from mini_vllm.sampler import Sampler
from mini_vllm.scheduler import WATERMARK, Scheduler
from mini_vllm.speculation.drafts import GuessRecord, NgramDrafter, Verifier
from mini_vllm.structured.compiler import Grammar
from mini_vllm.structured.grammar import RegexGrammar

#: The drafter that needs no model.
NGRAM = "ngram"
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_memory(memory: str | int) -> int:
    """Convert a size to bytes: ``"512MB"`` → 512,000,000. Raise ValueError that names what cannot be read."""
    bound = "a number of bytes, or a size such as '512MB' or '2GiB'"
    if isinstance(memory, bool) or not isinstance(memory, (str, int)):
        raise refusal("kv_memory", memory, bound)
    text = str(memory).strip().upper().replace(" ", "")
    number = text.rstrip("KMGIB")
    unit = text[len(number):]
    try:
        value = float(number) * _UNITS[unit if unit != "B" else ""]
    except (ValueError, KeyError):
        raise ValueError(f"kv_memory is {memory!r}, must be {bound}") from None
    if not 0 < value < 2**63:
        raise ValueError(f"kv_memory is {memory!r}, must be more than 0 and less than 2 ** 63 bytes")
    return int(value)


def _checked_memory(name: str, memory: str | int) -> str | int:
    parse_memory(memory)
    return memory


def _checked_name(name: str, value: object) -> object:
    return an_instance(name, value, str, Path)


def _checked_precision(name: str, value: object) -> str:
    return one_of(name, value, PRECISIONS)


@dataclass(frozen=True)
class EngineConfig:
    """The settings of an engine. Memory is given as ``kv_memory`` ("512MB") or as a number of blocks."""

    model: str | Path = setting(DEFAULT_MODEL, check=_checked_name)
    block_size: int = setting(DEFAULT_BLOCK_SIZE, at_least=1)
    kv_memory: str | int = setting("512MB", check=_checked_memory)
    #: Blocks of the pool, including the null block. None: as many as ``kv_memory`` holds, or as can ever be used.
    num_blocks: int | None = setting(None, at_least=2)
    max_num_seqs: int = setting(64, at_least=1)
    #: Tokens a step may compute. None: 256 on a CPU, where more is no faster and delays first tokens; else 2048.
    max_num_batched_tokens: int | None = setting(None, at_least=1)
    #: Most tokens that the only unfinished prompt gets in a step in which other requests decode. The limit shrinks as
    #: the prompt is computed: to half after 1024 tokens, and to no less than a quarter. None: on a CPU 96, so that such
    #: a step takes only a few times as long as without the prompt (with 16 decoding requests, 2 to 3 times); else what
    #: ``max_num_batched_tokens`` leaves.
    max_num_chunk_tokens: int | None = setting(None, at_least=1)
    #: Maximum length of prompt and output together. None: the context length of the model.
    max_model_len: int | None = setting(None, at_least=2)
    #: The fraction of the pool that admission leaves free for running requests to grow into.
    watermark: float = setting(WATERMARK, at_least=0, below=1)
    #: Priority levels that a waiting request gains per second.
    aging_rate: float = setting(DEFAULT_AGING_RATE, at_least=0)
    #: Whether a waiting request of better priority preempts a running one if seats or blocks are short: rule 10 of the
    #: scheduler. Off: it waits until a running request ends. A scheduler of your own that does not read its attribute
    #: ``preempt_for_priority`` leaves this out.
    preempt_for_priority: bool = False
    enable_prefix_caching: bool = True
    #: Begin the next step of decoding requests while the last one is computed. None: yes; but on a CPU, where building
    #: a step takes a core from the products of the last one, only for few requests of a small model.
    enable_lookahead: bool | None = None
    #: Tokens that may be guessed per request and step, and checked by the model in the same step; see ``speculation``.
    #: The outputs are the same. 0: none.
    num_speculative_tokens: int = setting(0, at_least=0)
    #: What guesses: "ngram" looks for the newest tokens in the request's own text (``EngineParts.drafter``). Otherwise
    #: the name of a model with the same vocabulary, which gets its own KV cache with as many blocks.
    draft: str | Path = setting(NGRAM, check=_checked_name)
    #: Compute each step by one call of C, on a Linux CPU with a C compiler; see ``native``. None: unless the
    #: environment variable MINI_VLLM_NATIVE is 0.
    native: bool | None = None
    #: What the step in C rounds. "exact": nothing, products are float32. "fast": it multiplies by AMX, which splits a
    #: number into two of 16 bits, where a processor has it, and keeps keys and values in 16 bits. "fast-products" and
    #: "fast-cache" do one of the two.
    precision: str = setting(EXACT, check=_checked_precision)

    def __post_init__(self) -> None:
        """Check every field, then the fields that depend on each other. The engine checks what depends on the model."""
        check_fields(self)
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(f"max_num_batched_tokens is {self.max_num_batched_tokens}, must be at least max_num_seqs "
                             f"({self.max_num_seqs}): each running request computes a token per step")


@dataclass(frozen=True)
class EngineParts:
    """The classes of an engine's parts, each of which can be replaced. ``parts.py`` says what each must have."""

    block_pool: type[BlockPoolPart] = BlockPool
    kv_cache_manager: type[KVCacheManagerPart] = KVCacheManager
    #: None: hits are whole blocks, and no half-filled block is found again.
    prefix_tree: type[PrefixIndex] | None = PrefixTree
    request_queue: type[RequestQueuePart] = PriorityQueueWithAging
    scheduler: type[SchedulerPart] = Scheduler
    sampler: type[SamplerPart] = Sampler
    #: A class is instantiated once per engine, without arguments, and the instance is called.
    attention: type[AttentionPart] | AttentionPart = FastAttention
    model_runner: type[ModelRunnerPart] = ModelRunner
    #: Guesses tokens if ``num_speculative_tokens`` is not 0.
    drafter: type[DrafterPart] = NgramDrafter
    #: Remembers how the guesses for a request turned out, and says how long its next draft may be.
    guess_record: type[GuessRecordPart] = GuessRecord
    #: Says which rows are drawn to check a draft, and which of the drawn tokens count.
    verifier: type[VerifierPart] = Verifier
    #: The tokens that may come next in an output that must match a regular expression; see ``structured``.
    grammar: type[Grammar] = RegexGrammar
    #: The engine's class. None: LLMEngine. Create an engine from parts with ``engine_of``, which uses this class.
    engine: type | None = None

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            if not callable(value) and not (value is None and part.name in ("prefix_tree", "engine")):
                kind = "a function or a class" if part.name == "attention" else "a class"
                raise refusal(part.name, value, f"{kind} like {getattr(part.default, '__name__', 'LLMEngine')}")


@dataclass(frozen=True)
class EngineSizes:
    """The sizes of an engine. Numbers that the configuration omits are chosen to fit the model and the machine."""

    max_model_len: int
    #: Including the null block.
    num_blocks: int
    max_num_batched_tokens: int
    #: None: a chunk may use all that the budget leaves.
    max_num_chunk_tokens: int | None
    #: The next step is begun early for at most this many requests; 0: never.
    max_num_lookahead: int
    #: What drafting needs to know about the costs of a step.
    draft_costs: StepCosts

    @classmethod
    def choose(cls, config: EngineConfig, loaded: LoadedModel, parts: EngineParts) -> EngineSizes:
        """Choose the sizes.

        Raise ValueError for a context the model does not support, or memory for fewer than two blocks.
        """
        limit = loaded.config.max_position_embeddings
        if limit < 2:
            raise ValueError(f"the model's max_position_embeddings is {limit}, must be at least 2: a prompt and an "
                             "output have at least one token each")
        max_model_len = limit if config.max_model_len is None else config.max_model_len
        if not 1 < max_model_len <= limit:
            raise ValueError(f"max_model_len is {max_model_len}, must be from 2 to {limit}, the model's own limit")
        num_tokens, num_chunk_tokens = config.max_num_batched_tokens, config.max_num_chunk_tokens
        num_lookahead = config.max_num_seqs if config.enable_lookahead else 0
        if config.enable_lookahead is None:
            num_lookahead = tuning.max_lookahead(config.max_num_seqs, loaded.num_bytes)
        return cls(max_model_len,
                   _num_blocks(config, loaded, parts, max_model_len),
                   max(tuning.max_num_batched_tokens(), config.max_num_seqs) if num_tokens is None else num_tokens,
                   tuning.max_num_chunk_tokens() if num_chunk_tokens is None else num_chunk_tokens,
                   num_lookahead,
                   tuning.draft_costs(loaded.num_bytes))


def kv_cache_bytes(config: EngineConfig, loaded: LoadedModel, parts: EngineParts) -> int:
    """Return how much memory the keys and values of an engine will take. Raise ValueError as ``choose`` does."""
    return EngineSizes.choose(config, loaded, parts).num_blocks * _block_bytes(config, loaded, parts)


def _block_bytes(config: EngineConfig, loaded: LoadedModel, parts: EngineParts) -> int:
    model = loaded.config
    dtype, num_more = loaded.model.model.norm.weight.dtype, 0
    if uses_native(parts.model_runner, parts.attention, model, config.block_size, config.native):
        dtype, num_more = cache_class(config.precision).dtype, cache_class(config.precision).num_more
    return PagedKVCache.block_bytes(model.num_layers, model.num_kv_heads, config.block_size, model.head_dim + num_more,
                                    dtype)


def _num_blocks(config: EngineConfig, loaded: LoadedModel, parts: EngineParts, max_model_len: int) -> int:
    """Return the configured number of blocks.

    The default is the number that fits into the memory, but at most what ``max_num_seqs`` full contexts use.
    """
    size = config.block_size
    if config.num_blocks is not None:
        return config.num_blocks
    block_bytes = _block_bytes(config, loaded, parts)
    budget = parse_memory(config.kv_memory)
    affordable = budget // block_bytes
    if affordable < 2:
        raise ValueError(f"kv_memory of {budget} bytes holds {affordable} blocks of {size} tokens; at least 2 are "
                         f"needed, which take {2 * block_bytes} bytes")
    usable = config.max_num_seqs * -(-max_model_len // size) + 1
    return min(affordable, usable)

"""The settings of an engine, its replaceable parts, and its counters."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from mini_vllm.block_pool import BlockPool
from mini_vllm.caching.block_index import PrefixIndex
from mini_vllm.checks import (
    an_instance,
    flag,
    flag_or_none,
    one_of,
    real_number,
    refusal,
    whole_number,
    whole_number_or_none,
)
from mini_vllm.fast.attention import FastAttention
from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE, KVCacheManager
from mini_vllm.model_runner import ModelRunner
from mini_vllm.models.loader import DEFAULT_MODEL
from mini_vllm.native.runner import EXACT, PRECISIONS
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
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request_queue import DEFAULT_AGING_RATE, PriorityQueueWithAging
from mini_vllm.sampler import Sampler
from mini_vllm.scheduler import WATERMARK, Scheduler
from mini_vllm.speculation.guess_record import GuessRecord
from mini_vllm.speculation.ngram_drafter import NgramDrafter
from mini_vllm.speculation.verifier import Verifier
from mini_vllm.structured.compiler import Grammar
from mini_vllm.structured.grammar import RegexGrammar

#: The drafter that needs no model.
NGRAM = "ngram"
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True)
class EngineConfig:
    """The settings of an engine. Memory is given as ``kv_memory`` ("512MB") or as a number of blocks."""

    model: str | Path = DEFAULT_MODEL
    block_size: int = DEFAULT_BLOCK_SIZE
    kv_memory: str | int = "512MB"
    #: Blocks of the pool, including the null block. None: as many as ``kv_memory`` holds, or as can ever be used.
    num_blocks: int | None = None
    max_num_seqs: int = 64
    #: Tokens a step may compute. None: 256 on a CPU, where more is no faster and delays first tokens; else 2048.
    max_num_batched_tokens: int | None = None
    #: Most tokens that the only unfinished prompt gets in a step in which other requests decode. The limit shrinks as
    #: the prompt is computed: to half after 1024 tokens, and to no less than a quarter. None: on a CPU 96, so that such
    #: a step takes only a few times as long as without the prompt (with 16 decoding requests, 2 to 3 times); else what
    #: ``max_num_batched_tokens`` leaves.
    max_num_chunk_tokens: int | None = None
    #: Maximum length of prompt and output together. None: the context length of the model.
    max_model_len: int | None = None
    #: The fraction of the pool that admission leaves free for running requests to grow into.
    watermark: float = WATERMARK
    #: Priority levels that a waiting request gains per second.
    aging_rate: float = DEFAULT_AGING_RATE
    #: Whether a waiting request of better priority preempts a running one if seats or blocks are short; see
    #: ``priority_preemption``. Off: it waits until a running request ends.
    preempt_for_priority: bool = False
    enable_prefix_caching: bool = True
    #: Begin the next step of decoding requests while the last one is computed. None: yes; but on a CPU, where building
    #: a step takes a core from the products of the last one, only for few requests of a small model.
    enable_lookahead: bool | None = None
    #: Tokens that may be guessed per request and step, and checked by the model in the same step; see ``speculation``.
    #: The outputs are the same. 0: none.
    num_speculative_tokens: int = 0
    #: What guesses: "ngram" looks for the newest tokens in the request's own text (``EngineParts.drafter``). Otherwise
    #: the name of a model with the same vocabulary, which gets its own KV cache with as many blocks.
    draft: str | Path = NGRAM
    #: Compute each step by one call of C, on a Linux CPU with a C compiler; see ``native``. None: unless the
    #: environment variable MINI_VLLM_NATIVE is 0.
    native: bool | None = None
    #: What the step in C rounds. "exact": nothing, products are float32. "fast": it multiplies by AMX, which splits a
    #: number into two of 16 bits, where a processor has it, and keeps keys and values in 16 bits. "fast-products" and
    #: "fast-cache" do one of the two.
    precision: str = EXACT

    def __post_init__(self) -> None:
        """Check every field, then the fields that depend on each other. The engine checks what depends on the model."""
        checked: dict[str, object] = {
            "model": an_instance("model", self.model, str, Path),
            "block_size": whole_number("block_size", self.block_size, 1),
            "num_blocks": whole_number_or_none("num_blocks", self.num_blocks, 2),
            "max_num_seqs": whole_number("max_num_seqs", self.max_num_seqs, 1),
            "max_num_batched_tokens": whole_number_or_none("max_num_batched_tokens", self.max_num_batched_tokens, 1),
            "max_num_chunk_tokens": whole_number_or_none("max_num_chunk_tokens", self.max_num_chunk_tokens, 1),
            "max_model_len": whole_number_or_none("max_model_len", self.max_model_len, 2),
            "watermark": real_number("watermark", self.watermark, 0, below=1),
            "aging_rate": real_number("aging_rate", self.aging_rate, 0),
            "preempt_for_priority": flag("preempt_for_priority", self.preempt_for_priority),
            "enable_prefix_caching": flag("enable_prefix_caching", self.enable_prefix_caching),
            "enable_lookahead": flag_or_none("enable_lookahead", self.enable_lookahead),
            "num_speculative_tokens": whole_number("num_speculative_tokens", self.num_speculative_tokens, 0),
            "draft": an_instance("draft", self.draft, str, Path),
            "native": flag_or_none("native", self.native),
            "precision": one_of("precision", self.precision, PRECISIONS),
        }
        parse_memory(self.kv_memory)
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(f"max_num_batched_tokens is {self.max_num_batched_tokens}, must be at least max_num_seqs "
                             f"({self.max_num_seqs}): each running request computes a token per step")
        for name, value in checked.items():
            object.__setattr__(self, name, value)


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
class EngineMetrics:
    """The counters of an engine, and what sharing has saved. ``print`` shows them in a few lines, without the zeros."""

    num_requests: int
    num_prompt_tokens: int
    #: Tokens found in the cache instead of computed.
    num_saved_tokens: int
    hit_rate: float
    #: Over the most recent requests only.
    recent_hit_rate: float
    #: Blocks that more than one request uses now.
    num_shared_blocks: int
    num_forks: int
    num_copied_blocks: int
    num_evictions: int
    num_steps: int
    #: Most sequences in one step; a request with ``n`` = 3 has three.
    max_num_sequences: int
    #: Most blocks in use at once, out of ``num_blocks``; the null block does not count.
    max_num_used_blocks: int
    num_blocks: int
    #: Most blocks shared by several sequences at once.
    max_num_shared_blocks: int
    #: How often a request lost its blocks, and how many tokens were computed a second time because of that.
    num_preemptions: int
    num_recomputed_tokens: int
    #: Tokens that were guessed and checked, and those of them that were right.
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0

    def __str__(self) -> str:
        lines = {
            f"{_count(self.num_requests, 'request')} in {_count(self.num_steps, 'step')}, at most "
            f"{_count(self.max_num_sequences, 'sequence')} at once": True,
            f"{self.num_saved_tokens} of {_count(self.num_prompt_tokens, 'prompt token')} found in the cache "
            f"({self.hit_rate:.0%})": self.num_prompt_tokens,
            f"{self.recent_hit_rate:.0%} found for the most recent requests":
                round(self.recent_hit_rate - self.hit_rate, 2),
            f"{self.max_num_used_blocks} of {_count(self.num_blocks, 'block')} in use at the peak":
                self.max_num_used_blocks,
            f"{_count(self.max_num_shared_blocks, 'block')} shared at the peak": self.max_num_shared_blocks,
            f"{_count(self.num_forks, 'shared block')} forked before a write, {self.num_copied_blocks} copied":
                self.num_forks,
            f"{_count(self.num_preemptions, 'preemption')}, {_count(self.num_recomputed_tokens, 'token')} computed "
            "again": self.num_preemptions,
            f"{self.num_accepted_tokens} of {_count(self.num_drafted_tokens, 'drafted token')} accepted":
                self.num_drafted_tokens,
            f"{_count(self.num_evictions, 'cached block')} evicted to make room": self.num_evictions,
        }
        return "\n".join(line for line, has_happened in lines.items() if has_happened)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def parse_memory(memory: str | int) -> int:
    """Convert a size to bytes: ``"512MB"`` → 512,000,000. Raise ValueError that names what cannot be read."""
    if isinstance(memory, bool) or not isinstance(memory, (str, int)):
        raise refusal("kv_memory", memory, "a number of bytes, or a size such as '512MB' or '2GiB'")
    text = str(memory).strip().upper().replace(" ", "")
    number = text.rstrip("KMGIB")
    unit = text[len(number):]
    try:
        value = float(number) * _UNITS[unit if unit != "B" else ""]
    except (ValueError, KeyError):
        raise ValueError(f"kv_memory is {memory!r}, must be a number of bytes, or a size such as '512MB' or '2GiB'"
                         ) from None
    if not 0 < value < 2**63:
        raise ValueError(f"kv_memory is {memory!r}, must be more than 0 and less than 2 ** 63 bytes")
    return int(value)

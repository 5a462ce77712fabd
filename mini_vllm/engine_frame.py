"""The common part of every engine: it assembles the parts, and answers questions about the engine's state.

    EngineFrame   config, tokenizer, kv_cache, scheduler, runner, sampler, live requests, trace; fail_all, metrics, …
        ▲
    LLMEngine     add_request, step (schedule, compute, deliver), abort_request

An engine implements the four abstract methods.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from mini_vllm.attention import PagedKVCache
from mini_vllm.checks import an_instance
from mini_vllm.engine_config import NGRAM, EngineConfig, EngineParts, EngineSizes
from mini_vllm.gpu.select_runner import runner_class, uses_native
from mini_vllm.metrics import EngineMetrics, IdleSteps, NoTrace, StepCounts
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.models.prompts import Prompt, PromptReader, PromptTokens
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.models.weights import Packing
from mini_vllm.native.runner import NativeRunner
from mini_vllm.native.sampler import NativeSampler
from mini_vllm.native.weights import PACKINGS
from mini_vllm.parts import DrafterPart, KVCacheManagerPart, ModelRunnerPart, SamplerPart, SchedulerPart
from mini_vllm.request import Priority, RequestOutput, SamplingParams
from mini_vllm.sampler import Sampler
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.sequences import InputProcessor, LiveRequests, PromptTexts, SequenceGroup


class EngineFrame(ABC):
    """An engine without its step."""

    _draft_model: LoadedModel | None = None

    def __init__(self, config: EngineConfig | None = None, parts: EngineParts | None = None,
                 loaded: LoadedModel | None = None, trace: NoTrace | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """Assemble the engine. ``trace`` records every step; see trace/recorder.py. ``clock`` returns seconds;
        ``RequestOutput.timings`` is measured with it."""
        self.config = config = EngineConfig() if config is None else config
        an_instance("config", config, EngineConfig)
        parts = EngineParts() if parts is None else parts
        an_instance("parts", parts, EngineParts)
        self.parts = parts
        self.loaded = loaded or load_for(config, parts)
        self.tokenizer = self.loaded.tokenizer
        self.sizes = sizes = EngineSizes.choose(config, self.loaded, parts)
        self.max_model_len, self.max_num_batched_tokens = sizes.max_model_len, sizes.max_num_batched_tokens
        self.prompts = PromptReader(self.tokenizer, self.loaded.config.vocab_size, self.max_model_len)
        self._make_scheduler(parts)
        self._make_runner(parts)
        #: Unfinished requests.
        self.live = LiveRequests()
        self.drafter = self._make_drafter(parts)
        self.trace = NoTrace() if trace is None else trace
        self.trace.introduce(self.loaded.name, PromptTexts(self.live, self.tokenizer))
        self.clock = clock
        self.num_steps = 0
        #: Further counters over all steps.
        self.counts = StepCounts()
        #: Counts every step; see ``metrics``.
        self.idle_steps = IdleSteps()
        #: Outputs of requests whose caller did not see the step that produced them; see ``put_back``.
        self.unseen: dict[str, RequestOutput] = {}
        live, unseen = self.live, self.unseen  # not self: a reference cycle would keep the engine alive
        self.inputs = InputProcessor(config, self.prompts, lambda name: name in live or name in unseen, clock,
                                     parts.grammar)

    def _make_scheduler(self, parts: EngineParts) -> None:
        """Create the pieces that know who holds which block."""
        config, sizes = self.config, self.sizes
        self.kv_cache: KVCacheManagerPart = parts.kv_cache_manager(
            sizes.num_blocks, config.block_size, config.enable_prefix_caching, pool_class=parts.block_pool,
            tree_class=parts.prefix_tree)
        self.scheduler: SchedulerPart = parts.scheduler(
            self.kv_cache, config.max_num_seqs, self.max_num_batched_tokens, parts.request_queue(config.aging_rate),
            config.watermark)
        self.scheduler.max_num_chunk_tokens = sizes.max_num_chunk_tokens
        self.scheduler.preempt_for_priority = config.preempt_for_priority

    def _make_runner(self, parts: EngineParts) -> None:
        """Create the pieces that compute."""
        config, sizes = self.config, self.sizes
        self.sampler: SamplerPart = parts.sampler()
        make_runner = runner_class(parts.model_runner, parts.attention, self.loaded.model, config.block_size,
                                   config.native)
        options = {"precision": config.precision} if make_runner is NativeRunner else {}
        self.runner: ModelRunnerPart = make_runner(self.loaded.model, sizes.num_blocks, config.block_size,
                                                   parts.attention, **options)
        if make_runner is NativeRunner and parts.sampler is Sampler:
            self.sampler = NativeSampler()

    def _make_drafter(self, parts: EngineParts) -> DrafterPart | None:
        """Create what guesses tokens: the part, or a second model; None if nothing is guessed.

        Raise ValueError if that model has another vocabulary.
        """
        config, live = self.config, self.live
        if not config.num_speculative_tokens:
            return None
        if config.draft == NGRAM:
            return parts.drafter()
        from mini_vllm.speculation.model_drafter import ModelDrafter, load_draft
        if self._draft_model is None:
            self._draft_model = load_draft(config.draft, self.loaded)
        return ModelDrafter(self._draft_model, self.sizes.num_blocks, config.block_size, self.max_num_batched_tokens,
                            lambda request: live.sequence(request.request_id).row, self.sampler,
                            cost_per_token=self._draft_model.num_bytes / self.loaded.num_bytes)

    # ---- what an engine must add

    @abstractmethod
    def add_request(self, prompt: Prompt | PromptTokens, sampling_params: SamplingParams | None = None,
                    request_id: str | None = None, priority: Priority = Priority.NORMAL,
                    extra_keys: tuple[object, ...] | None = None) -> str:
        """Add a request and return its id. Raise ValueError, and add nothing, if the request can never be served."""

    @abstractmethod
    def abort_request(self, request_id: str) -> RequestOutput | None:
        """End a request in any state and return its text so far; None if there is no such request."""

    @abstractmethod
    def has_unfinished_requests(self) -> bool:
        """Check whether another ``step`` has something to compute or to report."""

    @abstractmethod
    def step(self) -> list[RequestOutput]:
        """Plan one step, compute it, and return the outputs of the requests that got a token, ended or failed."""

    # ---- what a step may call

    def note_start(self, plan: SchedulerOutput) -> None:
        """Record that the requests of ``plan`` are about to be computed, some for the first time, some again."""
        self.counts.note_plan(plan, self.scheduler.running, self.kv_cache)
        now_s = self.clock()
        for request in plan.requests:
            self.live.group_of(request.request_id).note_start(now_s)

    def let_go(self, group: SequenceGroup) -> None:
        """Release a request that has ended: free its id, and drop its outputs that were put back, because there is a
        newer one."""
        self.unseen.pop(group.request_id, None)
        self.counts.forget(sequence.request.request_id for sequence in group.sequences)
        self.live.remove(group)

    def with_unseen(self, outputs: list[RequestOutput]) -> list[RequestOutput]:
        """Return ``outputs``, and those that were put back unless ``outputs`` has a newer one."""
        newest = self.unseen | {output.request_id: output for output in outputs}
        self.unseen.clear()
        return list(newest.values())

    def discard(self, block_ids: Iterable[int]) -> None:
        """Discard the content of these blocks, which is not trusted; see ``discard_blocks``."""
        discard_blocks(block_ids, self.kv_cache, self.runner.cache)

    # ---- for callers

    def fail_all(self, error: Exception) -> list[RequestOutput]:
        """End all requests with ``error``, which ``step`` raised and which no single request caused.

        Afterwards only outputs kept by ``put_back`` are left. The whole prefix cache is cleared: what the failed step
        has written is not known.
        """
        outputs = []
        for request_id, group in list(self.live.groups.items()):
            unfinished = group.unfinished
            self.abort_request(request_id)
            for sequence in unfinished:
                sequence.output.finish_reason = "error"
            group.error = describe(error)
            outputs.append(group.to_output())
        self.kv_cache.finish_step()
        self.kv_cache.reset_prefix_cache()
        return outputs

    def put_back(self, outputs: Iterable[RequestOutput]) -> None:
        """Keep outputs that belong to another caller; the next step returns them, unless it has newer ones."""
        self.unseen.update({output.request_id: output for output in outputs})

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes. Raise RuntimeError, and forget nothing, while a request holds blocks."""
        self.kv_cache.reset_prefix_cache()

    def evict_unused(self) -> int:
        """Forget the content of all blocks that no request holds, and return their number. Requests may be running."""
        pool = self.kv_cache.block_pool
        unused = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()
                  if block.block_hash is not None]
        pool.evict_blocks(unused)
        return len(unused)

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def draft_counts(self) -> dict[str, int]:
        """Return the counters of drafts; an engine that does not draft has none."""
        return {}

    def metrics(self) -> EngineMetrics:
        """Return what happened so far, and what sharing has saved."""
        stats, pool, counts = self.kv_cache.stats, self.kv_cache.block_pool, self.counts
        return EngineMetrics(
            num_requests=stats.num_queries, num_prompt_tokens=stats.num_query_tokens,
            num_saved_tokens=stats.num_hit_tokens, hit_rate=stats.hit_rate,
            recent_hit_rate=stats.recent_hit_rate,
            num_shared_blocks=sum(block.ref_cnt > 1 for block in pool.blocks), num_forks=pool.num_forks,
            num_copied_blocks=self.runner.cache.num_copied_blocks, num_evictions=stats.num_evicted_blocks,
            num_steps=self.num_steps, max_num_sequences=counts.max_num_sequences,
            max_num_used_blocks=counts.max_num_used_blocks, num_blocks=pool.num_blocks - 1,
            max_num_shared_blocks=counts.max_num_shared_blocks,
            num_preemptions=self.scheduler.num_preemptions,
            num_recomputed_tokens=counts.num_recomputed_tokens, **self.draft_counts())


def load_for(config: EngineConfig, parts: EngineParts, tokenizer: Tokenizer | None = None) -> LoadedModel:
    """Load the model of an engine. What its runner computes with stays packed. Raise LoadError."""
    def kept(shape: ModelConfig) -> Sequence[Packing]:
        is_native = uses_native(parts.model_runner, parts.attention, shape, config.block_size, config.native)
        return PACKINGS if is_native else ()

    return load(config.model, tokenizer, kept)


def describe(error: Exception) -> str:
    """Return the text of an error for an output."""
    return f"{type(error).__name__}: {error}"


def discard_blocks(block_ids: Iterable[int], kv_cache: KVCacheManagerPart, cache: PagedKVCache) -> None:
    """Discard the content of these blocks, which is not trusted.

    Blocks that no request holds are removed from the index and cleared, so that no trace of it, such as NaN, is left
    for their next owner.
    """
    pool = kv_cache.block_pool
    given_back = [block_id for block_id in sorted(block_ids) if pool.blocks[block_id].ref_cnt == 0]
    pool.evict_blocks(given_back)
    cache.clear_blocks(given_back)

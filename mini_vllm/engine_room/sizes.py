"""The sizes of an engine. Numbers that the configuration omits are chosen to fit the model and the machine."""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.attention import PagedKVCache
from mini_vllm.engine_config import EngineConfig, EngineParts, parse_memory
from mini_vllm.fast import tuning
from mini_vllm.fast.step_costs import StepCosts
from mini_vllm.gpu.select_runner import uses_native
from mini_vllm.models.loader import LoadedModel
from mini_vllm.native.runner import cache_class


@dataclass(frozen=True)
class EngineSizes:
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

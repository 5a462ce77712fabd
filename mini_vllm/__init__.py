"""A small vLLM on MLX, written to be read.

A good order for reading; docs/engine.md says what each module is:

    blocks     request, block_pool, kv_cache, attention, prefix_tree
    requests   scheduler, simulation, request_queue
    a step     model_runner, logit_rules, sampler, executor, engine
    around it  engine_config, parts, engine_frame, sequences, llm, async_engine
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.2.0"

#: The public names of the package, and the module that defines each.
_HOMES = {
    "AsyncLLMEngine": "async_engine",
    "Beam": "beam_search",
    "BlockPool": "block_pool",
    "Clock": "simulation",
    "CompletionOutput": "request",
    "CostModel": "simulation",
    "EngineConfig": "engine_config",
    "EngineParts": "engine_config",
    "KVCacheManager": "kv_cache",
    "LLM": "llm",
    "LLMEngine": "engine",
    "PrefixTree": "prefix_tree",
    "Priority": "request",
    "PriorityQueueWithAging": "request_queue",
    "Request": "request",
    "RequestOutput": "request",
    "SamplingParams": "request",
    "Scheduler": "scheduler",
    "Simulation": "simulation",
    "StructuredOutputsParams": "structured.params",
}
__all__ = sorted(_HOMES)

if TYPE_CHECKING:  # the same names for a type checker, which does not run the function below
    from mini_vllm.async_engine import AsyncLLMEngine as AsyncLLMEngine
    from mini_vllm.beam_search import Beam as Beam
    from mini_vllm.block_pool import BlockPool as BlockPool
    from mini_vllm.engine import LLMEngine as LLMEngine
    from mini_vllm.engine_config import EngineConfig as EngineConfig
    from mini_vllm.engine_config import EngineParts as EngineParts
    from mini_vllm.kv_cache import KVCacheManager as KVCacheManager
    from mini_vllm.llm import LLM as LLM
    from mini_vllm.prefix_tree import PrefixTree as PrefixTree
    from mini_vllm.request import CompletionOutput as CompletionOutput
    from mini_vllm.request import Priority as Priority
    from mini_vllm.request import Request as Request
    from mini_vllm.request import RequestOutput as RequestOutput
    from mini_vllm.request import SamplingParams as SamplingParams
    from mini_vllm.request_queue import PriorityQueueWithAging as PriorityQueueWithAging
    from mini_vllm.scheduler import Scheduler as Scheduler
    from mini_vllm.simulation import Clock as Clock
    from mini_vllm.simulation import CostModel as CostModel
    from mini_vllm.simulation import Simulation as Simulation
    from mini_vllm.structured.params import StructuredOutputsParams as StructuredOutputsParams
else:  # hidden from the checker: to it, a module with __getattr__ has every name, even a misspelt one

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used: the allocator and most labs do not need MLX."""
        if name not in _HOMES:
            raise AttributeError(f"module 'mini_vllm' has no attribute {name!r}")
        return getattr(importlib.import_module(f"mini_vllm.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "importlib"})

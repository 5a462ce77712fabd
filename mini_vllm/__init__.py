"""A small vLLM on MLX, written to be read."""

import importlib

__version__ = "0.1.0"

#: What the package offers by name, and the module it comes from.
_HOMES = {
    "LLM": "llm",
    "AsyncLLMEngine": "async_engine",
    "Beam": "beam_search",
    "EngineConfig": "engine_config",
    "EngineParts": "engine_config",
    "LLMEngine": "engine",
    "Priority": "request",
    "RequestOutput": "request",
    "SamplingParams": "request",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """A name is imported when it is first asked for: the allocator and the labs need no MLX."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mini_vllm' has no attribute {name!r}")
    return getattr(importlib.import_module(f"mini_vllm.{_HOMES[name]}"), name)

"""A small vLLM on MLX, written to be read."""

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLMEngine", "Beam", "EngineConfig", "LLMEngine", "SamplingParams"]


def __getattr__(name: str) -> object:
    """The engine is imported when it is first asked for: the allocator and the labs need no MLX."""
    if name == "SamplingParams":
        from mini_vllm.request import SamplingParams
        return SamplingParams
    if name == "AsyncLLMEngine":
        from mini_vllm.async_engine import AsyncLLMEngine
        return AsyncLLMEngine
    if name == "Beam":
        from mini_vllm.beam_search import Beam
        return Beam
    if name in __all__:
        import mini_vllm.engine
        return getattr(mini_vllm.engine, name)
    raise AttributeError(f"module 'mini_vllm' has no attribute {name!r}")

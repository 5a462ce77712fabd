"""A loaded model: its engine, and what a server must know to use it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mini_vllm.async_engine import AsyncLLMEngine
from mini_vllm.engine import LLMEngine, engine_of
from mini_vllm.engine_config import EngineConfig, EngineParts, kv_cache_bytes, parse_memory
from mini_vllm.engine_frame import load_for
from mini_vllm.metrics import NoTrace
from mini_vllm.models.catalogue import find_model
from mini_vllm.models.prompts import PromptReader
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.request import SamplingParams
from mini_vllm.server.access.turns import Holder, Turns
from mini_vllm.server.models.chat_templates import ChatTemplate
from mini_vllm.server.models.schema_check import SchemaCheck
from mini_vllm.structured.grammar import RegexGrammar
from mini_vllm.structured.guided import GuidedExpression

log = logging.getLogger("mini_vllm.server")

#: Name, size and modification time of each file.
Stamp = tuple[tuple[str, int, int], ...]


class MemoryLimitError(ValueError):
    """A model would take more memory than the server may use."""

    def __init__(self, message: str, num_bytes: int) -> None:
        super().__init__(message)
        #: The memory that the model would take.
        self.num_bytes = num_bytes


@dataclass
class ServedModel:
    """One engine, with its own prefix cache."""

    name: str
    config: EngineConfig
    engine: AsyncLLMEngine
    #: The trace that receives its steps; the live page listens to it.
    feed: NoTrace
    prompts: PromptReader
    #: The model's recommended values for fields of SamplingParams.
    sampling_defaults: Mapping[str, Any]
    #: The size of weights and KV cache together.
    num_bytes: int
    #: The tokens that its KV cache has room for.
    num_slots: int
    #: None if the model has no chat template.
    chat_template: ChatTemplate | None
    #: Prepares schemas of clients where they cannot block the engine.
    schema_check: SchemaCheck
    turns: Turns = field(default_factory=Turns)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.prompts.tokenizer

    @property
    def has_chat_template(self) -> bool:
        return self.chat_template is not None

    async def prepare(self, params: SamplingParams, holder: Holder) -> object:
        """Prepare what the output must match, and long lists of bad words. The engine has them while this is held.

        Raise ValueError, which names the field, if that is not possible, and ApiError if too many requests wait.
        """
        if params.structured_outputs is None and not params.bad_words:
            return None
        async with self.turns.turn(holder):
            await self.schema_check.check(params.structured_outputs, holder)
            return await self.engine.prepare(params)

    async def end(self) -> None:
        """End the engine and the process of the template. Running requests end with the output they have."""
        if self.chat_template is not None:
            await self.chat_template.close()
        await self.schema_check.close()
        await self.engine.shutdown(drain=False)

    @classmethod
    async def start(cls, name: str, config: EngineConfig, parts: EngineParts | None, feed: NoTrace,
                    max_num_requests: int, max_bytes: int | None = None,
                    tokenizer: Tokenizer | None = None) -> ServedModel:
        """Load a model, with ``tokenizer`` if that was read before.

        Raise EngineStoppedError, with the cause, if the model cannot be loaded, or if weights and KV cache would take
        more than ``max_bytes``; nothing is left running then. If this is cancelled, the thread ends once the model is
        loaded: a thread that reads files cannot be stopped.
        """
        engine = AsyncLLMEngine(max_num_requests=max_num_requests,
                                make_engine=partial(_make_engine, config, parts, feed, max_bytes, tokenizer))
        try:
            prompts, defaults, num_bytes, num_slots = await engine.call(_facts)
        except asyncio.CancelledError:
            ending = asyncio.ensure_future(engine.shutdown(drain=False))
            await asyncio.sleep(0)  # until the thread has been told to end
            ending.cancel()
            raise
        except BaseException:
            await engine.shutdown(drain=False)
            raise
        template = None if prompts.tokenizer.chat_template is None else ChatTemplate(prompts.tokenizer)
        return cls(name, config, engine, feed, prompts, defaults, num_bytes, num_slots, template, SchemaCheck())


def _make_engine(config: EngineConfig, parts: EngineParts | None, feed: NoTrace, max_bytes: int | None,
                 tokenizer: Tokenizer | None) -> LLMEngine:
    """Make the engine. Raise MemoryLimitError before the KV cache is allocated if there is too little memory."""
    parts = parts or EngineParts()
    loaded = load_for(config, parts, tokenizer)
    kv_bytes = kv_cache_bytes(config, loaded, parts)
    num_bytes = loaded.num_bytes + kv_bytes
    if max_bytes is not None and num_bytes > max_bytes:
        raise MemoryLimitError(f"it takes {loaded.num_bytes / 1e6:.0f} MB for weights and {kv_bytes / 1e6:.0f} MB for "
                               f"its KV cache; {max_bytes / 1e6:.0f} MB are left of the server's limit", num_bytes)
    if parts.grammar is RegexGrammar:  # it may take a tenth of a second and megabytes for each expression
        parts = replace(parts, grammar=GuidedExpression)
    return engine_of(config, parts, loaded, feed)


def _facts(engine: LLMEngine) -> tuple[PromptReader, Mapping[str, Any], int, int]:
    num_bytes = engine.loaded.num_bytes + sum(pool.nbytes for pool in engine.runner.cache.pools)
    num_slots = (engine.kv_cache.block_pool.num_blocks - 1) * engine.config.block_size
    return engine.prompts, engine.loaded.sampling_defaults, num_bytes, num_slots


def estimated_bytes(config: EngineConfig) -> int:
    """Estimate a model's memory before it is loaded: the size of its files, and ``kv_memory``.

    If the KV cache is given as a number of blocks, its size is not known yet and counts as 0.
    """
    path = find_model(config.model)
    files = [path] if path.is_file() else list(path.glob("*.safetensors"))
    kv_bytes = parse_memory(config.kv_memory) if config.num_blocks is None else 0
    return sum(file.stat().st_size for file in files) + kv_bytes


def stamp_of(path: Path) -> Stamp:
    """Return names, sizes and modification times of a model's files. If they are the same, so are the files."""
    files = [path] if path.is_file() else sorted(path.iterdir())
    states = [(file, file.stat()) for file in files if file.is_file()]
    return tuple((file.name, state.st_size, state.st_mtime_ns) for file, state in states)


def public_names(models: tuple[str, ...]) -> dict[str, str]:
    """Return a dict: name in the API → name or path to load.

    A path is published as its last part only: clients need not know the folder. Raise ValueError if two models have the
    same name.
    """
    names: dict[str, str] = {}
    for model in models:
        path = Path(model).expanduser()
        name = path.resolve().name if path.exists() else model
        if names.get(name, model) != model:
            raise ValueError(f"two models are called {name!r}: {names[name]} and {model}; rename one")
        names[name] = model
    return names

"""The place of one model on the shelf: whether it is loaded, who uses it, and how it leaves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from mini_vllm.backend import mx
from mini_vllm.engine_config import EngineConfig
from mini_vllm.server.access.concurrency_limit import Seats
from mini_vllm.server.models.loaded_model import ServedModel, Stamp


@dataclass
class Place:
    """Where a model stands, whether it is loaded or not."""

    name: str
    config: EngineConfig
    seats: Seats
    num_leases: int = 0
    #: Of all leases that ended, the number of its last one.
    last_used: int = 0
    #: Loading, or loaded. None: neither.
    loading: asyncio.Task[ServedModel] | None = None
    #: Loads under way, also of models that were let go meanwhile.
    loads: set[asyncio.Task[ServedModel]] = field(default_factory=set)
    #: The engine that was here before, on its way out.
    leaving: asyncio.Task[None] | None = None
    #: What it takes, or will take; 0 while it is not there.
    num_bytes: int = 0
    #: What it took when it was last loaded with this configuration.
    measured_bytes: int | None = None
    #: The files that could not be loaded, and until when nobody tries again while they stay the same.
    damaged: tuple[Stamp, float] | None = None

    @property
    def served(self) -> ServedModel | None:
        """The model, if it is loaded."""
        task = self.loading
        return task.result() if task and task.done() and not task.cancelled() and not task.exception() else None

    @property
    def may_go(self) -> bool:
        """Whether it is loaded, and nobody uses it."""
        return self.served is not None and not self.num_leases

    def configure(self, config: EngineConfig) -> None:
        """What will be loaded here next. How much that takes is not known."""
        self.config, self.measured_bytes, self.damaged = config, None, None
        self.seats.max_num_seqs = config.max_num_seqs

    def let_go(self) -> None:
        """From now on it is not there; its engine ends by itself."""
        task, before = self.loading, self.leaving
        self.loading, self.num_bytes = None, 0
        if task is not None:
            self.leaving = asyncio.create_task(_end(task, before))

    async def leave(self, drain: bool) -> None:
        """Let it go, and wait until its engine has ended. What is in flight ends with what it has, or is finished
        first. A load is not waited for: it might take minutes."""
        if drain and self.served is not None:
            await self.served.engine.shutdown()
        for load in self.loads:
            load.cancel()
        self.let_go()
        if self.leaving is not None:
            await self.leaving


async def _end(task: asyncio.Task[ServedModel], before: asyncio.Task[None] | None) -> None:
    """End what was loaded, once it is loaded: a thread that reads files cannot be stopped."""
    if before is not None:
        await before
    await asyncio.wait({task})
    if task.cancelled() or task.exception():
        return  # whoever waited for it has heard
    await task.result().end()
    del task
    mx.clear_cache()  # MLX keeps freed memory for later arrays; other models' would not fit into it

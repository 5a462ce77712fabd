"""The place of one model on the shelf: whether it is loaded, how many requests use it, and how it is unloaded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from mini_vllm.backend import mx
from mini_vllm.engine_config import EngineConfig
from mini_vllm.server.access.concurrency_limit import Seats
from mini_vllm.server.models.loaded_model import ServedModel, Stamp


@dataclass
class Place:
    """The place of a model, loaded or not."""

    name: str
    config: EngineConfig
    seats: Seats
    num_leases: int = 0
    #: The number of its last lease that ended, counted over all models.
    last_used: int = 0
    #: The task that loads or has loaded the model; None if there is none.
    loading: asyncio.Task[ServedModel] | None = None
    #: Loads in progress, including those that were abandoned meanwhile.
    loads: set[asyncio.Task[ServedModel]] = field(default_factory=set)
    #: The task that ends the previous engine.
    leaving: asyncio.Task[None] | None = None
    #: The memory that the model takes or will take; 0 while it is not loaded.
    num_bytes: int = 0
    #: The memory that it took when it was last loaded with this configuration.
    measured_bytes: int | None = None
    #: The files that could not be loaded, and the time before which they are not tried again unless they change.
    damaged: tuple[Stamp, float] | None = None

    @property
    def served(self) -> ServedModel | None:
        """The model, if it is loaded."""
        task = self.loading
        return task.result() if task and task.done() and not task.cancelled() and not task.exception() else None

    @property
    def may_go(self) -> bool:
        """Whether the model is loaded, and no request uses it."""
        return self.served is not None and not self.num_leases

    def configure(self, config: EngineConfig) -> None:
        """Set the configuration of the next load. The memory that it takes is not known yet."""
        self.config, self.measured_bytes, self.damaged = config, None, None
        self.seats.max_num_seqs = config.max_num_seqs

    def let_go(self) -> None:
        """Unload the model. It counts as gone at once; its engine ends in the background."""
        task, before = self.loading, self.leaving
        self.loading, self.num_bytes = None, 0
        if task is not None:
            self.leaving = asyncio.create_task(_end(task, before))

    async def leave(self, drain: bool) -> None:
        """Unload the model, and wait until its engine has ended.

        Running requests end with the output they have; if ``drain``, they are finished first. This does not wait for a
        load in progress, which might take minutes.
        """
        if drain and self.served is not None:
            await self.served.engine.shutdown()
        for load in self.loads:
            load.cancel()
        self.let_go()
        if self.leaving is not None:
            await self.leaving


async def _end(task: asyncio.Task[ServedModel], before: asyncio.Task[None] | None) -> None:
    """End a model once it is loaded: a thread that reads files cannot be stopped."""
    if before is not None:
        await before
    await asyncio.wait({task})
    if task.cancelled() or task.exception():
        return  # the requests that waited for it got the error
    await task.result().end()
    del task
    mx.clear_cache()  # MLX keeps freed memory for later arrays, which need other sizes for other models

"""The outputs of the prompts of one request, and the buffer in which they wait for their client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from mini_vllm.models.prompts import PromptTokens
from mini_vllm.request import Priority, RequestOutput, SamplingParams
from mini_vllm.server.models.loaded_model import ServedModel

#: Outputs that arrived together: the number of a prompt, and its output, which contains all the text so far.
Batch = list[tuple[int, RequestOutput]]


class Outbox:
    """The latest output of each prompt, between an engine that never waits and a client that may read slowly."""

    def __init__(self) -> None:
        self._latest: dict[int, RequestOutput] = {}
        self._has_news = asyncio.Event()

    def put(self, index: int, output: RequestOutput) -> None:
        self._latest[index] = output
        self._has_news.set()

    async def batches(self, source: asyncio.Task[None]) -> AsyncGenerator[Batch, None]:
        """Yield the outputs since the previous batch, until ``source``, the task that puts them in, ends.

        Raise the exception of ``source``, if it has one.
        """
        source.add_done_callback(lambda task: self._has_news.set())
        is_last = False
        while not is_last:
            await self._has_news.wait()
            self._has_news.clear()
            is_last = source.done()
            if self._latest:
                batch, self._latest = sorted(self._latest.items()), {}
                yield batch
        source.result()


@dataclass(frozen=True)
class Work:
    """The work of the engine for one request."""

    prompts: Sequence[PromptTokens]
    params: SamplingParams
    priority: Priority
    extra_keys: tuple[object, ...] | None
    #: The id of the answer, under which the engine and its watchers know the request. With several prompts, a number
    #: is appended for each.
    name: str

    async def run(self, served: ServedModel, outbox: Outbox) -> None:
        """Put all outputs into ``outbox``, until the last one. If cancelled, abort the prompts that have not ended.

        Raise what ``generate`` raises.
        """
        tasks = [asyncio.create_task(self._pump(served, index, outbox)) for index in range(len(self.prompts))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, served: ServedModel, index: int, outbox: Outbox) -> None:
        name = self.name if len(self.prompts) == 1 else f"{self.name}-{index}"
        outputs = served.engine.generate(self.prompts[index], self.params, priority=self.priority, request_id=name,
                                         extra_keys=self.extra_keys)
        async with aclosing(outputs):
            async for output in outputs:
                outbox.put(index, output)

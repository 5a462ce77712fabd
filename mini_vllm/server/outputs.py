"""The outputs of the prompts of one request, as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from mini_vllm.models.prompts import PromptTokens
from mini_vllm.request import Priority, RequestOutput, SamplingParams
from mini_vllm.server.served import ServedModel

#: Outputs that came together: the number of a prompt, and its output.
Batch = list[tuple[int, RequestOutput]]


@dataclass(frozen=True)
class Work:
    """What the engine is to do for one request."""

    prompts: Sequence[PromptTokens]
    params: SamplingParams
    priority: Priority
    extra_keys: tuple[object, ...] | None

    async def outputs(self, served: ServedModel, deltas: bool) -> AsyncGenerator[Batch, None]:
        """All outputs until the last; those of several prompts that came in one step come together. To leave early
        aborts what has not ended. Raises what ``generate`` raises."""
        if len(self.prompts) == 1:
            async with aclosing(self._generate(served, 0, deltas)) as outputs:
                async for output in outputs:
                    yield [(0, output)]
            return
        inbox: asyncio.Queue[tuple[int, RequestOutput | Exception]] = asyncio.Queue()
        tasks = [asyncio.create_task(self._pump(served, index, deltas, inbox)) for index in range(len(self.prompts))]
        try:
            num_left = len(tasks)
            while num_left:
                batch = [_unwrapped(await inbox.get())]
                while not inbox.empty():
                    batch.append(_unwrapped(inbox.get_nowait()))
                num_left -= sum(output.finished for _, output in batch)
                yield batch
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _generate(self, served: ServedModel, index: int, deltas: bool) -> AsyncGenerator[RequestOutput, None]:
        return served.engine.generate(self.prompts[index], self.params, priority=self.priority,
                                      extra_keys=self.extra_keys, deltas=deltas)

    async def _pump(self, served: ServedModel, index: int, deltas: bool,
                    inbox: asyncio.Queue[tuple[int, RequestOutput | Exception]]) -> None:
        try:
            async with aclosing(self._generate(served, index, deltas)) as outputs:
                async for output in outputs:
                    inbox.put_nowait((index, output))
        except Exception as error:
            inbox.put_nowait((index, error))


def _unwrapped(item: tuple[int, RequestOutput | Exception]) -> tuple[int, RequestOutput]:
    index, output = item
    if isinstance(output, Exception):
        raise output
    return index, output

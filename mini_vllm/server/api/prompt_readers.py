"""Threads that read prompts: the event loop never does.

A tokenizer is a program that came with the weights, and its pattern may backtrack for minutes on a short text. So a few
threads per model read, and nobody waits for them when the server ends, as would be done for ``asyncio.to_thread``.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar, cast

from mini_vllm.output_stream import Answer

#: How many prompts of one model are read at once.
MAX_AT_ONCE = 4

Result = TypeVar("Result")
Inbox = queue.SimpleQueue[tuple[Answer, Callable[[], object]] | None]


class Readers:
    """The threads of one server."""

    def __init__(self, most: int = MAX_AT_ONCE) -> None:
        self._most = most
        self._inboxes: dict[str, Inbox] = {}

    async def run(self, model: str, function: Callable[[], Result]) -> Result:
        """Return what ``function`` returns, in a thread of this model. A caller that is cancelled leaves at once; a
        function that has begun runs to its end."""
        if model not in self._inboxes:
            self._inboxes[model] = self._start(model)
        answer = Answer()
        self._inboxes[model].put((answer, function))
        return cast(Result, await answer.future)

    def _start(self, model: str) -> Inbox:
        inbox: Inbox = queue.SimpleQueue()
        for _ in range(self._most):
            threading.Thread(target=_read_all, args=(inbox,), name=f"mini_vllm reader of {model}", daemon=True).start()
            weakref.finalize(self, inbox.put, None)
        return inbox


def _read_all(inbox: Inbox) -> None:
    """Until there is nobody who could ask."""
    while (job := inbox.get()) is not None:
        answer, function = job
        if answer.future.done():  # its caller has left
            continue
        try:
            answer.set_result(function())
        except Exception as error:
            answer.set_exception(error)

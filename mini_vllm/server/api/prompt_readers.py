"""Threads that tokenize prompts, so that the event loop never does.

A tokenizer is a program that came with the weights, and its pattern may backtrack for minutes on a short text. So each
model has a few threads of its own. The server does not wait for them when it ends, as it would for
``asyncio.to_thread``.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

from mini_vllm.engine_thread import Answer
from mini_vllm.server.access.turns import ANYONE, Holder, Turns

#: The number of prompts per model that are tokenized at once.
MAX_AT_ONCE = 4

Result = TypeVar("Result")
Inbox = queue.SimpleQueue[tuple[Answer, Callable[[], object]] | None]


class Readers:
    """The threads of one server."""

    def __init__(self, most: int = MAX_AT_ONCE) -> None:
        self._most = most
        self._inboxes: dict[str, Inbox] = {}
        self._turns: defaultdict[str, Turns] = defaultdict(partial(Turns, most))

    async def run(self, model: str, function: Callable[[], Result], holder: Holder = ANYONE) -> Result:
        """Call ``function`` in a thread of this model, and return its result.

        A caller that is cancelled returns at once; a function that has started runs to its end.
        """
        if model not in self._inboxes:
            self._inboxes[model] = self._start(model)
        async with self._turns[model].turn(holder):
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
    """Process the jobs of ``inbox`` until its owner is gone."""
    while (job := inbox.get()) is not None:
        answer, function = job
        if answer.future.done():  # its caller was cancelled
            continue
        try:
            answer.set_result(function())
        except Exception as error:
            answer.set_exception(error)

"""Messages from the engine's thread to callers in their event loops: answers, and streams of outputs.

An output contains the whole text so far. So a slow caller misses nothing by getting only the latest one, and the engine
never waits for a caller.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import replace

from mini_vllm.request import RequestOutput


def post(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Run ``callback`` in a caller's loop. Do nothing if the loop is closed."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        pass


class Answer:
    """A result that a caller waits for once: a future of the caller's loop, set from another thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[object] = self._loop.create_future()

    def set_result(self, result: object) -> None:
        self._set(functools.partial(self.future.set_result, result))

    def set_exception(self, error: Exception) -> None:
        if isinstance(error, StopIteration):  # a future cannot hold it
            error = RuntimeError(f"StopIteration: {error}")
        self._set(functools.partial(self.future.set_exception, error))

    def _set(self, setter: Callable[[], None]) -> None:
        def set_if_waited_for() -> None:
            if not self.future.done():  # else its caller was cancelled, or has been answered
                setter()

        post(self._loop, set_if_waited_for)


class OutputStream:
    """The stream of outputs to one caller. ``deliver`` and ``next`` run only in the caller's loop."""

    def __init__(self, request_id: str, loop: asyncio.AbstractEventLoop) -> None:
        self.request_id = request_id
        self.loop = loop
        #: Its caller has left.
        self.is_abandoned = False
        #: The request is to be aborted, but the engine has not received its prompt yet.
        self.is_aborted = False
        self._news = asyncio.Event()
        self._latest: RequestOutput | Exception

    def deliver(self, output: RequestOutput | Exception) -> None:
        self._latest = output
        self._news.set()

    async def next(self) -> RequestOutput:
        """Wait for an output that has not been fetched yet and return the latest one.

        Raise the error if one was delivered.
        """
        await self._news.wait()
        self._news.clear()
        if isinstance(self._latest, Exception):
            raise self._latest
        return self._latest


def snapshot(output: RequestOutput) -> RequestOutput:
    """Return a copy of ``output`` that the engine does not change while it continues."""
    copies = [replace(each, token_ids=list(each.token_ids), logprobs=each.logprobs and list(each.logprobs))
              for each in output.outputs]
    return replace(output, outputs=copies)


def since(before: RequestOutput | None, output: RequestOutput) -> RequestOutput:
    """Return only the text, tokens and logprobs that are new since ``before``, an earlier output of the request."""
    if before is None:
        return output
    new = [replace(now, text=now.text[len(then.text):], token_ids=now.token_ids[len(then.token_ids):],
                   logprobs=now.logprobs and now.logprobs[len(then.logprobs or ()):])
           for then, now in zip(before.outputs, output.outputs)]
    return replace(output, outputs=new)

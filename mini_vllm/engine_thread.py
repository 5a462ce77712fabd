"""The thread that owns the engine: it loads the model, takes messages, computes steps and delivers outputs.

    inbox ──▶ ┌────────────────────────┐
              │ take all messages      │──┐
              │ take some requests in  │  │
              │ one engine step        │  │ as long as there is work
              │ hand outputs out       │◀─┘
              └────────────────────────┘

A message is a function that the thread calls with the engine, between two steps. The message of a new request puts it
into ``arrivals``. Before each step only a few arrivals are added to the engine, better priorities first, so that
running requests are not held up. Callers in other threads touch only the inbox, and the streams and calls that wait for
a result. An output contains the whole text so far, so a slow caller misses nothing by getting only the latest one, and
the engine never waits for a caller. ``lock`` is held while one of them is registered, so that none is registered after
the thread has announced its end.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import heapq
import itertools
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from mini_vllm.backend import mx
from mini_vllm.engine import LLMEngine
from mini_vllm.models.prompts import PromptTokens
from mini_vllm.request import Priority, RequestOutput, SamplingParams
from mini_vllm.sequences import InputProcessor

Message = Callable[[LLMEngine], None]

#: The most requests that are added between two steps. Adding one takes up to a few milliseconds.
MAX_NEW_PER_STEP = 16


class EngineStoppedError(RuntimeError):
    """The engine was shut down, or could not start; in the second case ``__cause__`` says why."""


class EngineThread(threading.Thread):
    """The engine's thread. It ends when ``is_stopping`` is set, no stream is left, and the inbox is empty."""

    def __init__(self, make_engine: Callable[[], LLMEngine]) -> None:
        super().__init__(name="mini_vllm engine", daemon=True)
        self._make_engine = make_engine
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.lock = threading.Lock()
        #: Requests in the engine or in the inbox. Only this thread removes them.
        self.streams: dict[str, OutputStream] = {}
        #: Requests whose prompt has been tokenized, as a heap, next one first: priority, number, stream, function to
        #: add it.
        self.arrivals: list[tuple[Priority, int, OutputStream, Message]] = []
        self._numbers = itertools.count()
        #: Tokenizes texts in the callers' threads; set once the model is loaded.
        self.inputs: InputProcessor | None = None
        #: Answers that callers wait for: to their messages, and at the end of the thread.
        self.calls: set[Answer] = set()
        self.ends: list[Answer] = []
        self.is_stopping = self.is_aborting = self.has_ended = False
        #: While set, messages are taken, but a step is computed only on request. A thread that is stopping ignores it.
        self.is_paused = False
        self.error: BaseException | None = None
        atexit.register(self._stop_at_exit)

    def stopped_error(self) -> EngineStoppedError:
        """Return the error that says why the engine has stopped."""
        error = EngineStoppedError("the engine was shut down" if self.error is None else
                                   f"the engine has stopped: {self.error}")
        error.__cause__ = self.error
        return error

    # ---- the loop

    def run(self) -> None:
        try:
            self._serve(self._make_engine())
        except BaseException as error:
            self.error = error.with_traceback(None)  # the traceback would keep the engine alive
        finally:
            try:
                if hasattr(mx, "clear_streams"):
                    mx.clear_streams()  # MLX needs this when a thread ends; without it the program may crash
            finally:
                self._end()

    def _serve(self, engine: LLMEngine) -> None:
        self.inputs = engine.inputs
        while not (self.is_stopping and not self.streams and self.inbox.empty()):
            self._take_messages(engine)
            self._take_arrivals(engine)
            if self._has_work(engine):
                self._step(engine)

    def _has_work(self, engine: LLMEngine) -> bool:
        return engine.has_unfinished_requests() and (not self.is_paused or self.is_stopping)

    def _take_messages(self, engine: LLMEngine) -> None:
        """Handle all messages in the inbox. If there is nothing else to do, wait for one."""
        if not self.arrivals and not self._has_work(engine):
            self.inbox.get()(engine)
        while True:
            try:
                message = self.inbox.get_nowait()
            except queue.Empty:
                return
            message(engine)

    def _take_arrivals(self, engine: LLMEngine) -> None:
        """Add some of the new requests to the engine.

        A request whose caller has left does not count towards the limit.
        """
        num_new = 0
        while self.arrivals and num_new < MAX_NEW_PER_STEP:
            _, _, stream, add = heapq.heappop(self.arrivals)
            if self.streams.get(stream.request_id) is stream and not stream.is_abandoned:
                num_new += 1
                add(engine)

    def _step(self, engine: LLMEngine) -> None:
        """Compute one step.

        An error that the engine did not attribute to a request ends all its requests; the thread continues.
        """
        try:
            outputs = engine.step()
        except Exception as error:
            outputs = engine.fail_all(error)
        self.hand_out(outputs)

    def _end(self) -> None:
        """Tell every waiting caller that the thread ends."""
        atexit.unregister(self._stop_at_exit)
        with self.lock:
            self.is_stopping = self.has_ended = True
            error = self.stopped_error()
            for stream in self.streams.values():
                post(stream.loop, functools.partial(stream.deliver, error))
            for answer in self.calls:
                answer.set_exception(error)
            for end in self.ends:
                end.set_result(None)
            self.streams.clear()
            self.calls.clear()

    def _stop_at_exit(self) -> None:
        """Stop the thread when the program ends without ``shutdown``: MLX must not be cut off during a step."""
        self.is_stopping = True
        self.inbox.put(self.abort_all)
        self.join(timeout=10)

    # ---- messages, and the delivery of outputs

    def arrive(self, stream: OutputStream, prompt: PromptTokens, params: SamplingParams, priority: Priority,
               extra_keys: tuple[object, ...] | None) -> None:
        """Accept a request whose prompt has been tokenized: the engine adds it before one of its next steps."""
        def add(engine: LLMEngine) -> None:
            self._add(engine, stream, prompt, params, priority, extra_keys)

        heapq.heappush(self.arrivals, (priority, next(self._numbers), stream, add))

    def _add(self, engine: LLMEngine, stream: OutputStream, prompt: PromptTokens, params: SamplingParams,
             priority: Priority, extra_keys: tuple[object, ...] | None) -> None:
        """Add a request to the engine, or tell its caller why it is rejected."""
        try:
            engine.add_request(prompt, params, stream.request_id, priority, extra_keys)
        except Exception as error:
            del self.streams[stream.request_id]
            post(stream.loop, functools.partial(stream.deliver, error))
            return
        if self.is_aborting or stream.is_aborted:
            self.abort(engine, stream.request_id)

    def pause(self, engine: LLMEngine, is_paused: bool) -> None:
        self.is_paused = is_paused

    def step_once(self, engine: LLMEngine) -> bool:
        """Compute one step of a paused engine. Return whether there was anything to compute.

        Raise RuntimeError if the engine is not paused.
        """
        if not self.is_paused:
            raise RuntimeError("step_once: the engine is not paused; pause it first")
        has_work = engine.has_unfinished_requests()
        if has_work:
            self._step(engine)
        return has_work

    def abort(self, engine: LLMEngine, request_id: str) -> bool:
        """End a request; its stream gets the output so far. Return False if there is no such request."""
        output, stream = self._abort_in(engine, request_id), self.streams.get(request_id)
        if output is not None:
            self.hand_out([output])
        elif stream is not None:
            stream.is_aborted = True  # its prompt is still being tokenized; the engine ends the request when it arrives
        return output is not None or stream is not None

    def abort_all(self, engine: LLMEngine) -> None:
        """End all requests. Those whose prompt is still being tokenized end when they arrive."""
        self.is_aborting = True
        for request_id in list(self.streams):
            output = self._abort_in(engine, request_id)
            self.hand_out([] if output is None else [output])

    def abandon(self, engine: LLMEngine, stream: OutputStream) -> None:
        """Abort the request of a caller that has left.

        The request may have ended meanwhile, and its id may belong to another one.
        """
        if self.streams.get(stream.request_id) is stream:
            del self.streams[stream.request_id]
            self._abort_in(engine, stream.request_id)

    def _abort_in(self, engine: LLMEngine, request_id: str) -> RequestOutput | None:
        """Abort a request. If the engine cannot, end all requests with the error; the thread continues."""
        try:
            return engine.abort_request(request_id)
        except Exception as error:
            self.hand_out(engine.fail_all(error))
            return None

    def hand_out(self, outputs: Sequence[RequestOutput]) -> None:
        """Give every caller a copy of its output, with one call per event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[OutputStream, RequestOutput]]] = defaultdict(list)
        for output in outputs:
            stream = self.streams.get(output.request_id)
            if stream is None:
                continue  # it was added through ``call``
            if output.finished:
                del self.streams[output.request_id]
            if not stream.is_abandoned:
                by_loop[stream.loop].append((stream, snapshot(output)))
        for loop, deliveries in by_loop.items():
            post(loop, functools.partial(_deliver_all, deliveries))


def _deliver_all(deliveries: list[tuple[OutputStream, RequestOutput]]) -> None:
    for stream, output in deliveries:
        stream.deliver(output)


# ---- what callers in other threads wait for


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

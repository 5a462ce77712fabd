"""Many callers, one engine: a single thread owns MLX, and asyncio callers stream from it.

    caller ── generate() ──▶ ┌───────┐                        ┌──────────────────┐
    caller ── generate() ──▶ │ inbox │ ──▶ the engine thread: │ take all messages │──┐
    caller ── cancelled ───▶ └───────┘                        │ one engine step   │  │ as long as there is work
                                                              │ hand outputs out  │◀─┘
       ▲                                                      └──────────────────┘
       └───────── the latest output of each request, by its caller's own event loop ◀──┘

Nothing but the inbox is shared. The model is loaded, run and let go in that one thread, because MLX's arrays and
streams belong to the thread that made them. An output is the whole text so far, so a caller that reads slowly misses
nothing by getting only the latest one, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import queue
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

from mini_vllm.backend import mx
from mini_vllm.checks import an_instance, flag, refusal, whole_number
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineMetrics, EngineParts
from mini_vllm.models.prompts import Prompt, PromptReader, PromptTokens
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.request import Priority, RequestOutput, SamplingParams, checked_extra_keys, checked_priority

#: Requests that the engine holds at once, running and waiting.
MAX_NUM_REQUESTS = 1024
#: Reading a longer text takes longer than asking another thread to do it: this much takes about a millisecond.
MAX_CHARS_IN_LOOP = 2000


class EngineBusyError(RuntimeError):
    """Too many requests are in the engine already. Nothing was taken in; try again later."""


class EngineStoppedError(RuntimeError):
    """The engine was shut down, or could not start; in that case ``__cause__`` says why."""


class _Stream:
    """What goes from the engine to one caller. ``deliver`` and ``next`` run in the caller's loop, nowhere else."""

    def __init__(self, request_id: str, loop: asyncio.AbstractEventLoop) -> None:
        self.request_id = request_id
        self.loop = loop
        self.is_abandoned = self.is_aborted = False
        self._news = asyncio.Event()
        self._latest: RequestOutput | Exception | None = None

    def deliver(self, output: RequestOutput | Exception) -> None:
        self._latest = output
        self._news.set()

    async def next(self) -> RequestOutput:
        await self._news.wait()
        self._news.clear()
        if isinstance(self._latest, Exception):
            raise self._latest
        return self._latest


class AsyncLLMEngine:
    """``async for output in engine.generate(prompt, params)``. Use it with ``async with``, or call ``shutdown``.

    The thread starts at once and loads the model; requests may come before it is done.
    """

    def __init__(self, config: EngineConfig | None = None, parts: EngineParts | None = None, *,
                 max_num_requests: int = MAX_NUM_REQUESTS,
                 make_engine: Callable[[], LLMEngine] | None = None) -> None:
        """``make_engine`` is called in the engine's thread; by default it makes one of ``config`` and ``parts``."""
        self.max_num_requests = whole_number("max_num_requests", max_num_requests, 1)
        if config is not None:
            an_instance("config", config, EngineConfig)
        if parts is not None:
            an_instance("parts", parts, EngineParts)
        if make_engine is not None and not callable(make_engine):
            raise refusal("make_engine", make_engine, "None or a function that makes an LLMEngine")
        self._make_engine = make_engine or (lambda: LLMEngine(config, parts))
        self._inbox: queue.SimpleQueue[Callable[[LLMEngine], None]] = queue.SimpleQueue()
        #: Requests that the engine holds or will find in the inbox. The engine's thread takes them out.
        self._streams: dict[str, _Stream] = {}
        #: What texts are read with, in the callers' threads; the engine's thread makes it when the model is loaded.
        self._prompts: PromptReader | None = None
        self._lock = threading.Lock()
        self._num_submitted = 0
        self._is_stopping = self._is_aborting = self._has_ended = False
        self._error: BaseException | None = None
        #: Answers that somebody waits for: of ``call``, and of ``shutdown``.
        self._calls: set[tuple[asyncio.AbstractEventLoop, asyncio.Future]] = set()
        self._ends: list[tuple[asyncio.AbstractEventLoop, asyncio.Future]] = []
        self._thread = threading.Thread(target=self._run, name="mini_vllm engine", daemon=True)
        atexit.register(self._stop_at_exit)
        self._thread.start()

    # ---- the callers' side

    async def generate(self, prompt: Prompt, sampling_params: SamplingParams | None = None, *,
                       priority: Priority = Priority.NORMAL, request_id: str | None = None,
                       extra_keys: tuple | None = None, deltas: bool = False) -> AsyncIterator[RequestOutput]:
        """Stream the outputs of one request; the last one is ``finished``.

        Each output has all the text so far; one that nobody fetched in time is skipped. With ``deltas``, each has only
        what is new since the one before: nothing is skipped then, but may come together. Leaving the loop early, or
        being cancelled, aborts the request; its id is free again once the engine has seen that. Raises ValueError if it
        can never be served, EngineBusyError if there are too many, EngineStoppedError after ``shutdown``. A request
        that fails on its way ends with its ``error``.
        """
        params = SamplingParams() if sampling_params is None else an_instance("sampling_params", sampling_params,
                                                                               SamplingParams)
        priority, extra_keys = checked_priority(priority), checked_extra_keys(extra_keys)
        flag("deltas", deltas)
        if request_id is not None:
            an_instance("request_id", request_id, str)
        stream = self._open_stream(request_id)
        finished, before = False, None
        try:
            try:
                tokens = await self._read(prompt)
            except ValueError:
                self._close_stream(stream)
                raise
            self._inbox.put(lambda engine: self._add(engine, stream, tokens, params, priority, extra_keys))
            while not finished:
                output = await stream.next()
                finished = output.finished
                yield _since(before, output) if deltas else output
                before = output
        finally:
            if not finished:
                stream.is_abandoned = True
                self._inbox.put(lambda engine: self._abandon(engine, stream))

    async def _read(self, prompt: Prompt) -> PromptTokens:
        """Token ids of a prompt. A text of some length is read in a thread of its own: this loop serves others, too."""
        if self._prompts is None:
            await self.wait_until_ready()
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        if isinstance(text, str) and len(text) > MAX_CHARS_IN_LOOP:
            return await asyncio.to_thread(self._prompts.read, prompt)
        return self._prompts.read(prompt)

    def _open_stream(self, request_id: str | None) -> _Stream:
        """Take a place among the requests. The engine hears of it when the prompt has been read."""
        with self._lock:
            self._check_is_running()
            if len(self._streams) >= self.max_num_requests:
                raise EngineBusyError(f"busy: {len(self._streams)} requests are running or waiting, "
                                      f"the bound is {self.max_num_requests}")
            if request_id in self._streams:
                raise ValueError(f"request id {request_id!r} is in use")
            while request_id is None or request_id in self._streams:
                request_id = f"async-{self._num_submitted}"
                self._num_submitted += 1
            stream = self._streams[request_id] = _Stream(request_id, asyncio.get_running_loop())
        return stream

    def _close_stream(self, stream: _Stream) -> None:
        """The prompt is refused, and the engine has never heard of it: its place and its id are free at once."""
        with self._lock:
            if self._streams.get(stream.request_id) is stream:
                del self._streams[stream.request_id]
        self._inbox.put(lambda engine: None)  # a shutdown may wait for this one

    async def abort(self, request_id: str) -> bool:
        """End a request; its stream ends with the text so far and the finish reason "abort". Whether there was one."""
        an_instance("request_id", request_id, str)

        def abort(engine: LLMEngine) -> bool:
            output, stream = engine.abort_request(request_id), self._streams.get(request_id)
            self._hand_out([] if output is None else [output])
            if output is None and stream is not None:
                stream.is_aborted = True  # its prompt is being read; the engine ends it as soon as it comes
            return output is not None or stream is not None

        return await self.call(abort)

    async def get_tokenizer(self) -> Tokenizer:
        return await self.call(lambda engine: engine.tokenizer)

    async def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes. Raises RuntimeError, and forgets nothing, while a request holds blocks."""
        await self.call(lambda engine: engine.reset_prefix_cache())

    def _check_is_running(self) -> None:
        if self._error is not None:
            raise EngineStoppedError(f"the engine has stopped: {self._error}") from self._error
        if self._is_stopping:
            raise EngineStoppedError("the engine was shut down")

    async def metrics(self) -> EngineMetrics:
        """What sharing has saved so far."""
        return await self.call(lambda engine: engine.metrics())

    async def call(self, function: Callable[[LLMEngine], object]) -> object:
        """Run ``function`` with the engine, in its thread, between two steps; return what it returns."""
        loop = asyncio.get_running_loop()
        answer = loop.create_future()

        def run(engine: LLMEngine) -> None:
            try:
                reply = functools.partial(_set_result, answer, function(engine))
            except Exception as error:
                if isinstance(error, StopIteration):  # which a future cannot hold
                    error = RuntimeError(f"StopIteration: {error}")
                reply = functools.partial(_set_exception, answer, error)
            self._calls.discard((loop, answer))
            _post(loop, reply)

        with self._lock:
            self._check_is_running()
            self._calls.add((loop, answer))
            self._inbox.put(run)
        return await answer

    async def wait_until_ready(self) -> None:
        """The model is loaded. Raises EngineStoppedError, with the cause, if it cannot be."""
        await self.call(lambda engine: None)

    async def shutdown(self, drain: bool = True) -> None:
        """Refuse new requests, finish those that are there (or abort them, with ``drain`` off), and end the thread."""
        flag("drain", drain)
        with self._lock:
            self._is_stopping = True
            is_alive = not self._has_ended
            if is_alive:
                loop = asyncio.get_running_loop()
                end = loop.create_future()
                self._ends.append((loop, end))
                self._inbox.put((lambda engine: None) if drain else self._abort_all)
        if is_alive:
            await end
        self._thread.join()

    async def __aenter__(self) -> AsyncLLMEngine:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.shutdown(drain=error[0] is None)

    # ---- the engine's thread

    def _run(self) -> None:
        try:
            self._serve(self._make_engine())
        except BaseException as error:
            self._error = error.with_traceback(None)  # which would keep the engine alive
        finally:
            try:
                if hasattr(mx, "clear_streams"):
                    mx.clear_streams()  # MLX wants it at the end of a thread; the program may crash at its end without
            finally:
                self._end()

    def _serve(self, engine: LLMEngine) -> None:
        self._prompts = engine.prompts
        while not (self._is_stopping and not self._streams and self._inbox.empty()):
            self._take_messages(engine)
            if engine.has_unfinished_requests():
                self._step(engine)

    def _take_messages(self, engine: LLMEngine) -> None:
        """All that are there. With nothing to compute, wait for one."""
        if not engine.has_unfinished_requests():
            self._inbox.get()(engine)
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            message(engine)

    def _add(self, engine: LLMEngine, stream: _Stream, prompt: PromptTokens, params: SamplingParams,
             priority: Priority, extra_keys: tuple | None) -> None:
        try:
            engine.add_request(prompt, params, stream.request_id, priority, extra_keys)
        except Exception as error:
            del self._streams[stream.request_id]
            _post(stream.loop, functools.partial(stream.deliver, error))
            return
        if self._is_aborting or stream.is_aborted:
            output = engine.abort_request(stream.request_id)
            self._hand_out([] if output is None else [output])

    def _abandon(self, engine: LLMEngine, stream: _Stream) -> None:
        """Its caller has left. The request may have ended meanwhile, and its id may be another's."""
        if self._streams.get(stream.request_id) is stream:
            engine.abort_request(stream.request_id)
            del self._streams[stream.request_id]

    def _abort_all(self, engine: LLMEngine) -> None:
        """End all requests, and those whose prompt is still being read as soon as it has been."""
        self._is_aborting = True
        outputs = [engine.abort_request(request_id) for request_id in list(self._streams)]
        self._hand_out([output for output in outputs if output is not None])

    def _step(self, engine: LLMEngine) -> None:
        """One step. An error that the engine did not blame on a request ends all that it holds; then it goes on."""
        try:
            outputs = engine.step()
        except Exception as error:
            outputs = engine.fail_all(error)
        self._hand_out(outputs)

    def _hand_out(self, outputs: list[RequestOutput]) -> None:
        """Give every caller a copy of its output, one call a loop; the engine goes on writing into its own."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, RequestOutput]]] = defaultdict(list)
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue  # somebody put it in by ``call``
            if output.finished:
                del self._streams[output.request_id]
            if not stream.is_abandoned:
                by_loop[stream.loop].append((stream, _snapshot(output)))
        for loop, deliveries in by_loop.items():
            _post(loop, functools.partial(_deliver_all, deliveries))

    def _end(self) -> None:
        """The thread is about to end. Whoever still waits hears of it."""
        atexit.unregister(self._stop_at_exit)
        with self._lock:
            self._is_stopping = self._has_ended = True
            error = EngineStoppedError(f"the engine has stopped: {self._error}" if self._error else
                                       "the engine was shut down")
            error.__cause__ = self._error
            for stream in self._streams.values():
                _post(stream.loop, functools.partial(stream.deliver, error))
            for loop, answer in self._calls:
                _post(loop, functools.partial(_set_exception, answer, error))
            for loop, end in self._ends:
                _post(loop, functools.partial(_set_result, end, None))
            self._streams.clear()
            self._calls.clear()

    def _stop_at_exit(self) -> None:
        """The program ends and nobody called ``shutdown``. MLX must not be cut off in the middle of a step."""
        self._is_stopping = True
        self._inbox.put(self._abort_all)
        self._thread.join(timeout=10)


def _deliver_all(deliveries: list[tuple[_Stream, RequestOutput]]) -> None:
    for stream, output in deliveries:
        stream.deliver(output)


def _set_result(future: asyncio.Future, result: object) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future, error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _post(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Run ``callback`` in a caller's loop; if that is closed, nobody is there to hear it."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        pass


def _snapshot(output: RequestOutput) -> RequestOutput:
    copies = [replace(each, token_ids=list(each.token_ids), logprobs=each.logprobs and list(each.logprobs))
              for each in output.outputs]
    return replace(output, outputs=copies)


def _since(before: RequestOutput | None, output: RequestOutput) -> RequestOutput:
    """Only what ``output`` has and ``before``, an earlier one of the same request, had not: text, tokens, logprobs."""
    if before is None:
        return output
    new = [replace(now, text=now.text[len(then.text):], token_ids=now.token_ids[len(then.token_ids):],
                   logprobs=now.logprobs and now.logprobs[len(then.logprobs):])
           for then, now in zip(before.outputs, output.outputs)]
    return replace(output, outputs=new)

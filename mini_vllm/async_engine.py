"""Many callers, one engine: a single thread owns MLX, and asyncio callers stream from it.

    caller ── generate() ──▶ ┌───────┐     ┌───────────────────┐
    caller ── generate() ──▶ │ inbox │ ──▶ │ the engine thread │
    caller ── cancelled ───▶ └───────┘     └───────────────────┘
       ▲                                             │
       └── the latest output of each request ◀───────┘    by its caller's own event loop

This module is the callers' side: everything a caller can ask for. ``engine_thread.py`` is the engine's side. The model
is loaded, run and released in that one thread, because MLX's arrays and streams belong to the thread that created them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar, cast

from mini_vllm.checks import an_instance, flag, refusal, whole_number
from mini_vllm.engine import LLMEngine, engine_of
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.engine_thread import Answer, EngineStoppedError, EngineThread, OutputStream, since
from mini_vllm.logit_rules import BadWords
from mini_vllm.metrics import EngineMetrics
from mini_vllm.models.prompts import Prompt, PromptTokens
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.request import Priority, RequestOutput, SamplingParams, checked_extra_keys, checked_priority
from mini_vllm.sequences import InputProcessor
from mini_vllm.structured.compiler import CompiledGrammar

#: Limit on the requests in the engine, running and waiting together.
MAX_NUM_REQUESTS = 1024
#: Tokenizing this many characters takes about a millisecond. A longer text is read in another thread.
MAX_CHARS_IN_LOOP = 2000

Result = TypeVar("Result")


class EngineBusyError(RuntimeError):
    """Too many requests are in the engine. This one was not accepted; try again later."""


class AsyncLLMEngine:
    """``async for output in engine.generate(prompt, params)``. Use it with ``async with``, or call ``shutdown``.

    The engine thread starts at once and loads the model. Requests may be added before the model is loaded.
    """

    def __init__(self, config: EngineConfig | None = None, parts: EngineParts | None = None, *,
                 max_num_requests: int = MAX_NUM_REQUESTS,
                 make_engine: Callable[[], LLMEngine] | None = None) -> None:
        """Start the engine thread.

        It calls ``make_engine``; the default builds an engine from ``config`` and ``parts``.
        """
        whole_number("max_num_requests", max_num_requests, 1)
        self.max_num_requests = max_num_requests
        if config is not None:
            an_instance("config", config, EngineConfig)
        if parts is not None:
            an_instance("parts", parts, EngineParts)
        if make_engine is not None and not callable(make_engine):
            raise refusal("make_engine", make_engine, "None or a function that makes an LLMEngine")
        self._num_submitted = 0
        #: Tokenizes long lists of bad words and compiles grammars: requests without them do not wait for it.
        self._preparer = ThreadPoolExecutor(2, "mini_vllm prepares requests")
        #: What it prepares now: nothing is prepared twice.
        self._preparing: dict[object, Future[tuple[BadWords, CompiledGrammar | None]]] = {}
        self._thread = EngineThread(make_engine or functools.partial(engine_of, config, parts))
        self._thread.start()

    # ---- one request

    async def generate(self, prompt: Prompt | PromptTokens, sampling_params: SamplingParams | None = None, *,
                       priority: Priority = Priority.NORMAL, request_id: str | None = None,
                       extra_keys: tuple[object, ...] | None = None, deltas: bool = False
                       ) -> AsyncGenerator[RequestOutput, None]:
        """Stream the outputs of one request; the last output is ``finished``.

        Each output contains the whole text so far, and the caller may miss intermediate outputs. With ``deltas``, each
        output contains only what is new since the previous one; none is lost, but several may be merged. Leaving the
        loop early, or cancelling the task, aborts the request and waits until the engine has released it, so its id is
        free again. Raise ValueError if the request can never be served, EngineBusyError if there are too many requests,
        and EngineStoppedError after ``shutdown``. A request that fails while it runs ends with an output that has its
        ``error``.
        """
        params = SamplingParams() if sampling_params is None else sampling_params
        an_instance("sampling_params", params, SamplingParams)
        priority, extra_keys = checked_priority(priority), checked_extra_keys(extra_keys)
        flag("deltas", deltas)
        if request_id is not None:
            an_instance("request_id", request_id, str)
        stream, thread = self._open_stream(request_id), self._thread
        finished, before = False, None
        try:
            # The engine finds bad words and a grammar that were prepared here as long as these references keep them
            # alive.
            tokens, *_held = await self._read(prompt, params, stream)
            thread.inbox.put(lambda engine: thread.arrive(stream, tokens, params, priority, extra_keys))
            while not finished:
                output = await stream.next()
                finished = output.finished
                yield since(before, output) if deltas else output
                before = output
        finally:
            if not finished:
                await self._abandon(stream)

    def _open_stream(self, request_id: str | None) -> OutputStream:
        """Reserve a place for a request. The engine learns of the request once its prompt has been tokenized."""
        with self._thread.lock:
            streams = self._thread.streams
            self._check_is_running()
            if len(streams) >= self.max_num_requests:
                raise EngineBusyError(f"busy: {len(streams)} requests are running or waiting, "
                                      f"the limit is {self.max_num_requests}")
            if request_id in streams:
                raise ValueError(f"request id {request_id!r} is in use")
            while request_id is None or request_id in streams:
                request_id = f"async-{self._num_submitted}"
                self._num_submitted += 1
            stream = streams[request_id] = OutputStream(request_id, asyncio.get_running_loop())
        return stream

    async def prepare(self, params: SamplingParams) -> tuple[BadWords, CompiledGrammar | None]:
        """Tokenize the bad words of requests with these parameters, and compile the grammar of their output.

        While the result is held, ``generate`` has nothing to prepare. Raise ValueError for wrong words or grammars.
        """
        inputs = await self._inputs()
        takes_long = params.structured_outputs is not None or sum(map(len, params.bad_words or ())) > MAX_CHARS_IN_LOOP
        if not takes_long or inputs.is_prepared(params):
            return inputs.prepare(params)
        key = params.structured_outputs, tuple(params.bad_words or ())
        future = self._preparing.get(key)
        if future is None:
            future = self._preparing[key] = self._preparer.submit(inputs.prepare, params)
            future.add_done_callback(lambda _: self._preparing.pop(key))
        return await asyncio.shield(asyncio.wrap_future(future))  # others may wait for it

    async def _inputs(self) -> InputProcessor:
        while (inputs := self._thread.inputs) is None:
            await self.wait_until_ready()
        return inputs

    async def _read(self, prompt: Prompt | PromptTokens, params: SamplingParams, stream: OutputStream
                    ) -> tuple[PromptTokens, BadWords, CompiledGrammar | None]:
        """Return the token ids of a prompt and of its bad words, and the grammar of its output.

        Longer texts are tokenized in other threads, so that this event loop can serve other callers. Raise ValueError
        if the prompt, a bad word or the grammar is invalid. In that case, or if the caller leaves, the place of
        ``stream`` is freed at once.
        """
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        is_long = isinstance(text, str) and len(text) > MAX_CHARS_IN_LOOP
        try:
            inputs = await self._inputs()
            tokens = await asyncio.to_thread(inputs.prompts.read, prompt) if is_long else inputs.prompts.read(prompt)
            return (tokens, *await self.prepare(params))
        except BaseException:
            self._close_stream(stream)
            raise

    async def _abandon(self, stream: OutputStream) -> None:
        """Abort the request of a caller that leaves, and wait until the engine has released it.

        Until then it counts towards the limit on requests.
        """
        stream.is_abandoned = True
        thread, gone = self._thread, Answer()

        def abandon(engine: LLMEngine) -> None:
            thread.abandon(engine, stream)
            thread.calls.discard(gone)
            gone.set_result(None)

        with thread.lock:
            if thread.streams.get(stream.request_id) is not stream:
                return
            thread.calls.add(gone)
            thread.inbox.put(abandon)
        with contextlib.suppress(EngineStoppedError):
            await gone.future

    def _close_stream(self, stream: OutputStream) -> None:
        """Free the place and the id of a request that the engine never received and never will."""
        thread = self._thread
        with thread.lock:
            if thread.streams.get(stream.request_id) is stream:
                del thread.streams[stream.request_id]
        thread.inbox.put(lambda engine: None)  # wakes a shutdown that may wait for this request

    async def abort(self, request_id: str) -> bool:
        """End a request; its stream ends with the text so far and the finish reason "abort".

        Return False if there is no such request.
        """
        an_instance("request_id", request_id, str)
        return await self.call(lambda engine: self._thread.abort(engine, request_id))

    # ---- the engine

    async def get_tokenizer(self) -> Tokenizer:
        return await self.call(lambda engine: engine.tokenizer)

    async def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes. Raise RuntimeError, and forget nothing, while a request holds blocks."""
        await self.call(lambda engine: engine.reset_prefix_cache())

    async def evict_unused(self) -> int:
        """Forget all cached blocks that no request holds, and return their number. Requests may be running."""
        return await self.call(lambda engine: engine.evict_unused())

    async def metrics(self) -> EngineMetrics:
        """Return the engine's counters: what happened so far, and what sharing has saved."""
        return await self.call(lambda engine: engine.metrics())

    # ---- one step at a time

    @property
    def is_paused(self) -> bool:
        return self._thread.is_paused

    async def pause(self) -> None:
        """Finish the current step and compute no further one. Requests can still be added and aborted."""
        await self.call(lambda engine: self._thread.pause(engine, True))

    def resume(self) -> None:
        """Let a paused engine continue. This is not a coroutine, so cleanup code can call it."""
        self._thread.inbox.put(lambda engine: self._thread.pause(engine, False))

    async def step_once(self) -> bool:
        """Compute one step of a paused engine. Return whether there was anything to compute.

        Raise RuntimeError, and compute nothing, if the engine is not paused.
        """
        return await self.call(self._thread.step_once)

    async def call(self, function: Callable[[LLMEngine], Result]) -> Result:
        """Run ``function`` with the engine, in the engine's thread and between two steps. Return its result."""
        thread, answer = self._thread, Answer()

        def run(engine: LLMEngine) -> None:
            try:
                reply = functools.partial(answer.set_result, function(engine))
            except Exception as error:
                reply = functools.partial(answer.set_exception, error)
            thread.calls.discard(answer)
            reply()

        with thread.lock:
            self._check_is_running()
            thread.calls.add(answer)
            thread.inbox.put(run)
        return cast(Result, await answer.future)

    async def wait_until_ready(self) -> None:
        """Wait until the model is loaded. Raise EngineStoppedError, with the cause, if it cannot be loaded."""
        await self.call(lambda engine: None)

    @property
    def ended_by(self) -> EngineStoppedError | None:
        """Why the engine has stopped: it was shut down, or its thread died. None while it runs."""
        return self._thread.stopped_error() if self._thread.has_ended else None

    def _check_is_running(self) -> None:
        if self._thread.error is not None or self._thread.is_stopping:
            raise self._thread.stopped_error()

    async def shutdown(self, drain: bool = True) -> None:
        """Reject new requests, finish the current ones (with ``drain`` off, abort them), and end the thread."""
        flag("drain", drain)
        thread, end = self._thread, Answer()
        with thread.lock:
            thread.is_stopping = True
            is_alive = not thread.has_ended
            if is_alive:
                thread.ends.append(end)
                thread.inbox.put((lambda engine: None) if drain else thread.abort_all)
        if is_alive:
            await end.future
        thread.join()
        self._preparer.shutdown(wait=False)

    async def __aenter__(self) -> AsyncLLMEngine:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.shutdown(drain=error[0] is None)

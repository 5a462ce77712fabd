"""Random streams on one AsyncLLMEngine, a third of them cancelled.

A case is an engine and up to 60 callers, in one event loop or in several threads. Callers read fast or slowly, leave
early in every possible way, use an id that is taken, and send invalid requests. Meanwhile other tasks read metrics, a
step breaks, and the engine is shut down. Each caller must get its own tokens, or the first of them if its stream was
cut off. Afterwards the engine is empty, no stream and no thread is left, and nothing hangs.

What is drawn depends only on the seed and the number of the case. The interleaving of the threads does not, so a
failure may need several tries to reproduce.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from fuzz.caller_checks import CallerChecks
from fuzz.callers import NETWORK, REFUSED, Caller, draw_caller, expected_outputs, prompts
from fuzz.expect import expect
from fuzz.faults import lose_plan_once
from fuzz.networks import network_folder
from mini_vllm.async_engine import AsyncLLMEngine
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.engine_thread import EngineStoppedError
from mini_vllm.parts import KVCacheManagerPart, SchedulerPart

#: A case takes about a second. A case that has not ended after this time hangs.
TIMEOUT_S = 120.0
#: What a caller leaves behind must be gone after this time.
PATIENCE_S = 20.0
#: The number of steps within which the engine must notice that a stream is no longer read.
MAX_STEPS_FOR_NOBODY = 20


def run_case(seed: int, case: int) -> dict[str, int]:
    scenario = Scenario(random.Random(f"async {seed} {case}"))
    failures: list[BaseException] = []

    def run() -> None:
        try:
            scenario.run()
            scenario.check()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="async case", daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    if thread.is_alive():
        raise AssertionError(f"the case hangs: no end after {TIMEOUT_S:g} s\n{_dump_threads()}\n{scenario}")
    for error in failures:
        if isinstance(error, AssertionError):
            raise AssertionError(f"{error}\n{scenario}") from None
        raise AssertionError(f"{type(error).__name__}: {error}\n{scenario}") from error
    return dict(scenario.tried)


class Shutdown(NamedTuple):
    """A shutdown before all callers have ended."""

    after_s: float
    #: Whether running requests may finish.
    drain: bool
    #: "once", "twice" at the same time, or "given up first": a first call stops waiting before the shutdown is
    #: complete.
    way: str


class LostPlan(NamedTuple):
    """A step that breaks, at the start or when it has been planned."""

    after_s: float
    is_planned: bool


class Remains(NamedTuple):
    """The parts of an engine that outlive it, without the arrays, which belong to its thread."""

    kv_cache: KVCacheManagerPart
    scheduler: SchedulerPart
    groups: Mapping[str, object]


class Scenario:
    """A drawn engine, its callers, and the events. All of them happen at the same time, hence one long class."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.tried: Counter[str] = Counter(engines=1)
        max_num_seqs, block_size = rng.choice((1, 3, 8, 16)), rng.choice((4, 8, 16))
        self.config = EngineConfig(
            model=network_folder(NETWORK), block_size=block_size, num_blocks=rng.choice((96, 160, 1600)) // block_size,
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_seqs + rng.choice((8, 64)),
            enable_lookahead=rng.choice((True, False, None)), enable_prefix_caching=rng.random() < 0.8)
        num_callers = rng.randint(5, 60) if rng.random() < 0.3 else rng.randint(5, 15)
        self.max_num_requests = rng.randint(1, num_callers) if rng.random() < 0.15 else 1024
        self.callers = [draw_caller(rng, index, max_num_seqs) for index in range(num_callers)]
        self.num_loops = rng.choice((1, 1, 1, 2, 3))
        self.look_on_seeds = [rng.random() for _ in range(self.num_loops)]
        self.shutdown: Shutdown | None = None
        if rng.random() < 0.25:
            self.shutdown = Shutdown(rng.uniform(0, 0.5), rng.random() < 0.5,
                                     rng.choice(("once", "twice", "given up first")))
        self.lost_plan = LostPlan(rng.uniform(0, 0.3), rng.random() < 0.5) if rng.random() < 0.15 else None
        self.errors: list[BaseException] = []
        self._remains: list[Remains] = []
        expected_outputs()  # computed in this thread

    def __str__(self) -> str:
        return (f"drawn: {self.config}, max_num_requests={self.max_num_requests}, {self.num_loops} loops, shutdown "
                f"{self.shutdown}, lost plan {self.lost_plan}\n  "
                + "\n  ".join(map(str, self.callers)))

    # ---- events

    def run(self) -> None:
        engine = AsyncLLMEngine(max_num_requests=self.max_num_requests, make_engine=self._make_engine)
        groups = [self.callers[start::self.num_loops] for start in range(self.num_loops)]
        threads = [threading.Thread(target=self._run_guests, args=(engine, group, seed), name="async guests",
                                    daemon=True) for group, seed in zip(groups[1:], self.look_on_seeds[1:])]
        for thread in threads:
            thread.start()
        asyncio.run(self._run_host(engine, groups[0], threads))
        self.engine = engine

    def _make_engine(self) -> LLMEngine:
        engine = LLMEngine(self.config)
        self._remains.append(Remains(engine.kv_cache, engine.scheduler, engine.live.groups))
        return engine

    def _run_guests(self, engine: AsyncLLMEngine, callers: list[Caller], seed: float) -> None:
        async def main() -> None:
            await asyncio.gather(*(self._call(engine, caller) for caller in callers), self._look_on(engine, seed))

        try:
            asyncio.run(main())
        except BaseException as error:
            self.errors.append(error)

    async def _run_host(self, engine: AsyncLLMEngine, callers: list[Caller], threads: list[threading.Thread]) -> None:
        """Run the loop that created the engine and shuts it down."""
        others = [self._look_on(engine, self.look_on_seeds[0]), self._lose_plan(engine), self._shut_down_early(engine)]
        try:
            await asyncio.gather(*(self._call(engine, caller) for caller in callers), *others)
            for thread in threads:
                await asyncio.to_thread(thread.join)
            if self.shutdown is None:
                await self._check_is_empty(engine)
        finally:
            await engine.shutdown(drain=False)

    async def _call(self, engine: AsyncLLMEngine, caller: Caller) -> None:
        """Run one caller from start to end. Its outputs are recorded and checked later."""
        await asyncio.sleep(caller.starts_after_s)
        self.tried["streams"] += 1
        task = asyncio.create_task(self._read(engine, caller))
        try:
            if caller.leaves == "timeout":
                await asyncio.wait_for(task, caller.leaves_after_s)
            elif caller.leaves == "cancel":
                await asyncio.wait([task], timeout=caller.leaves_after_s)
                task.cancel()
            await task
        except (asyncio.CancelledError, asyncio.TimeoutError):
            caller.has_left = True
        except Exception as error:
            caller.error = error
        self.tried["left early"] += caller.has_left

    async def _read(self, engine: AsyncLLMEngine, caller: Caller) -> None:
        prompt = REFUSED[caller.prompt] if isinstance(caller.prompt, str) else prompts()[caller.prompt]
        stream = engine.generate(prompt, caller.params, priority=caller.priority, request_id=caller.request_id)
        leaves = caller.leaves in ("break", "aclose")
        if leaves and caller.num_outputs == 0:
            caller.has_left = True
            await stream.aclose()
            return
        async for output in stream:
            caller.outputs.append(output)
            if leaves and len(caller.outputs) >= caller.num_outputs:
                caller.has_left = not output.finished
                if caller.leaves == "aclose":
                    await stream.aclose()
                break
            await asyncio.sleep(caller.reads_for_s)

    async def _look_on(self, engine: AsyncLLMEngine, seed: float) -> None:
        """Call the engine in various ways while the streams run."""
        rng = random.Random(seed)

        async def fail() -> None:
            try:
                await engine.call(lambda engine: 1 / 0)
            except ZeroDivisionError:
                return
            raise AssertionError("a call that divides by zero returned")

        async def give_up() -> None:
            with_little_time = asyncio.wait_for(engine.call(lambda engine: None), rng.choice((0, 0.001)))
            try:
                await with_little_time
            except asyncio.TimeoutError:
                pass

        questions: list[Callable[[], Awaitable[object]]] = [
            engine.metrics, fail, give_up, engine.wait_until_ready,
            lambda: engine.call(lambda engine: engine.kv_cache.check_integrity())]
        for _ in range(rng.randint(0, 6)):
            await asyncio.sleep(rng.uniform(0, 0.1))
            try:
                await rng.choice(questions)()
            except EngineStoppedError:
                if self.shutdown is None:
                    raise
            self.tried["calls"] += 1

    async def _lose_plan(self, engine: AsyncLLMEngine) -> None:
        if self.lost_plan is not None:
            after_s, is_planned = self.lost_plan
            await asyncio.sleep(after_s)
            try:
                await engine.call(lambda engine: lose_plan_once(engine, is_planned))
                self.tried["lost plans"] += 1
            except EngineStoppedError:
                if self.shutdown is None:
                    raise

    async def _shut_down_early(self, engine: AsyncLLMEngine) -> None:
        if self.shutdown is None:
            return
        after_s, drain, way = self.shutdown
        await asyncio.sleep(after_s)
        self.tried["early shutdowns"] += 1
        if way == "given up first":
            try:
                await asyncio.wait_for(engine.shutdown(drain), 0.01)
            except asyncio.TimeoutError:
                pass
        await asyncio.gather(*(engine.shutdown(drain) for _ in range(2 if way == "twice" else 1)))

    async def _check_is_empty(self, engine: AsyncLLMEngine) -> None:
        """Check that the engine is soon empty after all callers have ended or left."""
        num_steps = (await engine.metrics()).num_steps
        deadline = time.monotonic() + PATIENCE_S
        streams = engine._thread.streams
        while streams and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        expect(not streams, f"the streams {list(streams)} are left, but have no reader")
        num_steps = (await engine.metrics()).num_steps - num_steps
        expect(num_steps <= MAX_STEPS_FOR_NOBODY, f"{num_steps} steps were computed without a request")
        state = await engine.call(lambda engine: (engine.has_unfinished_requests(),
                                                  engine.kv_cache.block_pool.get_usage()))
        expect(state == (False, 0.0), f"there are no readers, but (has requests, usage) is {state}")

    # ---- checks

    def check(self) -> None:
        for error in self.errors:
            raise error
        expect(not self.engine._thread.is_alive(), "the engine's thread is left")
        expect(not self.engine._thread.streams and not self.engine._thread.calls, "streams or calls are left")
        for kv_cache, scheduler, groups in self._remains:
            kv_cache.check_integrity()
            usage = kv_cache.block_pool.get_usage()
            expect(usage == 0.0 and not groups and not scheduler.has_unfinished_requests(),
                    f"after the shutdown {usage:.0%} of the blocks are in use by {list(groups)}")
            self.tried["preemptions"] += scheduler.num_preemptions
        checks = CallerChecks(has_stopped=self.shutdown is not None,
                              has_aborted=self.shutdown is not None and not self.shutdown.drain,
                              has_lost_plan=self.lost_plan is not None,
                              may_be_busy=self.max_num_requests < len(self.callers), tried=self.tried)
        for caller in self.callers:
            checks.check(caller)


def _dump_threads() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
                     for ident, frame in sys._current_frames().items())

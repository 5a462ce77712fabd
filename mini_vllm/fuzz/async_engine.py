"""Random streams on one AsyncLLMEngine, a third of them cancelled.

A case is an engine and up to 60 callers, in one event loop or in several threads. They read fast or slowly, leave
early in every way there is, use an id that is taken, ask for what is refused; meanwhile others look at metrics, a step
breaks, and somebody shuts down. Each caller gets its own tokens, or the beginning of them if its stream was cut off.
Afterwards the engine is empty, no stream and no thread is left, and nothing hangs.

What is drawn depends on the seed and the number of the case alone; how the threads take turns does not, so a failure
may need several tries to show again.
"""

from __future__ import annotations

import asyncio
import functools
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from mini_vllm.async_engine import AsyncLLMEngine, EngineBusyError
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.engine_thread import EngineStoppedError
from mini_vllm.fuzz.faults import lose_plan_once
from mini_vllm.fuzz.networks import SHAPE, network, network_folder
from mini_vllm.request import Priority, RequestOutput, SamplingParams

NETWORK = "llama"
#: A case takes about a second. One that has not ended after this time hangs.
TIMEOUT_S = 120.0
#: What a caller leaves behind is gone after this time, or never will be.
PATIENCE_S = 20.0
MAX_TOKENS = 24
#: What some ask for who leave early: more than they would get in the time.
MANY_TOKENS = 400
#: Steps until the engine has seen that nobody reads any more.
MAX_STEPS_FOR_NOBODY = 20
NUM_PROMPTS = 40
#: Ways to leave a stream early.
LEAVING = ("break", "aclose", "cancel", "timeout")
#: Prompts that are refused, and a word of the reason.
REFUSED = {"empty": [], "token id": [1, 10**6], "context": [1] * SHAPE["max_position_embeddings"]}


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


@dataclass
class Caller:
    """One that streams, and what came of it."""

    index: int
    #: Which of the prompts, or which of REFUSED.
    prompt: int | str
    params: SamplingParams
    priority: Priority
    request_id: str | None
    starts_after_s: float
    #: How long it thinks about every output.
    reads_for_s: float
    #: One of LEAVING, or None, which reads to the end: "break" and "aclose" after this many outputs, the others after
    #: this time.
    leaves: str | None
    num_outputs: int
    leaves_after_s: float
    outputs: list[RequestOutput] = field(default_factory=list)
    error: BaseException | None = None
    has_left: bool = False

    def __str__(self) -> str:
        last = self.outputs[-1] if self.outputs else None
        came = f"{[each.token_ids for each in last.outputs]}, {last.finish_reason}, {last.error}" if last else "nothing"
        way = {None: "", "break": f"break after {self.num_outputs}, ", "aclose": f"aclose after {self.num_outputs}, "}
        return (f"caller {self.index}: prompt {self.prompt}, max_tokens={self.params.max_tokens}, n={self.params.n}, "
                f"id {self.request_id}, starts after {self.starts_after_s:.3f} s, reads for {self.reads_for_s:.3f} s, "
                f"{way.get(self.leaves, f'{self.leaves} after {self.leaves_after_s:.3f} s, ')}→ {came}, {self.error!r}")


class Scenario:
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
        self.callers = [self._draw_caller(index) for index in range(num_callers)]
        self.num_loops = rng.choice((1, 1, 1, 2, 3))
        self.look_on_seeds = [rng.random() for _ in range(self.num_loops)]
        #: None, or after how long, whether what is there may finish, and how: see ``_shut_down_early``.
        self.shutdown: tuple[float, bool, str] | None = None
        if rng.random() < 0.25:
            self.shutdown = rng.uniform(0, 0.5), rng.random() < 0.5, rng.choice(("once", "twice", "given up first"))
        #: None, or after how long a step breaks, and whether it is planned by then.
        self.lost_plan = (rng.uniform(0, 0.3), rng.random() < 0.5) if rng.random() < 0.15 else None
        self.errors: list[BaseException] = []
        #: What is left of the engine, without the arrays: those belong to its thread.
        self._remains: list[tuple] = []
        expected_outputs()  # in this thread

    def _draw_caller(self, index: int) -> Caller:
        rng = self.rng
        leaves = rng.choice(LEAVING) if rng.random() < 1 / 3 else None
        max_tokens = MANY_TOKENS if leaves and rng.random() < 0.5 else rng.randint(1, MAX_TOKENS)
        params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True,
                                n=rng.choice((1, 1, 1, 2)) if self.config.max_num_seqs > 1 else 1)
        return Caller(index, rng.choice(list(REFUSED)) if rng.random() < 0.06 else rng.randrange(NUM_PROMPTS), params,
                      rng.choice(list(Priority)), rng.choice("vwxyz") if rng.random() < 0.2 else None,
                      rng.choice((0.0, rng.uniform(0, 0.05), rng.uniform(0, 0.3))),
                      rng.choice((0.0, 0.0, 0.0, rng.uniform(0, 0.02))),
                      leaves, rng.randint(0, 6),
                      rng.choice((0.0, rng.uniform(0, 0.02), rng.uniform(0, 0.3))))

    def __str__(self) -> str:
        return (f"drawn: {self.config}, max_num_requests={self.max_num_requests}, {self.num_loops} loops, shutdown "
                f"{self.shutdown}, lost plan {self.lost_plan}\n  "
                + "\n  ".join(map(str, self.callers)))

    # ---- what happens

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
        self._remains.append((engine.kv_cache, engine.scheduler, engine.live.groups))
        return engine

    def _run_guests(self, engine: AsyncLLMEngine, callers: list[Caller], seed: float) -> None:
        async def main() -> None:
            await asyncio.gather(*(self._call(engine, caller) for caller in callers), self._look_on(engine, seed))

        try:
            asyncio.run(main())
        except BaseException as error:
            self.errors.append(error)

    async def _run_host(self, engine: AsyncLLMEngine, callers: list[Caller], threads: list[threading.Thread]) -> None:
        """The loop that made the engine, and shuts it down."""
        others = [self._look_on(engine, self.look_on_seeds[0]), self._lose_plan(engine), self._shut_down_early(engine)]
        try:
            await asyncio.gather(*(self._call(engine, caller) for caller in callers), *others)
            await asyncio.to_thread(lambda: [thread.join() for thread in threads])
            if self.shutdown is None:
                await self._check_is_empty(engine)
        finally:
            await engine.shutdown(drain=False)

    async def _call(self, engine: AsyncLLMEngine, caller: Caller) -> None:
        """One caller from its start to its end; what it got is kept, the rest is checked later."""
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
        """Somebody who asks the engine this and that."""
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

        questions: list[Callable[[], Awaitable]] = [
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
        """All callers have ended or left. What they leave behind goes soon, and with it all that they held."""
        num_steps = (await engine.metrics()).num_steps
        deadline = time.monotonic() + PATIENCE_S
        streams = engine._thread.streams
        while streams and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        _expect(not streams, f"the streams {list(streams)} are left, but nobody reads them")
        num_steps = (await engine.metrics()).num_steps - num_steps
        _expect(num_steps <= MAX_STEPS_FOR_NOBODY, f"{num_steps} steps were computed for nobody")
        state = await engine.call(lambda engine: (engine.has_unfinished_requests(),
                                                  engine.kv_cache.block_pool.get_usage()))
        _expect(state == (False, 0.0), f"nobody reads, but (has requests, usage) is {state}")

    # ---- what it must come to

    def check(self) -> None:
        for error in self.errors:
            raise error
        _expect(not self.engine._thread.is_alive(), "the engine's thread is left")
        _expect(not self.engine._thread.streams and not self.engine._thread.calls, "streams or calls are left")
        for kv_cache, scheduler, groups in self._remains:
            kv_cache.check_integrity()
            usage = kv_cache.block_pool.get_usage()
            _expect(usage == 0.0 and not groups and not scheduler.has_unfinished_requests(),
                    f"after the shutdown {usage:.0%} of the blocks are in use by {list(groups)}")
            self.tried["preemptions"] += scheduler.num_preemptions
        for caller in self.callers:
            self._check_caller(caller)

    def _check_caller(self, caller: Caller) -> None:
        if caller.error is not None:
            _expect(self._is_due(caller, caller.error) and not caller.outputs, f"{caller} got the error")
            self.tried["refused"] += 1
            return
        _expect(not isinstance(caller.prompt, str) or caller.has_left, f"{caller} must be refused")
        if isinstance(caller.prompt, str):
            return
        expected = expected_outputs()[caller.prompt]
        num_before = [0] * caller.params.n
        for index, output in enumerate(caller.outputs):
            is_last = index == len(caller.outputs) - 1
            _expect(not output.finished or is_last, f"{caller}: output {index} is finished, but others follow")
            _expect([each.index for each in output.outputs] == list(range(caller.params.n)), f"{caller}: {output}")
            _expect(caller.request_id in (None, output.request_id), f"{caller} got another's output: {output}")
            for each in output.outputs:
                tokens = each.token_ids
                _expect(tokens[:MAX_TOKENS] == expected[:len(tokens)],
                        f"{caller}: sequence {each.index} of output {index} is {tokens}, alone it is {expected}")
                _expect(num_before[each.index] <= len(tokens) <= caller.params.max_tokens,
                        f"{caller}: sequence {each.index} went from {num_before[each.index]} to {len(tokens)} tokens")
                num_before[each.index] = len(tokens)
            self.tried["outputs"] += 1
        self.tried["tokens"] += sum(num_before)
        if not caller.has_left:
            self._check_end(caller)

    def _check_end(self, caller: Caller) -> None:
        _expect(bool(caller.outputs) and caller.outputs[-1].finished, f"{caller}: the stream ended before its output")
        last = caller.outputs[-1]
        reasons = {each.finish_reason for each in last.outputs}
        allowed = {"length"}
        if self.shutdown is not None and not self.shutdown[1]:
            allowed.add("abort")
        if self.lost_plan is not None:
            allowed.add("error")
        if caller.params.max_tokens > MAX_TOKENS:
            allowed.add("kv_cache_full")
        _expect(reasons <= allowed, f"{caller} ended by {reasons}, allowed are {allowed}")
        _expect((last.error is not None) == ("error" in reasons), f"{caller}: the error is {last.error!r}")
        for each in last.outputs:
            _expect(each.finish_reason != "length" or len(each.token_ids) == caller.params.max_tokens,
                    f"{caller}: sequence {each.index} has {len(each.token_ids)} tokens")
        self.tried["whole streams"] += reasons == {"length"}

    def _is_due(self, caller: Caller, error: BaseException) -> bool:
        """Whether it is an error that this caller had to expect."""
        if isinstance(error, EngineStoppedError):
            return self.shutdown is not None
        if isinstance(error, EngineBusyError):
            return self.max_num_requests < len(self.callers)
        if not isinstance(error, ValueError):
            return False
        return (isinstance(caller.prompt, str) and caller.prompt in str(error)
                or caller.request_id is not None and f"{caller.request_id!r} is in use" in str(error))


@functools.cache
def prompts() -> list[list[int]]:
    """Families of prompts, so that there is something to share."""
    rng = random.Random(0)
    trunks = [[rng.randrange(250) for _ in range(40)] for _ in range(4)]
    return [rng.choice(trunks)[:rng.randint(0, 40)] + [rng.randrange(250) for _ in range(rng.randint(1, 12))]
            for _ in range(NUM_PROMPTS)]


@functools.cache
def expected_outputs() -> list[list[int]]:
    """What a plain engine gives for each of the prompts, one at a time."""
    engine = LLMEngine(EngineConfig(block_size=32, num_blocks=20, max_num_seqs=1, enable_prefix_caching=False,
                                    enable_lookahead=False), loaded=network(NETWORK))
    expected = []
    for prompt in prompts():
        engine.add_request(prompt, SamplingParams(max_tokens=MAX_TOKENS, temperature=0, ignore_eos=True))
        while engine.has_unfinished_requests():
            outputs = engine.step()
        expected.append(outputs[0].token_ids)
    return expected


def _expect(is_so: bool, message: str) -> None:
    if not is_so:
        raise AssertionError(message)


def _dump_threads() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
                     for ident, frame in sys._current_frames().items())

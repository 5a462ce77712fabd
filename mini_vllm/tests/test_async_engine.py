"""One thread owns the engine; callers add requests, stream, leave early, are rejected, and cause failures."""

import asyncio
import random
import threading

import pytest

from mini_vllm.async_engine import AsyncLLMEngine, EngineBusyError
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.engine_thread import MAX_NEW_PER_STEP, EngineStoppedError
from mini_vllm.llm import LLM
from mini_vllm.request import Priority, SamplingParams

GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
LONG = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)


@pytest.fixture
def folder(shallow):
    return shallow("llama3")


def make(folder, make_engine=None, max_num_requests=1024, **settings):
    settings = {"num_blocks": 200, "block_size": 8, "max_num_seqs": 16, "max_num_batched_tokens": 64,
                "enable_lookahead": True, **settings}
    config = EngineConfig(model=folder, **settings)
    return AsyncLLMEngine(config, max_num_requests=max_num_requests, make_engine=make_engine and make_engine(config))


async def last(engine, prompt, params=GREEDY, **options):
    return [output async for output in engine.generate(prompt, params, **options)][-1]


def prompts(count, seed=0):
    rng = random.Random(seed)
    return [[rng.randrange(250) for _ in range(rng.randint(1, 40))] for _ in range(count)]


def check_nothing_is_left(engine):
    assert not any(thread.name == "mini_vllm engine" for thread in threading.enumerate())
    assert not engine._thread.streams


def test_streams_grow_and_equal_the_engine_alone(folder):
    async def main():
        async with make(folder) as engine:
            texts = []
            async for output in engine.generate("hello", GREEDY):
                texts.append(output.text)
                is_finished = output.finished
            return engine, texts, is_finished, await asyncio.gather(*(last(engine, prompt) for prompt in prompts(20)))

    engine, texts, is_finished, outputs = asyncio.run(main())
    assert is_finished and all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:]))
    llm = LLM(folder, num_blocks=200, block_size=8)
    assert texts[-1] == llm.generate(["hello"], GREEDY)[0].text
    expected = llm.generate(prompts(20), GREEDY)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]
    check_nothing_is_left(engine)


def test_200_streams_with_cancellations_and_a_poisoned_request(folder):
    """Check that other requests get their own tokens, that all blocks are freed, and that no thread is left."""
    poison = [77] * 9

    def make_engine(config):
        def build():
            engine = LLMEngine(config)
            real = engine.runner.step

            def step(requests, copies=()):
                if any(list(request.token_ids)[:9] == poison for request in requests):
                    raise ArithmeticError("poison")
                return real(requests, copies)

            engine.runner.step = step
            return engine
        return build

    everyone = prompts(200, seed=1)
    everyone[60] = poison

    async def main():
        rng = random.Random(2)
        engine = make(folder, make_engine, num_blocks=60)

        async def caller(index):
            outputs, num_wanted = None, rng.randint(1, 11)
            leaves = index % 5 == 0 and index != 60
            async for outputs in engine.generate(everyone[index], GREEDY, priority=Priority(index % 3)):
                if leaves and len(outputs.token_ids) >= num_wanted:
                    return None
            return outputs

        tasks = [asyncio.create_task(caller(index)) for index in range(200)]
        for index in range(1, 200, 7):  # and some are cancelled from outside, at any time
            asyncio.get_running_loop().call_later(rng.random(), tasks[index].cancel)
        outputs = await asyncio.gather(*tasks, return_exceptions=True)

        def state(engine):
            engine.kv_cache.check_integrity()
            return engine.has_unfinished_requests(), engine.kv_cache.block_pool.get_usage()

        state_at_the_end = await engine.call(state)
        num_preemptions = await engine.call(lambda engine: engine.scheduler.num_preemptions)
        await engine.shutdown()
        return engine, outputs, state_at_the_end, num_preemptions

    engine, outputs, state_at_the_end, num_preemptions = asyncio.run(main())
    assert outputs[60].error == "ArithmeticError: poison" and outputs[60].finish_reason == "error"
    whole = {index: output for index, output in enumerate(outputs)
             if not isinstance(output, asyncio.CancelledError) and output is not None and index != 60}
    llm = LLM(folder, num_blocks=2000, block_size=8, max_num_seqs=200, enable_prefix_caching=False)
    for output, wanted in zip(whole.values(), llm.generate([everyone[index] for index in whole], GREEDY)):
        assert output.finish_reason == "length" and output.error is None, output
        assert output.token_ids == wanted.token_ids, output
    assert len(whole) >= 120 and state_at_the_end == (False, 0.0)
    check_nothing_is_left(engine)


def test_cancelling_frees_the_blocks_and_a_slow_reader_stalls_nobody(folder):
    async def main():
        async with make(folder) as engine:
            slow = engine.generate("slow", LONG)
            await anext(slow)
            others = await asyncio.gather(*(last(engine, prompt) for prompt in prompts(5)))
            assert all(output.finish_reason == "length" for output in others), "while nobody reads the slow one"
            running = await engine.call(lambda engine: len(engine.scheduler.running))
            late = await anext(slow)
            assert len(late.token_ids) > 2, "it gets the latest, not the next"
            await slow.aclose()
            left = await engine.call(lambda engine: (engine.has_unfinished_requests(),
                                                     engine.kv_cache.block_pool.get_usage()))
            return running, left

    running, left = asyncio.run(main())
    assert running == 1 and left == (False, 0.0)


def test_a_full_engine_is_busy_and_says_so(folder):
    async def main():
        async with make(folder, max_num_requests=2) as engine:
            held = [engine.generate("hello", LONG) for _ in range(2)]
            await asyncio.gather(*(anext(stream) for stream in held))
            with pytest.raises(EngineBusyError, match="busy: 2 requests are running or waiting, the limit is 2"):
                await last(engine, "one too many")
            await held[0].aclose()
            await engine.call(lambda engine: None)  # now the abort has been processed
            assert (await last(engine, "now it fits")).finished
            await held[1].aclose()

    asyncio.run(main())


class HeldThread:
    """The engine's thread, kept busy by a message until ``release``: later messages wait in its inbox."""

    def __init__(self, engine):
        self.thread, self.is_held, self._go = engine._thread, threading.Event(), threading.Event()
        self.thread.inbox.put(lambda inner: (self.is_held.set(), self._go.wait(30)))
        self.release = self._go.set

    async def until_inbox_has(self, count):
        while not self.is_held.is_set() or self.thread.inbox.qsize() < count:
            await asyncio.sleep(0)


def log_of(inner):
    """Return a log of what the engine adds and when it steps, from now on."""
    log, add_request, step = [], inner.add_request, inner.step
    inner.add_request = lambda prompt, params, name, *rest: log.append(name) or add_request(prompt, params, name, *rest)
    inner.step = lambda: log.append("step") or step()
    return log


def test_between_two_steps_a_few_requests_are_taken_in_better_ones_first(folder):
    async def main():
        async with make(folder, max_num_seqs=64) as engine:
            log = await engine.call(log_of)
            held = HeldThread(engine)
            tasks = [asyncio.create_task(last(engine, [5], priority=Priority.LOW, request_id=f"low{i}"))
                     for i in range(40)]
            await held.until_inbox_has(40)
            tasks.append(asyncio.create_task(last(engine, [5], priority=Priority.HIGH, request_id="high")))
            await held.until_inbox_has(41)
            held.release()
            await asyncio.gather(*tasks)
            return log

    log = asyncio.run(main())
    steps = [index for index, entry in enumerate(log) if entry == "step"]
    lows = [f"low{i}" for i in range(40)]
    assert log[:steps[0]] == ["high", *lows[:MAX_NEW_PER_STEP - 1]], "high came last"
    assert [entry for entry in log if entry.startswith("low")] == lows
    assert steps[1] - steps[0] - 1 == MAX_NEW_PER_STEP and log[steps[2]:].count("step") == len(log) - steps[2]


def test_who_has_left_costs_the_engine_nothing_and_counts_until_it_has_let_go(folder):
    async def main():
        async with make(folder, max_num_requests=5) as engine:
            log = await engine.call(log_of)
            held = HeldThread(engine)
            tasks = [asyncio.create_task(last(engine, [5])) for _ in range(5)]
            await held.until_inbox_has(5)
            for task in tasks:
                task.cancel()
            await held.until_inbox_has(10)
            assert not any(task.done() for task in tasks), "the engine does not know that they have left"
            held.release()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert log == [] and not engine._thread.streams
            assert (await last(engine, [5])).finished

    asyncio.run(main())


def test_a_step_that_breaks_for_no_request_ends_all_and_the_engine_goes_on(folder):
    async def main():
        async with make(folder) as engine:
            await engine.wait_until_ready()

            def break_once(engine):
                real = engine.scheduler.schedule

                def schedule():
                    engine.scheduler.schedule = real
                    real()
                    raise OSError("the disk of the scheduler is full")

                engine.scheduler.schedule = schedule

            streams = [engine.generate(prompt, LONG) for prompt in prompts(3)]
            await asyncio.gather(*(anext(stream) for stream in streams))
            await engine.call(break_once)
            broken = []
            for stream in streams:
                broken.append([output async for output in stream][-1])
            assert [output.error for output in broken] == ["OSError: the disk of the scheduler is full"] * 3
            assert [output.finish_reason for output in broken] == ["error"] * 3
            again = await last(engine, prompts(1)[0])
            await engine.call(lambda engine: engine.kv_cache.check_integrity())
            return again

    again = asyncio.run(main())
    assert again.token_ids == LLM(folder).generate([prompts(1)[0]], GREEDY)[0].token_ids


def test_a_paused_engine_computes_only_the_steps_asked_for(folder):
    async def main():
        async with make(folder, enable_lookahead=False) as engine:
            alone = await last(engine, "hello")
            await engine.pause()
            task = asyncio.ensure_future(last(engine, "hello"))
            num_steps = []
            while not task.done():
                num_steps.append(await engine.call(lambda inner: inner.num_steps))
                await engine.metrics()  # messages are handled meanwhile
                await engine.step_once()
            has_more = await engine.step_once()
            engine.resume()
            return alone, task.result(), num_steps, has_more, await last(engine, "hello")

    alone, stepped, num_steps, has_more, resumed = asyncio.run(main())
    assert stepped.token_ids == alone.token_ids == resumed.token_ids and not has_more
    counts = num_steps[num_steps.count(num_steps[0]) - 1:]  # until the prompt is tokenized there is nothing to compute
    assert counts == list(range(counts[0], counts[0] + len(counts))), f"steps done before each: {counts}"


@pytest.mark.parametrize("drain", [True, False])
def test_shutdown_drains_or_aborts_and_nothing_follows(folder, drain):
    async def main():
        engine = make(folder)
        tasks = [asyncio.create_task(last(engine, prompt, LONG if not drain else GREEDY)) for prompt in prompts(3)]
        await engine.wait_until_ready()
        await asyncio.sleep(0)
        await engine.shutdown(drain)
        await engine.shutdown(drain)  # a second time is harmless
        with pytest.raises(EngineStoppedError, match="the engine was shut down"):
            await last(engine, "hello")
        with pytest.raises(EngineStoppedError, match="the engine was shut down"):
            await engine.metrics()
        return engine, await asyncio.gather(*tasks)

    engine, outputs = asyncio.run(main())
    assert {output.finish_reason for output in outputs} == {"length" if drain else "abort"}
    check_nothing_is_left(engine)


def test_many_may_shut_down_at_once(folder):
    async def main():
        for _ in range(5):
            engine = make(folder)
            await engine.wait_until_ready()
            thread, end = engine._thread, engine._thread._end
            thread._end = lambda end=end: (end(), threading.Event().wait(0.05))  # is slow after it has told all callers
            first = asyncio.create_task(engine.shutdown())
            while not thread.has_ended:
                await asyncio.sleep(0)
            await asyncio.wait_for(asyncio.gather(first, engine.shutdown(), engine.shutdown(drain=False)), timeout=10)

    asyncio.run(main())


def test_calls_answer_whatever_they_raise_and_may_use_the_engine(folder):
    async def main():
        async with make(folder) as engine:
            with pytest.raises(ZeroDivisionError):
                await engine.call(lambda engine: 1 / 0)
            with pytest.raises(RuntimeError, match="StopIteration"):
                await engine.call(lambda engine: next(iter(())))
            await engine.call(lambda engine: engine.add_request("hello", GREEDY, "by hand"))
            stream = engine.generate("hello", LONG, request_id="async-1")
            await anext(stream)
            outputs = await asyncio.gather(*(last(engine, prompt) for prompt in prompts(3)))
            assert len({output.request_id for output in outputs}) == 3, "own ids avoid those in use"
            await stream.aclose()

    asyncio.run(main())


def test_a_model_that_cannot_be_loaded_is_reported_to_everybody(tmp_path):
    async def main():
        engine = AsyncLLMEngine(EngineConfig(model=tmp_path / "nowhere"))
        results = await asyncio.gather(last(engine, "hello"), engine.wait_until_ready(), return_exceptions=True)
        await engine.shutdown()
        with pytest.raises(EngineStoppedError, match="nowhere"):
            await last(engine, "hello")
        return engine, results

    engine, results = asyncio.run(main())
    assert all(isinstance(result, EngineStoppedError) and "nowhere" in str(result) and result.__cause__ is not None
               for result in results), results
    check_nothing_is_left(engine)


def test_a_program_that_forgets_the_shutdown_ends_all_the_same(folder):
    import subprocess
    import sys
    code = f"""
import asyncio
from mini_vllm.async_engine import AsyncLLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.engine_thread import MAX_NEW_PER_STEP, EngineStoppedError
from mini_vllm.request import SamplingParams
async def main():
    engine = AsyncLLMEngine(EngineConfig(model={str(folder)!r}, num_blocks=99))
    async for output in engine.generate("hello", SamplingParams(max_tokens=400, ignore_eos=True)):
        break
asyncio.run(main())
print("end")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr, run.returncode) == ("end\n", "", 0)


@pytest.mark.parametrize("how", ["leaves", "aborts"])
def test_an_error_while_one_request_is_aborted_costs_the_others_nothing(folder, how, caplog):
    """Let the scheduler fail in the middle of an abort: it has freed the blocks, and still has the request."""
    async def main():
        async with make(folder) as engine:
            other = asyncio.create_task(last(engine, "another one", LONG))
            stream = engine.generate("hello", LONG, request_id="r")
            await anext(stream)
            await engine.call(break_abort)
            if how == "leaves":
                await stream.aclose()
            else:
                assert await engine.abort("r") and [output async for output in stream][-1].finish_reason == "abort"
            again = await last(engine, "hello", request_id="r")
            return await other, again

    def break_abort(engine):
        scheduler = engine.scheduler

        def finish(request, status):
            engine.kv_cache.free(request)
            raise RuntimeError("the scheduler is broken")

        scheduler.finish = finish

    other, again = asyncio.run(main())
    llm = LLM(folder, num_blocks=200, block_size=8)
    assert other.error is None and other.text == llm.generate(["another one"], LONG)[0].text
    assert again.text == llm.generate(["hello"], GREEDY)[0].text
    assert "aborting request 'r' failed" in caplog.text

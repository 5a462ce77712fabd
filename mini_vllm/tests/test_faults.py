"""A step may fail in any of its calls: its requests end with the error, the others go on, and the next step works."""

import random
import sys
from pathlib import Path

import pytest

import mini_vllm
from mini_vllm.conftest import examples
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.request import Priority, SamplingParams
from mini_vllm.speculation.test_speculation import FREE

SOURCES = str(Path(mini_vllm.__file__).parent)
#: A pool in which some of them must lose their blocks: (prompt, parameters, priority).
WORK = [([1, 2, 3] * 6, dict(temperature=0), Priority.LOW), ([1, 2, 3] * 4 + [7], dict(seed=2, n=2), Priority.NORMAL),
        ([9, 8] * 5, dict(temperature=0, logprobs=1, repetition_penalty=1.2), Priority.NORMAL),
        ([1, 2, 3] * 6 + [4], dict(temperature=0, stop_token_ids=[5]), Priority.HIGH),
        ([6] * 9, dict(seed=3, prompt_logprobs=0), Priority.NORMAL), ([9, 8] * 3, dict(temperature=0), Priority.LOW)]
NUM_STEPS = 30


def make_engine(loaded, num_blocks=16):
    engine = LLMEngine(EngineConfig(num_blocks=num_blocks, block_size=4, max_num_seqs=4, max_num_batched_tokens=16,
                                    num_speculative_tokens=3, aging_rate=0.0), loaded=loaded)
    engine.speculation.costs = FREE
    for number, (prompt, params, priority) in enumerate(WORK):
        engine.add_request(prompt, SamplingParams(max_tokens=12, ignore_eos=True, **params), f"r{number}", priority)
    return engine


def tokens_of(output):
    return [each.token_ids for each in output.outputs]


@pytest.fixture(scope="module")
def alone(loaded):
    engine, outputs = make_engine(loaded, num_blocks=200), {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
    return {name: tokens_of(output) for name, output in outputs.items()}


class Fault:
    """Counts the calls of functions of mini_vllm, and raises ``error`` in the one with the number ``at``."""

    def __init__(self, error, at):
        self.error, self.at, self.num_calls, self.where = error, at, 0, None

    def __call__(self, frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(SOURCES):
            self.num_calls += 1
            if self.num_calls == self.at:
                self.where = f"{frame.f_code.co_filename}:{frame.f_code.co_name}"
                raise self.error("injected")

    def __enter__(self):
        sys.settrace(self)
        return self

    def __exit__(self, *_):
        sys.settrace(None)


def run_with_fault(loaded, error, step, at):
    """Inject ``error`` into call ``at`` of step ``step``. Return the fault, the engine, and the outputs by request."""
    engine, outputs, fault = make_engine(loaded), {}, Fault(error, at)
    for number in range(200):
        if not engine.has_unfinished_requests():
            break
        try:
            if number == step:
                inner = engine._step

                def broken(inner=inner):
                    with fault:
                        return inner()

                engine._step = broken
            for output in engine.step():
                assert output.request_id not in outputs or not outputs[output.request_id].finished
                outputs[output.request_id] = output
        except KeyboardInterrupt:
            assert error is KeyboardInterrupt and number == step
        if number == step:
            del engine._step
        engine.kv_cache.check_integrity()
    return fault, engine, outputs


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("seed", range(examples(5)))
def test_any_call_of_a_step_may_fail(loaded, alone, error, seed):
    rng = random.Random(f"{seed} {error.__name__}")
    step = rng.randrange(NUM_STEPS)
    num_calls = run_with_fault(loaded, error, step, at=0)[0].num_calls
    for at in (rng.randint(1, num_calls), rng.randint(1, num_calls)) if num_calls else ():
        fault, engine, outputs = run_with_fault(loaded, error, step, at)
        assert set(outputs) == set(alone) and all(output.finished for output in outputs.values()), fault.where
        assert not engine.scheduler.has_unfinished_requests() and engine.kv_cache.block_pool.get_usage() == 0.0
        for name, output in outputs.items():
            tokens = tokens_of(output)
            if output.error is None:
                assert tokens == alone[name], f"{name}, {error.__name__} in {fault.where}"
            else:
                assert error is not KeyboardInterrupt, f"{name} ended by {output.error} in {fault.where}"
                assert "injected" in output.error
                assert all(mine == whole[:len(mine)] for mine, whole in zip(tokens, alone[name])), fault.where
            assert all(each.text == loaded.tokenizer.decode(each.token_ids) for each in output.outputs), fault.where
            assert all(each.logprobs is None or [entry.token_id for entry in each.logprobs] == each.token_ids
                       for each in output.outputs), fault.where
        engine.add_request(WORK[3][0], SamplingParams(max_tokens=12, temperature=0, ignore_eos=True,
                                                      stop_token_ids=[5]), "next")
        while engine.has_unfinished_requests():
            (last,) = engine.step() or [None]
        assert tokens_of(last) == alone["r3"], fault.where

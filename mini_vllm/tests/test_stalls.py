"""A scheduler that plans nothing, many steps in a row: every request ends with the reason, and the engine still
works."""


import pytest

from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.llm import LLM
from mini_vllm.metrics import MAX_IDLE_STEPS
from mini_vllm.request import RequestStatus, SamplingParams
from mini_vllm.scheduler import Scheduler, SchedulerOutput
from mini_vllm.tests.test_engine import run

PARAMS = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
PROMPT, OTHER = list(range(30, 50)), list(range(60, 100))


class Stubborn(Scheduler):
    """Plans nothing for ``num_refusals`` steps, then returns the plans in ``instead``, one per step."""

    num_refusals = 0
    instead = ()

    def schedule(self):
        if self.num_refusals:
            self.num_refusals -= 1
            return SchedulerOutput()
        if self.instead:
            plan, *self.instead = self.instead
            return plan
        return super().schedule()


@pytest.fixture(scope="module")
def expected(loaded):
    engine = make_engine(loaded)
    ids = [engine.add_request(prompt, PARAMS) for prompt in (PROMPT, OTHER)]
    results = run(engine)
    return [results[name].token_ids for name in ids]


def make_engine(loaded, **settings):
    settings = {"num_blocks": 41, "block_size": 8, "max_num_seqs": 8, "enable_lookahead": True, **settings}
    return LLMEngine(EngineConfig(**settings), EngineParts(scheduler=Stubborn), loaded)


def check_is_clean(engine):
    engine.kv_cache.check_integrity()
    assert not engine.has_unfinished_requests() and not engine.scheduler.has_unfinished_requests()
    assert engine.kv_cache.block_pool.get_usage() == 0.0 and not engine.live.groups
    assert engine.lookahead.pending is None


@pytest.mark.parametrize("num_steps_before", [0, 1, 3])
def test_all_requests_end_and_the_engine_serves_again(loaded, expected, num_steps_before):
    """Let the engine stall before the first step (requests wait), after one (they hold blocks), or after three (a step
    was begun early)."""
    engine = make_engine(loaded)
    for name, prompt in (("a", PROMPT), ("b", OTHER)):
        engine.add_request(prompt, PARAMS, name)
    for _ in range(num_steps_before):
        engine.step()
    engine.scheduler.num_refusals = 100
    outputs = [engine.step() for _ in range(MAX_IDLE_STEPS)]
    assert outputs[:-1] == [[]] * (MAX_IDLE_STEPS - 1)
    assert [output.request_id for output in outputs[-1]] == ["a", "b"]
    for output, whole in zip(outputs[-1], expected):
        assert output.finished and output.finish_reason == "error"
        assert output.error.startswith("StalledError: nothing could be planned for 3 steps: the scheduler gave ")
        num_tokens = len(output.token_ids)  # drafts give several per step
        assert num_tokens >= num_steps_before and output.token_ids == whole[:num_tokens]
    check_is_clean(engine)
    engine.scheduler.num_refusals = 0
    for name, prompt in (("a", PROMPT), ("b", OTHER)):
        engine.add_request(prompt, PARAMS, name)
    results = run(engine)
    assert [results[name].token_ids for name in "ab"] == expected
    check_is_clean(engine)


def test_the_error_counts_the_blocks_wanted_and_free(loaded):
    engine = make_engine(loaded, num_blocks=9)
    leaked = engine.kv_cache.block_pool.get_new_blocks(5)  # which are never freed
    engine.add_request(list(range(50)), PARAMS, "r")
    while not (outputs := engine.step()):
        pass
    assert outputs[0].error == ("StalledError: nothing could be planned for 3 steps: the scheduler gave request 'r' no "
                            "tokens; it needs 7 more blocks, 3 of 8 are free")
    engine.kv_cache.block_pool.free_blocks(leaked)
    check_is_clean(engine)


# ---- no reason to give up


def test_pauses_that_end_in_time_change_nothing(loaded, expected):
    engine = make_engine(loaded)
    engine.add_request(PROMPT, PARAMS, "r")
    results, num_steps = {}, 0
    while engine.has_unfinished_requests():
        engine.scheduler.num_refusals = MAX_IDLE_STEPS - 1
        for _ in range(MAX_IDLE_STEPS):
            results |= {output.request_id: output for output in engine.step()}
            num_steps += 1
    assert results["r"].error is None and results["r"].token_ids == expected[0] and num_steps == 3 * 12
    check_is_clean(engine)


@pytest.mark.parametrize("how", ["preempted", "finished"])
def test_steps_that_only_take_from_requests_are_no_reason(loaded, expected, how):
    """Give no request a token for many steps, while in each step a request loses its blocks or ends."""
    engine = make_engine(loaded)
    scheduler = engine.scheduler
    engine.add_request(PROMPT, PARAMS, "r")
    others = [scheduler.requests[engine.add_request(OTHER, PARAMS)] for _ in range(2 * MAX_IDLE_STEPS)]
    engine.step()
    for other in others:
        if how == "preempted":
            scheduler.preempt(other)
        else:
            scheduler.finish(other, RequestStatus.FINISHED_KV_CACHE_FULL)
        scheduler.instead = [SchedulerOutput(**{how: [other]})]
        assert all(output.error is None for output in engine.step())
    results = run(engine)
    assert results["r"].error is None and results["r"].token_ids == expected[0]
    check_is_clean(engine)


# ---- other entry points


def test_generate_ends_and_hands_back_what_became_of_others(loaded, expected):
    llm = LLM.__new__(LLM)
    engine = llm.engine = make_engine(loaded)
    engine.add_request(OTHER, PARAMS, "somebody else's")
    engine.step()
    engine.scheduler.num_refusals = MAX_IDLE_STEPS
    outputs = llm.generate([PROMPT, OTHER], PARAMS)
    assert all("StalledError" in output.error and output.finished for output in outputs)
    (other,) = engine.step()
    assert other.request_id == "somebody else's" and "StalledError" in other.error
    check_is_clean(engine)
    assert [output.token_ids for output in llm.generate([PROMPT, OTHER], PARAMS)] == expected

"""The counters of an engine over its steps, compared step by step with a full count."""

import random

import pytest

from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.metrics import EngineMetrics
from mini_vllm.request import SamplingParams
from mini_vllm.scheduler import Scheduler
from mini_vllm.tests.test_engine import run


def make_engine(loaded, scheduler=Scheduler, **settings):
    settings = {"block_size": 8, "num_blocks": 200, "max_num_seqs": 8, "max_num_batched_tokens": 48, **settings}
    return LLMEngine(EngineConfig(**settings), EngineParts(scheduler=scheduler), loaded)


def greedy(max_tokens, n=1):
    return SamplingParams(max_tokens=max_tokens, temperature=0 if n == 1 else 0.9, seed=1, n=n, ignore_eos=True)


def tokens(count, seed):
    return random.Random(seed).choices(range(1, 250), k=count)


class Onlooker(Scheduler):
    """Walks over the whole pool after every plan, and remembers every token that a request had computed."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.peaks, self.computed, self.num_again = [0, 0, 0], {}, 0

    def schedule(self):
        plan = super().schedule()
        blocks = self.kv_cache.block_pool.blocks[1:]
        num_used, num_shared = (sum(block.ref_cnt > bound for block in blocks) for bound in (0, 1))
        now = [len(plan.requests), num_used, num_shared]
        self.peaks = [max(pair) for pair in zip(self.peaks, now)]
        for request in plan.requests:
            end = request.num_computed_tokens
            new = range(end - plan.num_scheduled_tokens[request.request_id], end)
            known = self.computed.setdefault(request.request_id, set(range(new.start)))
            self.num_again += len(known.intersection(new))
            known.update(new)
        return plan


@pytest.mark.without_drafts("counts blocks before drafts take some")
@pytest.mark.parametrize("num_blocks", [200, 40, 24])
def test_peaks_and_repeated_work_are_what_a_walk_over_everything_finds(loaded, num_blocks):
    engine = make_engine(loaded, Onlooker, num_blocks=num_blocks, max_num_batched_tokens=16)  # prompts in chunks
    rng = random.Random(num_blocks)
    shared = tokens(24, 0)
    for index in range(24):
        prompt = shared[:rng.choice((0, 8, 24))] + tokens(rng.randrange(1, 30), index)
        engine.add_request(prompt, greedy(rng.randrange(2, 40)), str(index))
    run(engine)
    metrics, onlooker = engine.metrics(), engine.scheduler
    assert [metrics.max_num_sequences, metrics.max_num_used_blocks, metrics.max_num_shared_blocks] == onlooker.peaks
    assert metrics.max_num_shared_blocks > 0 and metrics.num_shared_blocks == 0
    assert metrics.num_preemptions == onlooker.num_preemptions
    assert metrics.num_recomputed_tokens == onlooker.num_again
    assert (metrics.num_recomputed_tokens > 0) == (num_blocks < 200), "the small pools were to preempt"


def test_samples_share_their_prompt_until_one_writes(loaded):
    engine = make_engine(loaded)
    engine.add_request(tokens(20, 1), greedy(4, n=3), "r")  # two full blocks and a half: the half is copied twice
    run(engine)
    metrics = engine.metrics()
    assert (metrics.num_requests, metrics.max_num_sequences, metrics.max_num_shared_blocks) == (1, 3, 3)
    assert (metrics.num_forks, metrics.num_copied_blocks) == (2, 2)
    assert metrics.num_preemptions == metrics.num_recomputed_tokens == 0


def test_a_sample_that_loses_its_blocks_before_its_first_step_computes_the_prompt_again(loaded):
    engine = make_engine(loaded, enable_prefix_caching=False)
    engine.add_request(tokens(20, 1), greedy(4, n=2), "r")
    engine.step()
    engine.scheduler.preempt(engine.scheduler.requests["r#1"])
    run(engine)
    assert engine.metrics().num_recomputed_tokens == 20


def test_another_request_with_the_same_id_starts_at_0(loaded):
    engine = make_engine(loaded)
    for max_tokens in (30, 3):
        engine.add_request(tokens(10, 5), greedy(max_tokens), "a")
        run(engine)
    assert engine.metrics().num_recomputed_tokens == 0


def test_what_never_happened_is_left_out_of_the_text():
    quiet = dict(num_requests=1, num_prompt_tokens=4, num_saved_tokens=0, hit_rate=0.0, recent_hit_rate=0.0,
                 num_shared_blocks=0, num_forks=0, num_copied_blocks=0, num_evictions=0, num_steps=60,
                 max_num_sequences=1, max_num_used_blocks=2, num_blocks=2603, max_num_shared_blocks=0,
                 num_preemptions=0, num_recomputed_tokens=0)
    assert str(EngineMetrics(**quiet)).splitlines() == [
        "1 request in 60 steps, at most 1 sequence at once", "0 of 4 prompt tokens found in the cache (0%)",
        "2 of 2603 blocks in use at the peak"]
    busy = dict(quiet, num_saved_tokens=2, hit_rate=0.5, recent_hit_rate=0.75, num_forks=20, num_copied_blocks=19,
                num_evictions=1, max_num_shared_blocks=1, num_preemptions=12, num_recomputed_tokens=34567,
                num_drafted_tokens=9, num_accepted_tokens=4)
    assert len(str(EngineMetrics(**busy)).splitlines()) == 9

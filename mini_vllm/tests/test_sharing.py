"""Copy-on-write and the prefix tree in the engine, with real arrays: what is shared, what is copied, and the
outputs."""

import numpy as np
import pytest

from mini_vllm.beam_search import beam_search
from mini_vllm.models.loader import load
from mini_vllm.request import SamplingParams
from mini_vllm.tests.test_engine import make_engine, random_prompts, run

GREEDY = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def loaded(checkpoints):
    return load(checkpoints("llama3"))


def tokens(count, seed):
    return np.random.default_rng(seed).integers(0, 256, count).tolist()


@pytest.fixture(scope="module")
def alone(loaded):
    """Map prompt and parameters to what the request gives in an engine of its own without a cache, decoded once."""
    known = {}

    def decode(prompt, params):
        key = repr((prompt, params))
        if key not in known:
            engine = make_engine(loaded, enable_prefix_caching=False)
            engine.add_request(prompt, params, "r")
            known[key] = [output.token_ids for output in run(engine)["r"].outputs]
        return known[key]

    return decode


# ---- hits


@pytest.mark.without_drafts("counts computed tokens, and wrong guesses are computed")
def test_cached_tokens_are_exactly_those_not_computed(loaded, monkeypatch):
    engine = make_engine(loaded, enable_lookahead=False)  # else some steps do not go through `step`
    computed = {}
    real = engine.runner.step

    def step(steps, copies):
        for request, request_step in zip(engine.scheduler.running, steps):
            computed[request.request_id] = computed.get(request.request_id, 0) + len(request_step.token_ids)
        return real(steps, copies)

    monkeypatch.setattr(engine.runner, "step", step)
    base = tokens(50, 5)
    for i, cut in enumerate((0, 7, 8, 33, 49, 50)):
        engine.add_request(base[:cut] + tokens(20, 10 + i), GREEDY, f"r{i}")
        output = run(engine)[f"r{i}"]
        num_positions = output.usage.prompt_tokens + output.usage.completion_tokens - 1
        assert computed[f"r{i}"] == num_positions - output.usage.prompt_tokens_details.cached_tokens


def test_the_next_turn_of_a_chat_goes_on_in_the_tail_without_a_copy(loaded, alone):
    """Extend the half-filled last block of an answer in place: the new turn contains all of it."""
    engine, history = make_engine(loaded), tokens(21, 6)
    num_written = 0
    for turn in range(5):
        engine.add_request(history, GREEDY, f"t{turn}")
        output = run(engine)[f"t{turn}"]
        assert output.usage.prompt_tokens_details.cached_tokens == num_written
        assert [output.token_ids] == alone(history, GREEDY)
        num_written = len(history) + len(output.token_ids) - 1  # the last token was never fed back
        history = history + output.token_ids + tokens(5, 20 + turn)
    assert engine.runner.cache.num_copied_blocks == 0


@pytest.mark.parametrize("settings", [{}, {"num_blocks": 30}, {"max_num_batched_tokens": 44}, {"block_size": 3}],
                         ids=str)
def test_random_families_of_prompts_give_what_each_gives_alone(loaded, alone, settings):
    rng = np.random.default_rng(8)
    engine = make_engine(loaded, max_num_seqs=8, **{k: v for k, v in settings.items()})
    trunks = [tokens(60, 30 + i) for i in range(3)]
    expected, results = {}, {}
    for i in range(24):
        prompt = trunks[rng.integers(3)][:rng.integers(1, 60)] + tokens(int(rng.integers(0, 9)), 100 + i)
        params = SamplingParams(max_tokens=int(rng.integers(1, 12)), temperature=float(rng.choice([0, 0.9])), seed=i)
        engine.add_request(prompt, params, f"r{i}")
        expected[f"r{i}"] = alone(prompt, params)[0]
        for _ in range(rng.integers(0, 4)):
            results.update({output.request_id: output for output in engine.step()})
            engine.kv_cache.check_integrity()
    results.update(run(engine))
    assert {name: output.token_ids for name, output in results.items()} == expected
    assert engine.metrics().num_saved_tokens > 0
    if settings == {"num_blocks": 30}:
        assert engine.metrics().num_evictions > 0, "the small pool was to evict"


def test_salts_and_the_switch_keep_prompts_apart(loaded):
    prompt = tokens(40, 10)
    engine = make_engine(loaded)
    for i, (salt, cached) in enumerate([(("a",), 0), (("b",), 0), (("a",), 39), (None, 0), (None, 39)]):
        engine.add_request(prompt, GREEDY, f"r{i}", extra_keys=salt)
        assert run(engine)[f"r{i}"].usage.prompt_tokens_details.cached_tokens == cached
    off = make_engine(loaded, enable_prefix_caching=False)
    for name in "ab":
        off.add_request(prompt, GREEDY, name)
        assert run(off)[name].usage.prompt_tokens_details.cached_tokens == 0


# ---- several sequences of one prompt


@pytest.mark.parametrize("settings", [{}, {"enable_prefix_caching": False}, {"max_num_batched_tokens": 44}], ids=str)
@pytest.mark.parametrize("length", [33, 40, 41])
def test_four_samples_are_those_of_four_seeds_and_cost_one_prompt(loaded, alone, settings, length):
    prompt = tokens(length, 12)
    params = SamplingParams(max_tokens=9, temperature=1.0, seed=5, n=4, ignore_eos=True)
    engine = make_engine(loaded, **settings)
    engine.add_request(prompt, params, "r")
    while not engine.kv_cache.get_block_ids("r#3"):
        engine.step()
    tables = [engine.kv_cache.get_block_ids(f"r#{i}") for i in range(4)]
    num_full = length // 8
    assert all(table[:num_full] == tables[0][:num_full] for table in tables)
    assert len({i for table in tables for i in table}) <= num_full + 4
    outputs = run(engine)["r"].outputs
    assert engine.runner.cache.num_copied_blocks == (3 if length % 8 else 0)
    assert len({tuple(output.token_ids) for output in outputs}) > 1
    assert [o.token_ids for o in outputs] == alone(prompt, params)


def test_samples_that_end_or_are_aborted_leave_nothing(loaded):
    engine = make_engine(loaded)
    engine.add_request(tokens(20, 15), SamplingParams(max_tokens=30, temperature=1.0, seed=1, n=4), "r")
    for _ in range(3):
        engine.step()
    engine.abort_request("r")
    engine.kv_cache.check_integrity()
    assert engine.kv_cache.block_pool.get_usage() == 0.0
    engine.add_request(tokens(20, 15), SamplingParams(max_tokens=30, temperature=1.0, seed=1, n=4), "r")
    engine.abort_request("r")
    assert not engine.scheduler.has_unfinished_requests()


def test_a_copy_of_a_copy_in_one_step(loaded):
    """Let one request copy a block and fill the copy; the next, in the same step, finds the copy and copies that."""
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    shared = [10, 11, 12, 13, 14]
    first = [*shared, 15, 16, 17, 18, 19]
    prompts = [[*shared, 25, 26, 27, 28], [*shared, 25, 26, 37, 38]]
    engine, alone = make_engine(loaded), []
    for prompt in prompts:
        fresh = make_engine(loaded)
        fresh.add_request(prompt, params, "r")
        alone.append(run(fresh)["r"].token_ids)
    engine.add_request(first, params)
    run(engine)
    ids = [engine.add_request(prompt, params) for prompt in prompts]
    copies = []
    real = engine.runner.cache.copy_blocks
    engine.runner.cache.copy_blocks = lambda pairs: (copies.extend(pairs), real(pairs))
    results = run(engine)
    assert len(copies) == 2 and copies[0][1] == copies[1][0], f"the copies {copies} are no chain, nothing is tested"
    assert [results[request_id].token_ids for request_id in ids] == alone


# ---- beams


def test_a_beam_search_that_does_not_fit_says_so_and_gives_everything_back(loaded):
    engine = make_engine(loaded, num_blocks=5)
    with pytest.raises(RuntimeError, match="the pool is too small for this beam search: it has 4 blocks of 8 tokens "
                                           "for 4 beams"):
        beam_search(engine, tokens(20, 19), beam_width=4, max_tokens=12, ignore_eos=True)
    engine.kv_cache.check_integrity()
    assert engine.kv_cache.block_pool.get_usage() == 0.0
    with pytest.raises(ValueError, match="beam_width is 0"):
        beam_search(engine, "hello", beam_width=0)
    engine.add_request("hello", GREEDY)
    with pytest.raises(RuntimeError, match="idle engine"):
        beam_search(engine, "hello")


@pytest.mark.parametrize("at", range(1, 5))
def test_a_beam_search_that_is_cut_off_gives_everything_back(loaded, alone, monkeypatch, at):
    """Press Ctrl-C when beams were just forked: blocks that were to be copied are freed, too."""
    engine, prompt = make_engine(loaded), tokens(20, 19)
    real, num_calls, num_copies = engine.runner.step, 0, 0

    def step(steps, copies=()):
        nonlocal num_calls, num_copies
        num_calls, num_copies = num_calls + 1, len(copies)
        if num_calls == at:
            raise KeyboardInterrupt
        return real(steps, copies)

    monkeypatch.setattr(engine.runner, "step", step)
    with pytest.raises(KeyboardInterrupt):
        beam_search(engine, prompt, beam_width=3, max_tokens=6, ignore_eos=True)
    assert (num_copies > 0) == (at > 1), "no copy was to be made, nothing is tested"
    engine.kv_cache.check_integrity()
    assert engine.kv_cache.block_pool.get_usage() == 0.0
    engine.add_request(prompt, GREEDY, "r")
    assert [run(engine)["r"].token_ids] == alone(prompt, GREEDY)


# ---- numbers


def test_metrics_say_what_was_saved(loaded):
    engine = make_engine(loaded)
    for name in "ab":
        engine.add_request(tokens(40, 20), GREEDY, name)
        run(engine)
    metrics = engine.metrics()
    assert (metrics.num_requests, metrics.num_prompt_tokens, metrics.num_saved_tokens) == (2, 80, 39)
    assert metrics.hit_rate == metrics.recent_hit_rate == 39 / 80
    assert "39 of 80 prompt tokens found in the cache (49%" in str(metrics)


def test_what_no_request_holds_can_be_evicted_while_one_runs(loaded):
    engine = make_engine(loaded)
    ended, running = random_prompts(2)
    engine.add_request(ended, GREEDY, "ended")
    run(engine)
    num_cached = engine.kv_cache.prefix_tree.stats.num_nodes
    engine.add_request(running, GREEDY, "running")
    engine.step()
    in_use = engine.kv_cache.prefix_tree.stats.num_nodes_in_use
    assert engine.evict_unused() == num_cached > 0 and engine.evict_unused() == 0
    assert engine.kv_cache.prefix_tree.stats.num_nodes == in_use > 0
    engine.kv_cache.check_integrity()
    engine.add_request(ended, GREEDY, "ended")
    engine.add_request(running, GREEDY, "running again")
    run(engine)
    assert engine.metrics().num_saved_tokens == len(running) // 8 * 8, "the full blocks of the running request"

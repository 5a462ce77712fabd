"""Everything at once on the real model: random settings, arrivals, samples, priorities, aborts, pools too small.

Whatever happens, a greedy sequence gives what it gives alone, all blocks are freed, and every request ends.
"""

import random

import pytest

from mini_vllm.conftest import examples
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.request import Priority, SamplingParams


def undisturbed(loaded, prompts):
    """Return the greedy continuations of ``prompts``, by name, from a plain engine with room for all of them."""
    engine = LLMEngine(EngineConfig(num_blocks=80, block_size=16, max_num_seqs=16, enable_prefix_caching=False,
                                    enable_lookahead=False), loaded=loaded)
    for name, prompt in prompts.items():
        engine.add_request(prompt, SamplingParams(max_tokens=16, temperature=0, ignore_eos=True), name)
    found = {}
    while engine.has_unfinished_requests():
        found.update({output.request_id: output.token_ids for output in engine.step()})
    return found


@pytest.mark.parametrize("seed", range(examples(10)))
def test_a_random_mix(loaded, seed):
    rng = random.Random(seed)
    block_size, max_num_seqs = rng.choice([1, 3, 4, 8, 8, 16, 32]), rng.choice([1, 2, 4, 8])
    config = EngineConfig(block_size=block_size, num_blocks=rng.randint(70, 160) // block_size + 3,
                          max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_seqs + rng.choice([0, 3, 16, 100]),
                          max_num_chunk_tokens=rng.choice([None, 1, 5]), watermark=rng.choice([0.0, 0.01, 0.2]),
                          aging_rate=rng.choice([0.0, 0.1, 100.0]), enable_prefix_caching=rng.random() < 0.8,
                          enable_lookahead=rng.random() < 0.7)
    engine = LLMEngine(config, loaded=loaded)
    beginnings = [[rng.randrange(250) for _ in range(30)] for _ in range(2)]
    prompts, results, to_come = {}, {}, rng.randint(4, 12)
    for _ in range(2000):
        if not to_come and not engine.has_unfinished_requests():
            break
        while to_come and (rng.random() < 0.3 or not engine.has_unfinished_requests()):
            to_come -= 1
            prompt = rng.choice(beginnings)[:rng.randint(0, 30)] + [rng.randrange(8) for _ in range(rng.randint(1, 9))]
            is_greedy = rng.random() < 0.8
            params = SamplingParams(max_tokens=rng.randint(1, 16), temperature=0 if is_greedy else 1.0, seed=seed,
                                    ignore_eos=True, n=rng.randint(1, min(3, max_num_seqs)))
            name = f"r{to_come}"
            prompts[name] = prompt if is_greedy else None
            engine.add_request(prompt, params, name, rng.choice(list(Priority)))
        if rng.random() < 0.04 and engine.has_unfinished_requests():
            name = rng.choice([name for name in prompts if name not in results])
            results[name] = engine.abort_request(name)
        for output in engine.step():
            if output.finished:
                results[output.request_id] = output
        engine.kv_cache.check_integrity()
    assert not engine.has_unfinished_requests() and set(results) == set(prompts)
    assert engine.kv_cache.block_pool.get_usage() == 0.0
    assert all(output.error is None for output in results.values())
    for name, expected in undisturbed(loaded, {n: prompt for n, prompt in prompts.items() if prompt}).items():
        for completion in results[name].outputs:
            assert completion.token_ids == expected[:len(completion.token_ids)], (
                f"{name}#{completion.index} of {config}")

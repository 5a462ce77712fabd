"""What a trace records of a run, and what a trace file may contain."""

import json
import random
from pathlib import Path

import pytest

from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.models.loader import load
from mini_vllm.pictures.request_colours import Cast
from mini_vllm.pictures.steps import tell_step
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Request, SamplingParams
from mini_vllm.scheduler import Scheduler
from mini_vllm.simulation import Clock, Simulation
from mini_vllm.speculation.test_speculation import FREE
from mini_vllm.structured.params import StructuredOutputsParams
from mini_vllm.trace.files import FORMAT, OPTIONAL_STEP_FIELDS, STEP_FIELDS, TraceError, allowed_of, draft_of
from mini_vllm.trace.history import History
from mini_vllm.trace.recorder import StepTrace
from mini_vllm.trace.summary import facts

SIZE = 4


class WatchedTrace(StepTrace):
    """Records the real state at the moment of each plan."""

    def __init__(self, clock):
        super().__init__(clock)
        self.tables, self.pools = [], []

    def record_plan(self, scheduler, plan):
        super().record_plan(scheduler, plan)
        self.tables.append({each.request_id: scheduler.kv_cache.get_block_ids(each.request_id)
                            for each in scheduler.running})
        self.pools.append({block.block_id: (block.ref_cnt, block.block_hash is not None)
                           for block in scheduler.kv_cache.block_pool.blocks if not block.is_null})


def make(num_blocks=100, seqs=4, budget=16):
    clock = Clock()
    manager = KVCacheManager(num_blocks + 1, SIZE, tree_class=PrefixTree)
    scheduler = Scheduler(manager, seqs, budget, watermark=0.0)
    return Simulation(scheduler, clock=clock, trace=WatchedTrace(clock))


def request(name, prompt, num_tokens=4):
    """Create a request. ``prompt`` is a list of tokens, or a number of tokens that no other request has."""
    if isinstance(prompt, int):
        rng = random.Random(name)
        prompt = [rng.randrange(1000) for _ in range(prompt)]
    return Request(name, prompt, SamplingParams(max_tokens=num_tokens))


def run_plain():
    simulation = make(budget=8)
    simulation.add(request("a", 4, 6))
    simulation.add(request("b", 17, 3))
    simulation.run()
    return simulation


def run_preempting():
    simulation = make(num_blocks=11)
    for i, name in enumerate("abcd"):
        simulation.add(request(name, 6 + i, 12), at_s=i * 0.02)
    simulation.run()
    assert simulation.scheduler.num_preemptions, "the example is meant to preempt"
    return simulation


def run_sharing(num_requests=6):
    simulation = make(budget=32)
    for i in range(num_requests):
        simulation.add(request(f"r{i}", [*range(18), 500 + i], 5), at_s=i * 0.01)
    simulation.run()
    return simulation


def run_aborting():
    """Run a simulation in which one request is aborted while it runs, and one while it waits."""
    simulation = make(seqs=2)
    for name in "abc":
        simulation.add(request(name, 6, 8))
    for _ in range(3):
        simulation.step()
    simulation.abort("b")
    simulation.abort("c")
    simulation.run()
    return simulation


def run_at_random(seed):
    rng = random.Random(seed)
    simulation = make(num_blocks=rng.randrange(12, 40), seqs=6, budget=rng.choice([6, 16, 40]))
    for i in range(rng.randrange(3, 20)):
        prompt = [*range(rng.choice([0, 0, 10])), *(rng.randrange(1000) for _ in range(rng.randrange(1, 30)))]
        simulation.add(request(f"r{i}", prompt, rng.randrange(1, 30)), at_s=rng.random() * 0.5)
    while not simulation.is_done:
        simulation.step()
        if rng.random() < 0.04 and simulation.scheduler.requests:
            simulation.abort(rng.choice(sorted(simulation.scheduler.requests)))
    return simulation


#: With seed 92 a step preempts two requests. So does one with seed 49, which also contains every way to end that a
#: simulation has.
RUNS = {"plain": run_plain, "preempting": run_preempting, "sharing": run_sharing, "aborting": run_aborting,
        **{f"random-{seed}": lambda seed=seed: run_at_random(seed) for seed in (0, 1, 2, 4, 49, 92)}}


@pytest.fixture(scope="module", params=RUNS)
def simulation(request):
    return RUNS[request.param]()


def by_hand(*steps, num_blocks=9, budget=8):
    """Build a trace of steps in which only the named things happen."""
    trace = StepTrace()
    trace.header = {"format": FORMAT, "num_blocks": num_blocks, "block_size": SIZE, "max_num_seqs": 4,
                    "max_num_batched_tokens": budget}
    for i, step in enumerate(steps):
        assert not step.keys() - {*STEP_FIELDS, *OPTIONAL_STEP_FIELDS}
        trace.steps.append({"start_s": i * 0.01, "planned_s": i * 0.01, "computed_s": i * 0.01, "end_s": (i + 1) * 0.01,
                            "tokens": {}, "prompts": {}, "sampled": [], "waiting": [], "preempted": [], "finished": {},
                            "copies": [], "tables": {}, "blocks": [], **step})
    return trace


def run_drafting(loaded):
    """Run requests that may only get two different tokens: some guesses are right and some are wrong."""
    trace = StepTrace(Clock())
    config = EngineConfig(num_blocks=60, block_size=SIZE, num_speculative_tokens=5)
    engine = LLMEngine(config, loaded=loaded, trace=trace)
    engine.speculation.costs = FREE
    for number in range(3):
        params = SamplingParams(max_tokens=24, seed=number, allowed_token_ids=[97, 98], ignore_eos=True)
        engine.add_request([*b"abab"], params, f"request-{number}")
    while engine.has_unfinished_requests():
        engine.step()
    assert 0 < engine.speculation.num_accepted_tokens < engine.speculation.num_drafted_tokens
    return engine


# ---- recording


def test_a_step_tells_what_the_timeline_tells(simulation):
    steps, timeline = simulation.trace.steps, simulation.timeline
    assert len(steps) == len(timeline.steps)
    for i, (step, expected) in enumerate(zip(steps, timeline.steps)):
        assert set(step) == {*STEP_FIELDS, *OPTIONAL_STEP_FIELDS} - {"drafts", "allowed"}
        assert {name: num for name, (_, num) in step["tokens"].items()} == expected.num_scheduled_tokens, f"step {i}"
        assert step["sampled"] == expected.sampled, f"step {i}"
        assert step["preempted"] == expected.preempted, f"step {i}"
        assert set(step["finished"]) >= set(expected.finished), f"step {i}"
        assert step["start_s"] == pytest.approx(expected.start_s - timeline.steps[0].start_s, abs=1e-6)
        assert step["end_s"] == pytest.approx(expected.end_s - timeline.steps[0].start_s, abs=1e-6)
        assert step["start_s"] <= step["planned_s"] <= step["computed_s"] <= step["end_s"]


def test_every_request_is_introduced_once_with_its_prompt_and_ends_once():
    trace = run_preempting().trace
    assert [name for step in trace.steps for name in step["prompts"]] == ["a", "b", "c", "d"]
    assert {k: v for step in trace.steps for k, v in step["prompts"].items()} == {"a": 6, "b": 7, "c": 8, "d": 9}
    assert sorted((k, v) for step in trace.steps for k, v in step["finished"].items()) == [
        (name, "length") for name in "abcd"]


def test_changes_add_up_to_what_was_there_in_each_step(simulation):
    """Replay the trace: tables and blocks are recorded when they change, so one wrong record would stay wrong."""
    tables, blocks = {}, dict.fromkeys(simulation.trace.pools[0], (0, False))
    for i, step in enumerate(simulation.trace.steps):
        tables.update(step["tables"])
        tables = {name: table for name, table in tables.items() if table}
        for block_id, *state in step["blocks"]:
            assert blocks[block_id] != tuple(state), f"step {i}: block {block_id} is told, but did not change"
            blocks[block_id] = tuple(state)
        assert tables == simulation.trace.tables[i], f"tables of step {i}"
        assert blocks == simulation.trace.pools[i], f"blocks of step {i}"


def test_an_abort_between_two_steps_belongs_to_the_second():
    trace = run_aborting().trace
    assert trace.steps[2]["finished"] == {}
    assert trace.steps[3]["finished"] == {"b": "abort", "c": "abort"}
    assert trace.steps[3]["tables"]["b"] == [] and "c" not in trace.steps[3]["tables"]
    assert trace.steps[2]["waiting"] == ["c"] and trace.steps[3]["waiting"] == []


# ---- drafts


def test_drafts_are_recorded_and_accepted_tokens_count_as_computed(shallow, tmp_path):
    engine = run_drafting(load(shallow("llama3")))
    steps, numbers = engine.trace.steps, engine.speculation
    drafts = [(step, name, draft) for step in steps for name, draft in step.get("drafts", {}).items()]
    assert [sum(draft[i] for *_, draft in drafts) for i in range(2)] == [
        numbers.num_drafted_tokens, numbers.num_accepted_tokens]
    assert all(step["tokens"][name][1] == 1 and name in step["sampled"] for step, name, _ in drafts)
    assert all("drafts" not in step or step["drafts"] for step in steps), "missing in steps without drafts"
    for name in ("request-0", "request-1", "request-2"):
        spans = [(*step["tokens"][name], draft_of(step, name)[1]) for step in steps if name in step["tokens"]]
        assert all(before + new + accepted == after for (before, new, accepted), (after, *_) in zip(spans, spans[1:]))
        assert sum(new + accepted for _, new, accepted in spans) + spans[0][0] == 4 + 24 - 1, "all but the last token"
    engine.trace.save(tmp_path / "run.trace")
    assert StepTrace.load(tmp_path / "run.trace").steps == steps


def test_a_run_of_equal_drafts_goes_on_and_another_number_begins_a_new_one():
    trace = by_hand({"tokens": {"a": [0, 4]}, "prompts": {"a": 4}, "sampled": ["a"]},
                    *({"tokens": {"a": [4 + 3 * i, 1]}, "sampled": ["a"], "drafts": {"a": [5, 2]}} for i in range(3)),
                    {"tokens": {"a": [13, 1]}, "sampled": ["a"], "drafts": {"a": [5, 1]}},
                    {"tokens": {"a": [15, 1]}, "sampled": ["a"]}, budget=64)
    history = History(trace, range(6))
    assert [(run.kind, run.first, run.last, run.num_drafted, run.num_accepted) for run in history.rows["a"]] == [
        ("prompt", 0, 0, 0, 0), ("drafted", 1, 3, 5, 2), ("drafted", 4, 4, 5, 1), ("decode", 5, 5, 0, 0)]
    assert [each.num_tokens for each in history.totals] == [4, 6, 6, 6, 6, 1], "drafted tokens are computed"
    assert facts(history)[:2] == ["29 tokens computed", "7 of 20 drafted tokens accepted"]
    assert "draft" not in " ".join(facts(History(run_plain().trace, range(6))))


def test_rejected_tokens_leave_their_block_empty():
    """Draft 7 tokens of which 1 is accepted: the second block holds 2 tokens, and the third none."""
    trace = by_hand({"tokens": {"a": [0, 4]}, "prompts": {"a": 4}, "tables": {"a": [1]}, "blocks": [[1, 1, False]]},
                    {"tokens": {"a": [4, 1]}, "drafts": {"a": [7, 1]}, "tables": {"a": [1, 2, 3]},
                     "blocks": [[2, 1, False], [3, 1, False]]},
                    {"tokens": {"a": [6, 1]}, "tables": {"a": [1, 2]}, "blocks": [[3, 0, False]]})
    runs = History(trace, range(3)).block_runs
    assert {block_id: run.levels for block_id, (run,) in runs.items()} == {
        1: [(0, 4)], 2: [(1, 2), (2, 3)], 3: [(1, 0)]}


# ---- outputs that must match


def run_bound(k=0, n=1, **structured):
    """Serve one request whose output must match, and one whose output is free; also return the outputs."""
    engine = LLMEngine(EngineConfig(num_blocks=60, block_size=SIZE, num_speculative_tokens=k), trace=StepTrace(Clock()))
    if k:
        engine.speculation.costs = FREE
    params = SamplingParams(max_tokens=80, seed=1, n=n, structured_outputs=StructuredOutputsParams(**structured))
    engine.add_request("The wolf was born on", params, "bound")
    engine.add_request("Once upon a time", SamplingParams(max_tokens=5, temperature=0, ignore_eos=True), "free")
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
    return engine, outputs["bound"]


def test_each_token_of_an_output_that_must_match_is_recorded_with_its_state(tmp_path):
    engine, output = run_bound(regex=r"\d{2}-[01]")
    steps = engine.trace.steps
    recorded = [step["allowed"]["bound"] for step in steps if "allowed" in step]
    assert recorded == [[[10, 0]], [[10, 1]], [[1, 2]], [[2, 3]]]
    assert all(set(step.get("allowed", {"bound": 0})) == {"bound"} for step in steps) and "allowed" not in steps[-1]
    assert engine.trace.header["vocab_size"] == 4096 and output.outputs[0].finish_reason == "stop"
    assert "1 output had to match, with 1 to 10 of 4,096 tokens allowed at a time" in facts(
        History(engine.trace, range(len(steps))))
    engine.trace.save(tmp_path / "run.trace")
    loaded = StepTrace.load(tmp_path / "run.trace")
    assert loaded.steps == steps and loaded.header == engine.trace.header
    assert "A 1 (10 allowed)" in tell_step(steps[1], Cast.of_trace(engine.trace))


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("n", [1, 3])
def test_all_tokens_of_all_samples_are_recorded_also_accepted_drafts(k, n):
    engine, output = run_bound(k, n, regex="((ab|cd) ){6}")
    assert (engine.metrics().num_accepted_tokens > 0) == bool(k)
    for index, sample in enumerate(output.outputs):
        name = f"bound#{index}" if n > 1 else "bound"
        nums = [num for step in engine.trace.steps for num in allowed_of(step, name)]
        assert len(nums) == len(sample.token_ids) and all(0 < num < 20 for num in nums)
    assert any(len(each) > 1 for step in engine.trace.steps for each in step.get("allowed", {}).values()) == bool(k)


def test_the_state_of_a_parser_has_no_number():
    pytest.importorskip("llguidance")
    engine, output = run_bound(json={"type": "integer", "minimum": 10, "maximum": 99})
    records = [record for step in engine.trace.steps for record in step.get("allowed", {}).get("bound", ())]
    assert len(records) == len(output.token_ids) and all(0 < num < 20 and state is None for num, state in records)


# ---- names


def introduced(texts, model="models/tiny-tales"):
    """Return a trace that knows the texts of prompts and has recorded a plan."""
    trace = StepTrace(Clock())
    trace.introduce(model, lambda request: texts[request.request_id])
    simulation = make()
    simulation.trace = trace
    for name in texts:
        simulation.add(request(name, 5))
    simulation.run()
    return trace


def test_of_a_prompt_only_the_beginning_is_kept():
    texts = {"a": "Once upon\n a  time", "b": "x" * 40, "c": "A secret that nobody is to read, not in a trace: 4711",
             "d": ""}
    trace = introduced(texts)
    assert {key: value for step in trace.steps for key, value in step["names"].items()} == {
        "a": "Once upon a time", "b": "x" * 40, "c": "A secret that nobody is to read, not in…"}
    assert trace.header["model"] == "tiny-tales", "not where it lies"


def test_an_engine_introduces_itself_and_its_prompts(checkpoints):
    loaded, trace = load(checkpoints("qwen3")), StepTrace()
    engine = LLMEngine(EngineConfig(num_blocks=40, block_size=8), loaded=loaded, trace=trace)
    params = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
    engine.add_request("hello world", params, "text")
    engine.add_request(loaded.tokenizer.encode("good morning"), params, "ids")
    engine.add_request("hello again", SamplingParams(max_tokens=2, n=2, seed=1, ignore_eos=True), "two")
    while engine.has_unfinished_requests():
        engine.step()
    assert {key: value for step in trace.steps for key, value in step["names"].items()} == {
        "text": "hello world", "ids": "good morning", "two#0": "hello again", "two#1": "hello again"}
    assert trace.header["model"] == Path(loaded.name).name


# ---- files


def test_a_saved_trace_is_read_back_as_it_was(simulation, tmp_path):
    path = tmp_path / "run.trace"
    simulation.trace.save(path)
    loaded = StepTrace.load(path)
    assert loaded.header == simulation.trace.header
    assert loaded.steps == simulation.trace.steps
    assert len(path.read_text().splitlines()) == 1 + len(loaded.steps)


def test_odd_ids_survive_a_file(tmp_path):
    odd = 'r\u2028<&"\n\x0bé'
    trace = by_hand({"tokens": {odd: [0, 3]}, "prompts": {odd: 3}, "sampled": [odd]})
    trace.save(tmp_path / "odd.trace")
    assert StepTrace.load(tmp_path / "odd.trace").steps == trace.steps


HEADER = json.dumps({"format": FORMAT, "num_blocks": 9, "block_size": 4, "max_num_seqs": 4,
                     "max_num_batched_tokens": 8})
STEP = json.dumps(by_hand({}).steps[0])


@pytest.mark.parametrize("text, complaint", [
    ("", "is empty"),
    ("step 0: nothing\n", "line 1"),
    ("[1, 2]\n", "line 1"),
    ('{"request_id": "a"}\n', "line 1.*format"),
    ('{"format": 1}\n', "line 1.*num_blocks"),
    (f"{HEADER}\n{STEP[:-1]}, \"drafts\": 3}}\n", "line 2.*drafts is 3"),
    ('{"format": 99}\n', "format 99"),
    (f"{HEADER}\n{STEP}\n{STEP[:40]}\n", "line 3"),
    (f"{HEADER}\n\n{STEP}\n", "line 2"),
    (f"{HEADER}\n{STEP}\n[1]\n", "line 3"),
    (b"\x89PNG\xff", "it is not text"),
    (f'{HEADER}\n{STEP.replace("sampled", "samples")}\n', "line 2.*sampled"),
])
def test_a_file_that_is_no_trace_is_named_with_the_line(text, complaint, tmp_path):
    path = tmp_path / "some.file"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TraceError, match=complaint) as error:
        StepTrace.load(path)
    assert str(path) in str(error.value)


def test_traces_of_other_versions_can_be_read(tmp_path):
    path, step = tmp_path / "run.trace", json.loads(STEP)
    older = {name: value for name, value in step.items() if name != "names"}
    path.write_text("\n".join([HEADER, json.dumps(older), json.dumps({**step, "mood": "good"})]))
    assert StepTrace.load(path).steps == [older, step]

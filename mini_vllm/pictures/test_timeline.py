"""What a trace tells of a run, what a file of it may look like, and whether the picture shows all of it."""

import json
import random
import re
import time
import xml.etree.ElementTree as ElementTree

import pytest

from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.pictures import block_panel
from mini_vllm.pictures.elements import COLOURS
from mini_vllm.pictures.timeline import draw_trace
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Request, SamplingParams
from mini_vllm.scheduler import Scheduler
from mini_vllm.simulation import Clock, Simulation
from mini_vllm.trace.files import FORMAT, STEP_FIELDS, TraceError
from mini_vllm.trace.recorder import StepTrace

SIZE = 4


class WatchedTrace(StepTrace):
    """Notes, at the moment of each plan, how things really stand."""

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
    """``prompt`` is a list of tokens, or a number of tokens that nobody else has."""
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
    """One is aborted while it runs, one while it waits."""
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


#: In 92 a step preempts two; so does one in 49, which also has every way to end that a simulation has.
RUNS = {"plain": run_plain, "preempting": run_preempting, "sharing": run_sharing, "aborting": run_aborting,
        **{f"random-{seed}": lambda seed=seed: run_at_random(seed) for seed in (0, 1, 2, 4, 49, 92)}}


@pytest.fixture(scope="module", params=RUNS)
def simulation(request):
    return RUNS[request.param]()


def by_hand(*steps, num_blocks=9, budget=8):
    """A trace of steps in which only the named things happen."""
    trace = StepTrace()
    trace.header = {"format": FORMAT, "num_blocks": num_blocks, "block_size": SIZE, "max_num_seqs": 4,
                    "max_num_batched_tokens": budget}
    for i, step in enumerate(steps):
        assert not step.keys() - set(STEP_FIELDS)
        trace.steps.append({"start_s": i * 0.01, "planned_s": i * 0.01, "computed_s": i * 0.01, "end_s": (i + 1) * 0.01,
                            "tokens": {}, "prompts": {}, "sampled": [], "waiting": [], "preempted": [], "finished": {},
                            "copies": [], "tables": {}, "blocks": [], **step})
    return trace


# ---- recording


def test_a_step_tells_what_the_timeline_tells(simulation):
    steps, timeline = simulation.trace.steps, simulation.timeline
    assert len(steps) == len(timeline.steps)
    for i, (step, expected) in enumerate(zip(steps, timeline.steps)):
        assert set(step) == set(STEP_FIELDS)
        assert {name: num for name, (_, num) in step["tokens"].items()} == expected.num_scheduled_tokens, f"step {i}"
        assert step["sampled"] == expected.sampled, f"step {i}"
        assert step["preempted"] == expected.preempted, f"step {i}"
        assert set(step["finished"]) >= set(expected.finished), f"step {i}"
        assert step["start_s"] == pytest.approx(expected.start_s - timeline.steps[0].start_s, abs=1e-6)
        assert step["end_s"] == pytest.approx(expected.end_s - timeline.steps[0].start_s, abs=1e-6)
        assert step["start_s"] <= step["planned_s"] <= step["computed_s"] <= step["end_s"]


def test_the_header_is_that_of_the_scheduler():
    assert run_plain().trace.header == {"format": FORMAT, "num_blocks": 101, "block_size": SIZE, "max_num_seqs": 4,
                                        "max_num_batched_tokens": 8}


def test_every_request_is_introduced_once_with_its_prompt_and_ends_once():
    trace = run_preempting().trace
    assert [name for step in trace.steps for name in step["prompts"]] == ["a", "b", "c", "d"]
    assert {k: v for step in trace.steps for k, v in step["prompts"].items()} == {"a": 6, "b": 7, "c": 8, "d": 9}
    assert sorted((k, v) for step in trace.steps for k, v in step["finished"].items()) == [
        (name, "length") for name in "abcd"]


def test_who_computes_goes_on_where_it_stopped_unless_it_was_preempted(simulation):
    num_computed, num_resumed = {}, 0
    for i, step in enumerate(simulation.trace.steps):
        for name in step["preempted"]:
            num_computed[name] = None
        for name, (before, num) in step["tokens"].items():
            if num_computed.get(name) is not None:
                assert before == num_computed[name], f"step {i}, {name}: {before} computed before"
            num_resumed += name in num_computed and num_computed[name] is None
            num_computed[name] = before + num
    assert num_resumed <= simulation.scheduler.num_preemptions


def test_changes_add_up_to_what_was_there_in_each_step(simulation):
    """Tables and blocks are told when they change; told wrongly once, they would be wrong for good."""
    tables, blocks = {}, dict.fromkeys(simulation.trace.pools[0], (0, False))
    for i, step in enumerate(simulation.trace.steps):
        tables.update(step["tables"])
        tables = {name: table for name, table in tables.items() if table}
        for block_id, *state in step["blocks"]:
            assert blocks[block_id] != tuple(state), f"step {i}: block {block_id} is told, but did not change"
            blocks[block_id] = tuple(state)
        assert tables == simulation.trace.tables[i], f"tables of step {i}"
        assert blocks == simulation.trace.pools[i], f"blocks of step {i}"


def test_all_preemptions_are_there(simulation):
    assert sum(len(step["preempted"]) for step in simulation.trace.steps) == simulation.scheduler.num_preemptions


def test_a_shared_prefix_is_seen_in_tokens_and_blocks():
    steps = run_sharing().trace.steps
    first = {}
    for step in steps:
        for name, (before, _) in step["tokens"].items():
            first.setdefault(name, before)
    assert first["r0"] == 0 and all(first[f"r{i}"] >= 16 for i in range(1, 6)), first
    assert max(ref_cnt for step in steps for _, ref_cnt, _ in step["blocks"]) > 1


def test_copies_are_pairs_of_blocks():
    copies = [pair for step in run_sharing().trace.steps for pair in step["copies"]]
    assert copies and all(len(pair) == 2 and pair[0] != pair[1] for pair in copies)


def test_an_abort_between_two_steps_belongs_to_the_second():
    trace = run_aborting().trace
    assert trace.steps[2]["finished"] == {}
    assert trace.steps[3]["finished"] == {"b": "abort", "c": "abort"}
    assert trace.steps[3]["tables"]["b"] == [] and "c" not in trace.steps[3]["tables"]
    assert trace.steps[2]["waiting"] == ["c"] and trace.steps[3]["waiting"] == []


def test_a_request_that_outgrows_the_pool_ends_with_its_status():
    simulation = make(num_blocks=3)
    simulation.add(request("big", 6, 40))
    simulation.run()
    assert simulation.trace.steps[-1]["finished"] == {"big": "kv_cache_full"}
    assert simulation.trace.steps[-1]["tokens"] == {}


# ---- files


def test_a_saved_trace_is_read_back_as_it_was(simulation, tmp_path):
    path = tmp_path / "run.trace"
    simulation.trace.save(path)
    loaded = StepTrace.load(path)
    assert loaded.header == simulation.trace.header
    assert loaded.steps == simulation.trace.steps
    assert len(path.read_text().splitlines()) == 1 + len(loaded.steps)
    loaded.save(path)
    assert StepTrace.load(path).steps == simulation.trace.steps


def test_odd_ids_survive_a_file(tmp_path):
    odd = 'r\u2028<&"\n\x0bé'
    trace = by_hand({"tokens": {odd: [0, 3]}, "prompts": {odd: 3}, "sampled": [odd]})
    trace.save(tmp_path / "odd.trace")
    assert StepTrace.load(tmp_path / "odd.trace").steps == trace.steps


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(OSError):
        StepTrace.load(tmp_path / "none.trace")


HEADER = json.dumps({"format": FORMAT, "num_blocks": 9, "block_size": 4, "max_num_seqs": 4,
                     "max_num_batched_tokens": 8})
STEP = json.dumps(by_hand({}).steps[0])


@pytest.mark.parametrize("text, complaint", [
    ("", "is empty"),
    ("step 0: nothing\n", "line 1"),
    ("[1, 2]\n", "line 1"),
    ("17\n", "line 1"),
    ("null\n", "line 1"),
    ('{"request_id": "a"}\n', "line 1.*format"),
    ('{"format": 1}\n', "line 1.*num_blocks"),
    (HEADER + '\n' + STEP.replace('"copies": []', '"copies": 7') + '\n',
     "line 2.*copies is 7"),
    ('{"format": 99}\n', "format 99"),
    (f"{HEADER}\n{STEP}\n{STEP[:40]}\n", "line 3"),
    (f"{HEADER}\n\n{STEP}\n", "line 2"),
    (f"{HEADER}\n{STEP}\n[1]\n", "line 3"),
    (f'{HEADER}\n{STEP}\n"text"\n', "line 3"),
    (f'{HEADER}\n{STEP.replace("sampled", "samples")}\n', "line 2.*sampled"),
])
def test_a_file_that_is_no_trace_is_named_with_the_line(text, complaint, tmp_path):
    path = tmp_path / "some.file"
    path.write_text(text)
    with pytest.raises(TraceError, match=complaint) as error:
        StepTrace.load(path)
    assert str(path) in str(error.value)


def test_a_file_that_is_no_text_is_no_trace(tmp_path):
    (tmp_path / "some.file").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    with pytest.raises(TraceError, match="some.file"):
        StepTrace.load(tmp_path / "some.file")


def test_what_a_later_version_adds_to_a_step_is_left_out(tmp_path):
    path = tmp_path / "run.trace"
    path.write_text(f"{HEADER}\n{json.dumps({**json.loads(STEP), 'mood': 'good'})}\n")
    assert StepTrace.load(path).steps == [json.loads(STEP)]


# ---- the picture, read back


class Drawing:
    """A picture taken apart again: what is where, in steps."""

    def __init__(self, trace, **which):
        self.svg = draw_trace(trace, **which)
        self.first = which.get("first_step", 0)
        self.root = ElementTree.fromstring(self.svg)
        bars = [each for each in self.find("g", "data-panel", "tokens")[0] if self.title(each)]
        self.num_steps, self.left, self.cell = len(bars), float(bars[0].get("x")), float(bars[0].get("width"))
        self.bars = [self.title(bar) for bar in bars]

    def find(self, tag, name=None, value=None):
        return [each for each in self.root.iter("{http://www.w3.org/2000/svg}" + tag)
                if name is None or (each.get(name) is not None and value in (None, each.get(name)))]

    @staticmethod
    def title(element):
        return element.findtext("{http://www.w3.org/2000/svg}title") or ""

    @property
    def headline(self):
        return self.find("text", "data-part", "title")[0].text

    def steps_of(self, element):
        """The steps that a shape covers, from where it stands."""
        if element.tag.endswith("rect"):
            left, right = float(element.get("x")), float(element.get("x")) + float(element.get("width"))
        elif "H" in element.get("d"):
            left, right = map(float, re.match(r"M(\S+) \S+H(\S+)$", element.get("d")).groups())
        else:
            radius = float(re.match(r"M\S+ \S+l(\S+) ", element.get("d"))[1]) / 2
            middle = float(re.match(r"M(\S+) ", element.get("d"))[1]) + radius
            left, right = middle - self.cell / 2, middle + self.cell / 2
        first, end = (left - self.left) / self.cell, (right - self.left) / self.cell
        assert abs(first - round(first)) < 1e-3 and abs(end - round(end)) < 1e-3, f"{element.attrib} is between steps"
        return range(self.first + round(first), self.first + round(end))

    def cells(self):
        """(request, step) → what is drawn there."""
        cells = {}
        for row in self.find("g", "data-request"):
            for shape in row:
                if shape.get("data-kind"):
                    steps = self.steps_of(shape)
                    said = re.match(r"steps? (\d+)(?: to (\d+))?: ", self.title(shape))
                    assert [int(said[1]), int(said[2] or said[1])] == [steps[0], steps[-1]], self.title(shape)
                    for step in steps:
                        assert (row.get("data-request"), step) not in cells, "two shapes in one place"
                        cells[row.get("data-request"), step] = shape.get("data-kind")
        return cells

    def blocks(self):
        """(block, step) → (the colour, what the tooltip says)."""
        blocks = {}
        for row in self.find("g", "data-block"):
            for shape in row:
                for step in self.steps_of(shape):
                    assert (int(row.get("data-block")), step) not in blocks, "two shapes in one place"
                    blocks[int(row.get("data-block")), step] = (shape.get("fill"),
                                                                self.title(shape).partition(": ")[2])
        return blocks


@pytest.fixture(scope="module")
def drawing(simulation):
    return Drawing(simulation.trace)


def expected_cells(trace):
    """As ``Drawing.cells``, but step by step and without any runs."""
    cells, prompts, most = {}, {}, {}
    for i, step in enumerate(trace.steps):
        prompts.update(step["prompts"])
        for name in step["waiting"]:
            cells[name, i] = "waiting"
        for name in step["preempted"]:
            cells[name, i] = "preempted"
        for name, (before, num) in step["tokens"].items():
            cells[name, i] = ("recomputed" if before < most.get(name, 0)
                              else "prompt" if before < prompts[name] else "decode")
            most[name] = max(most.get(name, 0), before + num)
    return cells


def num_recomputed(trace):
    """Token by token: how many were computed when the request had had them, computed or found in the cache."""
    had, num = set(), 0
    for step in trace.steps:
        for name, (before, num_tokens) in step["tokens"].items():
            num += sum((name, position) in had for position in range(before, before + num_tokens))
            had.update((name, position) for position in range(before + num_tokens))
    return num


def test_every_cell_of_the_run_is_drawn_and_no_other(simulation, drawing):
    assert drawing.cells() == expected_cells(simulation.trace)


def test_every_block_is_drawn_in_its_state(simulation, drawing):
    trace = simulation.trace
    names = {name for step in trace.steps for name in step["prompts"]}
    drawn, colours = drawing.blocks(), {}
    for step, (pool, tables) in enumerate(zip(trace.pools, trace.tables)):
        for block_id, (ref_cnt, findable) in pool.items():
            owners = sorted(name for name, table in tables.items() if block_id in table)
            colour, said = drawn.pop((block_id, step), (None, None))
            where = f"block {block_id} in step {step}, {ref_cnt} references, of {owners}: {colour}, {said!r}"
            if ref_cnt == 0:
                assert said == ("free, still cached" if findable else None), where
            elif len(owners) > 1:
                assert said.startswith(f"shared by {', '.join(owners[:6])}"), where
                assert colour == COLOURS["shared"], where
            elif ref_cnt > 1:
                assert said == f"{owners[0]}, and kept for a copy", where
            elif owners:
                assert said == owners[0], where
                assert colours.setdefault(owners[0], colour) == colour, where
            else:
                assert said == "kept for a copy", where
    assert not drawn
    assert len(set(colours.values())) == (len(colours) if len(names) <= 12 else 1)


def test_every_request_has_a_row_with_its_prompt(simulation, drawing):
    rows = {row.get("data-request"): [text.text for text in row if text.tag.endswith("text")][:2]
            for row in drawing.find("g", "data-request")}
    assert rows == {name: [name, str(num)] for step in simulation.trace.steps for name, num in step["prompts"].items()}


def test_the_headline_agrees_with_the_run(simulation, drawing):
    trace, scheduler = simulation.trace, simulation.scheduler
    numbers = [int(number) for number in re.findall(r"\d+", drawing.headline)]
    assert numbers == [
        len(trace.steps), len(simulation.timeline.request_ids), scheduler.num_preemptions,
        sum(sum(step.num_scheduled_tokens.values()) for step in simulation.timeline.steps), num_recomputed(trace),
        max(sum(ref_cnt > 0 for ref_cnt, _ in pool.values()) for pool in trace.pools), scheduler.num_blocks,
        scheduler.kv_cache.block_pool.num_forks]


def test_the_headline_in_words():
    assert Drawing(run_plain().trace).headline == (
        "6 steps · 2 requests · 0 preemptions · 28 tokens computed · 0 tokens recomputed · peak 7 of 100 blocks in use "
        "· 0 blocks copied")


def test_the_bars_agree_with_the_steps(simulation, drawing):
    trace = simulation.trace
    for i, (step, title) in enumerate(zip(trace.steps, drawing.bars)):
        prompt, again, decode = map(int, re.search(r"ms: (\d+) prompt, (\d+) recomputed, (\d+) decode", title).groups())
        assert title.startswith(f"step {i}, {step['start_s'] * 1000:.1f} to")
        assert prompt + again + decode == sum(num for _, num in step["tokens"].values()), title
    assert len(drawing.bars) == len(trace.steps)


def test_preemptions_are_crossed_as_often_as_they_happened(simulation, drawing):
    crosses = drawing.find("path", "data-kind", "preempted")
    assert len(crosses) == simulation.scheduler.num_preemptions


def test_ends_are_marked_and_an_abort_looks_different(simulation, drawing):
    drawn = {(row.get("data-request"), each.get("data-end")) for row in drawing.find("g", "data-request")
             for each in row if each.get("data-end")}
    assert drawn == {(name, "good" if status == "length" else "bad") for step in simulation.trace.steps
                     for name, status in step["finished"].items()}
    looks = {(each.get("stroke"), each.get("fill"), each.get("data-end")) for each in drawing.find("path", "data-end")}
    assert len({look[:2] for look in looks}) == len({look[2] for look in looks})


def test_copies_are_marked():
    simulation = run_sharing()
    num_copies = sum(len(step["copies"]) for step in simulation.trace.steps)
    assert len(Drawing(simulation.trace).find("circle", "data-part", "copy")) == num_copies > 0


def test_no_shape_and_no_text_leaves_the_picture(drawing):
    width, height = float(drawing.root.get("width")), float(drawing.root.get("height"))
    for each in drawing.find("rect"):
        x, y = float(each.get("x", 0)), float(each.get("y", 0))
        assert x >= 0 and x + float(each.get("width")) <= width, each.attrib
        assert y >= 0 and y + float(each.get("height")) <= height, each.attrib
    for each in drawing.find("text"):
        length = 0.5 * float(each.get("font-size")) * len(each.text or "".join(each.itertext()))
        x = float(each.get("x")) - length * {"end": 1, "middle": 0.5}.get(each.get("text-anchor"), 0)
        assert x >= -1 and x + length <= width and 0 < float(each.get("y")) < height, each.attrib


# ---- what is merged, counted and told


def test_equal_neighbours_are_one_shape_and_the_tooltip_tells_of_all():
    drawing = Drawing(run_plain().trace)
    titles = {row.get("data-request"): [drawing.title(shape) for shape in row if shape.get("data-kind")]
              for row in drawing.find("g", "data-request")}
    assert titles == {
        "a": ["step 0: 4 tokens of a, 0 computed before, one more is sampled",
              "steps 1 to 5: 1 token each of a, 4 computed before"],
        "b": ["step 0: 4 tokens of b, 0 computed before", "step 1: 7 tokens of b, 4 computed before",
              "step 2: 6 tokens of b, 11 computed before, one more is sampled",
              "steps 3 to 4: 1 token each of b, 17 computed before"]}


def test_numbers_stand_in_the_cells_of_a_prompt_even_if_they_are_one_shape():
    drawing = Drawing(by_hand(*({"tokens": {"a": [8 * i, 8]}, "prompts": {"a": 99}} for i in range(3))))
    row = drawing.find("g", "data-request", "a")[0]
    assert len([shape for shape in row if shape.get("data-kind")]) == 1
    assert [text.text for text in row if text.tag.endswith("text")] == ["a", "99", "8", "8", "8"]


def test_the_more_tokens_the_darker():
    drawing = Drawing(by_hand({"tokens": {"a": [0, 1], "b": [0, 4], "c": [0, 8]}, "prompts": {"a": 9, "b": 9, "c": 9}}))
    fills = [each.get("fill") for each in drawing.find("rect", "data-kind", "prompt")]
    brightness = [sum(int(fill[i:i + 2], 16) for i in (1, 3, 5)) for fill in fills]
    assert brightness == sorted(brightness, reverse=True) and len(set(brightness)) == 3


def test_the_same_tokens_twice_are_two_shapes():
    """Nobody was told to be preempted here; yet what is computed again is not what follows."""
    drawing = Drawing(by_hand(*({"tokens": {"a": [0, 8]}, "prompts": {"a": 8}} for _ in range(3))))
    titles = [drawing.title(shape) for shape in drawing.find("rect", "data-kind")]
    assert titles == ["step 0: 8 tokens of a, 0 computed before",
                      "step 1: 8 tokens of a, 0 computed before, 8 recomputed",
                      "step 2: 8 tokens of a, 0 computed before, 8 recomputed"]


def test_what_stops_and_begins_again_is_two_shapes():
    drawing = Drawing(by_hand({"waiting": ["a"]}, {}, {"waiting": ["a"]}))
    assert drawing.cells() == {("a", 0): "waiting", ("a", 2): "waiting"}


def test_a_request_ends_after_its_last_cell_or_before_the_step_in_which_it_is_missed():
    drawing = Drawing(by_hand({"tokens": {"a": [0, 2], "b": [0, 2]}, "prompts": {"a": 2, "b": 2}},
                              {"tokens": {"a": [2, 1]}, "sampled": ["a"], "finished": {"a": "stop", "b": "abort"}}))
    ends = {row.get("data-request"): float(re.match(r"M(\S+) ", each.get("d"))[1])
            for row in drawing.find("g", "data-request") for each in row if each.get("data-end")}
    assert (ends["a"] - drawing.left) // drawing.cell == 2 and (ends["b"] - drawing.left) // drawing.cell == 1


def test_a_second_request_of_the_same_id_recomputes_nothing():
    step = {"tokens": {"a": [0, 5]}, "finished": {"a": "length"}}
    drawing = Drawing(by_hand({**step, "prompts": {"a": 5}}, step))
    assert drawing.cells() == {("a", 0): "prompt", ("a", 1): "prompt"}
    assert "0 tokens recomputed" in drawing.headline


def test_a_recomputation_that_ends_in_a_new_token_counts_both():
    drawing = Drawing(by_hand({"tokens": {"a": [0, 6]}, "prompts": {"a": 5}}, {"preempted": ["a"], "waiting": ["a"]},
                              {"tokens": {"a": [4, 3]}, "sampled": ["a"]}))
    assert drawing.cells() == {("a", 0): "prompt", ("a", 1): "preempted", ("a", 2): "recomputed"}
    assert "5 prompt, 0 recomputed, 1 decode" in drawing.bars[0]
    assert "0 prompt, 2 recomputed, 1 decode" in drawing.bars[2]


def test_who_runs_and_gets_no_token_is_seen():
    drawing = Drawing(by_hand({"tokens": {"a": [0, 8]}, "prompts": {"a": 20}, "tables": {"a": [1, 2]},
                               "blocks": [[1, 1, True], [2, 1, True]]}, {}, {},
                              {"tokens": {"a": [8, 8]}}))
    assert drawing.cells() == {("a", 0): "prompt", ("a", 1): "idle", ("a", 2): "idle", ("a", 3): "prompt"}


def test_an_id_that_was_only_ever_sampled_has_a_row():
    drawing = Drawing(by_hand({"tokens": {"a#0": [0, 4]}, "prompts": {"a#0": 4}, "sampled": ["a#0", "a#1"]}, {}))
    assert drawing.cells() == {("a#0", 0): "prompt", ("a#1", 0): "forked"}
    assert "2 requests" in drawing.headline


def test_an_id_without_a_prompt_is_drawn_by_the_number_of_its_tokens():
    drawing = Drawing(by_hand({"tokens": {"a": [0, 4]}}, {"tokens": {"a": [4, 1]}}, {"finished": {"b": "error"}}))
    assert drawing.cells() == {("a", 0): "prompt", ("a", 1): "decode"}
    assert [row.get("data-request") for row in drawing.find("g", "data-request")] == ["a", "b"]


def test_steps_in_which_nothing_happens_can_be_drawn():
    assert Drawing(by_hand({}, {})).headline.startswith("2 steps · 0 requests")


def test_the_budget_is_a_line_if_it_is_in_sight():
    step = {"tokens": {"a": [0, 8]}, "prompts": {"a": 8}}
    assert len(Drawing(by_hand(step, budget=20)).find("path", "data-part", "budget")) == 1
    assert not Drawing(by_hand(step, budget=2048)).find("path", "data-part", "budget")
    assert "budget 2048" in draw_trace(by_hand(step, budget=2048))


def test_blocks_that_were_never_used_are_cut_off_and_named():
    drawing = Drawing(by_hand({"blocks": [[40, 1, False]], "tables": {"a": [40]}}, num_blocks=5001))
    assert "Blocks 41 to 5000 are free" in drawing.svg
    assert float(drawing.root.get("height")) < 1000


# ---- a part of a run


def test_a_part_shows_what_the_whole_shows_there():
    simulation = run_preempting()
    whole, part = Drawing(simulation.trace), Drawing(simulation.trace, first_step=9, num_steps=6)
    assert part.num_steps == 6
    assert part.cells() == {key: kind for key, kind in whole.cells().items() if key[1] in range(9, 15)}
    assert part.blocks().keys() == {key for key in whole.blocks() if key[1] in range(9, 15)}
    assert part.bars == whole.bars[9:15]


def test_the_headline_of_a_part_is_of_the_part():
    trace = run_preempting().trace
    again = next(i for i, bar in enumerate(Drawing(trace).bars) if " 0 recomputed" not in bar)
    part = Drawing(trace, first_step=again, num_steps=1)  # what is lost was computed before the part begins
    assert part.headline.startswith(f"steps {again} to {again} of {len(trace.steps)} · ")
    assert f"{num_recomputed(trace)} tokens recomputed" in part.headline and "0 preemptions" in part.headline


def test_without_num_steps_it_is_drawn_to_the_end():
    trace = run_plain().trace
    assert Drawing(trace, first_step=2).svg == Drawing(trace, first_step=2, num_steps=4).svg


@pytest.mark.parametrize("which, complaint", [
    ({"first_step": -1}, "first_step is -1, must be from 0 to 5"),
    ({"first_step": 6}, "first_step is 6, must be from 0 to 5"),
    ({"num_steps": 0}, "num_steps is 0, must be from 1 to 6"),
    ({"num_steps": -3}, "num_steps is -3, must be from 1 to 6"),
    ({"first_step": 4, "num_steps": 3}, "num_steps is 3, must be from 1 to 2"),
])
def test_steps_that_are_not_there_are_refused(which, complaint):
    with pytest.raises(ValueError, match=complaint):
        draw_trace(run_plain().trace, **which)


def test_a_trace_without_steps_is_refused():
    with pytest.raises(ValueError, match="the trace has no steps"):
        draw_trace(StepTrace())


# ---- the file


@pytest.mark.parametrize("odd", ['<&">', "</title><script>", "it's", "a\x00b\x1b", "\ud800", "日本語" * 9, "",
                                 "x" * 500])
def test_odd_ids_are_escaped(odd):
    drawing = Drawing(by_hand({"tokens": {odd: [0, 2], "b": [0, 1]}, "prompts": {odd: 2, "b": 2}},
                              {"preempted": [odd], "waiting": [odd], "tables": {"b": [1]}, "blocks": [[1, 1, True]]},
                              {"finished": {odd: "abort"}}))
    shown = re.sub("[\x00\x1b\ud800]", "\ufffd", odd)
    assert [row.get("data-request") for row in drawing.find("g", "data-request")] == [shown, "b"]
    assert drawing.cells()[shown, 1] == "preempted"
    assert drawing.title(drawing.find("path", "data-end")[0]) == f"step 2: {shown} ends (abort)"
    drawing.svg.encode("utf-8")


def test_the_file_needs_nothing_else(simulation):
    svg = draw_trace(simulation.trace)
    for word in ("<script", "href", "url(", "@import", "<style", "<image", "\x00"):
        assert word not in svg
    assert svg.count("http") == 1, "the name space"


def test_a_background_is_painted_first():
    root = Drawing(run_plain().trace).root
    assert root[0].tag.endswith("rect") and root[0].get("fill") == "#ffffff"
    assert [root[0].get("width"), root[0].get("height")] == [root.get("width"), root.get("height")]


def test_the_same_trace_gives_the_same_bytes(simulation, tmp_path):
    trace = simulation.trace
    svg = draw_trace(trace)
    trace.save(tmp_path / "run.trace")
    loaded = StepTrace.load(tmp_path / "run.trace")
    for step in loaded.steps:
        step["tables"] = dict(reversed(step["tables"].items()))  # a recording gives them in any order
    before = json.dumps(loaded.steps)
    assert draw_trace(loaded) == svg
    assert json.dumps(loaded.steps) == before, "drawing changes no trace"


def test_the_order_of_tables_does_not_matter():
    blocks = [[1, 1, False], [2, 1, False]]
    assert draw_trace(by_hand({"tables": {"a": [1], "b": [2]}, "blocks": blocks})) == draw_trace(
        by_hand({"tables": {"b": [2], "a": [1]}, "blocks": blocks}))


def test_a_large_trace_is_drawn_soon_and_stays_small():
    """400 steps, 64 requests, 500 blocks. In each step some change hands, one prompt goes on and one is preempted."""
    rng, steps, tables = random.Random(0), [], {}
    names, num_computed = [f"r{k}" for k in range(64)], dict.fromkeys((f"r{k}" for k in range(64)), 0)
    for _ in range(400):
        changed = {name: rng.sample(range(1, 501), 7) for name in rng.sample(names, 2)}
        touched = {block_id for name in changed for block_id in (*changed[name], *tables.get(name, ()))}
        tables.update(changed)
        owned = [block_id for table in tables.values() for block_id in table]
        prompt, victim = rng.sample(names, 2)
        tokens = {name: [num_computed[name], 50 if name == prompt else 1] for name in names if name != victim}
        num_computed = {name: sum(tokens.get(name, [0])) for name in names}
        steps.append({"tokens": tokens, "sampled": list(tokens), "preempted": [victim], "waiting": [victim],
                      "tables": changed, "prompts": {} if steps else dict.fromkeys(names, 100),
                      "blocks": [[block_id, owned.count(block_id), True] for block_id in sorted(touched)]})
    trace = by_hand(*steps, num_blocks=501, budget=512)
    start_s = time.perf_counter()
    svg = draw_trace(trace)
    assert time.perf_counter() - start_s < 3
    assert len(svg) < 3_000_000
    root = ElementTree.fromstring(svg)
    assert len(root.findall(".//*[@data-request]")) == 64 and len(root.findall(".//*[@data-block]")) == 500


def test_beyond_a_number_of_shapes_blocks_have_no_tooltips(monkeypatch):
    trace = run_sharing().trace
    monkeypatch.setattr(block_panel, "MAX_TITLES", 3)
    drawn = Drawing(trace).blocks()
    monkeypatch.undo()
    assert {said for _, said in drawn.values()} == {""}
    assert {key: colour for key, (colour, _) in drawn.items()} == {
        key: colour for key, (colour, _) in Drawing(trace).blocks().items()}


@pytest.mark.parametrize("num_steps", [1, 36, 37, 600, 1500])
def test_cells_shrink_but_stay_on_the_axis(num_steps):
    trace = by_hand(*({"tokens": {"a": [i, 1]}, "prompts": {"a": 1} if i == 0 else {}} for i in range(num_steps)))
    drawing = Drawing(trace)
    assert len(drawing.cells()) == num_steps and 2 <= drawing.cell <= 32
    numbers = [float(text.get("x")) for text in drawing.find("text", "text-anchor", "middle") if text.text == "0"]
    assert drawing.left + drawing.cell / 2 in numbers

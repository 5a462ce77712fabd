"""The picture of a trace shows everything in the trace, and nothing else: the SVG is read back and compared."""

import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest

from mini_vllm.cli import main
from mini_vllm.models.loader import load
from mini_vllm.pictures import Cast, step_through
from mini_vllm.pictures.palette import PAINTS
from mini_vllm.pictures.pool_state import PoolState
from mini_vllm.pictures.timeline import LOOK_AT_TIMELINE, draw_trace
from mini_vllm.trace.recorder import StepTrace
from mini_vllm.trace.summary import tell_time
from mini_vllm.trace.test_trace import RUNS, by_hand, run_drafting, run_plain, run_preempting


@pytest.fixture(scope="module", params=RUNS)
def simulation(request):
    return RUNS[request.param]()


# ---- the picture, read back


class Drawing:
    """A picture that is read back: its shapes, and the steps that they cover."""

    def __init__(self, trace, **which):
        self.picture = draw_trace(trace, **which)
        self.svg = self.picture.svg
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

    def said(self, part):
        """Return the text of all lines of a part."""
        return " ".join(self.title_or_text(each) for each in self.find("text", "data-part", part))

    @staticmethod
    def title_or_text(element):
        """Return the drawn text, without the tooltip."""
        title = element.find("{http://www.w3.org/2000/svg}title")
        return (element.text or "") if title is None else title.tail or ""

    @property
    def headline(self):
        return self.said("title")

    def steps_of(self, element):
        """Return the steps that a shape covers, according to its position."""
        if element.tag.endswith("rect"):
            left, right = float(element.get("x")), float(element.get("x")) + float(element.get("width"))
        elif element.tag.endswith("circle"):
            left, right = (float(element.get("cx")) + sign * self.cell / 2 for sign in (-1, 1))
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
        """Map each (request, step) to the kind of shape drawn there."""
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
        """Map each (block, step) to (colour, state, tooltip)."""
        blocks = {}
        for row in self.find("g", "data-block"):
            for shape in row:
                for step in self.steps_of(shape) if shape.get("data-state") else ():
                    assert (int(row.get("data-block")), step) not in blocks, "two shapes in one place"
                    blocks[int(row.get("data-block")), step] = (shape.get("fill"), shape.get("data-state"),
                                                                self.title(shape).partition(": ")[2])
        return blocks


@pytest.fixture(scope="module")
def drawing(simulation):
    return Drawing(simulation.trace)


def expected_cells(trace):
    """Return the same as ``Drawing.cells``, computed from the trace step by step, without runs."""
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
    """Count, token by token, the tokens that were computed although the request had computed or found them before."""
    had, num = set(), 0
    for step in trace.steps:
        for name, (before, num_tokens) in step["tokens"].items():
            num += sum((name, position) in had for position in range(before, before + num_tokens))
            had.update((name, position) for position in range(before + num_tokens))
    return num


def test_every_cell_of_the_run_is_drawn_and_no_other(simulation, drawing):
    assert drawing.cells() == expected_cells(simulation.trace)


def test_every_block_is_drawn_in_its_state(simulation, drawing):
    trace, cast = simulation.trace, Cast.of_trace(simulation.trace)
    drawn = drawing.blocks()
    for step, (pool, tables) in enumerate(zip(trace.pools, trace.tables)):
        for block_id, (ref_cnt, findable) in pool.items():
            owners = sorted(name for name, table in tables.items() if block_id in table)
            colour, state, said = drawn.pop((block_id, step), (None, None, None))
            where = f"block {block_id} in step {step}, {ref_cnt} references, of {owners}: {colour}, {state}, {said!r}"
            if ref_cnt == 0:
                assert (state, said) == (("cached", "free, still cached") if findable else (None, None)), where
                continue
            if len(owners) > 1:
                assert state == "shared" and said.startswith(f"shared by {', '.join(owners[:6])}"), where
            elif ref_cnt > 1:
                assert (state, said) == ("shared", f"{owners[0]}, and held for a copy"), where
            else:
                assert (state, said) == (("used", owners[0]) if owners else ("kept", "held for a copy")), where
            assert not owners or colour == PAINTS[cast.paint(owners[0])].light, where
    assert not drawn


def test_every_request_has_a_row_with_its_prompt_and_what_was_found_in_the_cache(simulation, drawing):
    trace = simulation.trace
    rows = {row.get("data-request"): {part: [text.text for text in row if text.get("data-part") == part]
                                      for part in ("prompt", "found")} for row in drawing.find("g", "data-request")}
    firsts = {name: before for step in reversed(trace.steps) for name, (before, _) in step["tokens"].items()}
    assert rows == {name: {"prompt": [str(num)], "found": [str(firsts[name])] if firsts.get(name) else []}
                    for step in trace.steps for name, num in step["prompts"].items()}
    letters = [next(text.text for text in row if text.tag.endswith("text"))
               for row in drawing.find("g", "data-request")]
    assert letters == [Cast.of_trace(trace).letter(name) for name in rows] and len(set(letters)) == len(letters)


def test_the_headline_agrees_with_the_run(simulation, drawing):
    trace, scheduler, timeline = simulation.trace, simulation.scheduler, simulation.timeline
    seconds = timeline.steps[-1].end_s - timeline.steps[0].start_s
    assert drawing.headline == drawing.picture.label == (
        f"{len(timeline.request_ids)} requests served in {len(trace.steps)} steps, {tell_time(seconds)}")
    again, copied = num_recomputed(trace), scheduler.kv_cache.block_pool.num_forks
    firsts = {name: before for step in reversed(trace.steps) for name, (before, _) in step["tokens"].items()}
    found = sum(firsts.values())
    early = sum(status != "length" for step in trace.steps for status in step["finished"].values())
    facts = [f"{sum(sum(step.num_scheduled_tokens.values()) for step in timeline.steps)} tokens computed"
             + (f", {again} of them again" if again else "")]
    facts += [f"{found} token{'s' * (found > 1)} found in the cache"] * bool(found)
    facts += [f"at most {max(sum(ref_cnt > 0 for ref_cnt, _ in pool.values()) for pool in trace.pools)} of "
              f"{scheduler.num_blocks} blocks in use"]
    facts += [f"{scheduler.num_preemptions} preemption{'s' * (scheduler.num_preemptions > 1)}"] * bool(
        scheduler.num_preemptions)
    facts += [f"{copied} block{'s' * (copied > 1)} copied"] * bool(copied) + [f"{early} ended early"] * bool(early)
    sizes = (f"blocks of {scheduler.kv_cache.block_size} tokens; a step computes at most "
             f"{scheduler.max_num_batched_tokens} tokens of {scheduler.max_num_seqs} sequences")
    assert drawing.said("facts").replace(" · ", " ") == " ".join([*facts, sizes])


def test_the_headline_names_the_model_and_counts_samples_as_one_request():
    trace = by_hand({"tokens": {"a#0": [0, 4]}, "prompts": {"a#0": 4}, "sampled": ["a#0", "a#1", "a#2"]},
                    {"tokens": {"a#0": [4, 1], "a#1": [4, 1], "a#2": [4, 1]}, "prompts": {"a#1": 4, "a#2": 4}})
    trace.header["model"] = "tiny-tales"
    assert Drawing(trace).headline == "tiny-tales serves 1 request (3 sequences) in 2 steps, 20 ms"


def test_the_bars_agree_with_the_steps(simulation, drawing):
    trace = simulation.trace
    for i, (step, title) in enumerate(zip(trace.steps, drawing.bars)):
        prompt, again, decode = map(int, re.search(r"ms: (\d+) prompt, (\d+) recomputed, (\d+) decode", title).groups())
        assert title.startswith(f"step {i}, {step['start_s'] * 1000:.1f} to")
        assert prompt + again + decode == sum(num for _, num in step["tokens"].values()), title
    assert len(drawing.bars) == len(trace.steps)


def test_ends_are_marked_and_an_abort_looks_different(simulation, drawing):
    drawn = {(row.get("data-request"), each.get("data-end")) for row in drawing.find("g", "data-request")
             for each in row if each.get("data-end")}
    assert drawn == {(name, "good" if status == "length" else "bad") for step in simulation.trace.steps
                     for name, status in step["finished"].items()}
    looks = {("l" in each.get("d"), each.get("data-end")) for each in drawing.find("path", "data-end")}
    assert looks <= {(False, "good"), (True, "bad")}, "by shape, not only by colour"


def test_no_letter_stands_under_the_line_of_a_copy():
    """Hold block 2 from the step in which block 1 is copied into block 3: the line of the copy crosses it."""
    first = {"tokens": {"a": [0, 4]}, "tables": {"a": [1]}, "blocks": [[1, 1, False]]}
    copied = {"tokens": {"a": [4, 1], "b": [0, 4], "c": [3, 1]}, "copies": [[1, 3]],
              "tables": {"b": [2], "c": [3]}, "blocks": [[2, 1, False], [3, 1, False]]}
    drawing = Drawing(by_hand(first, copied, *[{}] * 40))
    dot = next(iter(drawing.find("circle", "data-part", "copy")))
    for block_id in ("2", "3"):
        row = next(iter(drawing.find("g", "data-block", block_id)))
        letter = next(each for each in row if each.tag.endswith("text"))
        assert float(letter.get("x")) > float(dot.get("cx")) + 3, block_id


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


# ---- merged shapes, counts and descriptions


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


PROMPT = {"tokens": {"a": [0, 5]}, "prompts": {"a": 5}}
LOST = {"preempted": ["a"], "waiting": ["a"]}


@pytest.mark.parametrize("steps, cells", [
    ([{}, {}], {}),
    ([{"waiting": ["a"]}, {}, {"waiting": ["a"]}], {("a", 0): "waiting", ("a", 2): "waiting"}),
    ([{**PROMPT, "finished": {"a": "length"}}, PROMPT], {("a", 0): "prompt", ("a", 1): "prompt"}),
    ([PROMPT, LOST, {"tokens": {"a": [4, 3]}}], {("a", 0): "prompt", ("a", 1): "preempted", ("a", 2): "recomputed"}),
    ([{**PROMPT, "prompts": {"a": 20}, "tables": {"a": [1]}, "blocks": [[1, 1, True]]}, {}, {"tokens": {"a": [5, 8]}}],
     {("a", 0): "prompt", ("a", 1): "idle", ("a", 2): "prompt"}),
    ([{**PROMPT, "sampled": ["a", "a#1"]}, {}], {("a", 0): "prompt", ("a#1", 0): "forked"}),
    ([{"tokens": {"a": [0, 4]}}, {"tokens": {"a": [4, 1]}}], {("a", 0): "prompt", ("a", 1): "decode"}),
], ids=["nothing happens", "waits twice", "the same id again", "recomputed and decoded", "runs without a token",
        "only ever sampled", "no prompt recorded"])
def test_unusual_runs_have_their_cells(steps, cells):
    assert Drawing(by_hand(*steps)).cells() == cells


def test_the_budget_is_a_line_if_it_is_in_sight():
    step = {"tokens": {"a": [0, 8]}, "prompts": {"a": 8}}
    assert len(Drawing(by_hand(step, budget=20)).find("path", "data-part", "budget")) == 1
    assert not Drawing(by_hand(step, budget=2048)).find("path", "data-part", "budget")
    assert "budget 2048" in draw_trace(by_hand(step, budget=2048)).svg


@pytest.mark.parametrize("used, told", [
    ([40], ["Blocks 1 to 39 and 41 to 5000 were never used."]),
    ([1, 2, 7], ["Blocks 3 to 6 were never used.", "Blocks 8 to 5000 were never used."]),
    ([1, 3, 400], ["Blocks 4 to 399 were never used.", "Blocks 2 and 401 to 5000 were never used."]),
    ([*range(1, 5000)], ["Block 5000 was never used."]),
    ([*range(1, 5001)], []),
])
def test_blocks_that_were_never_used_are_left_out_and_named(used, told):
    drawing = Drawing(by_hand({"blocks": [[block_id, 1, False] for block_id in used], "tables": {"a": used}},
                              num_blocks=5001))
    assert [each.text for each in drawing.find("text", "data-part", "left-out")] == told
    assert float(drawing.root.get("height")) < 1000 or len(used) > 4000
    tops = [float(next(iter(row)).get("y")) for row in drawing.find("g", "data-block")]
    assert tops == sorted(tops) and len(set(tops)) == len(used)


# ---- drafts


@pytest.fixture(scope="module")
def drafting(shallow):
    return run_drafting(load(shallow("llama3"))).trace


def guessed(*drafts, num_before=4):
    """Return a trace in which request a computes a prompt, and then a token with each of these drafts."""
    steps = [{"tokens": {"a": [0, num_before]}, "prompts": {"a": num_before}, "sampled": ["a"]}]
    for draft in drafts:
        drafted = {"drafts": {"a": draft}} if draft else {}
        steps.append({"tokens": {"a": [num_before, 1]}, "sampled": ["a"], **drafted})
        num_before += 1 + (draft[1] if draft else 0)
    return by_hand(*steps, budget=20)


def num_squares(drawing, part):
    """Map each (request, step) to the number of its squares of a part: "accepted" or "rejected"."""
    found = Counter()
    for row in drawing.find("g", "data-request"):
        for shape in row:
            if shape.get("data-part") == part:
                for left, width in re.findall(r"M(\S+) \S+?h(\S+?)v\S+?h", shape.get("d")):
                    step = int((float(left) + float(width) / 2 - drawing.left) // drawing.cell)
                    found[row.get("data-request"), drawing.first + step] += 1
    return found


@pytest.mark.parametrize("which", [{}, {"width": 520}, {"first_step": 3, "num_steps": 5}])
def test_every_drafted_token_is_a_square_in_its_cell(drafting, which):
    drawing = Drawing(drafting, **which)
    shown = range(drawing.first, drawing.first + drawing.num_steps)
    drafts = {(name, i): draft for i in shown for name, draft in drafting.steps[i].get("drafts", {}).items()}
    accepted, rejected = num_squares(drawing, "accepted"), num_squares(drawing, "rejected")
    assert accepted == {key: a for key, (_, a) in drafts.items() if a}
    assert rejected == {key: drafted - right for key, (drafted, right) in drafts.items() if drafted > right}
    expected = {key: kind for key, kind in expected_cells(drafting).items() if key[1] in shown}
    assert drawing.cells() == {**expected, **dict.fromkeys(drafts, "drafted")} and accepted and rejected
    test_no_shape_and_no_text_leaves_the_picture(drawing)


def test_drafts_are_told_in_words():
    drawing = Drawing(guessed([7, 5], [7, 5], [3, 0], None))
    (row,) = drawing.find("g", "data-request")
    assert [drawing.title(shape) for shape in row if shape.get("data-kind")][1:] == [
        "steps 1 to 2: 1 token each of a, 4 computed before, 7 each drafted, 5 each accepted",
        "step 3: 1 token of a, 16 computed before, 3 drafted, 0 accepted", "step 4: 1 token of a, 17 computed before"]
    assert "0 recomputed, 1 decode tokens, 7 drafted, 5 accepted;" in drawing.bars[1]


@pytest.mark.parametrize("drafts, told", [
    ([[7, 5]], ["drafted tokens, accepted", "drafted tokens, rejected"]), ([[3, 0]], ["drafted tokens, rejected"]),
    ([[3, 3]], ["drafted tokens, accepted"]), ([None], [])])
def test_the_legend_explains_drafts_that_occur(drafts, told):
    trace = guessed(*drafts)
    drawing = Drawing(trace)
    assert [text.text for text in drawing.find("text") if (text.text or "").startswith("drafted")] == told
    assert (drawing.picture.look == LOOK_AT_TIMELINE) == (not told)
    assert draw_trace(trace, look="See?").look == "See?"


def test_slides_tell_of_drafts_and_count_accepted_tokens():
    trace = guessed([7, 5], None)
    trace.steps[0].update({"tables": {"a": [1, 2, 3]}, "blocks": [[1, 1, False], [2, 1, False], [3, 1, False]]})
    assert [len(PoolState.of_step(trace, index).token_ids["a"]) for index in range(3)] == [4, 10, 11]
    assert step_through(trace).labels[1] == "step 1: tokens a 1 (7 drafted, 5 accepted)"


# ---- a part of a run


def test_a_part_shows_what_the_whole_shows_there():
    simulation = run_preempting()
    whole, part = Drawing(simulation.trace), Drawing(simulation.trace, first_step=9, num_steps=6)
    assert part.headline.startswith(f"Steps 9 to 14 of {len(simulation.trace.steps)}: ") and part.num_steps == 6
    assert part.cells() == {key: kind for key, kind in whole.cells().items() if key[1] in range(9, 15)}
    assert part.blocks().keys() == {key for key in whole.blocks() if key[1] in range(9, 15)}
    assert part.bars == whole.bars[9:15]


@pytest.mark.parametrize("which, complaint", [
    ({"first_step": -1}, "first_step is -1, must be from 0 to 5"),
    ({"first_step": 6}, "first_step is 6, must be from 0 to 5"),
    ({"num_steps": 0}, "num_steps is 0, must be from 1 to 6"),
    ({"first_step": 4, "num_steps": 3}, "num_steps is 3, must be from 1 to 2"),
    ({"width": 479}, "width is 479, must be from 480 to 10000"),
    ({"width": 10_001}, "width is 10001, must be from 480 to 10000"),
])
def test_a_part_or_width_out_of_bounds_is_refused(which, complaint):
    trace = run_plain().trace
    Drawing(trace, first_step=5, num_steps=1, width=10_000)
    with pytest.raises(ValueError, match=complaint):
        draw_trace(trace, **which)
    with pytest.raises(ValueError, match="the trace has no steps"):
        draw_trace(StepTrace())


# ---- the file


@pytest.mark.parametrize("odd", ["</title><script>&", "a\x00b\x1b", "\ud800", "", "x" * 500])
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
    svg = draw_trace(simulation.trace).svg
    for word in ("<script", "href", "@import", "<image", "\x00"):
        assert word not in svg
    assert set(re.findall(r"url\([^)]*\)", svg)) <= {"url(#mv-hatch)"}
    assert svg.count("http") == 1, "the name space"


def test_it_is_drawn_for_light_and_dark_paper():
    """Check that attributes contain light colours, and a style sheet, which styles nothing else, the dark ones."""
    svg = draw_trace(run_preempting().trace).svg
    colours = set(re.findall(r'(?:fill|stroke)="([^"]+)"', svg)) - {"none", "url(#mv-hatch)"}
    assert colours <= {paint.light for paint in PAINTS.values()}
    (sheet,) = re.findall("<style>@media \\(prefers-color-scheme:dark\\){(.*)}</style>", svg)
    selectors = re.findall(r"([^{}]+){", sheet)
    assert len(selectors) >= 8 and all(each.startswith(".mv-") for each in selectors), sheet


def test_the_same_trace_gives_the_same_bytes(simulation, tmp_path):
    trace = simulation.trace
    svg = draw_trace(trace).svg
    trace.save(tmp_path / "run.trace")
    loaded = StepTrace.load(tmp_path / "run.trace")
    for step in loaded.steps:
        step["tables"] = dict(reversed(step["tables"].items()))  # a recording may list them in any order
    before = json.dumps(loaded.steps)
    assert draw_trace(loaded).svg == svg
    assert json.dumps(loaded.steps) == before, "drawing changes no trace"


@pytest.mark.parametrize("num_steps", [1, 37, 1500])
def test_cells_shrink_with_the_number_of_steps(num_steps):
    trace = by_hand(*({"tokens": {"a": [i, 1]}, "prompts": {"a": 1} if i == 0 else {}} for i in range(num_steps)))
    drawing = Drawing(trace)
    assert len(drawing.cells()) == num_steps and 2 <= drawing.cell <= 56
    assert len(drawing.svg) < 20_000 + 250 * num_steps, "a large file would be slow to open"


@pytest.mark.parametrize("width", [480, 1600])
def test_a_picture_is_as_wide_as_it_is_asked_to_be(width, simulation):
    drawing = Drawing(simulation.trace, width=width)
    assert drawing.picture.width == float(drawing.root.get("width")) == width
    assert drawing.cells() == expected_cells(simulation.trace)
    test_no_shape_and_no_text_leaves_the_picture(drawing)


# ---- names


def named(names, **more):
    """Return a trace of requests with these names, which all begin in the first step."""
    return by_hand({"tokens": {name: [0, 3] for name in names}, "prompts": dict.fromkeys(names, 3),
                    "names": {key: value for key, value in names.items() if value}, **more})


def labels(drawing):
    """Map each request id to the label of its row."""
    return {row.get("data-request"): next((drawing.title_or_text(each) for each in row if drawing.title(each)
                                           and each.tag.endswith("text")), None)
            for row in drawing.find("g", "data-request")}


def test_rows_are_named_by_the_first_words_of_their_prompts_and_samples_are_numbered():
    names = {"request-0": "Once upon a time", "request-1": "", "r#0": "The king said", "x#1": "A fox", "r#1": ""}
    drawing = Drawing(named(names))
    assert list(labels(drawing).items()) == [("request-0", "Once upon a time"), ("request-1", "request-1"),
                                   ("r#0", "The king said #1"), ("r#1", "The king said #2"), ("x#1", "A fox")]
    assert "request-0: Once upon a time" in drawing.svg, "the pointer is told the id as well"
    narrow = Drawing(named({f"r#{i}": "Wherever we went we were welcome" for i in range(2)}), width=480)
    assert re.fullmatch("Wherever.*… #2", labels(narrow)["r#1"]) and narrow.left < 240


# ---- times


def test_a_brief_picture_has_requests_and_blocks_and_says_nothing_of_tokens_and_times(simulation):
    whole, brief = (draw_trace(simulation.trace, is_brief=is_brief) for is_brief in (False, True))
    said = [{each.text for each in ElementTree.fromstring(each.svg).iter() if each.tag.endswith("text")}
            for each in (whole, brief)]
    gone = {"tokens in a step", "time of a step", "time"}
    assert gone <= said[0] and not gone & said[1] and {"request", "block", "step"} <= said[1]
    without = draw_trace(simulation.trace, is_brief=True, has_blocks=False)
    assert ">block<" not in without.svg and ">step<" in without.svg and without.height < brief.height
    assert "data-state" not in without.svg, "nor in the legend"


def test_the_time_of_all_steps_is_told_in_its_three_parts():
    moments = [(0.0, 0.001, 0.009, 0.010), (0.010, 0.012, 0.016, 0.020), (0.025, 0.025, 0.029, 0.030)]
    drawing = Drawing(by_hand(*({"start_s": a, "planned_s": b, "computed_s": c, "end_s": d} for a, b, c, d in moments)))
    assert {"planning 12%", "model and sampling 64%", "text and the rest 24%"} <= {
        text.text for text in drawing.find("text")}


def test_a_step_that_took_far_longer_is_cut_off_and_its_time_is_written():
    ends = [0.01, 0.02, 0.03, 1.03, 1.04, 1.05]
    steps = [{"start_s": start, "planned_s": start, "computed_s": end, "end_s": end}
             for start, end in zip([0, *ends], ends)]
    drawing = Drawing(by_hand(*steps))
    assert drawing.said("far-out") == "step 3: 1.00 s"


def test_how_long_a_first_token_took_is_told_from_the_step_that_first_saw_the_request():
    trace = by_hand({"waiting": ["a"], "prompts": {"a": 4}}, {"tokens": {"a": [0, 3]}},
                    {"tokens": {"a": [3, 1]}, "sampled": ["a"]}, {"tokens": {"a": [4, 1]}, "sampled": ["a"]},
                    {"tokens": {"b": [0, 3]}, "prompts": {"b": 3}, "sampled": ["b"]})
    assert [drawing.title_or_text(each) for drawing in [Drawing(trace)]
            for each in drawing.find("text", "data-part", "first-token")] == ["30 ms", "10 ms"]
    assert Drawing(trace, first_step=3).said("first-token") == "10 ms", "that of a came earlier"


def test_without_a_clock_nothing_is_said_of_times():
    still = {"start_s": 0.0, "planned_s": 0.0, "computed_s": 0.0, "end_s": 0.0, **PROMPT, "sampled": ["a"]}
    drawing = Drawing(by_hand(still))
    assert drawing.headline == "1 request served in 1 step" and not drawing.find("g", "data-panel", "times")
    assert not drawing.find("text", "data-part", "first-token")


@pytest.mark.parametrize("seconds, told", [(0.0004, "0.4 ms"), (0.00994, "9.9 ms"), (0.054, "54 ms"), (1.0, "1.00 s"),
                                           (0.9994, "999 ms"), (12.34, "12.3 s"), (123.4, "123 s")])
def test_times_are_told_with_two_or_three_digits(seconds, told):
    assert tell_time(seconds) == told


# ---- the command


@pytest.fixture
def saved(tmp_path):
    run_plain().trace.save(tmp_path / "run.trace")
    return tmp_path / "run.trace"


def test_the_command_draws_svg_and_png(saved, capsys):
    assert main(["trace", str(saved), "--width", "600", "--num-steps", "3"]) == 0
    assert capsys.readouterr().out == f"{saved.with_suffix('.svg')}\n"
    assert saved.with_suffix(".svg").read_text(encoding="utf-8") == draw_trace(
        StepTrace.load(saved), num_steps=3, width=600).svg
    assert main(["trace", str(saved), "-o", str(saved.with_suffix(".PNG"))]) == 0
    assert saved.with_suffix(".PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("arguments, complaint", [
    (["-o", "picture.pdf"], "picture.pdf: a picture is written as .svg or .png, not as .pdf"),
    (["-o", "picture"], "not as a name without a suffix"),
    (["-o", "nowhere/picture.svg"], "there is no folder nowhere"),
    (["-o", "folder.svg"], "folder.svg is a folder"),
    (["--width", "100"], "width is 100, must be from 480"),
])
def test_where_the_picture_goes_is_checked_before_anything_is_read(arguments, complaint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.svg").mkdir()
    assert main(["trace", "none.trace", *arguments]) == 2
    error = capsys.readouterr().err
    assert complaint in error and "none.trace" not in error.replace(complaint, "")


def test_a_trace_is_not_overwritten_by_its_picture(saved, capsys):
    odd = saved.rename(saved.with_suffix(".svg"))
    before = odd.read_text(encoding="utf-8")
    assert main(["trace", str(odd)]) == 2
    assert "is the trace itself; name the picture with --output" in capsys.readouterr().err
    assert odd.read_text(encoding="utf-8") == before

"""One run, drawn by the page and by the notebooks: the same shapes, the same classes, the same blocks and owners."""

import asyncio
import json
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.pictures.request_colours import Cast
from mini_vllm.pictures.steps import draw_step
from mini_vllm.pictures.timeline import draw_trace
from mini_vllm.pictures.tree import draw_tree
from mini_vllm.request import Priority, SamplingParams
from mini_vllm.server.live.browser.chromium import open_files
from mini_vllm.server.live_feed.feed import LiveFeed
from mini_vllm.server.live_feed.watcher import Watcher
from mini_vllm.speculation.test_speculation import FREE
from mini_vllm.trace.recorder import StepTrace
from mini_vllm.trace.test_trace import by_hand

DRAFTS = ("accepted", "rejected")
SCRIPT = (Path(__file__).parent / "shapes.js").read_text(encoding="utf-8")


def work(engine):
    """Run requests with chunks, hits, forks, copies, preemptions, evictions, an abort and drafts."""
    engine.add_request([*b"once upon a time there was a king"], SamplingParams(n=3, max_tokens=9, seed=1), "many")
    for number in range(4):
        params = SamplingParams(max_tokens=14, temperature=0, ignore_eos=True)
        engine.add_request([*b"once upon a time ", 60 + number], params, f"request-{number}", Priority(number % 3))
    for number in range(60):
        if not engine.has_unfinished_requests():
            break
        if number == 9:
            engine.abort_request("request-3")
        if number == 12:  # only two tokens may follow each other: some guesses are right and some are wrong
            engine.add_request([*b"abab"], SamplingParams(max_tokens=24, seed=1, allowed_token_ids=[97, 98]), "guessed")
        engine.step()


@pytest.fixture
def config(shallow):
    return EngineConfig(model=shallow("llama3"), num_blocks=22, block_size=4, max_num_seqs=8,
                        max_num_batched_tokens=16, enable_lookahead=False, num_speculative_tokens=5)


@pytest.fixture
def trace(config, tmp_path):
    recorded = StepTrace()
    engine = LLMEngine(config, trace=recorded)
    engine.speculation.costs = FREE
    work(engine)
    recorded.save(tmp_path / "run.trace")
    loaded = StepTrace.load(tmp_path / "run.trace")
    happened = {name for step in loaded.steps for name in ("copies", "preempted", "waiting", "finished", "drafts")
                if step.get(name)}
    assert happened == {"copies", "preempted", "waiting", "finished", "drafts"} and engine.metrics().num_evictions
    assert 0 < engine.speculation.num_accepted_tokens < engine.speculation.num_drafted_tokens
    return loaded


@pytest.fixture
def drawn(browser, trace):
    return page_draws(browser, {"header": trace.header, "steps": trace.steps})


def page_draws(browser, told):
    page = browser.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(error))
    open_files(page)
    result = page.evaluate(SCRIPT, json.loads(json.dumps(told)))
    page.close()
    assert not errors
    return result


def shapes_of(svg):
    """Return every shape of one of our pictures, with its row."""
    found = []

    def walk(element, row, panel=None):
        row, panel = element.get("data-request") or element.get("data-table") or row, element.get("data-panel", panel)
        tag = element.tag.rpartition("}")[2]
        if tag not in ("svg", "style", "defs", "pattern", "title"):
            text = (element.findtext("{*}title") and element[0].tail or element.text or "") if tag == "text" else ""
            found.append({"tag": tag, "text": text, "row": row, "panel": panel, **element.attrib})
        if tag not in ("defs", "title"):
            for child in element:
                walk(child, row, panel)

    walk(ElementTree.fromstring(svg), "")
    return found


def blocks(shapes):
    """Return the cells of a pool or a tree: block, state, paints and position."""
    cells = [shape for shape in shapes if "data-block" in shape and not shape["row"]]
    assert cells
    left, top = (min(float(cell[name]) for cell in cells) for name in ("x", "y"))
    return sorted((int(cell["data-block"]), cell["data-state"], cell.get("class"), cell["fill"],
                   cell.get("stroke-dasharray"), round(float(cell["x"]) - left, 2), round(float(cell["y"]) - top, 2),
                   *(round(float(cell[name]), 2) for name in ("width", "height"))) for cell in cells)


def texts(shapes, *sizes):
    return Counter(shape["text"] for shape in shapes if shape["tag"] == "text" and shape["font-size"] in sizes)


def test_the_pool_of_every_step(trace, drawn):
    for index, page in enumerate(drawn["drawn"]):
        picture = draw_step(trace, index)
        shapes = shapes_of(picture.svg)
        pool = [shape for shape in shapes if shape["panel"] == "pool"]
        assert blocks(page["pool"]) == blocks(pool), f"step {index}"
        hatched = [sum(shape.get("fill") == "url(#mv-hatch)" for shape in each) for each in (page["pool"], pool)]
        assert hatched[0] == hatched[1]
        copies = [sum(shape.get("data-part") == "copy" for shape in each) for each in (page["pool"], shapes)]
        assert copies[0] == copies[1] == len(trace.steps[index]["copies"])
        assert page["label"] == picture.label, "the sentence that a screen reader says"
        letters = Counter(shape["text"] for shape in pool if shape["tag"] == "text")
        assert Counter(shape["text"] for shape in page["pool"] if shape["tag"] == "text") == letters


def test_the_tables_of_every_step(trace, drawn):
    def entries(shapes):
        return {(shape["row"], int(shape["data-block"]), shape["data-state"], shape.get("class", ""), shape["fill"],
                 round(float(shape["x"]), 2)) for shape in shapes
                if shape["row"] and "data-block" in shape and shape["height"] == "30"}

    def bars(shapes):
        return Counter((shape["row"], shape.get("class"), round(float(shape["width"]), 1)) for shape in shapes
                       if shape["row"] and shape["tag"] == "rect" and shape["height"] == "8")

    for index, page in enumerate(drawn["drawn"]):
        shapes = shapes_of(draw_step(trace, index).svg)
        assert entries(page["tables"]) == entries(shapes), f"step {index}"
        assert bars(page["tables"]) == bars(shapes), f"step {index}"


def happened(shapes):
    """Return the shapes of a schedule, with the number of squares if they are drafted tokens."""
    return Counter((shape["row"], shape["tag"], shape.get("data-kind"), shape.get("data-end"),
                    shape.get("data-part"), shape.get("class"), shape.get("fill"), shape.get("stroke"),
                    shape["d"].count("M") if shape.get("data-part") in DRAFTS else None)
                   for shape in shapes if shape["panel"] != "tokens" and
                   (shape.get("data-kind") or shape.get("data-end") or shape.get("data-part") in ("fork", *DRAFTS)))


def test_the_schedule(trace, drawn):
    mine, theirs = happened(drawn["schedule"]), happened(shapes_of(draw_trace(trace).svg))
    assert mine == theirs, f"only on the page: {mine - theirs}; only in the notebook: {theirs - mine}"
    kinds = {kind for _, _, kind, *_ in theirs}
    assert kinds >= {"prompt", "recomputed", "decode", "drafted", "forked", "waiting", "preempted"}
    drafted, accepted = map(sum, zip(*(draft for step in trace.steps for draft in step.get("drafts", {}).values())))
    squares = Counter({part: sum(number * shape[-1] for shape, number in mine.items() if shape[4] == part)
                       for part in DRAFTS})
    assert squares == {"accepted": accepted, "rejected": drafted - accepted}, "a square for each drafted token"


def guessing(*names):
    """Return a trace in which each request drafts 5 tokens per step: two are accepted three times, then all."""
    steps = [{"tokens": {name: [0, 4] for name in names}, "prompts": dict.fromkeys(names, 4), "sampled": [*names]}]
    for number, num_accepted in enumerate((2, 2, 2, 5)):
        steps.append({"tokens": {name: [4 + 3 * number, 1] for name in names}, "sampled": [*names],
                      "drafts": {name: [5, num_accepted] for name in names}})
    return by_hand(*steps, budget=20)


def test_equal_drafts_in_a_row_are_one_shape(browser):
    trace = guessing("a")
    mine = happened(page_draws(browser, {"header": trace.header, "steps": trace.steps})["schedule"])
    assert mine == happened(shapes_of(draw_trace(trace).svg))
    squares = Counter((shape[4], shape[-1]) for shape in mine if shape[4] in DRAFTS)
    assert squares == {("accepted", 6): 1, ("rejected", 9): 1, ("accepted", 5): 1}


def test_in_low_rows_drafts_are_bars_up_and_down(browser):
    trace = guessing(*(f"request-{number}" for number in range(45)))
    shapes = page_draws(browser, {"header": trace.header, "steps": trace.steps})["schedule"]
    bars = {part: [[float(number) for number in re.split("[Mhvz ]+", shape["d"])[1:5]] for shape in shapes
                   if shape.get("data-part") == part and shape["row"] == "request-7"] for part in DRAFTS}
    (left, top, width, high), (_, all_top, _, all_high) = bars["accepted"]
    ((_, bottom, _, low),) = bars["rejected"]
    assert (left, width) == (18, 3 * 18), "three equal steps are one bar"
    assert high == pytest.approx(2 / 3 * low) == pytest.approx(2 / 5 * all_high) and high > 0.5
    assert 1.9 < all_top < top and top + high < bottom and bottom + low < 9, "within a row of 11 pixels"


def test_the_tree(browser, config):
    """Compare the trees, which are made from the feed because a trace does not contain the content of blocks."""
    async def main():
        feed, watcher = LiveFeed(), Watcher()
        engine = LLMEngine(config, trace=feed)
        feed.open(watcher, engine)
        await watcher.next(1)
        for number in range(3):
            engine.add_request([*b"once upon a time ", *[60 + number] * 3], SamplingParams(max_tokens=9), f"r{number}")
            for _ in range(4 if number == 2 else 20):
                if engine.has_unfinished_requests():
                    engine.step()
        feed.open(watcher, engine)
        await asyncio.sleep(0)
        return engine, (await watcher.next(1))[0]

    with ThreadPoolExecutor(1) as thread:  # the browser has a loop in this thread
        engine, told = thread.submit(asyncio.run, main()).result()
    assert told["type"] == "snapshot"
    page = page_draws(browser, {**told, "steps": told["events"]})
    tables = {name: engine.kv_cache.get_block_ids(name) for name in engine.scheduler.requests}
    picture = draw_tree(engine.kv_cache.block_pool, tables, cast=Cast(["r0", "r1", "r2"]),
                        text_of=lambda token: engine.tokenizer.decode([token]))
    shapes = shapes_of(picture.svg)
    assert len(blocks(shapes)) > 6 and blocks(page["tree"]) == blocks(shapes)
    assert texts(page["tree"], "9", "10", "11") == texts(shapes, "9", "10", "11")

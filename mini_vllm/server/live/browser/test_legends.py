"""Each drawing has a legend next to it, which explains every mark that can be drawn there and no other mark. It is
readable at 400 pixels."""

import re

import pytest
from playwright.sync_api import expect

from mini_vllm.server.live.browser.chromium import open_files
from mini_vllm.server.live.browser.test_same_shapes import config, drawn, page_draws, trace  # noqa: F401

#: Signs in the texts of each drawing; its legend must contain them. Letters, numbers and words explain themselves.
SIGNS = {"pool": "∅#+–×", "schedule": "↑↓#", "tables": "×", "tree": "×"}
HEADER = {"num_blocks": 10, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 8}
NOTHING = {"tokens": {}, "sampled": [], "prompts": {}, "names": {}, "arrived": {}, "waiting": [], "preempted": [],
           "finished": {}, "copies": [], "tables": {}, "blocks": [], "keys": [], "now_s": 0.0, "end_s": 0.0}
#: A run that contains everything that can be drawn. Requests compute, draft, wait, are preempted, compute again, idle,
#: fork and end; blocks are used, shared, cached, empty, and held for a copy.
STEPS = [
    {"prompts": {"request-a": 6, "request-b": 6, "m#0": 5, "m#1": 5}, "waiting": ["request-b"],
     "names": {"request-a": "a king", "request-b": "a fox", "m#0": "many", "m#1": "many"},
     "arrived": {"request-a": [0, 0.0], "request-b": [2, 0.0]}, "sampled": ["request-a", "m#0", "m#1"],
     "tokens": {"request-a": [0, 6], "m#0": [0, 5]},
     "tables": {"request-a": [1, 2], "m#0": [3, 4], "m#1": [3, 4]},
     "blocks": [[1, 1, True], [2, 1, False], [3, 2, True], [4, 2, False]],
     "keys": [[1, "k1", None, "once upon a time"], [3, "k3", "k1", "there was a king"]]},
    {"tokens": {"request-a": [6, 1], "m#0": [5, 1], "m#1": [5, 1]}, "sampled": ["request-a", "m#0", "m#1"],
     "drafts": {"request-a": [3, 1]}, "waiting": ["request-b"],
     "tables": {"m#1": [3, 5]}, "blocks": [[4, 1, False], [5, 1, False]], "copies": [[4, 5]]},
    {"tokens": {"request-b": [0, 6]}, "sampled": ["request-b"], "preempted": ["request-a"], "waiting": ["request-a"],
     "tables": {"request-a": [], "request-b": [6, 7]},
     "blocks": [[1, 0, True], [2, 0, False], [6, 1, True], [7, 1, False]],
     "keys": [[6, "k6", None, "a fox"]]},
    {"tokens": {"request-a": [4, 3]}, "tables": {"request-a": [1, 2]}, "blocks": [[1, 1, True], [2, 1, False]],
     "finished": {"request-b": "abort", "m#0": "length"}},
    {"tables": {"request-b": [], "m#0": [], "m#1": []}, "copies": [[3, 8], [6, 9]],
     "blocks": [[3, 1, True], [4, 0, True], [5, 0, False], [6, 1, True], [7, 0, False], [8, 1, False], [9, 1, False]],
     "keys": [[4, "k4", "k3", "who had"]]},
]


@pytest.fixture
def everything(browser):
    steps = [{**NOTHING, **step, "step": number} for number, step in enumerate(STEPS)]
    return page_draws(browser, {"header": HEADER, "steps": steps})


@pytest.fixture
def legends(browser):
    """Return a dict (drawing → mark → its text in the legend), and the kinds of blocks that the page knows."""
    page = browser.new_page()
    open_files(page)
    told = page.evaluate("""async () => {
      const { LEGENDS, poolLegend } = await import("/live/page/legend.js");
      const { EngineState } = await import("/live/page/state.js");
      const texts = (entries) => Object.fromEntries(entries.map(([mark, text]) => [mark, text]));
      return { kinds: Object.keys(new EngineState({ num_blocks: 4 }).counts),
        pool: texts(poolLegend(false)), "large pool": texts(poolLegend(true)),
        ...Object.fromEntries(Object.entries(LEGENDS).map(([name, entries]) => [name, texts(entries)])) };
    }""")
    page.close()
    return told


def drawings(result):
    """Return every shape that any step drew, by drawing."""
    shapes = {name: [shape for step in result["drawn"] for shape in step[name]] for name in ("pool", "tables", "tree")}
    return {**shapes, "schedule": result["schedule"]}


def marks(shapes):
    """Return the marks of all visible shapes, without groups, texts, and areas that only react to the pointer."""
    seen = [shape for shape in shapes
            if shape["tag"] in ("rect", "path", "circle") and shape.get("fill-opacity") != "0"]
    unmarked = [shape for shape in seen if not shape["mark"]]
    assert not unmarked, f"no legend can explain {unmarked[0]}"
    return {shape["mark"] for shape in seen}


#: Entries of the schedule's legend that explain signs in a text, not shapes.
IN_TEXT = {"priority", "sample"}


@pytest.mark.parametrize("name", ["pool", "schedule", "tables", "tree"])
def test_every_mark_that_can_be_drawn_is_explained_and_no_other(everything, legends, name):
    found = marks(drawings(everything)[name])
    told = set(legends[name]) - IN_TEXT
    assert found <= told, f"the legend of the {name} does not explain {found - told}"
    assert told <= found, f"the legend of the {name} explains {told - found}, which is never drawn there"


@pytest.mark.parametrize("name", ["pool", "schedule", "tables", "tree"])
def test_a_real_run_has_no_mark_without_an_explanation(drawn, legends, name):  # noqa: F811
    assert marks(drawings(drawn)[name]) <= set(legends[name])


def test_a_pool_of_thousands_has_a_legend_of_its_own(legends):
    assert set(legends["bare-pool"]) == set(legends["kinds"]) == set(legends["pool"]) - {"copy"}
    assert set(legends["large pool"]) == set(legends["pool"])
    assert set(legends["bare-tables"]) == {"request", "used", "shared"}


@pytest.mark.parametrize("name", list(SIGNS))
def test_signs_in_texts_are_explained(everything, browser, name):
    """Check that each sign is in a sample or in a text of the legend."""
    page = browser.new_page()
    open_files(page)
    legend = page.locator(f"#{name}-legend")
    expect(legend.locator("li").first).to_be_attached()
    told = legend.text_content()
    if name == "pool":  # the larger cells of a small pool have their own legend
        told += page.evaluate("""async () => {
          const { poolLegend } = await import("/live/page/legend.js");
          return poolLegend(true).map(([, text]) => text).join(" ");
        }""")
    page.close()
    written = "".join(shape["text"] for shape in drawings(everything)[name])
    signs = set(re.sub(r"[\w\s.,:;…-]", "", written))
    assert signs <= set(SIGNS[name]), "a sign that this test does not know"
    assert set(SIGNS[name]) <= set(told)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_legends_are_readable_on_a_narrow_screen(browser, scheme):
    page = browser.new_context(viewport={"width": 400, "height": 800}, color_scheme=scheme).new_page()
    open_files(page)
    lists = page.locator(".legend:visible")
    expect(lists).to_have_count(4)
    for legend in lists.all():
        drawing = legend.get_attribute("id").removesuffix("-legend")
        assert legend.evaluate("(list, id) => list.closest('section').contains(document.getElementById(id))", drawing)
        assert float(legend.evaluate("list => parseFloat(getComputedStyle(list).fontSize)")) >= 12
        for entry in legend.locator("li").all():
            sample, text = (entry.locator(each).bounding_box() for each in ("svg", "span"))
            assert sample["width"] >= 30 and sample["height"] >= 20 and sample["x"] >= 0
            assert text["x"] >= sample["x"] + sample["width"] and text["x"] + text["width"] <= 400
            assert text["width"] >= 100 or text["height"] < 25, "a word on each line"
    page.context.close()

"""Pictures show everything that they are given, and nothing else: the SVG is read back and compared."""

import base64
import json
import random
import re
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from mini_vllm.block_pool import BlockPool
from mini_vllm.checks import install_line
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.pictures import Cast, Slides, draw_cache, draw_pool, draw_queue, draw_tree, step_through
from mini_vllm.pictures.pool_state import PoolState
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Request, SamplingParams
from mini_vllm.scheduler import Scheduler
from mini_vllm.simulation import Clock, Simulation
from mini_vllm.trace.recorder import StepTrace

SIZE = 4


def shapes(picture, name="rect"):
    root = ElementTree.fromstring(picture.svg)
    return list(root.iter(f"{{http://www.w3.org/2000/svg}}{name}"))


def texts(picture):
    return [shape.text for shape in shapes(picture, "text")]


def drawn_blocks(picture):
    """Map each block id in the strip to its state."""
    root = ElementTree.fromstring(picture.svg)
    strip = next(group for group in root if group.get("data-panel") == "pool")
    return {int(shape.get("data-block")): shape.get("data-state") for shape in strip if shape.get("data-block")}


def served(*prompts, num_blocks=12):
    """Return a manager with a prefix tree, and requests that have computed their prompts."""
    manager, requests = KVCacheManager(num_blocks, SIZE, tree_class=PrefixTree), []
    for number, prompt in enumerate(prompts):
        request = Request(f"request-{number}", prompt)
        hits, num_cached = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, request.num_tokens - num_cached, hits, num_cached) is not None
        manager.finish_step()
        request.num_computed_tokens = request.num_tokens
        requests.append(request)
    return manager, requests


@pytest.mark.parametrize("num_blocks", [2, 300])
def test_the_strip_shows_every_block_as_it_is(num_blocks):
    rng, pool, held = random.Random(num_blocks), BlockPool(num_blocks), []
    for _ in range(60):
        match rng.randrange(3):
            case 0 if pool.get_num_free_blocks():
                held += (new := pool.get_new_blocks(1))
                if rng.random() < 0.5:
                    pool.cache_full_blocks(new, [rng.random()])
            case 1 if held:
                pool.touch([block := rng.choice(held)])
                held.append(block)
            case 2 if held:
                pool.free_blocks([held.pop(rng.randrange(len(held)))])
    drawn = drawn_blocks(draw_pool(pool))
    assert drawn == {block.block_id: "null" if block.is_null else
                     ("used" if block.ref_cnt == 1 else "shared") if block.ref_cnt else
                     "empty" if block.block_hash is None else "cached" for block in pool.blocks}


def test_tables_name_their_blocks_in_order_with_words_in_them():
    words = "once upon a time there lived a king who had three but no queen".split()
    manager, requests = served(range(11), [*range(8), 11, 12, 13])
    picture = draw_cache(manager, requests, text_of=words.__getitem__)
    root = ElementTree.fromstring(picture.svg)
    for request in requests:
        table = next(group for group in root if group.get("data-table") == request.request_id)
        boxes = [int(shape.get("data-block")) for shape in table if shape.get("data-state")][1:]
        assert boxes == manager.get_block_ids(request.request_id)
    said = texts(picture)
    assert "once upon a time" in said and "who had three ·" in said and "but no queen ·" in said
    assert picture.label == "11 blocks of 4 tokens: 4 in use, 2 of them shared, 7 free"


def test_a_request_keeps_its_letter_and_colour_when_others_have_gone():
    manager, (first, second) = served(range(5), range(50, 58))
    cast = Cast()
    before = draw_cache(manager, [first, second], cast=cast)
    manager.free(first)
    after = draw_cache(manager, [second], cast=cast)
    colours = [{shape.get("fill") for shape in shapes(picture) if shape.get("data-block") == "3"}
               for picture in (before, after)]
    assert colours[0] == colours[1] and "B" in texts(after) and "A" not in texts(after)
    assert Cast(["r1", "x"]).letter("r1") == "r1", "a short name is its own letter"
    assert [Cast().letter(name) for name in ("C#0", "ab#1")] == ["C0", "A"], "so is the name of a sample"


def test_the_queue_is_drawn_in_its_order_and_who_left_hangs_above():
    pool = BlockPool(7)
    blocks = pool.get_new_blocks(6)
    pool.cache_full_blocks([blocks[2]], [5])
    pool.free_blocks(blocks)
    before = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
    pool.touch([blocks[2]])
    picture = draw_queue(pool, before=before)
    boxes = {int(shape.get("data-block")): (float(shape.get("x")), float(shape.get("y")), shape.get("data-state"))
             for shape in shapes(picture) if shape.get("data-block")}
    assert sorted(boxes, key=boxes.get) == before, "from left to right, the one that left between its old neighbours"
    heights = {block_id: y for block_id, (_, y, _) in boxes.items()}
    assert [block_id for block_id in before if heights[block_id] < max(heights.values())] == [3]
    assert boxes[3][2] == "used" and picture.label == "The free queue holds 5 blocks; block 3 left it"


def test_the_tree_hangs_every_findable_block_under_the_one_before_it():
    manager, requests = served(range(12), [*range(8), 60, 61, 62, 63], [70, 71, 72, 73])
    pool = manager.block_pool
    picture = draw_tree(pool, matched=[pool.blocks[1]])
    boxes = {int(shape.get("data-block")): float(shape.get("x")) for shape in shapes(picture)
             if shape.get("data-block")}
    assert set(boxes) == {block.block_id for block in pool.blocks if block.block_hash is not None} == {1, 2, 3, 4, 5}
    assert boxes[1] == boxes[5] < boxes[2] < boxes[3] == boxes[4], "a block's column is its depth"
    assert sum("C" in shape.get("d") for shape in shapes(picture, "path")) == 5, "a line from each parent"
    assert "0 1 2 3" in texts(picture) and "60 61 62 63" in texts(picture)
    assert sum(shape.get("data-part") == "matched" for shape in shapes(picture)) == 1
    for request in requests:
        manager.free(request)
    assert {shape.get("data-state") for shape in shapes(draw_tree(pool)) if shape.get("data-block")} == {"cached"}


def run_traced():
    class Watched(StepTrace):
        def record_plan(self, scheduler, plan):
            super().record_plan(scheduler, plan)
            seen.append(PoolState.of_manager(scheduler.kv_cache, scheduler.running))

    seen, clock = [], Clock()
    scheduler = Scheduler(KVCacheManager(13, SIZE, tree_class=PrefixTree), 4, 16, watermark=0.0)
    simulation = Simulation(scheduler, clock=clock, trace=(trace := Watched(clock)))
    for number in range(5):
        prompt = [*range(6), *range(100 * number, 100 * number + 3)]
        simulation.add(Request(f"r{number}", prompt, SamplingParams(max_tokens=9)), at_s=0.02 * number)
    simulation.run()
    assert scheduler.num_preemptions, "the example is meant to preempt"
    return trace, seen


def test_a_step_of_a_trace_is_the_pool_as_it_was():
    trace, seen = run_traced()
    for index, live in enumerate(seen):
        replayed = PoolState.of_step(trace, index)
        assert replayed.tables == live.tables, f"step {index}"
        assert {name: len(tokens) for name, tokens in replayed.token_ids.items()} == \
            {name: len(tokens) for name, tokens in live.token_ids.items()}, f"step {index}"
        assert [(block.block_id, block.kind, set(block.owners)) for block in replayed.blocks] == \
            [(block.block_id, block.kind, set(block.owners)) for block in live.blocks], f"step {index}"


def test_a_run_is_stepped_through_and_told():
    trace, _ = run_traced()
    slides = step_through(trace)
    assert len(slides.frames) == len(trace.steps)
    assert any("is preempted" in label for label in slides.labels) and "r0 ends" in " ".join(slides.labels)
    assert len(step_through(trace, first_step=2, num_steps=6, every=2).frames) == 3
    for wrong in ({"first_step": 99}, {"num_steps": 0}, {"every": 0}):
        with pytest.raises(ValueError, match="99|steps 0 to -1|every is 0"):
            step_through(trace, **wrong)


def test_slides_hold_every_frame_at_one_size_and_survive_hostile_names():
    pool = BlockPool(4)
    slides = Slides("look & see")
    held = pool.get_new_blocks(1)
    slides.add("</script><b>", draw_pool(pool, {"</script>": held}))
    slides.add("FRAMES", draw_pool(BlockPool(90)))
    page = slides.to_html()
    assert page.count("</script>") == 1 and page.endswith("</script></figure>") and "<b>" not in page
    bundle = slides._repr_mimebundle_()
    assert set(bundle) == {"text/html", "image/svg+xml", "text/plain"}
    sizes = re.findall(r'\\x3csvg [^>]*?viewBox=\\?"([\d. ]+)', page)
    assert len(sizes) == 2 and len(set(sizes)) == 1, sizes
    assert page.count('"2 of 2: FRAMES"') == 1
    ElementTree.fromstring(bundle["image/svg+xml"])
    with pytest.raises(ValueError, match="no frames"):
        Slides("nothing").to_html()


def slides_of(num_frames, **which):
    pool, slides = BlockPool(9), Slides("look", **which)
    for number in range(1, num_frames + 1):
        slides.add(f"frame <{number}>", draw_pool(pool, {"ada": pool.get_new_blocks(1)}))
    return slides


@pytest.mark.parametrize("num_frames, shown", [(1, ()), (2, (2,)), (4, (2, 3, 4)), (7, (3, 5, 7))])
def test_still_frames_are_seen_where_scripts_do_not_run(num_frames, shown):
    slides = slides_of(num_frames)
    page = re.sub("<script>.*</script>", "", slides.to_html(), flags=re.S)
    images = [base64.b64decode(each).decode() for each in re.findall("base64,([^\"]+)", page)]
    assert [slides.frames.index(next(frame for frame in slides.frames if frame.svg == image)) + 1
            for image in images] == [1, *shown], "the first frame, then the strip"
    for number in shown:
        assert f"<strong>{number} of {num_frames}: frame &lt;{number}&gt;</strong>" in page
    assert page.count("<details open") == bool(shown), "open, unless the script closes it"


def test_which_frames_are_still_can_be_chosen():
    slides = slides_of(7, stills=(2, 6))
    assert slides.still_numbers() == (2, 6)
    strip = slides.to_html().partition('data-part="stills"')[2].partition("</details>")[0]
    assert re.findall(r"<strong>(\d) of 7", strip) == ["2", "6"]
    for wrong in (0, 8):
        with pytest.raises(ValueError, match=f"stills contains the frame {wrong}, must be from 1 to 7"):
            slides_of(7, stills=(wrong,)).to_html()
    trace, _ = run_traced()
    assert step_through(trace, stills=(1, 4)).still_numbers() == (1, 4)


def test_lines_that_frames_have_in_common_are_written_once_and_every_frame_is_made_of_them():
    pool, slides = BlockPool(40), Slides("look", stills=())
    for number in range(10):
        slides.add(f"block {number + 1}", draw_pool(pool, {"ada": pool.get_new_blocks(1)}))
    page = slides.to_html()
    assert len(page) < 5 * len(slides.frames[0].svg), "ten frames, which differ in a block or two"
    lines, frames = (json.loads(re.search(f"{name} = (\\[.*?\\])(?=, [a-z]+ = |;\\n)", page)[1].replace("\\x3c", "<"))
                     for name in ("lines", "frames"))
    assert ["\n".join(lines[number] for number in frame) for frame in frames] == [each.svg for each in slides.frames]


def test_a_picture_is_saved_by_its_suffix_or_refused(tmp_path, monkeypatch):
    picture = draw_pool(BlockPool(4))
    picture.save(tmp_path / "pool.svg")
    assert (tmp_path / "pool.svg").read_text(encoding="utf-8") == picture.svg
    picture.save(tmp_path / "pool.png")
    png = (tmp_path / "pool.png").read_bytes()
    width = int.from_bytes(png[16:20], "big")
    assert png.startswith(b"\x89PNG") and width == 2 * picture.width, "two pixels for one, for sharp letters"
    for name in ("pool.jpg", "pool"):
        with pytest.raises(ValueError, match=r"written as \.svg or \.png"):
            picture.save(tmp_path / name)
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(ValueError, match=re.escape(install_line("png"))):
        picture.save(tmp_path / "other.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pool.png", "pool.svg"]

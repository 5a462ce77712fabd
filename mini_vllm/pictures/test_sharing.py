"""Pictures of sharing: planned copies, blocks held only for a copy, and matches that end within a block."""

import re

import pytest

from mini_vllm.block_pool import BlockPool
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.pictures import draw_cache, draw_pool, draw_step, draw_tree
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Request
from mini_vllm.scheduler import Scheduler
from mini_vllm.trace.recorder import StepTrace


def compute(manager: KVCacheManager, request: Request) -> None:
    manager.allocate_slots(request, request.num_tokens)
    request.num_computed_tokens = request.num_tokens
    manager.finish_step()


def forked(num_tokens: int = 6) -> tuple[KVCacheManager, Request, Request]:
    """Return a manager with A and B: B was forked from A, and is about to write its next token."""
    manager = KVCacheManager(8, block_size=4)
    a, b = (Request(name, range(num_tokens)) for name in "AB")
    compute(manager, a)
    manager.fork(a, b)
    b.num_computed_tokens = num_tokens
    b.append_output_token(50)
    manager.allocate_slots(b, 1)
    return manager, a, b


def state_of(svg: str, block_id: int) -> str:
    (state,) = re.findall(rf'data-block="{block_id}" data-state="(\w+)"', svg.split("data-table")[0])
    return state


def test_a_planned_copy_is_drawn_and_named_until_it_is_made():
    manager, a, b = forked()
    picture = draw_cache(manager, [a, b], text_of=str)
    assert picture.svg.count('data-part="copy"') == 1
    assert picture.label.endswith("to be copied: 2 → 3")
    assert "will be copied from 2" in picture.svg, "block 3 holds nothing yet"
    manager.finish_step()
    later = draw_cache(manager, [a, b], text_of=str)
    assert 'data-part="copy"' not in later.svg and "copied" not in later.label


def test_a_block_that_only_a_copy_holds_is_neither_owned_nor_free():
    manager, a, b = forked()
    manager.free(a)
    picture = draw_cache(manager, [a, b])
    assert state_of(picture.svg, 2) == "kept"
    assert "2 in use, 1 held for a copy, 4 free" in picture.label
    manager.finish_step()
    assert state_of(draw_cache(manager, [a, b]).svg, 2) == "empty"


def test_a_pool_that_knows_no_copies_is_drawn_without_them():
    pool = BlockPool(4)
    blocks = pool.get_new_blocks(2)
    del pool.pending_copies  # as in lab 2.1
    assert state_of(draw_pool(pool, {"A": blocks}).svg, 1) == "used"


def test_a_step_of_a_trace_shows_its_copies():
    scheduler, trace = Scheduler(KVCacheManager(10, block_size=4)), StepTrace(clock=lambda: 0.0)
    leader, child = (Request(name, range(6)) for name in ("first", "second"))
    scheduler.add_request(leader)
    for step in range(2):
        trace.start_step(scheduler)
        plan = scheduler.schedule()
        trace.record_plan(scheduler, plan)
        sampled = {request.request_id: 7 for request in plan.requests}
        scheduler.update_from_output(plan, sampled)
        if step == 0:
            scheduler.fork(leader, child)
            child.append_output_token(8)
        trace.end_step(plan, sampled)
    assert 'data-part="copy"' not in draw_step(trace, 0).svg
    assert draw_step(trace, 1).label.endswith("to be copied: 2 → 3")
    with pytest.raises(ValueError, match="index is 2, the trace has 2 steps"):
        draw_step(trace, 2)


def test_a_match_that_ends_inside_a_block_says_how_far_it_goes():
    manager = KVCacheManager(8, block_size=4, tree_class=PrefixTree)
    first = Request("first", range(8))
    compute(manager, first)
    manager.free(first)
    found, num_found = manager.get_computed_blocks(Request("second", [*range(7), 70]))
    picture = draw_tree(manager.block_pool, matched=found, num_matched_tokens=num_found)
    assert picture.svg.count('data-part="matched"') == 2
    assert "3 of 4" in picture.svg and "4 of 4" not in picture.svg

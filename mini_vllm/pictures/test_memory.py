"""Runs of slots on a strip: the picture shows each slot once, in its actual state."""

import xml.etree.ElementTree as ElementTree

import pytest

from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.pictures.memory import MemoryRun, draw_memory, runs_in_pages
from mini_vllm.request import Request, SamplingParams


def widths(picture) -> dict[str, float]:
    """Map each kind to the total width of its pieces, without those of the legend."""
    sums: dict[str, float] = {}
    for box in ElementTree.fromstring(picture.svg).iter("{http://www.w3.org/2000/svg}rect"):
        if box.get("data-part") and box.get("height") == "29":
            gap = 1 if float(box.get("width")) > 2 else 0
            sums[box.get("data-part")] = sums.get(box.get("data-part"), 0) + float(box.get("width")) + gap
    return sums


def texts(picture) -> list[str]:
    return [text.text for text in ElementTree.fromstring(picture.svg).iter("{http://www.w3.org/2000/svg}text")]


def test_each_slot_is_drawn_once_as_what_it_is():
    picture = draw_memory(100, [MemoryRun("A", 0, 40, 10, 5), MemoryRun("B", 60, 10)])
    assert picture.label == ("100 slots: 20 hold a token, 5 will later, 25 never will, 50 free in 2 holes, "
                             "the largest 30")
    assert widths(picture) == pytest.approx({"used": 139.2, "later": 34.8, "never": 174, "hole": 348}, abs=0.1)
    assert texts(picture)[1:5] == ["A", "B", "20 free", "30 free"]


@pytest.mark.parametrize("runs, told", [
    ([], "8 slots: 0 hold a token, 8 free"),
    ([MemoryRun("A", 0, 8)], "8 slots: 8 hold a token, 0 free"),
    ([MemoryRun("A", 0, 3), MemoryRun("B", 3, 4, 1)], "8 slots: 4 hold a token, 3 never will, 1 free"),
])
def test_the_label_says_only_what_there_is(runs, told):
    assert draw_memory(8, runs).label == told


@pytest.mark.parametrize("run, told", [
    (MemoryRun("B", 3, 2), "B has slots 3 to 4, but only slots 4 to 7 are left for it"),
    (MemoryRun("B", 6, 3), "B has slots 6 to 8, but only slots 4 to 7"),
    (MemoryRun("B", 4, 0), "B has slots 4 to 3, but only"),
    (MemoryRun("B", 4, 2, 2, 1), "B has 2 slots, which cannot hold 2 tokens now and 1 later"),
    (MemoryRun("B", 4, 2, -1), "cannot hold -1 tokens"),
])
def test_runs_that_cannot_be_are_refused(run, told):
    with pytest.raises(ValueError, match=told):
        draw_memory(8, [MemoryRun("A", 0, 4), run])


def test_pages_are_runs_and_neighbours_are_one():
    manager = KVCacheManager(num_blocks=9, block_size=4, enable_caching=False)
    requests = [Request(name, list(range(size)), SamplingParams(max_tokens=2)) for name, size in
                (("A", 6), ("B", 8), ("C", 1))]
    for request in requests:
        manager.allocate_slots(request, request.num_tokens)
        request.num_computed_tokens = request.num_tokens
    assert runs_in_pages(manager, requests) == [
        MemoryRun("A", 0, 8, 6, 2), MemoryRun("B", 8, 8, 8, 0), MemoryRun("C", 16, 4, 1, 2)]
    manager.free(requests[0])
    late = Request("D", list(range(20)), SamplingParams(max_tokens=None))
    manager.allocate_slots(late, 18)
    late.num_computed_tokens = 18
    runs = runs_in_pages(manager, [late, requests[1]])
    assert runs[:-1] == [MemoryRun("D", 20, 12, 12, 0), MemoryRun("D", 4, 4, 4, 0), MemoryRun("D", 0, 4, 2, 2)]
    assert draw_memory(32, runs).label == "32 slots: 26 hold a token, 2 will later, 4 free"

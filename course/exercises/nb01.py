"""The exercises of notebook 01: the size of K/V, holes in memory, and the number of requests that fit."""

from __future__ import annotations

from course.exercises import Exercise
from course.exercises.served import num_computed, steps_of
from course.lab.base_labs import load_base


def _kib_after_decoding() -> float:
    from mini_vllm.attention import PagedKVCache
    from mini_vllm.backend import mx
    from mini_vllm.models.loader import load
    num_tokens = num_computed(steps_of([range(1, 9)], max_tokens=8, num_blocks=16, block_size=4))
    model = load("tiny-tales").config
    return num_tokens * PagedKVCache.block_bytes(model.num_layers, model.num_kv_heads, 1, model.head_dim,
                                                 mx.float16) / 1024


def _smallest_refused_with_room() -> int:
    lab = load_base("1.2")
    for wanted in range(1, 41):
        memory = lab.ContiguousAllocator(40)
        starts = [memory.allocate(size) for size in (10, 6, 8, 12)]
        memory.free(starts[0])
        memory.free(starts[2])
        if memory.num_free_slots >= wanted and memory.allocate(wanted) is None:
            return wanted
    raise AssertionError("the allocator refused no request for which enough slots were free")


def _num_that_fit() -> list[int]:
    lab = load_base("1.2")
    lengths, num_slots = [100] * 1000, 8192
    return [lab.num_that_fit_reserving(lengths, num_slots, 2048), lab.num_that_fit_paged(lengths, num_slots, 16),
            lab.num_that_fit_paged(lengths, num_slots, 100)]


EXERCISES = (
    Exercise(
        answer=45,
        proof=_kib_after_decoding,
        why="8 + 7 tokens went through the model; the 8th new token did not. 15 × 2 × 6 × 4 × 32 × 2 = 46,080 bytes, "
            "which is 45 KiB.",
        hint="Count the tokens that go through the model, as in section 1. The table in section 2 gives the KiB per "
             "token.",
        slips={48: "48 KiB is the K/V of 16 tokens. Does the last token ever go through the model?",
               24: "24 KiB is the K/V of 8 tokens. Both the prompt and the generated tokens have K/V.",
               22.5: "22.5 KiB is the size of the keys alone. Each token also has values.",
               90: "90 KiB would be right for 4 bytes per element, or for 8 heads. Use 16-bit floats and the 4 KV "
                   "heads.",
               46080: "This is the right number of bytes, but the question asks for KiB."},
    ),
    Exercise(
        answer=11,
        proof=_smallest_refused_with_room,
        why="The holes have 10, 8 and 4 slots, 22 in total. A request of 10 still fits where A was; a request of 11 "
            "fits nowhere.",
        hint="Draw the 40 slots. Which holes do A and C leave, and which hole is at the end of the memory?",
        slips={23: "23 is more than all free slots, so pages would not help either. Look for a request that is "
                   "refused although enough slots are free.",
               10: "10 fits exactly where A was.",
               9: "9 fits where A was, at slot 0.",
               5: "5 does not fit into the last hole, but it fits into the first one.",
               12: "12 is refused, but it is not the smallest such request.",
               19: "The holes of A and C do not touch: B is between them."},
    ),
    Exercise(
        answer=[4, 73, 81],
        proof=_num_that_fit,
        why="8,192 // 2,048 is 4. A request of 100 tokens takes 7 pages of 16, and 512 // 7 is 73. 81 pages of 100 "
            "fit. If all lengths are known and equal, one page per request wastes nothing. Chat traffic is not like "
            "that.",
        hint="Count pages: how many are there in 8,192 slots, and how many does one request of 100 tokens take?",
        slips={(4, 81, 81): "Requests do not share a last page: 100 tokens take 7 pages of 16, which are 112 slots.",
               (4, 85, 81): "6 pages of 16 hold 96 tokens. The other 4 tokens need a seventh page.",
               (4, 73, 82): "8,192 slots are 81 pages of 100, and 92 slots are left over. These are not a whole page.",
               (81, 73, 81): "Every request reserves 2,048 slots, however short it is."},
    ),
)

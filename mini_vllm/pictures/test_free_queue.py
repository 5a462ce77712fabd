"""The free queue as a chain: arrows lead from each block in the queue to the next one, past removed blocks."""

import re

from mini_vllm.block_pool import BlockPool
from mini_vllm.pictures import draw_queue


def arrows(svg: str) -> list[tuple[float, float]]:
    """Return the start and end of each arrow to the right, in the order of drawing."""
    found = [(float(start), float(end)) for start, end in re.findall(r'd="M([\d.]+) [\d.]+H([\d.]+)m', svg)]
    return [(start, end) for start, end in found if end > start]


def drawn(svg: str) -> list[tuple[int, str]]:
    return [(int(number), state) for number, state in re.findall(r'data-block="(\d+)" data-state="(\w+)"', svg)]


def test_a_block_that_left_hangs_over_one_arrow_between_its_neighbours():
    pool = BlockPool(6)
    blocks = pool.get_new_blocks(5)
    pool.cache_full_blocks(blocks[2:3], ["a prefix"])
    pool.free_blocks(blocks)
    whole = draw_queue(pool)
    pool.touch(blocks[2:3])
    after = draw_queue(pool, before=[1, 2, 3, 4, 5])
    assert drawn(whole.svg) == [(1, "empty"), (2, "empty"), (3, "cached"), (4, "empty"), (5, "empty")]
    assert drawn(after.svg) == [(1, "empty"), (2, "empty"), (3, "used"), (4, "empty"), (5, "empty")]
    six, five = arrows(whole.svg), arrows(after.svg)  # head, the blocks, tail: one arrow fewer, and a longer one
    assert (len(six), len(five)) == (6, 5)
    assert five[2] == (six[2][0], six[3][1])
    assert after.height > whole.height
    assert after.label == "The free queue holds 4 blocks; block 3 left it"


def test_a_long_queue_runs_on_in_the_next_row():
    pool = BlockPool(20)
    picture = draw_queue(pool)
    ends = [end for _, end in arrows(picture.svg)]
    assert len(ends) == 20  # between head, 19 blocks and tail; one of them is drawn at the end of the first row
    assert max(ends) <= picture.width

"""Tests of lab 1.2: how much memory reserving, contiguous allocation and pages waste."""

import random

import pytest

from course.expecting import must_answer


def lengths_of(trace):
    return [request.num_tokens for request in trace]


def filled(lab, sizes, num_slots=100):
    """Return an allocator that holds one run of each size, and the starts of the runs."""
    allocator = lab.ContiguousAllocator(num_slots)
    return allocator, [allocator.allocate(size) for size in sizes]


def holes_in(slots):
    """Return the runs of None in a list of slots, as (start, size)."""
    holes = []
    for i, owner in enumerate(slots):
        if owner is None:
            if i > 0 and slots[i - 1] is None:
                holes[-1] = (holes[-1][0], holes[-1][1] + 1)
            else:
                holes.append((i, 1))
    return holes


def must_raise(expected, call, function, *args, rule, named=""):
    """Require that ``function(*args)`` raises ``expected`` and that its message contains ``named``.

    ``call`` describes the call in messages. A body that is not written yet raises NotImplementedError, which is
    passed on.
    """
    try:
        got = function(*args)
    except NotImplementedError:  # a subclass of RuntimeError, but it means that the body is not written yet
        raise
    except expected as error:
        assert named in str(error), f"{call} raised {expected.__name__}({str(error)!r}), expected {named} in it"
    except Exception as error:
        raise AssertionError(f"{call} raised {type(error).__name__}({error}), expected a {expected.__name__}: "
                             f"{rule}") from error
    else:
        raise AssertionError(f"{call} returned {got!r}, expected a {expected.__name__}: {rule}")


# ---------------------------------------------------------------------------------------------- Task 1


@pytest.mark.points(2)
def test_task_1_waste_of_a_small_example(lab):
    got = lab.waste_of_reserving([10, 20, 30], 100)
    assert got == pytest.approx(0.8), \
        f"waste_of_reserving([10, 20, 30], 100) gave {got}, expected 0.8: only 60 of 300 slots hold a token"
    got = lab.waste_of_reserving([7], 7)
    assert got == 0.0, f"waste_of_reserving([7], 7) gave {got}, expected 0.0: max_len tokens waste nothing"


@pytest.mark.points(3)
def test_task_1_chat_traffic_wastes_most_of_its_reservations(lab):
    got = lab.waste_of_reserving([300], 1000)
    assert got == pytest.approx(0.7), f"waste_of_reserving([300], 1000) gave {got}, expected 0.7: 700 slots stay empty"
    for seed in range(3):
        lengths = lengths_of(lab.make_trace(1000, seed))
        got = lab.waste_of_reserving(lengths, lab.MAX_LEN)
        assert 0.6 < got < 0.8, \
            f"waste_of_reserving of trace {seed} gave {got:.3f}, expected 0.6 to 0.8: the mean length is " \
            f"{sum(lengths) / 1000:.0f}, the maximum {lab.MAX_LEN}"


@pytest.mark.points(3)
def test_task_1_split_of_a_single_request(lab):
    request = lab.RequestLengths(num_prompt_tokens=3, num_output_tokens=4)
    for generated, expected in [(0, (3, 4, 3)), (1, (4, 3, 3)), (4, (7, 0, 3))]:
        use = lab.split_reservation([request], [generated], 10)
        got = (use.used, use.reserved, use.internal)
        assert got == expected, \
            f"prompt 3, output 4, {generated} generated, 10 slots: split_reservation gave (used, reserved, internal) " \
            f"= {got}, expected {expected}: reserved slots will be used, internal slots never"


@pytest.mark.points(3)
def test_task_1_split_accounts_for_every_slot(lab):
    trace = lab.make_trace(200, 5)
    for what, generated in [("at the start", [0] * 200), ("in the middle", [r.num_output_tokens // 2 for r in trace]),
                            ("at the end", [r.num_output_tokens for r in trace])]:
        use = lab.split_reservation(trace, generated, lab.MAX_LEN)
        assert use.total == 200 * lab.MAX_LEN, \
            f"{what} of the answers, the three numbers of split_reservation sum to {use.total}, expected " \
            f"{200 * lab.MAX_LEN}: every slot is used, reserved or internal"
    assert use.reserved == 0, f"at the end {use.reserved} slots are reserved, expected 0: all answers are complete"
    waste = lab.waste_of_reserving(lengths_of(trace), lab.MAX_LEN)
    assert use.internal / use.total == pytest.approx(waste), \
        f"the internal share is {use.internal / use.total:.4f}, waste_of_reserving gave {waste:.4f}: both count the " \
        "slots that never hold a token"


@pytest.mark.points(1)
def test_task_1_split_at_the_bounds(lab):
    use = must_answer("split_reservation([], [], 10)", lab.split_reservation, [], [], 10,
                      rule="an empty list of requests is not an error")
    got = (use.used, use.reserved, use.internal)
    assert got == (0, 0, 0), f"split_reservation([], [], 10) gave (used, reserved, internal) = {got}, expected " \
                             "(0, 0, 0): without requests there are no slots"
    use = must_answer("split_reservation of prompt 3, output 4, 4 generated, 7 slots", lab.split_reservation,
                      [lab.RequestLengths(3, 4)], [4], 7, rule="a request may have max_len tokens")
    got = (use.used, use.reserved, use.internal)
    assert got == (7, 0, 0), f"prompt 3, output 4, 4 generated, 7 slots: split_reservation gave (used, reserved, " \
                             f"internal) = {got}, expected (7, 0, 0): a request may have max_len tokens"


@pytest.mark.points(2)
def test_task_1_impossible_requests_are_refused(lab):
    lab.waste_of_reserving([1], 1)
    for lengths, max_len in [([], 10), ([5, 11], 10), ([5, 0], 10)]:
        must_raise(ValueError, f"waste_of_reserving({lengths}, {max_len})", lab.waste_of_reserving, lengths, max_len,
                   rule="there must be at least one length, each between 1 and max_len; call check_lengths")
    request = lab.RequestLengths(3, 4)
    for what, args in [("a request of 7 in 6 slots", ([request], [0], 6)),
                       ("5 generated of 4", ([request], [5], 10)), ("-1 generated", ([request], [-1], 10)),
                       ("5 generated of 4 in the second request", ([request, request], [1, 5], 10)),
                       ("1 request and 2 numbers", ([request], [1, 1], 10)), ("no number", ([request], [], 10)),
                       ("2 requests and 1 number", ([request, request], [1], 10))]:
        must_raise(ValueError, f"split_reservation with {what}", lab.split_reservation, *args,
                   rule="each request has one number of generated tokens, from 0 to its output tokens, and no request "
                        "is longer than max_len; call check_progress")


# ---------------------------------------------------------------------------------------------- Task 2


@pytest.mark.points(3)
def test_task_2_blocks_needed_at_the_edges(lab):
    for num_tokens, expected in [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)]:
        got = lab.blocks_needed(num_tokens, 16)
        assert got == expected, \
            f"blocks_needed({num_tokens}, 16) gave {got}, expected {expected}: a new block is needed only when " \
            "the blocks before it are full"
    got = lab.blocks_needed(10**17 + 1, 1)
    assert got == 10**17 + 1, \
        f"blocks_needed(10**17 + 1, 1) gave {got}, expected 10**17 + 1: use integers, not floats"


@pytest.mark.points(1)
def test_task_2_blocks_needed_refuses_nonsense(lab):
    lab.blocks_needed(1, 1)
    for num_tokens, block_size in [(-1, 16), (5, 0), (5, -4), (0, 0)]:
        must_raise(ValueError, f"blocks_needed({num_tokens}, {block_size})", lab.blocks_needed, num_tokens, block_size,
                   rule="num_tokens must be at least 0, and block_size at least 1; call check_at_least")


@pytest.mark.points(3)
def test_task_2_waste_is_a_share_of_all_slots(lab):
    got = lab.waste_of_paging([1, 159], 16)
    assert got == pytest.approx(16 / 176), \
        f"waste_of_paging([1, 159], 16) gave {got:.4f}, expected {16 / 176:.4f}: 1 + 10 blocks are 176 slots, and " \
        "160 of them hold a token. (The mean of the two requests' shares would be 0.472.)"
    got = lab.waste_of_paging([16, 48], 16)
    assert got == 0.0, f"waste_of_paging([16, 48], 16) gave {got}, expected 0.0: full blocks waste nothing"
    for lengths, block_size in [([], 16), ([5, 0], 16), ([5], 0)]:
        must_raise(ValueError, f"waste_of_paging({lengths}, {block_size})", lab.waste_of_paging, lengths, block_size,
                   rule="there must be at least one length, each at least 1, and block_size must be at least 1")


@pytest.mark.points(3)
def test_task_2_pages_of_32_waste_a_few_percent_of_chat_traffic(lab):
    got = lab.waste_of_paging([48], 32)
    assert got == pytest.approx(0.25), f"waste_of_paging([48], 32) gave {got}, expected 0.25: 16 of 64 slots stay empty"
    for seed in range(3):
        got = lab.waste_of_paging(lengths_of(lab.make_trace(1000, seed)), 32)
        assert 0.015 < got < 0.04, \
            f"waste_of_paging of trace {seed} with blocks of 32 gave {got:.3f}, expected 0.015 to 0.04: only the " \
            "last block of a request has empty slots, 16 on average"


@pytest.mark.points(2)
def test_task_2_never_more_than_one_block_less_one_slot_is_wasted(lab):
    got = lab.blocks_needed(17, 16), lab.waste_of_paging([17], 16)
    assert got == (2, pytest.approx(15 / 32)), \
        f"17 tokens in blocks of 16 need {got[0]} blocks and waste a share of {got[1]}, expected 2 and 15/32"
    for length in range(1, 100):
        got = lab.waste_of_paging([length], 16) * 16 * lab.blocks_needed(length, 16)
        assert -1e-9 < got < 15 + 1e-9, \
            f"a request of {length} tokens wastes {got:.1f} slots in blocks of 16, expected 0 to 15"


# ---------------------------------------------------------------------------------------------- Task 3


@pytest.mark.points(2)
def test_task_3_runs_stand_side_by_side(lab):
    allocator, starts = filled(lab, [10, 20, 30])
    assert starts == [0, 10, 30], (
        f"allocate(10), allocate(20) and allocate(30) gave {starts}, expected [0, 10, 30]: use the leftmost hole")
    assert allocator.holes == [(60, 40)], f"after that the holes are {allocator.holes}, expected [(60, 40)]"


@pytest.mark.points(2)
def test_task_3_a_perfect_fit_leaves_no_empty_hole(lab):
    allocator, starts = filled(lab, [60, 40])
    assert starts == [0, 60] and allocator.holes == [], \
        f"in 100 slots, allocate(60) and allocate(40) gave {starts} and left the holes {allocator.holes}, expected " \
        "[0, 60] and []: a hole that has no slots left is removed"
    got = allocator.allocate(1)
    assert got is None, f"allocate(1) with no free slot gave {got}, expected None"


@pytest.mark.points(2)
def test_task_3_what_does_not_fit_changes_nothing(lab):
    allocator, _ = filled(lab, [70])
    for num_slots in (31, 101):
        call = f"allocate({num_slots}) with one hole of 30 in 100 slots"
        got = must_answer(call, allocator.allocate, num_slots,
                          rule="if there is no room, return None; it is not an error")
        assert got is None, f"{call} gave {got}, expected None: no hole is large enough"
        assert allocator.holes == [(70, 30)], \
            f"after allocate({num_slots}) found no room, the holes are {allocator.holes}, expected [(70, 30)]: " \
            "nothing may change"


@pytest.mark.points(2)
def test_task_3_a_run_has_at_least_one_slot(lab):
    allocator, _ = filled(lab, [70])
    for bad in (0, -5):
        must_raise(ValueError, f"allocate({bad})", allocator.allocate, bad, named=str(bad),
                   rule="a run has at least 1 slot; call check_at_least")
        assert allocator.holes == [(70, 30)], \
            f"after allocate({bad}) the holes are {allocator.holes}, expected [(70, 30)]: nothing may change"


# ---------------------------------------------------------------------------------------------- Task 4


@pytest.mark.points(2)
def test_task_4_the_leftmost_hole_that_is_large_enough_is_used(lab):
    allocator, (a, _, c, _) = filled(lab, [10, 10, 20, 10])
    allocator.free(a)
    allocator.free(c)
    got = allocator.allocate(15)
    assert got == 20, f"with the holes [(0, 10), (20, 20), (50, 50)] allocate(15) gave {got}, expected 20: first fit"
    got = allocator.allocate(5)
    assert got == 0, f"with the holes [(0, 10), (35, 5), (50, 50)] allocate(5) gave {got}, expected 0: first fit " \
                     "takes the leftmost hole that is large enough, not the smallest"


@pytest.mark.points(4)
def test_task_4_neighbouring_holes_merge(lab):
    for order, what in [((0, 1), "the last run is right of a hole"), ((1, 0), "the last run is left of a hole"),
                        ((0, 2, 1), "the last run is between two holes"), ((2, 1, 0), "from right to left")]:
        allocator, starts = filled(lab, [10, 10, 10, 70])
        for i in order:
            allocator.free(starts[i])
        expected = [(0, 10 * len(order))]
        assert allocator.holes == expected, \
            f"runs 0 to 3 have 10, 10, 10 and 70 slots; freeing the runs {list(order)} ({what}) left the holes " \
            f"{allocator.holes}, expected {expected}: merge holes that touch"
        got = allocator.allocate(10 * len(order))
        assert got == 0, f"allocate({10 * len(order)}) from a merged hole of that size gave {got}, expected 0"


@pytest.mark.points(3)
def test_task_4_enough_free_slots_but_no_hole(lab):
    allocator, starts = filled(lab, [10] * 10)
    for start in starts[::2]:
        allocator.free(start)
    assert (allocator.num_free_slots, allocator.largest_hole) == (50, 10), \
        f"every second of ten runs of 10 slots was freed: {allocator.num_free_slots} slots are free, and the largest " \
        f"hole has {allocator.largest_hole}; expected 50 and 10"
    got = allocator.allocate(20)
    assert got is None, f"allocate(20) with 50 free slots in holes of 10 gave {got}, expected None: a run must be in " \
                        "one piece (this is external fragmentation)"
    allocator.free(starts[1])
    got = allocator.allocate(20)
    assert got == 0, f"allocate(20) with the slots 0 to 29 free gave {got}, expected 0"


@pytest.mark.points(3)
def test_task_4_invalid_free_is_refused_at_once(lab):
    allocator, (a, b, _) = filled(lab, [10, 20, 30])
    allocator.free(a)
    holes = allocator.holes
    for what, start in [("a run that is already free", a), ("the middle of a run", b + 1), ("a free slot", 60),
                        ("a slot outside the memory", 1000), ("a negative slot", -1)]:
        must_raise(RuntimeError, f"free({start}), {what},", allocator.free, start, named=str(start),
                   rule="an allocated run must begin at that slot")
        assert allocator.holes == holes, \
            f"after free({start}) raised, the holes are {allocator.holes}, expected {holes}: nothing may change"
    allocator, (left, right) = filled(lab, [10, 20])
    allocator.free(left)
    allocator.free(right)
    must_raise(RuntimeError, "a second free(10), after its hole was merged,", allocator.free, right,
               named="10", rule="no allocated run begins at that slot any more")
    allocator, (only,) = filled(lab, [40], num_slots=40)
    allocator.free(only)
    holes = allocator.holes
    must_raise(RuntimeError, "a second free(0), of the only run,", allocator.free, only, named="0",
               rule="no run is allocated any more")
    assert allocator.holes == holes, \
        f"after free(0) raised, the holes are {allocator.holes}, expected {holes}: nothing may change"


@pytest.mark.points(3)
def test_task_4_everything_freed_is_one_hole_again(lab):
    rng = random.Random(0)
    allocator, starts = filled(lab, [3, 1, 7, 20, 9, 14, 30, 16])
    assert starts == [0, 3, 4, 11, 31, 40, 54, 84], \
        f"in 100 slots, runs of 3, 1, 7, 20, 9, 14, 30 and 16 start at {starts}, expected each to start where the " \
        "previous run ends"
    rng.shuffle(starts)
    for start in starts:
        allocator.free(start)
    assert allocator.holes == [(0, 100)], \
        f"after all runs were freed in the order {starts}, the holes are {allocator.holes}, expected [(0, 100)]"


@pytest.mark.points(4)
def test_task_4_long_random_use_agrees_with_a_row_of_slots(lab):
    rng = random.Random(7)
    allocator, slots = lab.ContiguousAllocator(60), [None] * 60
    for step in range(600):
        owners = sorted({owner for owner in slots if owner is not None})
        if owners and rng.random() < 0.45:
            start = rng.choice(owners)
            allocator.free(start)
            slots = [None if owner == start else owner for owner in slots]
        else:
            size = rng.randint(1, 15)
            fits = [i for i in range(60 - size + 1) if all(owner is None for owner in slots[i:i + size])]
            expected = fits[0] if fits else None
            got = allocator.allocate(size)
            assert got == expected, \
                f"step {step}: allocate({size}) gave {got}, expected {expected}: the first slot with {size} free " \
                "slots in a row"
            if got is not None:
                slots[got:got + size] = [got] * size
        expected_holes = holes_in(slots)
        assert allocator.holes == expected_holes, \
            f"step {step}: the holes are {allocator.holes}, expected {expected_holes}: every free slot is in " \
            "exactly one hole, the holes are sorted by start, and no two of them touch"


@pytest.mark.points(2)
def test_task_4_chat_traffic_fragments_memory(lab):
    _, starts = filled(lab, [3, 1, 7])
    assert starts == [0, 3, 4], f"in 100 slots, runs of 3, 1 and 7 start at {starts}, expected [0, 3, 4]: first fit"
    report = lab.churn(8192, lengths_of(lab.make_trace(300, 0)), seed=0)
    assert report.num_refusals_with_room > 50, \
        f"churn of 300 requests in 8192 slots had {report.num_refusals_with_room} refusals with room, expected more " \
        "than 50: first fit leaves holes that are too small for most requests"
    assert report.largest_hole < report.wanted <= report.num_free_slots, \
        f"in the worst refusal with room, a request wanted {report.wanted} of {report.num_free_slots} free slots, " \
        f"and the largest hole had {report.largest_hole}: enough slots must be free, but not in one piece"


# ---------------------------------------------------------------------------------------------- Task 5


@pytest.mark.points(2)
def test_task_5_reserving_admits_by_the_maximum(lab):
    for lengths, num_slots, max_len, expected in [([1] * 20, 100, 10, 10), ([1] * 20, 109, 10, 10),
                                                  ([1] * 3, 100, 10, 3), ([10], 9, 10, 0), ([10], 0, 10, 0)]:
        got = must_answer(f"num_that_fit_reserving of {len(lengths)} requests in {num_slots} slots, {max_len} each,",
                          lab.num_that_fit_reserving, lengths, num_slots, max_len,
                          rule="if the memory is too small for any request, or has 0 slots, return 0")
        assert got == expected, \
            f"num_that_fit_reserving of {len(lengths)} requests in {num_slots} slots, {max_len} each, gave {got}, " \
            f"expected {expected}: each request takes max_len slots, whatever its length is"


@pytest.mark.points(3)
def test_task_5_paging_admits_by_blocks(lab):
    for lengths, num_slots, expected, why in [
        ([4, 5, 8], 20, 3, "the requests need 1 + 2 + 2 blocks, the memory has 5"),
        ([4, 5, 9], 20, 2, "the requests need 1 + 2 + 3 blocks, the memory has 5"),
        ([5, 5, 4], 19, 2, "the first two need 2 + 2 blocks, and the memory has 4 whole blocks"),
        ([1] * 9, 20, 5, "each request takes a whole block, even for 1 token"),
        ([21], 20, 0, "the request needs 6 blocks, the memory has 5"),
        ([1], 0, 0, "0 slots are 0 blocks"),
        ([4], 3, 0, "3 slots are not a whole block of 4"),
    ]:
        got = must_answer(f"num_that_fit_paged({lengths}, {num_slots}, 4)", lab.num_that_fit_paged, lengths, num_slots,
                          4, rule=why)
        assert got == expected, \
            f"num_that_fit_paged({lengths}, {num_slots}, 4) gave {got}, expected {expected}: {why}"


@pytest.mark.points(2)
def test_task_5_paging_is_first_come_first_served(lab):
    got = lab.num_that_fit_paged([8, 4, 4], 16, 4)
    assert got == 3, f"num_that_fit_paged([8, 4, 4], 16, 4) gave {got}, expected 3: the requests need 2 + 1 + 1 blocks"
    got = lab.num_that_fit_paged([8, 16, 4, 4], 16, 4)
    assert got == 1, \
        f"num_that_fit_paged([8, 16, 4, 4], 16, 4) gave {got}, expected 1: the second request does not fit and ends " \
        "the count; no later request may overtake it"


@pytest.mark.points(2)
def test_task_5_bad_arguments_are_refused(lab):
    lab.num_that_fit_reserving([1], 1, 1)
    lab.num_that_fit_paged([1], 1, 1)
    for name, args in [("num_that_fit_reserving", ([11], 100, 10)), ("num_that_fit_reserving", ([0], 100, 10)),
                       ("num_that_fit_reserving", ([1], -1, 10)), ("num_that_fit_reserving", ([], 100, 10)),
                       ("num_that_fit_paged", ([0], 100, 4)), ("num_that_fit_paged", ([1], -1, 4)),
                       ("num_that_fit_paged", ([1], 100, 0)), ("num_that_fit_paged", ([], 100, 4)),
                       ("num_that_fit_paged", ([200, 0], 100, 4)), ("num_that_fit_paged", ([8, 1, 1, 0], 4, 4)),
                       ("num_that_fit_paged", ([0], 0, 4)), ("num_that_fit_paged", ([4], 0, 0))]:
        must_raise(ValueError, f"{name}{args}", getattr(lab, name), *args,
                   rule="there must be at least one length, each at least 1 (and at most max_len when reserving); "
                        "block_size must be at least 1, and num_slots at least 0")


@pytest.mark.points(3)
def test_task_5_three_times_as_many_chats_fit(lab):
    lengths = lengths_of(lab.make_trace(1000, 0))
    reserving = lab.num_that_fit_reserving(lengths, 32768, lab.MAX_LEN)
    paged = lab.num_that_fit_paged(lengths, 32768, 32)
    assert reserving == 16 and 40 <= paged <= 60, \
        f"{reserving} requests of trace 0 fit into 32768 slots when each reserves the maximum, and {paged} fit in " \
        "blocks of 32, expected 16 and 40 to 60"


# ---------------------------------------------------------------------------------------------- Task 6


@pytest.mark.points(3)
def test_task_6_rows_of_a_small_sweep(lab):
    got = lab.sweep_block_sizes([5, 10, 3], [8, 1, 4, 8])
    lab.sweep_block_sizes([5], [2])  # a second call must not change the rows of the first
    sizes = [row.block_size for row in got]
    assert sizes == [8, 1, 4, 8], \
        f"sweep_block_sizes([5, 10, 3], [8, 1, 4, 8]) has rows for {sizes}, expected [8, 1, 4, 8]: one row per " \
        "size, in the order given"
    for row, waste, mean, longest in zip(got, [14 / 32, 0.0, 6 / 24, 14 / 32], [4 / 3, 6.0, 2.0, 4 / 3], [2, 10, 3, 2]):
        found = (row.waste, row.mean_table_len, row.longest_table)
        assert found == pytest.approx((waste, mean, longest)), \
            f"lengths 5, 10, 3 in blocks of {row.block_size}: (waste, mean table, longest) = {found}, expected " \
            f"{(waste, mean, longest)}"


@pytest.mark.points(1)
def test_task_6_bad_arguments_are_refused(lab):
    lab.sweep_block_sizes([1], [1])
    for lengths, block_sizes in [([], [4]), ([5, 0], [4]), ([5], [4, 0])]:
        must_raise(ValueError, f"sweep_block_sizes({lengths}, {block_sizes})", lab.sweep_block_sizes, lengths,
                   block_sizes, rule="if waste_of_paging raises, pass the error on; do not leave the row out")


@pytest.mark.points(3)
def test_task_6_smaller_blocks_waste_less_and_need_longer_tables(lab):
    lengths = lengths_of(lab.make_trace(500, 1))
    rows = lab.sweep_block_sizes(lengths, [1, 4, 16, 64, 256, 1024])
    got = [row.block_size for row in rows]
    assert got == [1, 4, 16, 64, 256, 1024], \
        f"there are rows for the block sizes {got}, expected [1, 4, 16, 64, 256, 1024], in the order given"
    for small, large in zip(rows, rows[1:]):
        assert small.waste < large.waste and small.mean_table_len > large.mean_table_len, \
            f"blocks of {small.block_size} waste {small.waste:.3f} with tables of {small.mean_table_len:.1f}, blocks " \
            f"of {large.block_size} waste {large.waste:.3f} with tables of {large.mean_table_len:.1f}: " \
            "smaller blocks must waste less and need longer tables"


@pytest.mark.points(2)
def test_task_6_a_block_as_long_as_the_maximum_is_a_reservation(lab):
    lengths = lengths_of(lab.make_trace(500, 2))
    row = lab.sweep_block_sizes(lengths, [lab.MAX_LEN])[0]
    expected = lab.waste_of_reserving(lengths, lab.MAX_LEN)
    assert row.waste == pytest.approx(expected) and row.longest_table == 1, \
        f"in blocks of {lab.MAX_LEN} the waste is {row.waste:.4f} and the longest table {row.longest_table}, " \
        f"expected {expected:.4f} and 1: reserving the maximum is the same as paging with the largest possible block"

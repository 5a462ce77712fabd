"""Whose piece fills each slot, and whose base it builds on."""

from dataclasses import fields

import pytest

from course.lab import base_labs
from course.lab.lab import LabError, discover, find_lab
from course.lab.parts import SLOTS, bases_of, choose, just, needed_for_all
from course.own_engine.build_parts import build
from course.own_engine.spec import CAPSTONE, WORKLOADS
from course.student.progress import State
from course.student.run_command import RunOptions, choose_pieces
from mini_vllm.engine_config import EngineParts

LABS = discover()
ALL = {lab.number for lab in LABS}


def lab(number):
    return find_lab(number, LABS)


def whose(passing):
    pieces = choose(LABS, lambda lab: lab.number in passing, lambda lab: lab.starter)
    return pieces, {seat.slot: seat.lab and seat.lab.number for seat in pieces.seats}


def test_the_slots_are_those_of_the_engine():
    assert sorted(SLOTS) == sorted(part.name for part in fields(EngineParts))


def test_names_of_workloads_are_those_of_the_trial():
    from course.own_engine import capstone, workloads
    assert WORKLOADS == tuple(workloads.WORKLOADS) and CAPSTONE == capstone.NAME


def test_the_latest_lab_that_passes_fills_a_slot():
    assert whose(set())[1] == dict.fromkeys(SLOTS)
    assert whose({"2.1"})[1] == dict.fromkeys(SLOTS) | {"block_pool": "2.1"}
    assert whose({"2.1", "3.1", "2.3"})[1] == dict.fromkeys(SLOTS) | {"block_pool": "3.1", "attention": "2.3"}
    assert whose(ALL)[1] == {
        "engine": "5.3", "request_queue": "4.3", "scheduler": "4.2", "kv_cache_manager": "6.1", "prefix_tree": "3.3",
        "block_pool": "3.1", "model_runner": "5.4", "attention": "5.1", "sampler": "5.2", "drafter": "6.1",
        "guess_record": "6.1", "verifier": "6.1", "grammar": "6.2"}


def test_a_base_is_ones_own_where_it_passes_and_else_the_references():
    pieces, _ = whose({"2.1", "3.1"})
    assert pieces.files == {"3.1": lab("3.1").starter, "2.1": lab("2.1").starter}
    (seat,) = [seat for seat in pieces.seats if seat.lab]
    assert seat.note == "on your 2.1"
    pieces, _ = whose({"3.1"})
    assert pieces.files == {"3.1": lab("3.1").starter, "2.1": lab("2.1").solution}


def test_a_tree_goes_with_a_manager_that_can_ask_it():
    pieces, slots = whose({"2.2", "3.2", "3.3"})
    assert (slots["prefix_tree"], slots["kv_cache_manager"]) == ("3.3", None)
    note = next(seat.note for seat in pieces.seats if seat.slot == "kv_cache_manager")
    assert note == "your lab 3.2 cannot use your lab 3.3; lab 3.4 can use it"
    assert whose({"2.2", "3.2"})[1]["kv_cache_manager"] == "3.2"


def test_just_the_pieces_that_were_asked_for():
    pieces = just(LABS, [lab("3.1"), lab("4.3")], lambda lab: lab.number in ALL, lambda lab: lab.starter)
    assert {seat.slot: seat.lab.number for seat in pieces.seats if seat.lab} == {
        "block_pool": "3.1", "request_queue": "4.3"}
    with pytest.raises(LabError, match="Lab 1.1 kv-cache has no part in the engine. These labs have one: 1.0, 2.1, "):
        just(LABS, [lab("1.1")], lambda lab: True, lambda lab: lab.starter)


def test_what_an_engine_of_ones_own_needs():
    assert [lab.number for lab in needed_for_all(LABS)] == [
        "2.1", "2.2", "3.1", "3.2", "3.3", "3.4", "4.1", "4.2", "4.3", "5.1", "5.2", "5.3"]


# ---- building


def test_what_is_built_grows_from_ones_own_file(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(lab("2.1").solution.read_text().replace("class BlockPool:", "class BlockPool:\n    is_mine = True"))
    parts = build({"2.1": mine, "3.1": lab("3.1").solution}, [lab("3.1")])
    assert parts.block_pool.is_mine and hasattr(parts.block_pool, "fork_block")
    assert not hasattr(base_labs.load_base("3.1").BlockPool, "is_mine"), "outside, the base is the reference's again"


def test_a_base_holds_no_later_labs_answer():
    """Check that a method that a lab adds to a class does not exist in the class it extends."""
    for later in LABS:
        for name in later.parts.values():
            if later.base is None or isinstance(getattr(base_labs.load_base(later.number), name), type) is False:
                continue
            own = vars(getattr(base_labs.load_base(later.number), name))
            below = set(dir(getattr(base_labs.load_base(later.base), name, None)))
            added = {"fork_block", "fork", "preempt", "give_back_slots"}
            assert added.isdisjoint(below & own.keys()), (later.number, below & own.keys())
    assert [each.number for each in bases_of(lab("3.4"), LABS)] == ["3.2", "2.2"]


def test_a_file_without_its_piece_is_named(tmp_path):
    empty = tmp_path / "empty.py"
    empty.write_text("")
    with pytest.raises(LabError, match=r"lab 2.1: .*empty.py has no BlockPool"):
        build({"2.1": empty}, [lab("2.1")])


@pytest.mark.parametrize("name, complaint", [("lab_9_9", "no lab '9.9'"), ("pool", "a base is called lab_2_1")])
def test_a_base_that_does_not_exist_is_named(name, complaint):
    with pytest.raises((LabError, AttributeError), match=complaint):
        getattr(base_labs, name)


# ---- choosing by test results


class FakeProgress:
    def __init__(self, **states):
        self.states = {number.replace("_", ".")[1:]: state for number, state in states.items()}

    def of(self, lab):
        state = self.states.get(lab.number, State.NOT_STARTED)
        return type("Row", (), {"state": state, "num_passed": 3, "tests": [1, 2, 3, 4], "lab": lab})()


def test_strict_names_what_is_missing():
    missing = r"(?s)Still to pass:.*2.2  The KV cache manager: in progress 3/4\n.*5.3"
    with pytest.raises(LabError, match=missing) as caught:
        choose_pieces(LABS, FakeProgress(_2_1=State.PASSED, _2_2=State.IN_PROGRESS), RunOptions(is_strict=True))
    assert "2.1" not in str(caught.value)


def test_a_lab_that_was_asked_for_need_not_pass_but_must_be_begun():
    progress = FakeProgress(_2_1=State.IN_PROGRESS)
    assert choose_pieces(LABS, progress, RunOptions(lab_names=["2.1"])).files == {"2.1": lab("2.1").starter}
    with pytest.raises(LabError, match="Lab 2.2 kv-cache-manager is not started"):
        choose_pieces(LABS, progress, RunOptions(lab_names=["2.2"]))
    assert choose_pieces(LABS, progress).files == {}



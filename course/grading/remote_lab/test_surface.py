"""The list of a lab for its file: how it is read, what it allows, and that the check of it finds mistakes."""

import itertools
import os

import numpy as np
import pytest

from course.authoring.call_surface import SurfaceCheck
from course.authoring.check_surface import call_everything, check_names, lines_of
from course.eviction.arena import Block
from course.grading.remote_lab.permissions import GraderPermissions
from course.grading.remote_lab.surface import Offer, Surface, surface_of
from course.lab.lab import LabError, discover, find_lab
from mini_vllm.block_pool import BlockPool, KVCacheBlock
from mini_vllm.request import RequestStatus
from mini_vllm.trace.recorder import StepTrace

LABS = discover()


def test_a_list_says_what_may_be_read_set_and_called():
    surface = Surface({"mini_vllm.block_pool.BlockPool": "(100) get_new_blocks blocks num_blocks=",
                       "mini_vllm.block_pool.KVCacheBlock": ""})
    assert surface.of(BlockPool) == Offer(frozenset(("get_new_blocks", "blocks", "num_blocks")),
                                          frozenset(("num_blocks",)), True, 100)
    assert surface.lists(KVCacheBlock) and surface.of(KVCacheBlock) == Offer()
    assert not surface.lists(StepTrace) and surface.of(StepTrace) == Offer()
    assert surface.imports() == {"mini_vllm.block_pool": ["BlockPool", "KVCacheBlock"]}


def test_what_holds_for_a_class_holds_for_those_derived_from_it():
    class Mine(BlockPool):
        pass

    surface = Surface({"mini_vllm.block_pool.BlockPool": "(100) touch", "test_lab.Mine": "(10) num_reads"})
    surface.add_tests(__name__)
    assert surface.of(Mine) == Offer(frozenset(("touch", "num_reads")), frozenset(), True, 10)
    assert surface.of(BlockPool).reads == {"touch"}


@pytest.mark.parametrize("listed, message", [
    ({"Request": "status"}, "must be module.Name"), ({"a.B": ["status"]}, "must be module.Name"),
    ({"a.B": "status()"}, r"a.B lists 'status\(\)'"), ({"a.B": "(x)"}, r"lists '\(x\)'"),
    ({"a.B": "a-b"}, "lists 'a-b'"),
])
def test_a_list_that_cannot_be_is_refused(listed, message):
    with pytest.raises(LabError, match=message):
        Surface(listed)


def test_numbers_beyond_the_bound_do_not_make_a_pool():
    policy = GraderPermissions(Surface({"mini_vllm.block_pool.BlockPool": "(100)"}))
    policy.check_call(BlockPool, (100, True))
    for number in (101, -101, 10**400, 1e9, float("inf"), float("nan"), np.int64(101), np.array([10**6])):
        with pytest.raises(ValueError, match="accepts numbers up to 100"):
            policy.check_call(BlockPool, (number,))


def test_what_is_not_listed_cannot_be_found():
    surface = Surface({"mini_vllm.request.RequestStatus": ""})
    surface.load()
    assert surface.find("mini_vllm.request.RequestStatus") is RequestStatus
    for name in ("mini_vllm.request.Request", "mini_vllm.request.RequestStatus.mro", "os.system", "mini_vllm.request"):
        with pytest.raises(KeyError):
            surface.find(name)


def test_hidden_tests_have_a_list_of_their_own(tmp_path):
    (tmp_path / "surface.json").write_text('{"test_hidden.Spy": "num_calls"}')
    assert surface_of(find_lab("2.2", LABS), [tmp_path]).offers["test_hidden.Spy"].reads == {"num_calls"}
    (tmp_path / "surface.json").write_text("[")
    with pytest.raises(LabError, match="must be a JSON object"):
        surface_of(find_lab("2.2", LABS), [tmp_path])


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_every_name_in_the_lists_exists_and_none_of_them_reads_or_writes_files(lab):
    assert check_names(lab) == []
    words = " ".join(lines_of(lab))
    for name in ("StepTrace: ", "loader.load", "save", "path", "from_dict", "apply_chat_template", "__dict__",
                 "__class__"):
        assert name not in words, f"{name} in {lab}"


def test_a_class_is_listed_by_the_name_that_it_is_defined_by(monkeypatch):
    """Check that only this name is accepted. Another path can be imported, but the policy would not know the class."""
    lab = find_lab("3.5", LABS)
    assert Surface(lab.surface).of(Block) == Offer(frozenset(), frozenset(), can_be_called=True)
    monkeypatch.setattr("course.authoring.check_surface.surface_of",
                        lambda lab: Surface({"course.eviction_arena.Block": "()"}))
    (problem,) = check_names(lab)
    assert problem.startswith("surface: course.eviction_arena.Block is defined as course.eviction.arena.Block")


# ---- the check of the lists


@pytest.fixture(scope="module")
def check():
    return SurfaceCheck()


@pytest.mark.parametrize("call, complaint", [
    (lambda: open(__file__).close(), "open"), (lambda: os.listdir("."), "os.listdir"),
    (lambda: os.system("true"), "os.system"), (lambda: exec("1"), "exec"),
    (lambda: __import__("course.no_such_module"), "import"), (lambda: StepTrace.load(__file__), "open"),
    (lambda: (open(__file__).close() for _ in range(1)), "open"),
    (lambda: 1, None), (lambda: 1 / 0, None), (lambda: itertools.count(), None), (lambda: [] + {}, None),
], ids=["opens", "lists", "runs", "executes", "imports", "loads a trace", "opens in a generator", "fine", "raises",
        "endless", "a wrong type"])
def test_a_call_that_reaches_out_is_complained_of(check, call, complaint):
    check.complaints.clear()
    check._try("entry", "something", call)
    assert [complaint in each for each in check.complaints] == ([True] if complaint else []), check.complaints


def test_a_call_that_does_not_end_is_complained_of(check, monkeypatch):
    monkeypatch.setattr("course.authoring.call_surface.CALL_S", 0.05)
    check.complaints.clear()

    def loops():
        while True:
            pass

    check._try("entry", "something", loops)
    assert "did not end" in check.complaints[0]


def test_all_that_a_lab_lists_is_called():
    problems, num_calls = call_everything(find_lab("2.3", LABS))
    assert problems == [] and num_calls > 0

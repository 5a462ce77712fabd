"""The files in which nothing is written: what a test may do to them, and the report on a test that passes."""

import asyncio
import collections
import fractions
import operator
import types

import pytest

from course.authoring.empty_files import FILES, points_for_nothing, write_files
from course.core.failure_messages import BROKEN_FILE, NOT_RUN
from course.core.result import Verdict
from course.lab.graded_tests import GradedTest

SOLUTION = '''
from __future__ import annotations

import fractions as parts
from collections import Counter


def add(a, b):
    # TASK 1: add
    return a + b
    # END TASK
'''
OPERATIONS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.mod, operator.pow, operator.matmul,
              operator.and_, operator.lshift, operator.iadd, divmod]


@pytest.fixture
def files(tmp_path):
    """Return the files as modules, by name."""
    modules = {}
    for path in write_files(SOLUTION, tmp_path):
        modules[path.stem] = module = types.ModuleType(path.stem)
        exec(compile(path.read_text(), path.name, "exec"), module.__dict__)
    return modules


@pytest.fixture(params=["anything", "nan"])
def lab(files, request):
    return files[request.param]


def test_there_is_a_file_for_each_name(files):
    assert list(files) == list(FILES)


def test_all_import_what_the_starter_does(files):
    for module in files.values():
        assert module.parts is fractions and module.Counter is collections.Counter


def test_everything_exists_and_can_be_called(lab):
    pool = lab.BlockPool(6, block_size=4)
    for thing in (pool, pool.blocks, pool.blocks[3].ref_cnt, pool.get_new_blocks(2), lab.softmax([1]), lab.MAX_LEN):
        assert thing.of.anything(1, two=2)[3:4] is not None
    pool.size, pool[3] = 4, 5
    assert pool.size == 4
    del pool[3], pool.nothing


def test_its_classes_can_be_extended(lab):
    class Block(lab.KVCacheBlock):
        def __init__(self, block_id):
            super().__init__(block_id)
            self.block_id = block_id

    assert Block(3).block_id == 3 and isinstance(Block(3), lab.KVCacheBlock)
    assert Block(3).ref_cnt is not None and lab.KVCacheBlock.any_number is not None


def test_nothing_is_equal_to_it(lab):
    for thing in (lab.Pool, lab.Pool(), lab.Pool().size, lab.add(1, 2)):
        assert not thing == thing and thing != thing and thing != 3 and not thing == "anything"
        assert len({thing, thing}) == 1, "it can be a key"


def test_everything_is_one_object_that_equals_itself(files):
    lab = files["one"]
    thing = lab.Pool(6)
    assert thing is lab.Pool().blocks[3] is lab.add(1, 2) is thing.of.anything(1) and thing == thing != 3
    assert [*thing] == [] and lab.Pool.any_number is thing

    class Block(lab.KVCacheBlock):
        def __init__(self, block_id):
            self.block_id = block_id

    assert Block(3).block_id == 3 and Block(3) is not thing


def test_it_can_be_computed_with_and_is_empty(lab):
    for thing in (lab.Pool(), lab.add(1, 2)):
        for operate in OPERATIONS:
            operate(thing, 3)
        assert [*thing, *reversed(thing)] == [] and len(thing) == 0 and next(thing, None) is None
        assert float(thing) != float(thing) and range(thing) == range(0) and f"{thing:.3f} {thing!r}"
        assert abs(-thing) is not None and round(thing, 2) is not None
        one, (two, three) = thing  # but unpacking finds its values
        assert one is not two is not three


def test_it_can_be_entered_and_awaited(lab):
    async def use(thing):
        async with thing as entered:
            assert entered is thing and await thing is not None
        return [each async for each in thing]

    with lab.Pool() as pool:
        assert asyncio.run(use(pool)) == []


def test_the_two_answer_yes_and_no(files):
    for name, expected in (("anything", True), ("nan", False)):
        thing = files[name].add(1, 2)
        assert {bool(thing), thing < 3, 3 < thing, thing >= 3, 3 in thing} == {expected}


def test_nobody_waits_for_ever(lab):
    thing = lab.Pool()
    while thing:
        pass
    while not thing:
        pass
    while thing.num_free > 0:
        pass


def test_results_are_nan_where_a_number_would_do(files):
    for result in (files["nan"].add(1, 2), files["nan"].Pool().get_usage()):
        assert isinstance(result, float) and result + 1 != result + 1
    assert not isinstance(files["nan"].Pool(), float), "an object crosses to the grader as itself, a number as a number"


def test_what_a_starter_leaves_open_returns_none(files):
    assert files["unwritten"].add(1, 2) is None


def test_who_passes_or_was_not_run_is_named():
    tests = [GradedTest("test_a", 2, 1, True), GradedTest("test_b", 1, 1, True), GradedTest("test_c", 1, 1, True)]
    failed = Verdict(False, "AssertionError", "wrong")
    verdicts = {name: dict.fromkeys(("test_a", "test_b", "test_c"), failed) for name in FILES}
    assert points_for_nothing(tests, verdicts) == []
    verdicts["nan"] |= {"test_a": Verdict(True, None, ""), "test_b": Verdict(False, NOT_RUN, "it did not run")}
    verdicts["unwritten"] |= {"test_c": Verdict(False, BROKEN_FILE, "it does not parse")}
    assert points_for_nothing(tests, verdicts) == [
        f"test_a passes on {FILES['nan']}, so it gives away 2 points: first assert what must exist",
        f"test_b says nothing about {FILES['nan']}: it did not run",
        f"test_c says nothing about {FILES['unwritten']}: it does not parse"]

"""Copies are found, however they are disguised; what the course gave out is not reported; no file costs much."""

import ast
import re

import pytest

from course.grading import similarity
from course.grading.similarity import MAX_CHARACTERS, REFERENCE, compare
from course.lab.lab import discover, find_lab
from course.lab.starters import clean_solution, shipped_starter

pytest.importorskip("copydetect", reason="the comparison is an extra")

LAB = find_lab("2.1", discover())
SOLUTION = clean_solution(LAB.solution.read_text(encoding="utf-8"))
OWN = '''
class FreeKVCacheBlockQueue:
    def append(self, block):
        if block.next_free or block.prev_free:
            raise RuntimeError("queued")
        self._tail.prev_free.next_free = block
        block.next_free, block.prev_free = self._tail, self._tail.prev_free
        self._tail.prev_free = block
        self.num_free_blocks = self.num_free_blocks + 1

    def remove(self, block):
        if not block.next_free or not block.prev_free:
            raise RuntimeError("not queued")
        block.next_free.prev_free, block.prev_free.next_free = block.prev_free, block.next_free
        block.next_free = None
        block.prev_free = None
        self.num_free_blocks = self.num_free_blocks - 1

    def get_all_free_blocks(self):
        found, here = [], self._head
        while here.next_free is not self._tail:
            here = here.next_free
            found = found + [here]
        return found
'''


def with_empty_statements(text):
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list):
            node.body = [each for one in node.body for each in (one, ast.Expr(ast.Constant(0)), ast.Pass())]
    return ast.unparse(ast.fix_missing_locations(tree))


def with_brackets(text):
    one_line_each = ast.unparse(ast.parse(text))
    return re.sub(r"(?m)^( +(?:if|while|return|[\w.]+ =) )([^:=\n]+)(?=:?$)", r"\1(\2)", one_line_each)


def in_helpers(text):
    """Move each body into a function whose name is not the task's."""
    tree = ast.parse(text)
    for place, method in enumerate([each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]):
        tree.body.append(ast.FunctionDef(f"part{place}", method.args, method.body, [], type_params=[]))
        arguments = ", ".join(each.arg for each in method.args.args)
        method.body = [ast.Expr(ast.parse(f"part{place}({arguments})").body[0].value)]
    return ast.unparse(ast.fix_missing_locations(tree))


def under_other_names(text):
    """Give each method another name, and the right one by an assignment; rename ``self`` and attributes, too."""
    text = re.sub(r"(?m)^    def (\w+)(.*(?:\n        .*|\n$)*)", r"    def _\1\2\n    \1 = _\1\n", text)
    return text.replace("self", "this").replace("_tail", "_end").replace("found", "blocks")


DISGUISES = (with_empty_statements, with_brackets, in_helpers, under_other_names)


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_disguised_copy_is_found(disguise):
    copy = disguise(OWN)
    compile(copy, "copy", "exec")
    found = compare(LAB, {"ann": OWN, "ben": copy, "eve": shipped_starter(LAB)})
    assert [pair[1:] for pair in found.pairs] == [("ann", "ben")] and found.num_compared == 3


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_disguised_copy_of_the_solution_is_found(disguise):
    found = compare(LAB, {"ann": disguise(SOLUTION), "ben": OWN, "cy": SOLUTION})
    assert {pair[1:] for pair in found.pairs if REFERENCE in pair} == {("ann", REFERENCE), ("cy", REFERENCE)}
    assert not [pair for pair in found.pairs if "ben" in pair]


def test_students_of_one_group_are_not_compared():
    texts = dict.fromkeys(("ann", "ben", "cy"), OWN)
    found = compare(LAB, texts, {"ann": "ann, ben", "ben": "ann, ben"})
    assert [pair[1:] for pair in found.pairs] == [("ann", "cy"), ("ben", "cy")]


def test_a_file_that_costs_too_much_is_left_out_and_the_others_are_compared(monkeypatch):
    monkeypatch.setattr(similarity, "MAX_CPU_S", 0.0)
    nested = "".join(" " * depth + f"def f{depth}():\n" for depth in range(95)) + " " * 95 + "a=b;" * 22_000
    found = compare(LAB, {"ann": OWN, "ben": OWN, "eve": nested, "zoe": "x" * (MAX_CHARACTERS + 1)})
    assert [pair[1:] for pair in found.pairs] == [("ann", "ben")] and list(found.left_out) == ["eve", "zoe"]


@pytest.mark.parametrize("text", ["a" + ".b" * 20_000 + "\n", "x = " + "-" * 50_000 + "1\n", "x = (", "\x00", "",
                                  "x = '''", "def x " * 10_000, "\udcff"])
def test_no_text_ends_the_comparison(text):
    found = compare(LAB, {"ann": OWN, "ben": OWN, "eve": text})
    assert [pair[1:] for pair in found.pairs] == [("ann", "ben")]

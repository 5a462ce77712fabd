"""Texts that are read before a lab must not show two consecutive statements of a body that the lab asks for.

Statements are compared as syntax trees in which variables have no names. The test reads the cells of notebooks, their
outputs, and the code on phase pages, except in sections that start with "*After lab …*".
"""

import ast
import builtins
import copy
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from course.lab.lab import discover

ROOT = Path(__file__).parents[1]
TASK = re.compile(r"^ *# TASK [^\n]*\n(.*?)^ *# END TASK", re.M | re.S)
BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.M | re.S)
AFTER_A_LAB = re.compile(r"^## [^\n]*\n+\*After (?:the )?lab[^\n]*\n.*?(?=^## |\Z)", re.M | re.S)
#: Shorter pairs, such as ``i = 0`` and ``j = 1``, are too common to count.
MIN_NODES = 13
STATEMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Delete, ast.Expr)


class Unnamed(ast.NodeTransformer):
    """Renames variables by the order in which they appear."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id == "self" or hasattr(builtins, node.id):
            return node
        return ast.Name(self.names.setdefault(node.id, f"v{len(self.names)}"), node.ctx)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        return ast.Assign([node.target], node.value) if node.value is not None else node


def pairs_in(tree: ast.AST) -> Iterator[str]:
    """Yield each pair of consecutive statements of every block, with variables renamed."""
    blocks = [getattr(node, name, None) for node in ast.walk(tree) for name in ("body", "orelse", "finalbody")]
    for block in (block for block in blocks if isinstance(block, list)):
        for first, second in zip(block, block[1:]):
            pair = copy.deepcopy([first, second])
            if sum(1 for each in pair for _ in ast.walk(each)) >= MIN_NODES:
                unnamed = Unnamed()
                yield "\n".join(ast.dump(unnamed.visit(each)) for each in pair)


def trees_of(text: str) -> list[ast.Module]:
    """Return the statements in a text: the whole text if it is Python, else the statements at the ends of its lines."""
    cleaned = textwrap.dedent(re.sub(r"[┊│→⇄└┘┌┐─]", " ", text))
    cleaned = re.sub(r"^(python - <<'END'|END)$", "", cleaned, flags=re.M)
    try:
        return [ast.parse(cleaned)]
    except SyntaxError:
        pass
    runs = [ast.Module([], [])]
    for line in cleaned.splitlines():
        statement = _at_the_end(line)
        if statement is None:
            runs.append(ast.Module([], []))
        else:
            runs[-1].body.append(statement)
    return runs


def _at_the_end(line: str) -> ast.stmt | None:
    for start in re.finditer(r"(?:^|(?<=\s))(?=[A-Za-z_])", line):
        try:
            body = ast.parse(line[start.start():].strip()).body
        except SyntaxError:
            continue
        is_word = len(body) == 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Name)
        if len(body) == 1 and isinstance(body[0], STATEMENTS) and not is_word:
            return body[0]
    return None


#: Lab → the statement pairs in its tasks.
BODIES = {lab.number: {pair for text in TASK.findall(lab.solution.read_text(encoding="utf-8"))
                       for pair in pairs_in(ast.parse(textwrap.dedent(text)))} for lab in discover(ROOT)}


def spoilers(text: str, phase: str | None = None) -> set[str]:
    """Return the labs, of one phase or of all, whose tasks share a statement pair with the text."""
    shown = {pair for tree in trees_of(text) for pair in pairs_in(tree)}
    return {number for number, pairs in BODIES.items() if pairs & shown and phase in (None, number[0])}


def of_notebook(path: Path) -> Iterator[tuple[str, str]]:
    for index, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            yield f"cell {index}", "".join(cell["source"])
            for output in cell["outputs"]:
                yield f"what cell {index} prints", "".join(output.get("text", ()))
        else:
            yield from ((f"cell {index}", block) for block in BLOCK.findall("".join(cell["source"]) + "\n"))


def of_page(text: str) -> list[str]:
    return BLOCK.findall(AFTER_A_LAB.sub("", text))


@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.name)
def test_no_notebook_shows_a_task(path):
    found = {place: labs for place, text in of_notebook(path) if (labs := spoilers(text))}
    assert not found, f"{path.name} shows parts of tasks: {found}. A trace or a picture says as much"


@pytest.mark.parametrize("path", sorted(ROOT.glob("phase-*/*.md")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_page_shows_a_task_before_its_lab(path):
    phase = str(int(path.parent.name.split("-")[1]))
    found = [(text, labs) for text in of_page(path.read_text(encoding="utf-8")) if (labs := spoilers(text, phase))]
    assert not found, f"{path.name} shows parts of tasks: {found}"


@pytest.mark.parametrize("text", [
    "x.next_free = y\ny.prev_free = x",
    "   before  ⇄  block          before.next_free = after\n        └──┘                 after.prev_free  = before\n",
    "def f(before, after):\n    if before:\n        before.next_free = after\n        after.prev_free = before\n"])
def test_a_spoiler_is_found(text):
    assert spoilers(text, "2") == {"2.1"}
    assert not spoilers("x.next_free = y\nprint()\ny.prev_free = x")


def test_a_section_for_after_the_lab_is_left_out():
    section = "\n*After lab 2.1.*\n\n```\nx.next_free = y\ny.prev_free = x\n```\n"
    assert of_page(f"## One\n{section}") == [] and len(of_page(f"## One\n\ntext\n{section}")) == 1

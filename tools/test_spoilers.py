"""Texts that are read before a lab must not show two consecutive statements of a body that the lab asks for.

The test reads the cells of notebooks, their outputs, and the code on phase pages, except in sections that start with
"*After lab …*". Lines are compared without spaces, and with the same name for every variable.
"""

import builtins
import json
import keyword
import re
from pathlib import Path

import pytest

from course.lab.lab import discover

ROOT = Path(__file__).parents[1]
TASK = re.compile(r"^ *# TASK [^\n]*\n(.*?)^ *# END TASK", re.M | re.S)
BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.M | re.S)
AFTER_A_LAB = re.compile(r"^## [^\n]*\n+\*After (?:the )?lab[^\n]*\n.*?(?=^## |\Z)", re.M | re.S)
STATEMENT = re.compile(r"(?:return|del|[\w.\[\]]+(?::[\w\[\], |]+)?(?:[-+*/]?=|\()).*")
KEPT = {*dir(builtins), *keyword.kwlist, "self"}
#: Shorter pairs, such as ``i = 0`` and ``j = 1``, are too common to count.
MIN_PARTS = 8


def pairs_in(text):
    """Return each pair of statements on consecutive lines, with variables renamed in the order of their appearance."""
    found, before = set(), ""
    for line in re.sub(r"[┊│→⇄└┘┌┐─]", " ", text).splitlines():
        line = re.sub(r" +([-+*/]?=) +", r" \1 ", line.partition("  # ")[0])
        statement = re.split(r"\s{2,}", line.strip())[-1]  # a drawing has columns
        if not STATEMENT.fullmatch(statement.replace(" ", "")):
            statement = ""
        parts = re.findall(r"\.?[A-Za-z_]\w*|\S", f"{before}\n{statement}")
        if before and statement and len(parts) >= MIN_PARTS:
            names = {}
            found.add(" ".join(part if part in KEPT or not part.isidentifier()
                               else names.setdefault(part, f"v{len(names)}") for part in parts))
        before = statement
    return found


#: Lab → the statement pairs in its tasks.
BODIES = {lab.number: {pair for text in TASK.findall(lab.solution.read_text(encoding="utf-8"))
                       for pair in pairs_in(text)} for lab in discover(ROOT)}


def spoilers(text, phase=""):
    """Return the labs, of one phase or of all, whose tasks share a statement pair with the text."""
    shown = pairs_in(text)
    return {number for number, pairs in BODIES.items() if pairs & shown and number.startswith(phase)}


def of_notebook(path):
    for index, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"]) + "\n"
        texts = ([source, *("".join(output.get("text", ())) for output in cell["outputs"])]
                 if cell["cell_type"] == "code" else BLOCK.findall(source))
        yield from ((f"cell {index}", text) for text in texts)


def of_page(text):
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
def test_a_spoiler_is_found_unless_it_is_for_after_the_lab(text):
    assert spoilers(text, "2") == {"2.1"}
    assert not spoilers("x.next_free = y\nprint()\ny.prev_free = x")
    section = f"\n*After lab 2.1.*\n\n```\n{text}\n```\n"
    assert of_page(f"## One\n{section}") == [] and len(of_page(f"## One\n\ntext\n{section}")) == 1

"""Similar submissions of a class, by the fingerprints of the library copydetect. They change no score.

Each file is parsed and written again without what makes a copy look different: comments, annotations, brackets, empty
statements and the names of parameters. The library replaces the other names, and hashes every run of 25 characters.
Runs in the starter are left out; between students, also those in the solution. What a file costs is bounded: it is
read in a process of its own.
"""

from __future__ import annotations

import array
import ast
import importlib
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

from course.core.resource_limits import kill_when_computing
from course.lab.lab import Lab, LabError
from course.lab.starters import clean_solution, make_starter

REFERENCE = "the solution"
RUN = 25
#: Pairs that share less are not listed. Right solutions that were written apart share at most 0.58 with the course's.
MIN_SHARED = 0.6
#: The number of runs below which a few equal lines would look like a copy.
MIN_RUNS = 100
MAX_CHARACTERS = 100_000
#: The CPU time that one file may cost. The longest solution takes 0.2 s.
MAX_CPU_S = 3.0


@dataclass
class Similarity:
    """The findings for one lab."""

    lab: str
    num_compared: int = 0
    #: The share of the shorter file that is also in the other one, and the two students, or a student and REFERENCE.
    pairs: list[tuple[float, str, str]] = field(default_factory=list)
    #: Student → why the file was not compared.
    left_out: dict[str, str] = field(default_factory=dict)


def check_library() -> None:
    """Raise LabError if the library is missing."""
    try:
        importlib.import_module("copydetect")
    except ImportError:
        raise LabError("--similarity needs a library: pip install copydetect") from None


def compare(lab: Lab, texts: Mapping[str, str], groups: Mapping[str, str] | None = None) -> Similarity:
    """Compare the students' texts with each other and with the solution, except within a group.

    ``groups`` maps a student to the group. The texts are read, never run.
    """
    solution = lab.solution.read_text(encoding="utf-8")
    starter = _prints(make_starter(solution)[0]) or set()
    known = (_prints(clean_solution(solution)) or set()) - starter
    found, groups = Similarity(lab.number), groups or {}
    own: dict[str, set[int]] = {}
    for student, text in texts.items():
        prints = _prints(text) if len(text) <= MAX_CHARACTERS else None
        if prints is None:
            found.left_out[student] = f"it is longer than {MAX_CHARACTERS:,} characters, or takes too long to read"
            continue
        written = prints - starter
        own[student] = written - known
        if len(written) >= MIN_RUNS and (share := len(written & known) / len(written)) >= MIN_SHARED:
            found.pairs.append((share, student, REFERENCE))
    for one, other in combinations([student for student in own if len(own[student]) >= MIN_RUNS], 2):
        share = len(own[one] & own[other]) / min(len(own[one]), len(own[other]))
        if share >= MIN_SHARED and groups.get(one, one) != groups.get(other, other):
            found.pairs.append((share, one, other))
    found.num_compared = len(own)
    found.pairs.sort(key=lambda pair: (-pair[0], *pair[1:]))
    return found


def _prints(text: str) -> set[int] | None:
    """Return the hashes of a text's runs, or None if a limit ends the process that reads it."""
    detector = importlib.import_module("copydetect")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kill_when_computing(MAX_CPU_S)
            prints = detector.CodeFingerprint("starter.py", RUN, 1, language="python", fp=io.StringIO(_plain(text)))
            with open(writing, "wb") as pipe:
                pipe.write(array.array("q", prints.hashes).tobytes())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    with open(reading, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    return None if status else set(array.array("q", content))


def _plain(text: str) -> str:
    """Return the code in one of the forms in which it can be written. A text that does not parse stays as it is."""
    try:
        tree = ast.parse(text)
        parameters = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        return ast.unparse(ast.fix_missing_locations(_Plain(parameters).visit(tree)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text


class _Plain(ast.NodeTransformer):
    def __init__(self, parameters: set[str]) -> None:
        self._parameters = parameters

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if getattr(node, "body", None) == []:
            node.body = [ast.Pass()]  # type: ignore[attr-defined]  # a body of nothing but empty statements
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name("v", node.ctx) if node.id in self._parameters else node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg("v")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        return self.visit(ast.Assign([node.target], node.value, lineno=0)) if node.value else None

    def visit_Pass(self, node: ast.Pass) -> None:
        return None

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

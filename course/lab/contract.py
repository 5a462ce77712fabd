"""The promises of a lab: its invariants, and the errors and postconditions that the docstrings of its tasks state.

A long contract is a list, one case per line; a short one may be a sentence that begins with ``After:`` or ``Raises``::

    Before:
    - ``n`` is at least 1
    After:
    - the oldest ``n`` blocks have one owner
    Returns:
    - these blocks, oldest first
    Raises:
    - ValueError if fewer are free

Each case under After, Returns and Raises is a promise. Each promise has a place: ``invariant 3`` of the lab's README,
or the name of the class or function with the docstring, such as ``BlockPool.touch``. A mutant names the promise it
breaks as ``place: quote``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

#: The place of statements in the lab's README outside its invariants, and the place of the docstring of solution.py.
README, MODULE = "README", "module"

_INVARIANTS = re.compile(r"^## The invariants?\b[^\n]*\n(.*?)(?=^## |\Z)", re.M | re.S)
_NUMBERED = re.compile(r"^(\d+)\. (.*?)(?=^\d+\. |^\S|\Z)", re.M | re.S)
_TASK_MARKER = re.compile(r"^\s*# TASK \d+: ", re.M)
#: The lists of a contract, in the order in which they are written.
LISTS = ("Before", "After", "Returns", "Raises")
_PROMISING_LISTS = LISTS[1:]
_ITEM, _CONTINUED, _CODE, _EXAMPLE = "- ", "  ", "    ", "Example::"
#: Sentences that promise something that a test can check: what holds after a call, and which errors are raised.
_PROMISING = re.compile(r"\bAfter:|\bRaises\b|\b[A-Z]\w*Error\b")


@dataclass(frozen=True)
class Promise:
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


@dataclass(frozen=True)
class Contract:
    #: Place → its whole text, without markup.
    texts: Mapping[str, str]
    promises: tuple[Promise, ...]

    def kept_by(self, quote: str) -> list[Promise]:
        """Return the promises that ``place: quote`` refers to. Raise ValueError if the quote is not found there."""
        place, _, words = quote.partition(": ")
        words = plain(words)
        if place not in self.texts:
            raise ValueError(f"{quote!r} must begin with a place and a colon, as in 'invariant 1: ...' or "
                             f"'{next(iter(self.texts))}: ...'")
        if not words or words not in self.texts[place]:
            raise ValueError(f"{place} does not say {words!r}")
        return [promise for promise in self.promises
                if promise.place == place and (words in promise.text or promise.text in words)]


def contract_of(solution: str, readme: str) -> Contract:
    """Read a lab's contract from the text of its solution.py and of its README."""
    texts = {README: plain(readme)}
    promises = []
    for number, text in invariants_of(readme):
        place = f"invariant {number}"
        texts[place] = plain(text)
        promises.append(Promise(place, texts[place]))
    for place, docstring, is_task in docstrings_of(solution):
        texts[place] = plain(docstring)
        if is_task:
            prose, lists = parts_of(docstring)
            promises += [Promise(place, clause) for sentence in promising_sentences(prose)
                         for clause in _clauses(sentence)]
            promises += [Promise(place, plain(case).rstrip(".")) for name in _PROMISING_LISTS
                         for case in lists.get(name, ())]
    return Contract(texts, tuple(promises))


def plain(text: str) -> str:
    """Return ``text`` on one line, without Markdown and reStructuredText markup."""
    return re.sub(r"\s+", " ", re.sub(r"[`*]", "", text)).strip()


def invariants_of(readme: str) -> list[tuple[int, str]]:
    """Return the numbered invariants of a lab's page."""
    section = _INVARIANTS.search(readme)
    return [(int(number), text) for number, text in _NUMBERED.findall(section[1])] if section else []


def docstrings_of(solution: str) -> Iterator[tuple[str, str, bool]]:
    """Yield each class and function: its name, its docstring, and whether the student writes a body in it."""
    lines = solution.splitlines()
    tree = ast.parse(solution)
    yield MODULE, ast.get_docstring(tree) or "", False

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = prefix + child.name
                body = "\n".join(lines[child.lineno - 1:child.end_lineno])
                yield name, ast.get_docstring(child) or "", _TASK_MARKER.search(body) is not None
                yield from visit(child, name + ".")

    yield from visit(tree, "")


def task_docstrings(solution: str) -> dict[str, str]:
    """Map function name → docstring for all functions whose bodies the student writes, wholly or in part."""
    classes = {node.name for node in ast.walk(ast.parse(solution)) if isinstance(node, ast.ClassDef)}
    return {name: docstring for name, docstring, is_task in docstrings_of(solution)
            if is_task and docstring and name.rpartition(".")[2] not in classes}


def parts_of(docstring: str) -> tuple[str, dict[str, list[str]]]:
    """Split a docstring into its prose, without code, and its lists by name, each case on one line."""
    prose: list[str] = []
    lists: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in docstring.splitlines():
        if line.endswith(":") and line[:-1] in LISTS:
            current = lists.setdefault(line[:-1], [])
        elif current is not None and line.startswith(_ITEM):
            current.append(line.removeprefix(_ITEM).strip())
        elif current and line.startswith(_CONTINUED):
            current[-1] += " " + line.strip()
        else:
            current = None
            is_code = line.startswith(_CODE) or line == _EXAMPLE
            prose.append("" if is_code else re.sub("::$", ".", line))
    return "\n".join(prose), lists


def promising_sentences(prose: str) -> Iterator[str]:
    """Yield the sentences of a docstring's prose that state an error or a postcondition."""
    for paragraph in re.split(r"\n\s*\n", prose):
        flowing = re.sub(r"\s+", " ", paragraph).strip()
        yield from filter(_PROMISING.search, re.split(r"(?<=[.!?])\s+(?=[A-Z])", flowing))


def _clauses(sentence: str) -> list[str]:
    """Split a sentence at its semicolons: ``Raises X if …; nothing changes then.`` has two clauses."""
    return [clause.strip() for clause in plain(sentence).rstrip(".").split("; ")]

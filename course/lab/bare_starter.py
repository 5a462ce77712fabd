"""``course reset --bare``: a starter with signatures and invariants, without the recipe.

A student whose file equals this text, or the shipped starter, has not begun.
"""

from __future__ import annotations

import ast
import re
import textwrap

from course.lab.contract import LISTS, invariants_of, parts_of, promising_sentences
from course.lab.lab import Lab
from course.lab.starters import shipped_starter

_STUB = re.compile(r'raise NotImplementedError\("Task \d+: ')
_HEADING = re.compile(r"\s*# -{4,} Tasks? \d")
_WIDTH = 120
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def bare_starter(lab: Lab) -> str:
    """Return the shipped starter with shortened docstrings.

    The docstring of a body to write keeps its purpose, its return value and the errors it raises. Of its postconditions
    it keeps only those that the lab's ``bare`` list quotes. The invariants of the lab's page are at the top. A private
    helper that nothing in the file uses is left out: how the work is divided is part of the recipe.
    """
    starter = shipped_starter(lab)
    tree = ast.parse(starter)
    lines = starter.splitlines()
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names = _names(tree)
    used |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    replaced: dict[int, tuple[int, list[str]]] = {}  # first line → last line, and the lines that replace them
    for function in _stubs(tree, lines):
        if function.name.startswith("_") and not function.name.startswith("__") and function.name not in used:
            first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
            replaced[first] = (_end_with_blanks(lines, function.end_lineno or first), [])
        elif docstring := _docstring(function):
            kept = [quote.partition(": ")[2] for quote in lab.bare if quote.partition(": ")[0] == names[function]]
            prose, lists = parts_of(ast.get_docstring(function) or "")
            told = _as_docstring(" ".join(_kept(prose, kept)), _kept_cases(lists, kept), docstring.col_offset)
            replaced[docstring.lineno] = (docstring.end_lineno or 0, told)
    if head := _docstring(tree):
        invariants = invariants_of(lab.readme.read_text(encoding="utf-8"))
        replaced[head.lineno] = (head.end_lineno or 0, _head(ast.get_docstring(tree, clean=False) or "", invariants))
    kept, number = [], 1
    while number <= len(lines):
        last, instead = replaced.get(number, (number, [lines[number - 1]]))
        kept += instead
        number = last + 1
    return "\n".join(_without_empty_sections(kept)) + "\n"


def is_as_shipped(lab: Lab) -> bool:
    """Check whether the student has not begun: ``starter.py`` is what the course gave out, bare or not."""
    try:
        text = lab.starter.read_text(encoding="utf-8")
        return text == shipped_starter(lab) or text == bare_starter(lab)
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def is_bare(lab: Lab) -> bool:
    return lab.starter.read_text(encoding="utf-8", errors="replace") == bare_starter(lab)


def _stubs(tree: ast.Module, lines: list[str]) -> list[_Function]:
    """Return the functions whose bodies the student writes."""
    functions = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    return [function for function in functions
            if _STUB.search("\n".join(lines[function.lineno - 1:function.end_lineno]))]


def _docstring(node: ast.Module | _Function) -> ast.expr | None:
    has_one = ast.get_docstring(node) is not None
    statement = node.body[0] if has_one else None
    return statement.value if isinstance(statement, ast.Expr) else None


def _names(tree: ast.Module) -> dict[ast.AST, str]:
    """Map each function to its qualified name: ``BlockPool.touch``."""
    names: dict[ast.AST, str] = {node: node.name for node in tree.body if isinstance(node, _FUNCTIONS)}
    for parent in ast.walk(tree):
        if isinstance(parent, ast.ClassDef):
            names |= {node: f"{parent.name}.{node.name}" for node in parent.body if isinstance(node, _FUNCTIONS)}
    return names


def _kept(prose: str, also: list[str]) -> list[str]:
    """Return the first sentence, the sentences about errors, and those that contain one of the quotes in ``also``."""
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", re.sub(r"\s+", " ", prose).strip())
    refused = [sentence for sentence in promising_sentences(prose) if "After:" not in sentence]
    kept = [sentence for number, sentence in enumerate(sentences)
            if number == 0 or any(sentence in other or other in sentence for other in refused)
            or any(quote in sentence for quote in also)]
    return [re.sub(r"^After: (.)", lambda match: match[1].upper(), sentence) for sentence in kept]


def _kept_cases(lists: dict[str, list[str]], also: list[str]) -> list[str]:
    """Return the lists as lines. Under After, keep only the cases that contain one of the quotes in ``also``."""
    lines: list[str] = []
    for name in LISTS:
        cases = [case for case in lists.get(name, ()) if name != "After" or any(quote in case for quote in also)]
        lines += [f"{name}:", *(f"- {case}" for case in cases)] if cases else []
    return lines


def _as_docstring(text: str, cases: list[str], indent: int) -> list[str]:
    space = " " * indent
    if not cases and len(text) + indent + 6 <= _WIDTH:
        return [f'{space}"""{text}"""']
    first, *others = _wrapped(text, _WIDTH - indent - 3)
    listed = ["", *(line for case in cases for line in _wrapped(case, _WIDTH - indent))] if cases else []
    return [f'{space}"""{first}', *(f"{space}{line}".rstrip() for line in [*others, *listed]), f'{space}"""']


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  " if text.startswith("- ") else "",
                         break_long_words=False, break_on_hyphens=False)


def _head(docstring: str, invariants: list[tuple[int, str]]) -> list[str]:
    lines = [f'"""{docstring.rstrip()}', "", "The invariants:", ""]
    for number, text in invariants:
        lines += textwrap.wrap(re.sub(r"\s+", " ", text).strip(), _WIDTH, initial_indent=f"{number}. ",
                               subsequent_indent="   ", break_long_words=False, break_on_hyphens=False)
    return [*lines, '"""']


def _without_empty_sections(lines: list[str]) -> list[str]:
    """Drop a heading such as ``# ---- Task 5`` if everything below it is gone."""
    kept: list[str] = []
    pending: list[str] = []  # a heading, and the empty lines after it
    for line in lines:
        is_heading = _HEADING.match(line) is not None
        if pending and not is_heading and not line.strip():
            pending.append(line)
            continue
        if pending and not is_heading:
            kept += pending
        pending = [line] if is_heading else []
        if not is_heading:
            kept.append(line)
    return kept


def _end_with_blanks(lines: list[str], last: int) -> int:
    """Return the last of the empty lines after line ``last``, or ``last`` if there are none."""
    while last < len(lines) and not lines[last].strip():
        last += 1
    return last

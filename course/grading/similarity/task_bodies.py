"""The bodies that a lab leaves to the student, as tokens that ignore formatting and the names of locals.

A student's text is only read, token by token. No tree is built from it, so no text can exhaust the stack.
"""

from __future__ import annotations

import builtins
import io
import keyword
import re
import textwrap
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from course.lab.lab import LabError

MAX_CHARACTERS = 200_000
_TASK = re.compile(r"^\s*# TASK \d+: ")
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)
_LINE_STARTS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
Tokens = Sequence[tokenize.TokenInfo]


class Unreadable(Exception):
    """A text has no bodies. The message gives the reason in a sentence."""


@dataclass(frozen=True)
class Body:
    #: The name with its class: ``BlockPool.touch``.
    name: str
    text: str
    #: Names of locals are replaced by one word, and so are strings. Comments and the docstring are left out.
    tokens: tuple[str, ...]
    num_statements: int
    first_line: int
    last_line: int


def bodies_of(text: str, known_names: frozenset[str] = frozenset()) -> dict[str, Body]:
    """Return all functions and methods of a module whose bodies are on separate lines. Raise Unreadable if the text is
    too long or does not parse.

    ``known_names`` are the lab's names, which are kept; so are attributes and Python's own names.
    """
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"it has {len(text):,} characters; a file with more than {MAX_CHARACTERS:,} is not compared")
    try:
        tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in _LAYOUT]
    except (tokenize.TokenError, SyntaxError, ValueError):
        raise Unreadable("it does not parse") from None
    lines = text.split("\n")
    found = {}
    for name, start, end in _functions(tokens):
        inside = _without_docstring(tokens[start:end])
        if inside:
            first = inside[0].start[0]
            last = max(token.start[0] for token in inside if token.type != tokenize.DEDENT)  # a DEDENT is a line later
            found[name] = Body(name, textwrap.dedent("\n".join(lines[first - 1:last])).rstrip(),
                               _normalised(inside, known_names), sum(t.type == tokenize.NEWLINE for t in inside),
                               first, last)
    return found


def task_names(solution: str) -> list[str]:
    """Return the functions of a solution with a ``# TASK`` marker: the bodies that the starter leaves open."""
    try:
        bodies = bodies_of(solution).values()
    except Unreadable as error:
        raise LabError(f"the reference cannot be compared: {error}") from None
    marked = [number for number, line in enumerate(solution.splitlines(), start=1) if _TASK.match(line)]
    names = []
    for number in marked:  # the marker is a comment just before, or inside, the part that counts as the body
        around = [body for body in bodies if body.first_line - 1 <= number <= body.last_line]
        if around:
            names.append(max(around, key=lambda body: body.first_line).name)
    return list(dict.fromkeys(names))


def _functions(tokens: Tokens) -> Iterator[tuple[str, int, int]]:
    """Yield the qualified name of each function, and where its block begins and ends among the tokens."""
    scopes: list[tuple[str, int]] = []
    for place, token in enumerate(tokens[:-1]):
        while scopes and place >= scopes[-1][1]:
            scopes.pop()
        is_first = place == 0 or tokens[place - 1].type in _LINE_STARTS or tokens[place - 1].string == "async"
        if not is_first or token.string not in ("def", "class") or tokens[place + 1].type != tokenize.NAME:
            continue
        start = next((i for i in range(place, len(tokens)) if tokens[i].type == tokenize.NEWLINE), len(tokens)) + 1
        if start >= len(tokens) or tokens[start].type != tokenize.INDENT:
            continue  # the whole definition is on one line
        end = _end_of_block(tokens, start)
        name = ".".join([*(scope for scope, _ in scopes), tokens[place + 1].string])
        scopes.append((tokens[place + 1].string, end))
        if token.string == "def":
            yield name, start + 1, end


def _end_of_block(tokens: Tokens, start: int) -> int:
    depth = 0
    for place in range(start, len(tokens)):
        depth += (tokens[place].type == tokenize.INDENT) - (tokens[place].type == tokenize.DEDENT)
        if depth == 0:
            return place
    return len(tokens)


def _without_docstring(tokens: Tokens) -> Tokens:
    is_one = len(tokens) > 1 and tokens[0].type == tokenize.STRING and tokens[1].type == tokenize.NEWLINE
    return tokens[2:] if is_one else tokens


def _normalised(tokens: Tokens, known_names: frozenset[str]) -> tuple[str, ...]:
    words: list[str] = []
    depth_of_text = 0  # newer versions of Python split f-strings into tokens
    before = ""
    for token in tokens:
        kind = tokenize.tok_name[token.type]
        if kind.endswith("STRING_END"):
            depth_of_text -= 1
        elif kind.endswith("STRING_START"):
            depth_of_text += 1
            if depth_of_text == 1:
                words.append("text")
        elif depth_of_text == 0:
            if token.string in tuple(")]}") and before == ",":
                words.pop()  # a comma before a closing bracket is formatting
            words.append(_word(token, kind, before, known_names))
        before = token.string
    return tuple(words)


def _word(token: tokenize.TokenInfo, kind: str, before: str, known_names: frozenset[str]) -> str:
    if kind == "NAME":
        stays = keyword.iskeyword(token.string) or before == "." or token.string in known_names \
            or hasattr(builtins, token.string)
        return token.string if stays else "name"
    return {"STRING": "text", "NEWLINE": ";", "INDENT": "{", "DEDENT": "}"}.get(kind, token.string)

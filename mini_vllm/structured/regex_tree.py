"""A regular expression as a tree. The language is that of ``re.fullmatch`` with ``re.ASCII``, as far as it is regular.

    colou?r|grey   ─▶   Either(InOrder(c, o, l, o, Repeat(u, 0, 1), r), InOrder(g, r, e, y))

Supported: characters, ``.``, classes like ``[a-z]`` and ``[^"]``, ``\\d \\w \\s \\D \\W \\S`` and other escapes,
groups, ``|``, ``* + ? {n} {n,} {n,m}`` (also their lazy forms, which match the same texts), ``^`` at the beginning and
``$`` at the end. Everything else is an error that names its position: backreferences, lookarounds, ``\\b``, flags.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

MAX_PATTERN_CHARS = 2**14
#: Groups inside of groups.
MAX_DEPTH = 48
LAST_CHARACTER = 0x10FFFF
#: Halves of UTF-16 pairs. They are no characters, and UTF-8 cannot encode them.
SURROGATES = (0xD800, 0xDFFF)

Range = tuple[int, int]
DIGITS: tuple[Range, ...] = ((0x30, 0x39),)
WORD: tuple[Range, ...] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE: tuple[Range, ...] = ((0x09, 0x0D), (0x20, 0x20))
_CLASSES = {"d": DIGITS, "w": WORD, "s": SPACE}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_NUM_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


class RegexError(ValueError):
    """A regular expression that is wrong or not supported."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"{problem}, at position {position}")
        self.position = position


@dataclass(frozen=True)
class Characters:
    """Any one of the characters in these ranges of code points, which are sorted and do not overlap."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True)
class InOrder:
    """All parts, one after the other; the empty text if there are none."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Either:
    """One of the options."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """``node``, ``least`` to ``most`` times; any number of times from ``least`` on if ``most`` is None."""

    node: Node
    least: int
    most: int | None


Node = Characters | InOrder | Either | Repeat


def literal(text: str) -> InOrder:
    """Return the tree of exactly this text."""
    return InOrder(tuple(Characters(((ord(character), ord(character)),)) for character in text))


def parse_regex(pattern: str) -> Node:
    """Return the tree of ``pattern``. Raise RegexError, which names the position, if it is not supported."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise RegexError(f"the expression has {len(pattern)} characters, must have at most {MAX_PATTERN_CHARS}",
                         MAX_PATTERN_CHARS)
    return _Parser(pattern).parse()


class _Parser:
    """Reads a pattern from left to right; ``_at`` is the position of the next character."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at, self._depth = pattern, 0, 0

    def parse(self) -> Node:
        tree = self._either()
        if self._at < len(self._pattern):  # only a parenthesis ends an alternative early
            self._fail("this parenthesis was never opened")
        return tree

    def _fail(self, problem: str, position: int | None = None) -> NoReturn:
        raise RegexError(problem, self._at if position is None else position)

    @property
    def _next(self) -> str:
        """The next character; empty at the end."""
        return self._pattern[self._at:self._at + 1]

    def _take(self, text: str) -> bool:
        """Go past ``text`` if it comes next."""
        if self._pattern.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _either(self) -> Node:
        options = [self._in_order()]
        while self._take("|"):
            options.append(self._in_order())
        return options[0] if len(options) == 1 else Either(tuple(options))

    def _in_order(self) -> Node:
        parts = []
        while self._next not in ("", "|", ")"):
            start = self._at
            if self._take("^"):
                if start:
                    self._fail("^ is supported only at the beginning of the expression", start)
            elif self._take("$"):
                if self._next:
                    self._fail("$ is supported only at the end of the expression", start)
            else:
                parts.append(self._repeat(self._item()))
                continue
            if self._next and self._next in "*+?":
                self._fail("nothing to repeat")
        return parts[0] if len(parts) == 1 else InOrder(tuple(parts))

    def _item(self) -> Node:
        start = self._at
        character = self._pattern[start]
        self._at += 1
        if character == "(":
            return self._group(start)
        if character == "[":
            return self._class(start)
        if character == ".":
            return Characters(_all_but(((10, 10),)))
        if character == "\\":
            return Characters(self._escape(start))
        if character in "*+?":
            self._fail("nothing to repeat", start)
        if character == "{" and self._bounds(start) is not None:
            self._fail("nothing to repeat", start)
        return Characters(self._character(character, start))

    def _group(self, start: int) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"groups must be at most {MAX_DEPTH} deep", start)
        if self._take("?P<"):
            end = self._pattern.find(">", self._at)
            if end < 0 or not self._pattern[self._at:end].isidentifier():
                self._fail("this group's name is not a name", self._at)
            self._at = end + 1
        elif not self._take("?:") and self._next == "?":
            self._fail("lookarounds, flags and other groups with (? are not supported, only (?:…) and (?P<name>…)",
                       start)
        inside = self._either()
        if not self._take(")"):
            self._fail("this group is never closed", start)
        self._depth -= 1
        return inside

    def _repeat(self, node: Node) -> Node:
        start = self._at
        if self._take("*"):
            least, most = 0, None
        elif self._take("+"):
            least, most = 1, None
        elif self._take("?"):
            least, most = 0, 1
        elif self._take("{"):
            bounds = self._bounds(start)
            if bounds is None:
                self._at = start  # an ordinary character
                return node
            least, most = bounds
            if most is not None and least > most:
                self._fail(f"{{{least},{most}}}: the first number must not be larger than the second", start)
        else:
            return node
        if self._take("+"):
            self._fail("possessive repetition is not supported", self._at - 1)
        self._take("?")  # lazy: the same texts match
        second = self._at
        if self._next and self._next in "*+?" or self._take("{") and self._bounds(second) is not None:
            self._fail("a repetition of a repetition needs a group", second)
        self._at = second
        return Repeat(node, least, most)

    def _bounds(self, start: int) -> tuple[int, int | None] | None:
        """Read ``n}``, ``n,}``, ``,m}`` or ``n,m}`` after the ``{`` at ``start``. None if that is not what comes."""
        self._at = start + 1
        if self._next == "}":
            return None
        least = most = self._digits()
        if self._take(","):
            most = self._digits()
            least = least or "0"
        if not self._take("}") or not least:
            self._at = start + 1
            return None
        if max(len(least), len(most)) > 6:
            self._fail(f"{{{least},{most}}}: these numbers are too large", start)
        return int(least), int(most) if most else None

    def _digits(self) -> str:
        start = self._at
        while self._next and self._next in "0123456789":
            self._at += 1
        return self._pattern[start:self._at]

    def _class(self, start: int) -> Characters:
        is_negated = self._take("^")
        ranges: list[Range] = []
        while not ranges or self._next != "]":  # a bracket that comes first is an ordinary character
            first_at = self._at
            item = self._class_item(start)
            if self._next == "-" and self._pattern[self._at + 1:self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._class_item(start)
                if not _is_single(item) or not _is_single(last) or item[0][0] > last[0][0]:
                    self._fail(f"{self._pattern[first_at:self._at]} is not a range of characters", first_at)
                item = ((item[0][0], last[0][0]),)
            ranges += item
        self._at += 1
        merged = _all_but(_merge(ranges)) if is_negated else _without_surrogates(_merge(ranges))
        if not merged:
            self._fail("this class contains no character", start)
        return Characters(merged)

    def _class_item(self, start: int) -> tuple[Range, ...]:
        if not self._next:
            self._fail("this class is never closed", start)
        position = self._at
        character = self._next
        self._at += 1
        return self._escape(position, is_in_class=True) if character == "\\" else self._character(character, position)

    def _escape(self, start: int, is_in_class: bool = False) -> tuple[Range, ...]:
        """Read the rest of an escape whose backslash is at ``start``."""
        letter = self._next
        if not letter:
            self._fail("nothing follows this backslash", start)
        self._at += 1
        if letter.lower() in _CLASSES and letter.isascii():
            ranges = _CLASSES[letter.lower()]
            return ranges if letter.islower() else _all_but(ranges)
        if letter in _CONTROLS:
            return self._character(_CONTROLS[letter], start)
        if letter == "b" and is_in_class:
            return self._character("\b", start)
        if letter in _NUM_HEX_DIGITS:
            digits = self._pattern[self._at:self._at + _NUM_HEX_DIGITS[letter]]
            self._at += len(digits)
            if len(digits) < _NUM_HEX_DIGITS[letter] or not set(digits) <= set("0123456789abcdefABCDEF"):
                self._fail(f"\\{letter} needs {_NUM_HEX_DIGITS[letter]} hexadecimal digits", start)
            if int(digits, 16) > LAST_CHARACTER:
                self._fail(f"\\{letter}{digits} is not a character", start)
            return self._character(chr(int(digits, 16)), start)
        if letter.isascii() and letter.isalnum():
            self._fail(f"\\{letter} is not supported", start)
        return self._character(letter, start)

    def _character(self, character: str, position: int) -> tuple[Range, ...]:
        code = ord(character)
        if SURROGATES[0] <= code <= SURROGATES[1]:
            self._fail(f"U+{code:04X} is half of a UTF-16 pair, not a character", position)
        return ((code, code),)


def _is_single(ranges: Sequence[Range]) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _merge(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return the same characters as sorted ranges that neither overlap nor touch."""
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def _all_but(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return the ranges of all other characters."""
    rest, start = [], 0
    for first, last in _merge([*ranges, SURROGATES]):
        if start < first:
            rest.append((start, first - 1))
        start = last + 1
    if start <= LAST_CHARACTER:
        rest.append((start, LAST_CHARACTER))
    return tuple(rest)


def _without_surrogates(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    return tuple(_merge(part for first, last in ranges
                        for part in ((first, min(last, SURROGATES[0] - 1)), (max(first, SURROGATES[1] + 1), last))
                        if part[0] <= part[1]))

"""The end of a JSON object, found while its text arrives.

``json.loads`` needs the whole text. A stream of calls must know earlier which characters belong to the arguments, and
that a text cannot become JSON any more.
"""

from __future__ import annotations

import re

_WHITESPACE = re.compile(r"[ \t\n\r]+")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_LITERAL = re.compile(r"[-+.0-9A-Za-z]+")
_WHOLE_LITERAL = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_ESCAPED = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")

# What may come next, outside of strings and literals.
_VALUE, _FIRST_VALUE, _KEY, _FIRST_KEY, _COLON, _NEXT = range(6)


class ObjectScanner:
    """Reads one JSON object, whose first character is ``{``, in pieces of any size."""

    def __init__(self) -> None:
        #: Whether the object has ended, and whether the text cannot become an object any more.
        self.is_done = self.is_broken = False
        #: The closing brackets that are needed.
        self._closing: list[str] = []
        self._expected = _VALUE
        #: Inside of a string: whether it is a key, and what is left of an escape ("\\", or "u" and hex digits).
        self._is_in_string = self._is_key = False
        self._escape = ""
        self._literal = ""

    @property
    def depth(self) -> int:
        """The number of objects and lists that are open."""
        return len(self._closing)

    def read(self, text: str, start: int, until_depth: int | None = None) -> int:
        """Read ``text`` from ``start``. Return the position after the last character that belongs to the object.

        With ``until_depth``, also return after a bracket that changes the depth to this number.
        """
        position = start
        while position < len(text) and not (self.is_done or self.is_broken):
            depth, before = len(self._closing), position
            position = self._step(text, position)
            if self.is_broken:
                return before
            if len(self._closing) != depth and len(self._closing) == until_depth:
                break
        return position

    def _step(self, text: str, position: int) -> int:
        """Read some characters, at least one unless the text is not JSON. Return the position after them."""
        if self._is_in_string:
            return self._string(text, position)
        literal = _LITERAL.match(text, position) if self._literal or self._expected in (_VALUE, _FIRST_VALUE) else None
        if literal is not None:
            self._literal += literal[0]
            return literal.end()
        if self._literal:
            self.is_broken = _WHOLE_LITERAL.fullmatch(self._literal) is None
            self._literal, self._expected = "", _NEXT
            return position
        space = _WHITESPACE.match(text, position)
        if space is not None and self._closing:
            return space.end()
        self._mark(text[position])
        return position + 1

    def _mark(self, mark: str) -> None:
        """Read a bracket, a comma, a colon or a quotation mark."""
        expected = self._expected
        is_value = expected in (_VALUE, _FIRST_VALUE)
        if mark == "{" and is_value or mark == "[" and is_value and self._closing:
            self._closing.append("}" if mark == "{" else "]")
            self._expected = _FIRST_KEY if mark == "{" else _FIRST_VALUE
        elif mark == '"' and self._closing and (is_value or expected in (_KEY, _FIRST_KEY)):
            self._is_in_string, self._is_key = True, not is_value
        elif mark == ":" and expected == _COLON:
            self._expected = _VALUE
        elif mark == "," and expected == _NEXT:
            self._expected = _KEY if self._closing[-1] == "}" else _VALUE
        elif mark in "}]" and self._closing and mark == self._closing[-1] and (
                expected in (_NEXT, _FIRST_KEY if mark == "}" else _FIRST_VALUE)):
            self._closing.pop()
            self._expected = _NEXT
            self.is_done = not self._closing
        else:
            self.is_broken = True

    def _string(self, text: str, position: int) -> int:
        if self._escape:
            self._escaped(text[position])
            return position + 1
        plain = _PLAIN.match(text, position)
        if plain is not None:
            return plain.end()
        if text[position] == '"':
            self._is_in_string, self._expected = False, _COLON if self._is_key else _NEXT
        elif text[position] == "\\":
            self._escape = "\\"
        else:
            self.is_broken = True  # a control character
        return position + 1

    def _escaped(self, character: str) -> None:
        """Read a character after a backslash."""
        if self._escape == "\\" and character in _ESCAPED:
            self._escape = ""
        elif self._escape == "\\" and character == "u":
            self._escape = "u"
        elif self._escape != "\\" and character in _HEX:
            self._escape = "" if len(self._escape) == 4 else self._escape + character
        else:
            self.is_broken = True

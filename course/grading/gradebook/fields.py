"""The values of a TOML file, each with its place. All problems are collected, so that they can be printed together."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from course.lab.lab import LabError
from mini_vllm.checks import nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: A gradebook of a class of 1000 with an extension for each student has 60 kB.
MAX_BYTES = 200_000
#: A key ``a.b.c…`` is on one line, and the time to read it is quadratic in its length.
MAX_LINE_CHARACTERS = 500
MAX_SHOWN = 60
#: The reading stops at this number of problems. Each may cost a search for a similar name.
MAX_PROBLEMS = 100
DECIMALS = 4


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raise LabError if it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise LabError(f"{path} has more than {MAX_BYTES:,} bytes, the limit for a gradebook.")
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n") + "\n"  # so that an error at the end has a line
        for number, line in enumerate(text.split("\n"), start=1):
            if len(line) > MAX_LINE_CHARACTERS:
                raise LabError(f"{path}, line {number}: the line has {len(line):,} characters, the limit is "
                               f"{MAX_LINE_CHARACTERS}. A list may be written on several lines.")
        tables: dict[str, Any] = tomllib.loads(text, parse_float=Decimal)
        return tables
    except UnicodeDecodeError:
        raise LabError(f"{path} is not UTF-8.") from None
    except (ValueError, ArithmeticError) as error:  # TOMLDecodeError is a ValueError; so is an int of 5000 digits
        raise LabError(f"{path} is not TOML: {error}{_explained(str(error), text)}") from None
    except RecursionError:
        raise LabError(f"{path} is not a gradebook: its values are nested too deeply.") from None


def _explained(error: str, text: str) -> str:
    """Return the line on which the file stops to be TOML, and what is wrong there as far as that is known."""
    match = re.search(r"at line (\d+)", error)
    if not match:
        return ""
    line = text.split("\n")[int(match[1]) - 1].strip()
    plain = "".join(letter if letter.isprintable() else " " for letter in line)
    why = ""
    if "overwrite" in error or "twice" in error or "uplicate" in error:
        why = f" {line.partition('=')[0].strip() if '=' in line else line} is in the file twice."
    for written in re.findall(r"(?<![\w-])\d{4}-\d\d?-\d\d?(?:[T ]\d\d?:[\d:]*)?", line.partition("#")[0]):
        why = why or _wrong_with_date(written)
    return f": {plain[:MAX_SHOWN * 2]}{'…' if len(plain) > MAX_SHOWN * 2 else ''}{why and ' –' + why}"


def _wrong_with_date(written: str) -> str:
    """Return why this is no date, or no time; "" if it is one."""
    day, _, clock = written.replace("T", " ").partition(" ")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", day) or (clock and not re.fullmatch(r"\d\d:\d\d:\d\d", clock)):
        return f" {written} is not written as TOML demands, with two digits each: 2026-10-02T09:00:00."
    try:
        datetime.fromisoformat(f"{day} {clock or '00:00:00'}")
    except ValueError as error:
        return f" {written} does not exist: {error}."
    return ""


def shown(value: object) -> str:
    """Write a value roughly as the file does, cut to one short line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, int) and abs(value) >= 10 ** MAX_SHOWN:  # Python refuses to print more than 4300 digits
        return "a number of more than 60 digits"
    if isinstance(value, (dict, list)):
        return "a table" if isinstance(value, dict) else "a list"
    text = str(value) if isinstance(value, (int, Decimal)) else f'"{repr(value)[1:-1]}"'
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def guess(word: str, known: Collection[str]) -> str:
    """Return " Did you mean …?" for the most similar known word, or ""."""
    near = nearest(word[:100], known)
    return f" Did you mean {near}?" if near else ""


class TooManyProblems(Exception):
    """Ends the reading of a file that has too many problems."""


class Problems(list[str]):
    """The problems of a file, up to a limit."""

    def append(self, problem: str) -> None:
        if len(self) == MAX_PROBLEMS:
            raise TooManyProblems
        super().append(problem)


@dataclass(frozen=True)
class Table:
    """A table of the file, its place as one would write it, and the list to which all tables add their problems.

    A value that is missing or wrong is read as the default, so that the check continues behind it.
    """

    fields: dict[str, Any]
    place: str
    problems: Problems

    def where(self, key: str) -> str:
        plain = key if re.fullmatch(r"[A-Za-z0-9_-]{1,80}", key) else shown(key)
        return f"{self.place}.{plain}" if self.place else plain

    def complain(self, key: str, what: str) -> None:
        self.problems.append(f"{self.where(key)} {what}")

    def has(self, key: str) -> bool:
        return key in self.fields

    def only(self, *known: str) -> None:
        """Report keys that mean nothing here."""
        for key in self.fields:
            if key not in known:
                self.complain(key, f"means nothing here; the keys are {', '.join(known)}.{guess(key, known)}")

    def number(self, key: str, most: int, least: int = 0) -> Fraction | None:
        """Return an exact number between bounds, or None if there is none."""
        return self._exact(key, self.fields[key], most, least) if key in self.fields else None

    def _exact(self, key: str, value: object, most: int, least: int) -> Fraction | None:
        if isinstance(value, (int, Decimal)) and not isinstance(value, bool):
            # The bounds are compared first: the exact value of 1e999999999 would fill the memory.
            is_plain = isinstance(value, int) or (value.is_finite() and least <= value <= most
                                                  and round(value, DECIMALS) == value)
            if is_plain and least <= value <= most:
                return Fraction(value)
        self.complain(key, f"is {shown(value)}, must be a number from {least} to {most} with at most {DECIMALS} "
                           "decimals.")
        return None

    def flag(self, key: str, default: bool) -> bool:
        value = self.fields.get(key, default)
        if not isinstance(value, bool):
            self.complain(key, f"is {shown(value)}, must be true or false.")
            return default
        return value

    def word(self, key: str, known: Collection[str], default: str) -> str:
        """Return one of a few words."""
        value = self.fields.get(key, default)
        if not isinstance(value, str) or value not in (*known, default):
            near = guess(value, known) if isinstance(value, str) else ""
            self.complain(key, f"is {shown(value)}, must be {' or '.join(map(shown, known))}.{near}")
            return default
        return value

    def words(self, key: str) -> list[str]:
        """Return a list of different texts."""
        return [str(one) for one in self._list(key, str, 'texts, such as ["2.1"]')]

    def whole_numbers(self, key: str) -> list[int]:
        return [int(one) for one in self._list(key, int, "whole numbers, such as [4]")]

    def _list(self, key: str, kind: type, what: str) -> list[Any]:
        value = self.fields.get(key, [])
        if not isinstance(value, list) or any(type(one) is not kind for one in value):
            self.complain(key, f"is {shown(value)}, must be a list of {what}.")
            return []
        for one, number in Counter(value).items():
            if number > 1:
                self.complain(key, f"contains {shown(one)} more than once.")
        return list(dict.fromkeys(value))

    def table(self, key: str) -> Table:
        value = self.fields.get(key, {})
        if not isinstance(value, dict):
            self.complain(key, f"is {shown(value)}, must be a table.")
            value = {}
        return Table(value, self.where(key), self.problems)

    def tables(self) -> Iterator[tuple[str, Table]]:
        """Iterate over the tables in this one, by name."""
        for key in self.fields:
            yield key, self.table(key)

    def list_of_tables(self, key: str) -> list[Table]:
        value = self.fields.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            self.complain(key, f"is {shown(value)}, must be tables, each under its own [[{key}]].")
            return []
        return [Table(one, f"{self.where(key)}[{i + 1}]", self.problems) for i, one in enumerate(value)]

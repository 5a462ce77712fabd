"""Fields of a JSON object that somebody else wrote, checked as they are read."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path

#: No dimension of an MLX array has more elements than this.
LARGEST_SIZE = 2**31 - 1
#: A larger number is infinite in float32.
LARGEST_NUMBER = 3e38


class LoadError(ValueError):
    """A model that cannot be loaded; the message names the file, tensor or field."""


class FieldError(ValueError):
    """A field that is missing or cannot be; the message names the field, its value and what it must be."""

    def __init__(self, field: str, complaint: str) -> None:
        super().__init__(f"{field} {complaint}")
        self.field = field
        self.complaint = complaint


class Fields:
    """A JSON object. A field that is null counts as not there; one that is not there is its default, if it has one."""

    def __init__(self, content: Mapping[str, object], name: str = "") -> None:
        self._content = content
        self._prefix = f"{name}." if name else ""

    def __contains__(self, name: str) -> bool:
        return self._content.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def get(self, name: str) -> object:
        """The field as it stands, unchecked."""
        return self._content.get(name)

    def error(self, name: str, must: str) -> FieldError:
        is_what = f"is {reprlib.repr(self.get(name))}" if name in self else "is missing"
        return FieldError(self._prefix + name, f"{is_what}, {must}")

    def whole(self, name: str, default: int | None = None, at_least: int = 1) -> int:
        value = self.get(name) if name in self else default
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            raise self.error(name, f"must be a whole number, at least {at_least}")
        if value > LARGEST_SIZE:
            raise self.error(name, f"must be at most {LARGEST_SIZE}")
        return value

    def number(self, name: str, default: float | None = None, above: float = 0) -> float:
        value = self.get(name) if name in self else default
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not above < value < LARGEST_NUMBER:
            raise self.error(name, f"must be a number above {above}")
        return float(value)

    def flag(self, name: str) -> bool:
        """False if the field is not there."""
        value = self.get(name)
        if not isinstance(value, bool) and value is not None:
            raise self.error(name, "must be true or false")
        return bool(value)

    def part(self, name: str) -> Fields:
        """An object inside this one; an empty one if the field is not there."""
        value = self.get(name) if name in self else {}
        if not isinstance(value, Mapping):
            raise self.error(name, "must be an object")
        return Fields(value, self._prefix + name)

    def only(self, name: str, *supported: object) -> None:
        """Raise unless the field is not there, or one of those supported."""
        if name in self and self.get(name) not in supported:
            raise self.error(name, f"supported: {', '.join(map(_as_json, supported))}")


def _as_json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def read_object(file: Path, error_type: type[ValueError] = LoadError) -> dict[str, object]:
    """The JSON object in a file. Raises ``error_type`` if the file holds none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise error_type(f"{file}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise error_type(f"{file} holds {reprlib.repr(content)}, must be a JSON object")
    return content

"""Files from others: read up to a size limit, their fields checked as they are read, errors reported in one line."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path

#: The largest dimension of an MLX array.
LARGEST_SIZE = 2**31 - 1
#: A larger number is infinite in float32.
LARGEST_NUMBER = 3e38
#: Limit for a JSON file other than ``tokenizer.json``. The largest real ones, indexes of thousands of layers, have 9
#: MB.
MAX_JSON_BYTES = 16 * 2**20
#: The longest name, and the longest error, that an error message shows unchanged.
MAX_NAME_CHARS, MAX_MESSAGE_CHARS = 100, 2000


class FileError(ValueError):
    """An error in a file, told in one line: parts of the message may come from the file."""

    def __init__(self, message: str) -> None:
        shown = message if len(message) <= MAX_MESSAGE_CHARS else f"{message[:MAX_MESSAGE_CHARS]}…"
        super().__init__("".join(char if char.isprintable() else repr(char)[1:-1] for char in shown))


class LoadError(FileError):
    """A model cannot be loaded; the message names the file, tensor or field."""


class FieldError(ValueError):
    """A field is missing or invalid; the message names the field, its value and what it must be."""

    def __init__(self, field: str, complaint: str) -> None:
        super().__init__(f"{field} {complaint}")
        self.field = field
        self.complaint = complaint


class Fields:
    """A JSON object. A null field counts as missing; a missing field has its default, if there is one."""

    def __init__(self, content: Mapping[str, object], name: str = "") -> None:
        self._content = content
        self._prefix = f"{shown(name)}." if name else ""

    def __contains__(self, name: str) -> bool:
        return self._content.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def get(self, name: str) -> object:
        """Return the field unchecked."""
        return self._content.get(name)

    def error(self, name: str, must: str) -> FieldError:
        is_what = f"is {reprlib.repr(self.get(name))}" if name in self else "is missing"
        return FieldError(self._prefix + shown(name), f"{is_what}, {must}")

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
        """Return a boolean field; False if it is missing."""
        value = self.get(name)
        if not isinstance(value, bool) and value is not None:
            raise self.error(name, "must be true or false")
        return bool(value)

    def part(self, name: str) -> Fields:
        """Return an object inside this one; an empty one if the field is missing."""
        value = self.get(name) if name in self else {}
        if not isinstance(value, Mapping):
            raise self.error(name, "must be an object")
        return Fields(value, self._prefix + name)

    def only(self, name: str, *supported: object) -> None:
        """Raise FieldError unless the field is missing or has one of the supported values."""
        if name in self and self.get(name) not in supported:
            raise self.error(name, f"supported: {', '.join(map(_as_json, supported))}")


def _as_json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def shown(name: str) -> str:
    """Return a name from a file for an error: unchanged, unless it is long or cannot be printed."""
    return name if len(name) <= MAX_NAME_CHARS and name.isprintable() else reprlib.repr(name)


def read_text(file: Path, max_bytes: int, error_type: type[ValueError] = LoadError) -> str:
    """Return the text of a file in a model's folder.

    Raise ``error_type`` for a file that is too large or outside the folder, and UnicodeDecodeError, a ValueError, for
    one that is not text.
    """
    check_inside(file, error_type)
    with open(file, "rb") as stream:
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise error_type(f"{file} has {file.stat().st_size} bytes, must have at most {max_bytes}")
    return content.decode("utf-8")


def check_inside(file: Path, error_type: type[ValueError] = LoadError) -> None:
    """Raise ``error_type`` for a link that leads out of the model's folder, as an untrusted one might.

    Hugging Face's cache links from ``models--org--name/snapshots/*`` to ``models--org--name/blobs``; such links may
    lead anywhere within ``models--org--name``.
    """
    folder = file.parent.resolve()
    snapshots, cached = folder.parent, folder.parent.parent
    own = cached if snapshots.name == "snapshots" and cached.name.startswith("models--") else folder
    if not file.resolve().is_relative_to(own):
        raise error_type(f"{file} is a link that leads out of {own}")


def read_object(file: Path, error_type: type[ValueError] = LoadError) -> dict[str, object]:
    """Return the JSON object in a file. Raise ``error_type`` if the file contains none, or is too large."""
    try:
        content = json.loads(read_text(file, MAX_JSON_BYTES, error_type))
    except error_type:
        raise
    except (ValueError, RecursionError) as error:
        raise error_type(f"{file}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise error_type(f"{file} holds {reprlib.repr(content)}, must be a JSON object")
    return content

"""The API keys of a server, from a TOML file.

    [keys.anna]
    key = "sk-…"                 # or its digest:  sha256 = "9f86d081…"
    tier = "high"                # high, normal or low; normal if left out
    requests_per_minute = 120    # no limit if left out
    admin = true                 # may see the page and the metrics, pause and restart; false if left out

Only digests are kept. A key that a client sends is compared with all of them, each in constant time, so that the time
reveals nothing. No key appears in a ``repr``, a log line or an error.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mini_vllm.request import Priority

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TIERS = {priority.name.lower(): priority for priority in Priority}
FIELDS = ("key", "sha256", "tier", "requests_per_minute", "admin")
#: Shorter keys can be guessed.
MIN_KEY_CHARS = 16


@dataclass(frozen=True)
class ApiKey:
    """The digest and the permissions of a key, without the key itself."""

    name: str
    digest: bytes = field(repr=False)
    #: The best priority that the key may request, and its default.
    tier: Priority = Priority.NORMAL
    requests_per_minute: int | None = None
    is_admin: bool = False


class KeyRing:
    """All keys of a server."""

    def __init__(self, keys: list[ApiKey]) -> None:
        self._keys = keys

    @property
    def names(self) -> list[str]:
        return [key.name for key in self._keys]

    def __iter__(self) -> Iterator[ApiKey]:
        return iter(self._keys)

    def find(self, text: str) -> ApiKey | None:
        """Return the key whose text this is, or None. All keys are always compared, so that the time is the same."""
        digest, found = digest_of(text), None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def digest_of(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def read_keys(path: Path) -> KeyRing:
    """Read the keys from a file. Raise OSError if it cannot be read, and ValueError if it is invalid.

    The message names the file, the key's name and the field, but never contains the key.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at .*\)$", str(error))  # the rest of the message may quote a key
        raise ValueError(f"{path} is not TOML {place[0] if place else ''}".rstrip()) from None
    keys = tables.get("keys")
    if not isinstance(keys, dict) or not keys or len(tables) != 1:
        raise ValueError(f"{path} must contain at least one table [keys.NAME], and nothing else")
    read = [_read_key(f"{path}: keys.{name}", name, table) for name, table in keys.items()]
    _check_different(path, read)
    return KeyRing(read)


def _read_key(where: str, name: str, table: object) -> ApiKey:
    if not isinstance(table, dict):
        raise ValueError(f"{where} must be a table with a key or a sha256")
    for unknown in table.keys() - set(FIELDS):
        raise ValueError(f"{where} has the unknown field {unknown!r}; known fields: {', '.join(FIELDS)}")
    tier, admin, rate = table.get("tier", "normal"), table.get("admin", False), table.get("requests_per_minute")
    if not isinstance(tier, str) or tier not in TIERS:
        raise ValueError(f"{where}: tier is {tier!r}, must be {', '.join(TIERS)}")
    if not isinstance(admin, bool):
        raise ValueError(f"{where}: admin is {admin!r}, must be true or false")
    if rate is not None and (type(rate) is not int or rate < 1):
        raise ValueError(f"{where}: requests_per_minute is {rate!r}, must be a whole number, at least 1")
    return ApiKey(name, _read_digest(where, table), TIERS[tier], rate, admin)


def _read_digest(where: str, table: Mapping[str, object]) -> bytes:
    key, sha256 = table.get("key"), table.get("sha256")
    if (key is None) == (sha256 is None):
        raise ValueError(f"{where} must have either a key or its sha256")
    if sha256 is not None:
        if not isinstance(sha256, str) or not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
            raise ValueError(f"{where}: sha256 must be 64 hexadecimal digits")
        return bytes.fromhex(sha256)
    if not isinstance(key, str) or len(key) < MIN_KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(f"{where}: key must have at least {MIN_KEY_CHARS} characters, ASCII without spaces")
    return digest_of(key)


def _check_different(path: Path, keys: list[ApiKey]) -> None:
    names: dict[bytes, str] = {}
    for key in keys:
        if key.digest in names:
            raise ValueError(f"{path}: keys.{names[key.digest]} and keys.{key.name} are the same key")
        names[key.digest] = key.name

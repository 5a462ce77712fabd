"""Checks of arguments. Each returns the value in its proper type, or raises ValueError with the argument's name, its
value and the bound: ``top_k is -2, must be a whole number, at least -1``.

numpy's numbers are accepted as numbers; True and False are not. A dataclass of settings declares its fields with
``setting`` and checks them with ``check_fields``; the command line makes its options of the same fields.
``check_installed`` checks for the optional packages of a feature.
"""

from __future__ import annotations

import difflib
import importlib.util
import math
import numbers
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any, SupportsFloat, TypeGuard, TypeVar

T = TypeVar("T")


def whole_number(name: str, value: object, at_least: int | None = None, at_most: int | None = None,
                 kind: str = "a whole number") -> int:
    """Return ``value`` as an int. Raise ValueError unless it is a whole number within its bounds."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        number = int(value)
        if (at_least is None or number >= at_least) and (at_most is None or number <= at_most):
            return number
    raise refusal(name, value, kind + _range(at_least, at_most))


def whole_number_or_none(name: str, value: object, at_least: int | None = None,
                         at_most: int | None = None) -> int | None:
    """Check an optional whole number: like ``whole_number``, but None is allowed."""
    return None if value is None else whole_number(name, value, at_least, at_most, "None or a whole number")


def real_number(name: str, value: object, at_least: float | None = None, at_most: float | None = None, *,
                above: float | None = None, below: float | None = None) -> float:
    """Return ``value``, a finite number within its bounds, or raise ValueError. An int stays an int."""
    if is_number(value) and math.isfinite(value):
        number = value if isinstance(value, (int, float)) else float(value)
        if ((at_least is None or number >= at_least) and (at_most is None or number <= at_most)
                and (above is None or number > above) and (below is None or number < below)):
            return number
    lowest, highest = ("" if end is None else f", {word} {end}" for word, end in (("above", above), ("below", below)))
    raise refusal(name, value, "a finite number" + lowest + _range(at_least, at_most) + highest)


def is_number(value: object) -> TypeGuard[SupportsFloat]:
    """Check whether ``value`` is a number that fits into a float."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:
        return False


def flag(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False. Reject 0 and 1: they were probably meant for another argument."""
    if not isinstance(value, bool):
        raise refusal(name, value, "True or False")
    return value


def flag_or_none(name: str, value: object) -> bool | None:
    """Check an optional flag: like ``flag``, but None is allowed."""
    if value is not None and not isinstance(value, bool):
        raise refusal(name, value, "True, False or None")
    return value


#: Every token of an output is compared with all of them.
MAX_TEXTS, MAX_TEXT_CHARS = 256, 256


def texts(name: str, value: object) -> tuple[str, ...]:
    """Return a tuple of texts, given one text, several or None (no texts).

    Reject empty, too many and too long texts.
    """
    several = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(several, (list, tuple)) or not all(isinstance(text, str) and text for text in several):
        raise refusal(name, value, "a text or a list of texts, none of them empty")
    if len(several) > MAX_TEXTS or max(map(len, several), default=0) > MAX_TEXT_CHARS:
        raise refusal(name, value, f"at most {MAX_TEXTS} texts of at most {MAX_TEXT_CHARS} characters")
    return tuple(several)


def token_ids(name: str, value: object, vocab_size: int | None = None) -> list[int]:
    """Return a list of token ids, given a list, a tuple, a set or an array of whole numbers."""
    if hasattr(value, "tolist") and not isinstance(value, (list, tuple)):  # arrays of numpy and MLX
        value = value.tolist()
    if not isinstance(value, (list, tuple, set, frozenset, range)):
        raise refusal(name, value, "a list of token ids")
    end = math.inf if vocab_size is None else vocab_size
    for token_id in value:
        if type(token_id) is not int or not 0 <= token_id < end:  # the usual case costs one comparison
            is_whole = isinstance(token_id, numbers.Integral) and not isinstance(token_id, bool)
            if not is_whole or not 0 <= int(token_id) < end:
                bound = "a whole number, at least 0" if vocab_size is None else f"from 0 to {vocab_size - 1}"
                raise ValueError(f"{name} has the token id {reprlib.repr(token_id)}, must be {bound}")
    return [int(token_id) for token_id in value]


def an_instance(name: str, value: object, *kinds: type[T]) -> T:
    """Return ``value`` if it is an instance of one of ``kinds`` or of a subclass."""
    if not isinstance(value, kinds):
        raise refusal(name, value, " or ".join(f"{'an' if kind.__name__[0] in 'AEIOUaeiou' else 'a'} {kind.__name__}"
                                               for kind in kinds))
    return value


def one_of(name: str, value: object, allowed: Sequence[str]) -> str:
    """Return ``value`` if it is one of the words that are allowed."""
    if isinstance(value, str) and value in allowed:
        return value
    raise refusal(name, value, f"{', '.join(map(repr, allowed[:-1]))} or {allowed[-1]!r}")


def one_each(name: str, values: object, kind: type[T], num_wanted: int, of_what: str) -> list[T]:
    """Return a list that contains one ``kind`` for each of ``num_wanted`` items."""
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes)):
        raise refusal(name, values, f"a {kind.__name__}, or a list with one {kind.__name__} for each of the "
                      f"{num_wanted} {of_what}")
    if len(values) != num_wanted:
        raise ValueError(f"there are {num_wanted} {of_what}, but {len(values)} {name}")
    return [an_instance(f"{name}[{index}]", value, kind) for index, value in enumerate(values)]


def writable_file(path: Path) -> Path:
    """Return ``path`` if a file can be created or overwritten there.

    Call this before the work whose result goes there.
    """
    folder = path.parent
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder; name a file in it")
    if not os.path.isdir(folder):
        problem = f"{folder} is not a folder" if os.path.lexists(folder) else f"there is no folder {folder}"
        raise ValueError(f"{path}: {problem}")
    if os.path.lexists(path):
        if not os.access(path, os.W_OK):
            raise ValueError(f"{path} already exists, and you may not write to it")
        return path
    try:
        with open(path, "xb"):  # only creating the file shows whether it can be created
            pass
        os.unlink(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None
    return path


def refusal(name: str, value: object, bound: str) -> ValueError:
    """Return the error that names the argument, its value and the bound; a long value is shortened."""
    return ValueError(f"{name} is {reprlib.repr(value)}, must be {bound}")


def _range(at_least: float | None, at_most: float | None) -> str:
    if at_least is not None and at_most is not None:
        return f" from {at_least} to {at_most}"
    return f", at least {at_least}" if at_least is not None else f", at most {at_most}" if at_most is not None else ""


def nearest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the known word most similar to ``word``, ignoring case, for a "did you mean"; None if none is similar."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


# ---- optional packages

#: Extra → the packages that its features check for: the name to import, and the name to install.
EXTRAS = {
    "cli": {"rich": "rich", "prompt_toolkit": "prompt_toolkit"},
    "serve": {"fastapi": "fastapi", "uvicorn": "uvicorn", "prometheus_client": "prometheus_client",
              "llguidance": "llguidance"},
    "course": {"pytest": "pytest", "rich": "rich"},
    "bench": {"mlx_lm": "mlx-lm", "matplotlib": "matplotlib"},
    "png": {"resvg_py": "resvg-py"},
    "structured": {"llguidance": "llguidance"},
    "cluster": {"sglang_router": "sglang-router", "vllm_router": "vllm-router"},
    "hub": {"huggingface_hub": "huggingface_hub"},
}
PROJECT = Path(__file__).resolve().parents[1]


def install_line(extra: str) -> str:
    """Return the command that installs ``extra``.

    In a clone it is the README's command, with the clone's folder unless that is the current one. The project is not on
    the package index, so elsewhere the command lists the packages.
    """
    if not (PROJECT / "pyproject.toml").is_file():
        return f"pip install {' '.join(EXTRAS[extra].values())}"
    where = "" if Path.cwd() == PROJECT else f" (in {PROJECT})"
    return f'pip install -e ".[{extra}]"{where}'


def check_installed(extra: str, what: str) -> None:
    """Raise ValueError with the command that installs ``extra`` if ``what`` lacks one of its packages."""
    missing = [package for name, package in EXTRAS[extra].items() if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"{what} needs {', '.join(missing)}: {install_line(extra)}")


# ---- the fields of a dataclass of settings

#: The annotation of a field → its check.
_CHECKS: Mapping[Any, Callable[..., object]] = {
    "int": whole_number, "int | None": whole_number_or_none, "float": real_number, "bool": flag,
    "bool | None": flag_or_none}


def setting(default: T, help: str = "", check: Callable[[str, Any], object] | None = None, option: str | None = None,
            **bounds: float) -> T:
    """Declare a field of a dataclass: its default, its check, and its option on the command line.

    Without ``check`` the annotation decides how the field is checked: numbers within ``bounds``, flags, or not at all.
    Without ``option`` the option has the field's name.
    """
    return field(default=default, metadata={"help": help, "check": check, "option": option, "bounds": bounds})


def check_fields(settings: Any) -> None:
    """Check every field of a frozen dataclass, and convert it to its proper type. Call this in ``__post_init__``."""
    for each in fields(settings):
        check = each.metadata.get("check") or _CHECKS.get(each.type)
        if check is not None:
            value = check(each.name, getattr(settings, each.name), **each.metadata.get("bounds", {}))
            object.__setattr__(settings, each.name, value)

"""The functions, classes, methods and attributes that a lab's file may use on the grader's side, by name.

``lab.json`` lists it under ``surface``. Nothing is served merely because a file imports it:

    "surface": {"mini_vllm.request.Request": "num_tokens status= append_output_token",
                "mini_vllm.block_pool.BlockPool": "(10000) get_new_blocks",
                "mini_vllm.checks.an_instance": "()"}

``name`` may be read, and called if it is a method. ``name=`` may also be set. ``()`` means that the class or function
itself may be called, ``(1000)`` that it may be called with numbers up to 1000. A class without names can be imported
and used in ``isinstance``. What is listed for a class also holds for its subclasses. ``test_lab.Clock`` is a class that
the tests define, ``wrong_pools.Block`` is one from another file in the lab's folder.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.lab.lab import Lab, LabError

#: The file in a hidden lab's folder that lists what its own tests' classes offer.
HIDDEN_FILE = "surface.json"
#: The module name under which the tests' classes are listed.
TESTS = "test_lab"
_NAME = re.compile(r"\((\d*)\)|[A-Za-z_]\w*=?")
#: A module that was loaded from a file in the lab's folder: its name, and a digest.
_LOADED = re.compile(r"lab_file_(\w+)_[0-9a-f]+")


@dataclass(frozen=True)
class Offer:
    """The allowed uses of one class or function, or of objects of the class."""

    reads: frozenset[str] = frozenset()
    sets: frozenset[str] = frozenset()
    can_be_called: bool = False
    #: The largest number that it may be called with.
    max_number: int | None = None

    def __or__(self, other: Offer) -> Offer:
        """Combine what is offered for a class with what is offered for one of its bases."""
        bounds = [each.max_number for each in (self, other) if each.max_number is not None]
        return Offer(self.reads | other.reads, self.sets | other.sets, self.can_be_called or other.can_be_called,
                     min(bounds, default=None))


NOTHING = Offer()


class Surface:
    """The list of one lab, with what each name in it allows."""

    def __init__(self, listed: Mapping[str, str]) -> None:
        """Parse the list. Raise LabError if it is invalid."""
        self.offers = {name: _offer(name, words) for name, words in listed.items()}
        self._by_class: dict[type, Offer | None] = {}
        #: Test modules → the module name under which their classes are listed.
        self._test_modules: dict[str, str] = {}

    def add_tests(self, module: str, listed_as: str = TESTS) -> None:
        """Treat the classes of ``module`` as the tests' classes."""
        self._test_modules.setdefault(module, listed_as)

    def is_of_tests(self, kind: type) -> bool:
        return kind.__module__ in self._test_modules

    def of(self, kind: type) -> Offer:
        """Return what may be done with a class, or with objects of it."""
        return self._found(kind) or NOTHING

    def lists(self, kind: type) -> bool:
        """Return whether the class, or one that it is derived from, is listed."""
        return self._found(kind) is not None

    def _found(self, kind: type) -> Offer | None:
        if kind not in self._by_class:
            offers = [self.offers[name] for name in self.listed_names(kind)]
            merged = NOTHING
            for offer in offers:
                merged |= offer
            self._by_class[kind] = merged if offers else None
        return self._by_class[kind]

    def listed_names(self, kind: type) -> list[str]:
        """Return the listed names that apply to a class: its own, and those of its bases."""
        return [name for each in kind.__mro__ if (name := self._listed_name(each)) in self.offers]

    def of_function(self, function: Any) -> Offer | None:
        """Return what is listed for a function by its module and name; None if it is not listed."""
        return self.offers.get(f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}")

    def _listed_name(self, kind: type) -> str:
        loaded = _LOADED.fullmatch(kind.__module__)
        module = loaded[1] if loaded else self._test_modules.get(kind.__module__, kind.__module__)
        return f"{module}.{kind.__name__ if loaded or kind.__module__ in self._test_modules else kind.__qualname__}"

    # ---- what can be imported

    def imports(self) -> dict[str, list[str]]:
        """Return the served names of each module of the course."""
        found: dict[str, list[str]] = {}
        for name in self.offers:
            module, _, short = name.rpartition(".")
            if module.split(".")[0] in ("mini_vllm", "course"):
                found.setdefault(module, []).append(short)
        return found

    def imports_flat(self) -> list[str]:
        """Return the listed names that can be imported."""
        return [f"{module}.{name}" for module, names in self.imports().items() for name in names]

    def load(self) -> None:
        """Import every listed module now, so that a submission cannot cause an import later."""
        for module in self.imports():
            importlib.import_module(module)

    def find(self, name: str) -> Any:
        """Return the object that is listed under this name. Raise KeyError if the name is not listed."""
        if name not in self.offers:
            raise KeyError(name)
        module, _, short = name.rpartition(".")
        return getattr(sys.modules[module], short)


def _offer(name: str, words: str) -> Offer:
    if not isinstance(words, str) or not name.rpartition(".")[0]:
        raise LabError(f"surface: {name} must be module.Name, and its value must be a string that lists names")
    names = words.split()
    matches = [_NAME.fullmatch(each) for each in names]
    odd = [each for each, match in zip(names, matches, strict=True) if match is None]
    if odd:
        raise LabError(f"surface: {name} lists {odd[0]!r}, which is neither a name, nor name=, nor (), nor (1000)")
    plain = [each for each in names if not each.startswith("(")]
    bounds = [match[1] for match in matches if match is not None and match[1] is not None]
    return Offer(frozenset(each.removesuffix("=") for each in plain),
                 frozenset(each[:-1] for each in plain if each.endswith("=")), bool(bounds),
                 int(bounds[0]) if bounds and bounds[0] else None)


def surface_of(lab: Lab, hidden: Iterable[Path] = ()) -> Surface:
    """Return the list of a lab, together with the lists of the hidden tests in these folders."""
    listed = dict(lab.surface)
    for folder in hidden:
        path = folder / HIDDEN_FILE
        if path.is_file():
            try:
                listed |= json.loads(path.read_text(encoding="utf-8"))
            except (ValueError, TypeError) as error:
                raise LabError(f"{path} must be a JSON object: {error}") from None
    return Surface(listed)

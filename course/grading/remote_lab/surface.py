"""What a lab's file may use on the grader's side: every function, class, method and attribute of it, by name.

``lab.json`` lists it under ``surface``. Nothing is served because something imports it:

    "surface": {"mini_vllm.request.Request": "num_tokens status= append_output_token",
                "mini_vllm.block_pool.BlockPool": "(10000) get_new_blocks",
                "mini_vllm.checks.an_instance": "()"}

``name`` may be read, and called if it is a method; ``name=`` may be set, too; ``()`` means that the class or the
function itself may be called, ``(1000)`` that it may be called with numbers up to 1000. A class without names can be
imported and asked for its instances. What is listed for a class holds for its subclasses. ``test_lab.Clock`` is a class
that the tests define, ``wrong_pools.Block`` one of another file of the lab's folder.
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

#: In a hidden lab's folder: what its own tests' classes offer.
HIDDEN_FILE = "surface.json"
#: Where the classes of tests are looked for.
TESTS = "test_lab"
_NAME = re.compile(r"\((\d*)\)|[A-Za-z_]\w*=?")
#: A module that was loaded from a file of the lab's: its name, and a digest.
_LOADED = re.compile(r"lab_file_(\w+)_[0-9a-f]+")


@dataclass(frozen=True)
class Offer:
    """What may be done with one class or function, or with objects of the class."""

    reads: frozenset[str] = frozenset()
    sets: frozenset[str] = frozenset()
    can_be_called: bool = False
    #: The largest number that it may be called with.
    max_number: int | None = None

    def __or__(self, other: Offer) -> Offer:
        """What a class has, and what one has that it is derived from."""
        bounds = [each.max_number for each in (self, other) if each.max_number is not None]
        return Offer(self.reads | other.reads, self.sets | other.sets, self.can_be_called or other.can_be_called,
                     min(bounds, default=None))


NOTHING = Offer()


class Surface:
    """The list of one lab, with what may be done for each name in it."""

    def __init__(self, listed: Mapping[str, str]) -> None:
        """Raises LabError for a list that cannot be."""
        self.offers = {name: _offer(name, words) for name, words in listed.items()}
        self._by_class: dict[type, Offer | None] = {}
        #: Modules of tests, whose classes are listed as those of ``test_lab``.
        self._test_modules: dict[str, str] = {}

    def add_tests(self, module: str, listed_as: str = TESTS) -> None:
        """The classes of ``module`` are the tests'."""
        self._test_modules.setdefault(module, listed_as)

    def is_of_tests(self, kind: type) -> bool:
        return kind.__module__ in self._test_modules

    def of(self, kind: type) -> Offer:
        """What may be done with a class, or with objects of it."""
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
        """By which names of the list a class may be used: its own, and those that it is derived from."""
        return [name for each in kind.__mro__ if (name := self._listed_name(each)) in self.offers]

    def of_function(self, function: Any) -> Offer | None:
        """What is listed for a function by its module and name; None if it is not listed."""
        return self.offers.get(f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}")

    def _listed_name(self, kind: type) -> str:
        loaded = _LOADED.fullmatch(kind.__module__)
        module = loaded[1] if loaded else self._test_modules.get(kind.__module__, kind.__module__)
        return f"{module}.{kind.__name__ if loaded or kind.__module__ in self._test_modules else kind.__qualname__}"

    # ---- what can be imported

    def imports(self) -> dict[str, list[str]]:
        """Module of the course → the names that are served of it."""
        found: dict[str, list[str]] = {}
        for name in self.offers:
            module, _, short = name.rpartition(".")
            if module.split(".")[0] in ("mini_vllm", "course"):
                found.setdefault(module, []).append(short)
        return found

    def imports_flat(self) -> list[str]:
        """The listed names that can be imported."""
        return [f"{module}.{name}" for module, names in self.imports().items() for name in names]

    def load(self) -> None:
        """Import every module that is listed, so that nothing is imported because a submission asks for it."""
        for module in self.imports():
            importlib.import_module(module)

    def find(self, name: str) -> Any:
        """What is listed under this name. Raises KeyError for what is not."""
        if name not in self.offers:
            raise KeyError(name)
        module, _, short = name.rpartition(".")
        return getattr(sys.modules[module], short)


def _offer(name: str, words: str) -> Offer:
    if not isinstance(words, str) or not name.rpartition(".")[0]:
        raise LabError(f"surface: {name} must be module.Name, with a text of names")
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
    """The list of a lab; with that of hidden tests that lie in these folders."""
    listed = dict(lab.surface)
    for folder in hidden:
        path = folder / HIDDEN_FILE
        if path.is_file():
            try:
                listed |= json.loads(path.read_text(encoding="utf-8"))
            except (ValueError, TypeError) as error:
                raise LabError(f"{path} must be a JSON object: {error}") from None
    return Surface(listed)

"""The sandbox's side: runs the student's file, and answers the grader's questions.

Nothing here is trusted. This code shares a process with the student's code, so whatever it tells the grader counts as
the behaviour of the student's code.
"""

from __future__ import annotations

import enum
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import secrets
import socket
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course.grading.protocol.access_rules import Permissions
from course.grading.protocol.connection import Peer
from course.grading.protocol.socket_messages import ProtocolError, Wire

ROOT = Path(__file__).resolve().parents[3]
#: The name under which the student's file appears in messages.
SHOWN = "starter.py"


class SandboxMain:
    """One student's file, and what it imports."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        os.environ.update(settings["environment"])
        connection = socket.socket(fileno=int(sys.argv[1]))
        self.peer = Peer(Wire(connection), Permissions(), first_id=1, trusts_other=True, find_class=self.find_class,
                         find_enum=self.find_enum, file_name=SHOWN)
        self.peer.doing.services["load"] = self.load
        self.peer.doing.services["measure"] = self.measure
        self._enums: dict[str, type] = {}
        self._bases: dict[str, types.ModuleType] = {}
        sys.meta_path.insert(0, ServedFinder(settings["served"], settings["absent"], self))
        base = types.ModuleType("course.base")
        base.__getattr__ = self._base  # type: ignore[method-assign]
        sys.modules["course.base"] = base

    def find_class(self, name: str) -> type | None:
        """Return a class that both sides know by this name: a class of a module in the sandbox, or an enum of the
        grader's. Return None if there is none."""
        if name in self._enums:
            return self._enums[name]
        module_name, _, short = name.rpartition(".")
        module = sys.modules.get(module_name)
        found = None if module is None or isinstance(module, ServedModule) else vars(module).get(short)
        return found if isinstance(found, type) else None

    def find_enum(self, name: str) -> type | None:
        """Return an enum. The first time one of its members arrives, create it from the grader's description."""
        if (found := self.find_class(name)) is not None:
            return found
        is_int, members = self.peer.request("enum", name)
        module, _, short = name.rpartition(".")
        kind: Any = enum.IntEnum if is_int else enum.Enum
        self._enums[name] = kind(short, [tuple(pair) for pair in members], module=module)
        return self._enums[name]

    def load(self, source: bytes | None = None) -> types.ModuleType:
        """Run the student's file, or another source, as a module. Raise what it raises."""
        module = types.ModuleType("starter" if source is None else f"starter_{secrets.token_hex(4)}")
        module.__file__ = SHOWN
        source = (ROOT / "work" / "starter.py").read_bytes() if source is None else source
        sys.modules[module.__name__] = module
        exec(compile(source, SHOWN, "exec", dont_inherit=True), module.__dict__)
        return module

    def _base(self, name: str) -> types.ModuleType:
        number = name.removeprefix("lab_").replace("_", ".")
        if number not in self.settings["bases"]:
            raise AttributeError(f"course.base has no {name!r} in this lab")
        if number not in self._bases:
            module = self._bases[number] = types.ModuleType(name)
            path = ROOT / "bases" / f"{number}.py"
            sys.modules[name] = module
            exec(compile(path.read_bytes(), path.name, "exec", dont_inherit=True), module.__dict__)
        return self._bases[number]

    def measure(self, name: str, *args: Any) -> Any:
        """Call a function of ``course.testing.measure`` or its companions here."""
        from course.eviction import remembered
        from course.faster_step import driver
        from course.testing import measure, measure_mlx
        modules = (measure, remembered, measure_mlx, driver)
        return next(vars(module)[name] for module in modules if name in vars(module))(*args)


class ServedModule(types.ModuleType):
    """A module that stays in the grader: imports from it are stand-ins."""

    def __init__(self, name: str, names: Sequence[str], absent: Sequence[str], far: SandboxMain) -> None:
        super().__init__(name)
        self.__dict__["_names"] = list(names)
        self.__dict__["_far"] = far
        self.__dict__["__all__"] = list(names)
        for each in absent:
            self.__dict__[each] = _absent(name, each)

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__["_names"]:
            raise AttributeError(f"module {self.__name__!r} has no {name!r} in this lab")
        value = self.__dict__["_far"].peer.request("import", self.__name__, name)
        self.__dict__[name] = value
        return value


def _absent(module: str, name: str) -> type:
    """Create a placeholder for a name that the course's own files import but that is not served. It cannot be used."""
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(f"{name} of {module} cannot be used in this lab's grader")

    return type(name, (), {"__module__": module, "__init__": refuse})


class ServedFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, served: dict[str, list[str]], absent: dict[str, list[str]], far: SandboxMain) -> None:
        self._served, self._absent, self._far = served, absent, far
        self._modules = {*served, *absent}

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname in self._modules:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=False)
        if any(name.startswith(f"{fullname}.") for name in self._modules):
            folder = ROOT / fullname.replace(".", os.sep)
            spec = importlib.machinery.ModuleSpec(fullname, self, is_package=True)
            spec.submodule_search_locations = [str(folder)]
            return spec
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return ServedModule(spec.name, self._served.get(spec.name, []), self._absent.get(spec.name, []), self._far)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def main() -> None:
    far = SandboxMain(json.loads((ROOT / "settings.json").read_text(encoding="utf-8")))
    try:
        far.peer.serve()
    except ProtocolError:
        os._exit(0)


if __name__ == "__main__":
    main()

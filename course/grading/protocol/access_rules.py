"""Rules for the other side's access to objects. Those here allow everything; the grader's are in ``permissions``."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from course.grading.protocol.tags import static


class Permissions:
    """The rules for the other side's access to objects of this side. These allow everything: the sandbox uses them."""

    def check_get(self, owner: Any, name: str) -> None:
        """Raise AttributeError if the other side may not read the attribute."""

    def check_set(self, owner: Any, name: str) -> None:
        """Raise AttributeError if the other side may not set the attribute."""

    def check_call(self, function: Any, arguments: Sequence[Any] = ()) -> None:
        """Raise TypeError if the other side may not call the function, and ValueError if a number is too large."""

    def found(self, owner: Any, name: str, value: Any) -> Any:
        """Return the value that the other side receives when it reads an attribute whose value is ``value``."""
        return value

    def arguments_for(self, function: Any, positional: Sequence[Any], named: dict[str, Any]
                      ) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the arguments to call the function with. Raise TypeError or IndexError for harmful arguments."""
        return positional, named

    def check_operator(self, owner: Any, name: str) -> None:
        """Raise TypeError if the other side may not use the operator."""

    def check_handle(self, value: Any) -> None:
        """Raise TypeError for a value that must never be handed out."""

    def guards(self, owner: Any, name: str) -> bool:
        """Return whether a container in this attribute stays unchanged, whatever the other side does to its copy."""
        return False

    def readable_fields(self, kind: type, names: list[str]) -> list[str]:
        """Return those of the given attributes that the other side may read."""
        return names

    def fixed_fields(self, kind: type) -> list[str]:
        """Return the plain attributes that never change, so that the other side may keep their values."""
        return []

    def computed_fields(self, kind: type) -> list[str]:
        """Return the properties that only read the object's own plain attributes. They are sent along with these."""
        return []

    def methods_of(self, kind: type) -> list[str]:
        """Return the methods that the other side can call without fetching them first."""
        return [name for name in dir(kind) if not name.startswith("__")
                and isinstance(static(kind, name), types.FunctionType)]

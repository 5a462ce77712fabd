"""What one side lets the other do with its objects. Here: everything. The grader's own rules are in ``permissions``."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from course.grading.protocol.tags import static


class Permissions:
    """What the other side may do with objects of this side. This one allows everything: it is the sandbox's."""

    def check_get(self, owner: Any, name: str) -> None:
        """Raises AttributeError."""

    def check_set(self, owner: Any, name: str) -> None:
        """Raises AttributeError."""

    def check_call(self, function: Any, arguments: Sequence[Any] = ()) -> None:
        """Raises TypeError, and ValueError for a number that is too large."""

    def found(self, owner: Any, name: str, value: Any) -> Any:
        """What the other side is given that reads an attribute of this value."""
        return value

    def arguments_for(self, function: Any, positional: Sequence[Any], named: dict[str, Any]
                      ) -> tuple[Sequence[Any], dict[str, Any]]:
        """The arguments to call it with. Raises TypeError or IndexError for those that would do harm."""
        return positional, named

    def check_operator(self, owner: Any, name: str) -> None:
        """Raises TypeError."""

    def check_handle(self, value: Any) -> None:
        """Raises TypeError for what must never be handed out."""

    def guards(self, owner: Any, name: str) -> bool:
        """Whether a container that is this attribute stays as it is, whatever the other side does to its copy."""
        return False

    def readable_fields(self, kind: type, names: list[str]) -> list[str]:
        """Those of these attributes that the other side may read."""
        return names

    def fixed_fields(self, kind: type) -> list[str]:
        """Plain attributes of which the other side may rely on that they never change."""
        return []

    def computed_fields(self, kind: type) -> list[str]:
        """Properties that only read the object's own plain attributes: they travel with them."""
        return []

    def methods_of(self, kind: type) -> list[str]:
        """Methods that can be called without being fetched before."""
        return [name for name in dir(kind) if not name.startswith("__")
                and isinstance(static(kind, name), types.FunctionType)]

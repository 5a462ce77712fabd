"""The interface of a connection for its parts, which reach each other through it."""

from __future__ import annotations

from typing import Any, Protocol


class Connection(Protocol):
    """``connection.Peer``, as its parts know it."""

    #: Incremented whenever the other side has had its turn.
    turn: int
    #: Whether values that are a little more than data leave this side as plain data.
    flattens: bool
    mirrors: Any
    writing: Any
    reading: Any
    errors: Any
    handles: Any
    doing: Any

    def request(self, what: str, *args: Any) -> Any: ...

    def count_item(self, far_id: int) -> None: ...

    def check_new_mirror(self, mirror_id: Any) -> int: ...

    def enum_key(self, kind: type) -> str | None: ...

    def enum_class(self, key: Any) -> Any: ...

    def known_tuple(self, name: str, fields: tuple[str, ...]) -> type | None: ...

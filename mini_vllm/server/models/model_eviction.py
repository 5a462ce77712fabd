"""Choose the models to unload, so that another one fits within the memory limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from mini_vllm.server.errors import ApiError, retry_later

#: The Retry-After if the models in use leave no room for the requested one.
RETRY_AFTER_S = 5.0


class Tenant(Protocol):
    """The interface of a model that takes memory."""

    num_bytes: int
    #: Increases with every use.
    last_used: int

    @property
    def may_go(self) -> bool:
        """Whether it may be unloaded: False while it is loading or in use."""


AnyTenant = TypeVar("AnyTenant", bound=Tenant)


def who_must_go(name: str, num_bytes: int, others: Sequence[AnyTenant], limit_bytes: int | None) -> list[AnyTenant]:
    """Return the models to unload before the model ``name`` may take ``num_bytes``; none if there is no limit.

    The least recently used model that may be unloaded goes first, and no more models than necessary. Raise ApiError
    (503) if the model is larger than the limit, or if unloading every model that may go is not enough.
    """
    if limit_bytes is None:
        return []
    if num_bytes > limit_bytes:
        raise ApiError(503, f"the model {name!r} takes {num_bytes / 1e6:.0f} MB, the server's limit for all models is "
                       f"{limit_bytes / 1e6:.0f} MB", code="model_too_large")
    excess = num_bytes + sum(other.num_bytes for other in others) - limit_bytes
    leaving = []
    for other in sorted(others, key=lambda other: other.last_used):
        if excess > 0 and other.may_go:
            leaving.append(other)
            excess -= other.num_bytes
    if excess > 0:
        raise retry_later(503, f"there is no room for the model {name!r} while other models serve requests; try again "
                          "later", "no_room", RETRY_AFTER_S)
    return leaving

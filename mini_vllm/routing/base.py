"""What every router has: its replicas, and the requests in flight at each of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence

from mini_vllm.checks import refusal

#: A part of a prompt that is equal in two prompts or is not: a tuple of token ids, or a piece of text.
Block = Hashable


class NoReplicaError(RuntimeError):
    """No replica is left to serve a request."""


def check_name(replica: str) -> None:
    """Raise ValueError for a replica without a name."""
    if not isinstance(replica, str) or not replica:
        raise refusal("replica", replica, "a name")


def check_blocks(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Return the blocks as a tuple. Raise ValueError for blocks that cannot be compared."""
    try:
        hash(blocks := tuple(blocks))
    except TypeError:
        raise refusal("blocks", blocks, "a sequence of hashable values") from None
    return blocks


class RequestsInFlight:
    """The replicas, and for each request that is not answered yet, the replica that computes it.

        started("a", "replica-0")      in flight there until  finished("a")
                                       or                     remove_replica("replica-0") returns ["a"]

    A call that raises an error changes nothing.
    """

    def __init__(self) -> None:
        self._loads: dict[str, int] = {}
        #: Request in flight → its replica, in the order in which the requests started.
        self._running: dict[str, str] = {}

    def add_replica(self, replica: str) -> None:
        """Add a replica without requests. Raise ValueError for a replica that is there already."""
        check_name(replica)
        if replica in self._loads:
            raise ValueError(f"replica {replica!r} is there already; remove it before it is added again")
        self._loads[replica] = 0

    def remove_replica(self, replica: str) -> list[str]:
        """Remove a replica, and return the requests that were in flight there, in the order in which they started.

        They are not counted any more. Raise ValueError for an unknown replica.
        """
        if replica not in self._loads:
            raise self._unknown(replica)
        orphans = [request_id for request_id, where in self._running.items() if where == replica]
        for request_id in orphans:
            del self._running[request_id]
        del self._loads[replica]
        return orphans

    def started(self, request_id: str, replica: str) -> None:
        """Count a request at a replica. Raise ValueError if it is in flight already, or for an unknown replica."""
        if request_id in self._running:
            raise ValueError(f"request {request_id!r} is in flight at {self._running[request_id]!r} already")
        if replica not in self._loads:
            raise self._unknown(replica)
        self._running[request_id] = replica
        self._loads[replica] += 1

    def finished(self, request_id: str) -> None:
        """Stop counting a request: it was answered, or it failed. Raise ValueError unless it is in flight."""
        if request_id not in self._running:
            raise ValueError(f"request {request_id!r} is not in flight: it was not routed, has finished, or its "
                             "replica has left")
        self._loads[self._running.pop(request_id)] -= 1

    def replica_of(self, request_id: str) -> str | None:
        """Return the replica of a request in flight, None for any other request."""
        return self._running.get(request_id)

    @property
    def loads(self) -> dict[str, int]:
        """The number of requests in flight at each replica, in the order in which the replicas were added."""
        return dict(self._loads)

    def check_integrity(self) -> None:
        """Raise RuntimeError if the loads are not the numbers of requests in flight."""
        found = dict.fromkeys(self._loads, 0)
        for request_id, replica in self._running.items():
            if replica not in found:
                raise RuntimeError(f"router integrity: request {request_id!r} is in flight at {replica!r}, which has "
                                   "left")
            found[replica] += 1
        if found != self._loads:
            raise RuntimeError(f"router integrity: the loads are {self._loads}, but {found} requests are in flight")

    def _unknown(self, replica: str) -> ValueError:
        return ValueError(f"there is no replica {replica!r}; known are {', '.join(self._loads) or 'none'}")


class Router(ABC):
    """Decides which replica serves a request.

        route("a", blocks) ──▶ "replica-0"      in flight there until  finished("a")
                                                or                     remove_replica("replica-0") returns ["a"]

    A router has no clock and draws no random numbers: the same calls give the same decisions. A call that raises an
    error changes nothing.
    """

    def __init__(self, replicas: Iterable[str] = ()) -> None:
        self._in_flight = RequestsInFlight()
        for replica in replicas:
            self.add_replica(replica)

    @abstractmethod
    def _choose(self, blocks: Sequence[Block]) -> str:
        """Return one of the replicas, of which there is at least one. Change nothing."""

    def _remember(self, replica: str, blocks: Sequence[Block]) -> None:  # noqa: B027
        """Note that ``replica`` is about to cache ``blocks``."""

    def route(self, request_id: str, blocks: Sequence[Block]) -> str:
        """Return the replica for a request whose prompt consists of ``blocks``, and count the request there.

        Raise NoReplicaError without a replica, and ValueError for a request that is in flight already or for blocks
        that cannot be compared.
        """
        blocks = check_blocks(blocks)
        where = self._in_flight.replica_of(request_id)
        if where is not None:
            raise ValueError(f"request {request_id!r} is in flight at {where!r} already")
        if not self.loads:
            raise NoReplicaError(f"no replica can serve request {request_id!r}: none was added, or all have left")
        replica = self._choose(blocks)
        self._in_flight.started(request_id, replica)
        self._remember(replica, blocks)
        return replica

    def finished(self, request_id: str) -> None:
        """Stop counting a request: it was answered, or it failed. Raise ValueError unless it is in flight."""
        self._in_flight.finished(request_id)

    def add_replica(self, replica: str) -> None:
        """Add a replica with an empty cache. A replica that comes back was restarted, so nothing is known about it.

        Raise ValueError for a replica that is there already.
        """
        self._in_flight.add_replica(replica)

    def remove_replica(self, replica: str) -> list[str]:
        """Remove a replica with all that is known about it.

        Return the requests that were in flight there, in the order of their arrival. They are not counted any more:
        route them again, or give them up. Raise ValueError for an unknown replica.
        """
        return self._in_flight.remove_replica(replica)

    @property
    def loads(self) -> dict[str, int]:
        """The number of requests in flight at each replica, in the order in which the replicas were added."""
        return self._in_flight.loads

    def replica_of(self, request_id: str) -> str | None:
        """Return the replica of a request in flight, None for any other request."""
        return self._in_flight.replica_of(request_id)

    def check_integrity(self) -> None:
        """Raise RuntimeError if the loads are not the numbers of requests in flight."""
        self._in_flight.check_integrity()

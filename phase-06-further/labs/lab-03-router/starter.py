"""The router in front of several replicas: which one gets a request.

    prompt ─▶ blocks ─▶ PrefixMap: who has how much of it? ──────┐
              given     tasks 1 and 2                            ├─▶ CacheAwareRouter ─▶ replica
    requests that started and finished ─▶ RequestsInFlight ──────┘    task 4
                                          task 3

The rules of this lab:

 1. **A block counts after the blocks before it.** The same block after other blocks has other keys and values.
 2. **The map has no holes.** A replica that has a block of a prompt has all blocks before it.
 3. **The map only approximates the caches.** The router does not ask the replicas. It remembers what it sent to them,
    and forgets what was used longest ago, as they do.
 4. **A request counts once,** at one replica, from ``route`` until ``finished`` or until the replica leaves.
 5. **Hits never unbalance the replicas by more than ``max_imbalance``.**
 6. **The same calls give the same answers** within one Python process. A router has no clock and draws no random
    numbers.
 7. **A call that raises an error changes nothing.**

A block is a part of a prompt. Two blocks are equal or not; nothing else is known about them. They are whole numbers,
texts or tuples, so they can be the keys of a dict. A replica and a request are strings.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

#: A part of a prompt.
Block = Hashable

#: A router that is made without further arguments.
DEFAULT_MAX_BLOCKS = 2**14
DEFAULT_MAX_IMBALANCE = 16


class NoReplicaError(RuntimeError):
    """No replica is there to serve a request. Given."""


# ---- Tasks 1 and 2: which replica has what


class PrefixMap:
    """Which replica has probably cached which blocks: one tree for all replicas.

        root ─▶ [you are a helpful] {A, B} ─▶ [assistant for law] {A} ─▶ [what is a tort] {A}
                                         └──▶ [assistant for art] {B}

    It has no list of replicas. A replica of which nothing is remembered has nothing cached.
    """

    def __init__(self, max_blocks: int) -> None:
        """Make an empty map that remembers at most ``max_blocks`` blocks of each replica.

        ``max_blocks`` is at least 1; this need not be checked.
        """
        raise NotImplementedError("Task 1: PrefixMap.__init__")

    def touch(self, replica: str, blocks: Sequence[Block]) -> None:
        """Add the ``blocks`` of a prompt to what ``replica`` has, also beyond ``max_blocks``: only ``record`` obeys it.

        After:
        - ``num_cached(blocks)`` of the replica is ``len(blocks)``
        - nothing has changed for the other replicas
        - the replica has used these blocks last of all its blocks: first the last one of ``blocks``, then the one
          before it, and so on, so that the first one is the newest

        The call looks at each of ``blocks`` once, no matter how much is remembered.

        Example::

            >>> prefixes = PrefixMap(max_blocks=100)
            >>> prefixes.touch("A", ["helpful", "law"])
            >>> prefixes.touch("B", ["helpful"])
            >>> prefixes.num_cached(["helpful", "law", "tort"]) == {"A": 2, "B": 1}
            True
        """
        raise NotImplementedError("Task 1: PrefixMap.touch")

    def num_cached(self, blocks: Sequence[Block]) -> dict[str, int]:
        """Say how much of a prompt is cached where.

        The call changes nothing, and looks at each of ``blocks`` at most once.

        Returns:
        - for each replica that has at least the first block, how many of the first ``blocks`` it has, up to the first
          one that it has not
        - no entry for any other replica

        Example::

            >>> prefixes = PrefixMap(max_blocks=100)
            >>> prefixes.touch("A", ["x", "y", "z"])
            >>> prefixes.num_cached(["x", "z"]), prefixes.num_cached(["z"])
            ({'A': 1}, {})
        """
        raise NotImplementedError("Task 1: PrefixMap.num_cached")

    @property
    def num_blocks(self) -> dict[str, int]:
        """The number of blocks that each replica has. A replica without blocks has 0, or no entry."""
        raise NotImplementedError("Task 1: PrefixMap.num_blocks")

    def forget_oldest(self, replica: str) -> None:
        """Forget the block that ``replica`` has used longest ago.

        Before:
        - ``replica`` has at least one block
        After:
        - it has one block less: the one that it has used longest ago
        - nothing has changed for the other replicas

        The call takes as long with a thousand blocks as with one. A block that no replica has takes no memory.

        Example::

            >>> prefixes = PrefixMap(max_blocks=100)
            >>> prefixes.touch("A", ["helpful", "law"])
            >>> prefixes.forget_oldest("A")
            >>> prefixes.num_cached(["helpful", "law"])
            {'A': 1}
        """
        raise NotImplementedError("Task 2: PrefixMap.forget_oldest")

    def forget(self, replica: str) -> None:
        """Forget everything about a replica.

        After:
        - the replica has no block
        - nothing has changed for the other replicas

        A block that no replica has takes no memory. The call is harmless if nothing is remembered of the replica.

        Example::

            >>> prefixes = PrefixMap(max_blocks=100)
            >>> prefixes.touch("A", ["x"])
            >>> prefixes.touch("B", ["x"])
            >>> prefixes.forget("A")
            >>> prefixes.num_cached(["x"])
            {'B': 1}
        """
        raise NotImplementedError("Task 2: PrefixMap.forget")

    def record(self, replica: str, blocks: Sequence[Block]) -> None:
        """Note that ``replica`` is about to cache the ``blocks`` of a prompt.

        After:
        - the replica has the first ``max_blocks`` of ``blocks``, as after ``touch``
        - it has no more than ``max_blocks`` blocks: those that it had used longest ago are forgotten

        Example::

            >>> prefixes = PrefixMap(max_blocks=3)
            >>> prefixes.record("A", ["x", "y"])
            >>> prefixes.record("A", ["u", "v"])
            >>> prefixes.num_cached(["x", "y"]), prefixes.num_cached(["u", "v"])
            ({'A': 1}, {'A': 2})
        """
        raise NotImplementedError("Task 2: PrefixMap.record")



# ---- Task 3: which replica computes what


class RequestsInFlight:
    """The replicas that are there, and for each request that is not answered yet, the replica that computes it.

        started("a", "replica-0")      in flight there until  finished("a")
                                       or                     remove_replica("replica-0") returns ["a"]
    """

    def __init__(self) -> None:
        """Start without replicas and requests."""
        raise NotImplementedError("Task 3: RequestsInFlight.__init__")

    def add_replica(self, replica: str) -> None:
        """Add a replica without requests.

        Raises ValueError if it is there already; nothing changes then.
        """
        raise NotImplementedError("Task 3: RequestsInFlight.add_replica")

    def remove_replica(self, replica: str) -> list[str]:
        """Remove a replica that has failed or is stopped.

        After:
        - the replica is not among ``loads``
        - its requests are not in flight any more: they can start somewhere else
        Returns:
        - the requests that were in flight there, in the order in which they started
        Raises:
        - ValueError if there is no such replica; nothing changes then

        Example::

            >>> in_flight = RequestsInFlight()
            >>> in_flight.add_replica("A")
            >>> in_flight.started("first", "A")
            >>> in_flight.started("second", "A")
            >>> in_flight.remove_replica("A")
            ['first', 'second']
        """
        raise NotImplementedError("Task 3: RequestsInFlight.remove_replica")

    def started(self, request_id: str, replica: str) -> None:
        """Count a request at a replica.

        Raises ValueError if the request is in flight already, or if there is no such replica; nothing changes then.
        """
        raise NotImplementedError("Task 3: RequestsInFlight.started")

    def finished(self, request_id: str) -> None:
        """Stop counting a request: it was answered, or it failed.

        Raises ValueError unless the request is in flight; nothing changes then.
        """
        raise NotImplementedError("Task 3: RequestsInFlight.finished")

    def replica_of(self, request_id: str) -> str | None:
        """Return the replica of a request in flight, None for any other request."""
        raise NotImplementedError("Task 3: RequestsInFlight.replica_of")

    @property
    def loads(self) -> dict[str, int]:
        """The number of requests in flight at each replica, in the order in which the replicas were added.

        Each call returns a new dict.
        """
        raise NotImplementedError("Task 3: RequestsInFlight.loads")


# ---- Task 4: the decision


class CacheAwareRouter:
    """Sends a request where its prefix is cached, unless that replica is busy.

    How much a hit is worth in comparison with load is your decision: a better one gets a better score (see the README).
    A replica has room for about ``max_blocks`` blocks.
    """

    def __init__(self, replicas: Iterable[str] = (), *, max_blocks: int = DEFAULT_MAX_BLOCKS,
                 max_imbalance: int = DEFAULT_MAX_IMBALANCE) -> None:
        """Make a router for these replicas. Nothing is cached yet, and no request is in flight.

        ``max_blocks`` and ``max_imbalance`` are at least 1; this need not be checked.
        """
        raise NotImplementedError("Task 4: CacheAwareRouter.__init__")

    def route(self, request_id: str, blocks: Sequence[Block]) -> str:
        """Choose the replica for a request whose prompt consists of ``blocks``.

        After:
        - the request is in flight at that replica
        - the map has recorded that the replica is about to cache ``blocks``
        Returns:
        - one of the replicas whose load before the call is less than ``max_imbalance`` above the lowest load
        - if all loads are equal: one of the replicas with the most cached blocks
        - if all have equally many cached blocks: one of the replicas with the lowest load
        Raises:
        - ValueError if the request is in flight already; nothing changes then
        - NoReplicaError if there is no replica; nothing changes then

        Example::

            >>> router = CacheAwareRouter(["A", "B"])
            >>> first = router.route("1", ["helpful", "law"])
            >>> second = router.route("2", ["helpful", "art"])
            >>> router.route("3", ["helpful", "law", "tort"]) == first
            True
        """
        raise NotImplementedError("Task 4: CacheAwareRouter.route")


    def finished(self, request_id: str) -> None:
        """Stop counting a request: it was answered, or it failed. What its replica has cached stays, as old as it is.

        Raises ValueError unless the request is in flight; nothing changes then.
        """
        raise NotImplementedError("Task 4: CacheAwareRouter.finished")

    def add_replica(self, replica: str) -> None:
        """Add a replica that has nothing cached.

        Raises ValueError if it is there already; nothing changes then.
        """
        raise NotImplementedError("Task 4: CacheAwareRouter.add_replica")

    def remove_replica(self, replica: str) -> list[str]:
        """Remove a replica with all that is known about it: if it comes back, its cache is empty.

        After:
        - the replica gets no more requests
        - its requests are not in flight any more: ``route`` accepts them again
        - nothing of its cache is remembered
        Returns:
        - the requests that were in flight there, in the order in which they were routed
        Raises:
        - ValueError if there is no such replica; nothing changes then

        Example::

            >>> router = CacheAwareRouter(["A", "B"])
            >>> first = router.route("1", ["helpful", "law"])
            >>> router.remove_replica(first)
            ['1']
            >>> list(router.num_cached(["helpful"]).values())
            [0]
        """
        raise NotImplementedError("Task 4: CacheAwareRouter.remove_replica")

    def num_cached(self, blocks: Sequence[Block]) -> dict[str, int]:
        """Return for every replica how many of the first ``blocks`` it has: 0 if it has none. Changes nothing."""
        raise NotImplementedError("Task 4: CacheAwareRouter.num_cached")

    @property
    def num_blocks(self) -> dict[str, int]:
        """The number of blocks that are remembered of each replica, 0 included."""
        raise NotImplementedError("Task 4: CacheAwareRouter.num_blocks")

    @property
    def loads(self) -> dict[str, int]:
        """The number of requests in flight at each replica, in the order in which the replicas were added.

        Each call returns a new dict.
        """
        raise NotImplementedError("Task 4: CacheAwareRouter.loads")

    def replica_of(self, request_id: str) -> str | None:
        """Return the replica of a request in flight, None for any other request."""
        raise NotImplementedError("Task 4: CacheAwareRouter.replica_of")

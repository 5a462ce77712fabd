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


# SOLUTION ONLY
class _Node:
    """A block after the blocks before it, and the replicas that have it."""

    __slots__ = ("block", "parent", "children", "replicas")

    def __init__(self, block: Block, parent: _Node | None) -> None:
        self.block, self.parent = block, parent
        self.children: dict[Block, _Node] = {}
        self.replicas: set[str] = set()


# END SOLUTION ONLY
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
        # TASK 1: PrefixMap.__init__
        self.max_blocks = max_blocks
        self._root = _Node(None, None)
        # Replica → the nodes that name it, the one that was used longest ago first. The values mean nothing.
        self._nodes: dict[str, OrderedDict[_Node, None]] = {}
        # END TASK

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
        # TASK 1: PrefixMap.touch
        node, path = self._root, []
        for block in blocks:
            if block not in node.children:
                node.children[block] = _Node(block, node)
            node = node.children[block]
            node.replicas.add(replica)
            path.append(node)
        nodes = self._nodes.setdefault(replica, OrderedDict())
        for node in reversed(path):
            nodes[node] = None
            nodes.move_to_end(node)
        # END TASK

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
        # TASK 1: PrefixMap.num_cached
        counts: dict[str, int] = {}
        node = self._root
        for depth, block in enumerate(blocks, start=1):
            if block not in node.children:
                break
            node = node.children[block]
            for replica in node.replicas:
                counts[replica] = depth
        return counts
        # END TASK

    @property
    def num_blocks(self) -> dict[str, int]:
        """The number of blocks that each replica has. A replica without blocks has 0, or no entry."""
        # TASK 1: PrefixMap.num_blocks
        return {replica: len(nodes) for replica, nodes in self._nodes.items()}
        # END TASK

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
        # TASK 2: PrefixMap.forget_oldest
        oldest, _ = self._nodes[replica].popitem(last=False)
        self._take_from(oldest, replica)
        # END TASK

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
        # TASK 2: PrefixMap.forget
        for node in self._nodes.pop(replica, {}):  # a block was used before those above it, so children come first
            self._take_from(node, replica)
        # END TASK

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
        # TASK 2: PrefixMap.record
        self.touch(replica, blocks[:self.max_blocks])
        while self.num_blocks.get(replica, 0) > self.max_blocks:
            self.forget_oldest(replica)
        # END TASK

    # SOLUTION ONLY
    def _take_from(self, node: _Node, replica: str) -> None:
        """Note that ``replica`` does not have this block any more. A node without replicas leaves the tree."""
        node.replicas.remove(replica)
        if not node.replicas and node.parent is not None:
            del node.parent.children[node.block]
    # END SOLUTION ONLY


# ---- Task 3: which replica computes what


class RequestsInFlight:
    """The replicas that are there, and for each request that is not answered yet, the replica that computes it.

        started("a", "replica-0")      in flight there until  finished("a")
                                       or                     remove_replica("replica-0") returns ["a"]
    """

    def __init__(self) -> None:
        """Start without replicas and requests."""
        # TASK 3: RequestsInFlight.__init__
        self._loads: dict[str, int] = {}
        self._running: dict[str, str] = {}
        # END TASK

    def add_replica(self, replica: str) -> None:
        """Add a replica without requests.

        Raises ValueError if it is there already; nothing changes then.
        """
        # TASK 3: RequestsInFlight.add_replica
        if replica in self._loads:
            raise ValueError(f"replica {replica!r} is there already; remove it before it is added again")
        self._loads[replica] = 0
        # END TASK

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
        # TASK 3: RequestsInFlight.remove_replica
        if replica not in self._loads:
            raise ValueError(f"there is no replica {replica!r}; known are {', '.join(self._loads) or 'none'}")
        orphans = [request_id for request_id, where in self._running.items() if where == replica]
        for request_id in orphans:
            del self._running[request_id]
        del self._loads[replica]
        return orphans
        # END TASK

    def started(self, request_id: str, replica: str) -> None:
        """Count a request at a replica.

        Raises ValueError if the request is in flight already, or if there is no such replica; nothing changes then.
        """
        # TASK 3: RequestsInFlight.started
        if request_id in self._running:
            raise ValueError(f"request {request_id!r} is in flight at {self._running[request_id]!r} already")
        if replica not in self._loads:
            raise ValueError(f"there is no replica {replica!r}; known are {', '.join(self._loads) or 'none'}")
        self._running[request_id] = replica
        self._loads[replica] += 1
        # END TASK

    def finished(self, request_id: str) -> None:
        """Stop counting a request: it was answered, or it failed.

        Raises ValueError unless the request is in flight; nothing changes then.
        """
        # TASK 3: RequestsInFlight.finished
        if request_id not in self._running:
            raise ValueError(f"request {request_id!r} is not in flight: it was not started, has finished, or its "
                             "replica has left")
        self._loads[self._running.pop(request_id)] -= 1
        # END TASK

    def replica_of(self, request_id: str) -> str | None:
        """Return the replica of a request in flight, None for any other request."""
        # TASK 3: RequestsInFlight.replica_of
        return self._running.get(request_id)
        # END TASK

    @property
    def loads(self) -> dict[str, int]:
        """The number of requests in flight at each replica, in the order in which the replicas were added.

        Each call returns a new dict.
        """
        # TASK 3: RequestsInFlight.loads
        return dict(self._loads)
        # END TASK


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
        # TASK 4: CacheAwareRouter.__init__
        self.max_imbalance = max_imbalance
        self._map = PrefixMap(max_blocks)
        self._in_flight = RequestsInFlight()
        for replica in replicas:
            self.add_replica(replica)
        # END TASK

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
        # TASK 4: CacheAwareRouter.route
        where = self._in_flight.replica_of(request_id)
        if where is not None:
            raise ValueError(f"request {request_id!r} is in flight at {where!r} already")
        if not self.loads:
            raise NoReplicaError(f"no replica can serve request {request_id!r}: none was added, or all have left")
        replica = self._choose(blocks)
        self._in_flight.started(request_id, replica)
        self._map.record(replica, blocks)
        return replica
        # END TASK

    # SOLUTION ONLY
    def _choose(self, blocks: Sequence[Block]) -> str:
        """Choose by hits and load: a request in flight counts like one missing block.

        Among equals, the replica with the fewest blocks wins, so that new prefixes spread.
        """
        loads, num_cached, num_blocks = self.loads, self.num_cached(blocks), self._map.num_blocks
        bound = min(loads.values()) + self.max_imbalance
        return max((replica for replica, load in loads.items() if load < bound),
                   key=lambda replica: (num_cached[replica] - loads[replica], -num_blocks.get(replica, 0)))
    # END SOLUTION ONLY

    def finished(self, request_id: str) -> None:
        """Stop counting a request: it was answered, or it failed. What its replica has cached stays, as old as it is.

        Raises ValueError unless the request is in flight; nothing changes then.
        """
        # TASK 4: CacheAwareRouter.finished
        self._in_flight.finished(request_id)
        # END TASK

    def add_replica(self, replica: str) -> None:
        """Add a replica that has nothing cached.

        Raises ValueError if it is there already; nothing changes then.
        """
        # TASK 4: CacheAwareRouter.add_replica
        self._in_flight.add_replica(replica)
        # END TASK

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
        # TASK 4: CacheAwareRouter.remove_replica
        orphans = self._in_flight.remove_replica(replica)
        self._map.forget(replica)
        return orphans
        # END TASK

    def num_cached(self, blocks: Sequence[Block]) -> dict[str, int]:
        """Return for every replica how many of the first ``blocks`` it has: 0 if it has none. Changes nothing."""
        # TASK 4: CacheAwareRouter.num_cached
        return {**dict.fromkeys(self.loads, 0), **self._map.num_cached(blocks)}
        # END TASK

    @property
    def num_blocks(self) -> dict[str, int]:
        """The number of blocks that are remembered of each replica, 0 included."""
        # TASK 4: CacheAwareRouter.num_blocks
        return {**dict.fromkeys(self.loads, 0), **self._map.num_blocks}
        # END TASK

    @property
    def loads(self) -> dict[str, int]:
        """The number of requests in flight at each replica, in the order in which the replicas were added.

        Each call returns a new dict.
        """
        # TASK 4: CacheAwareRouter.loads
        return self._in_flight.loads
        # END TASK

    def replica_of(self, request_id: str) -> str | None:
        """Return the replica of a request in flight, None for any other request."""
        # TASK 4: CacheAwareRouter.replica_of
        return self._in_flight.replica_of(request_id)
        # END TASK

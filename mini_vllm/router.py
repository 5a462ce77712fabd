"""The router in front of several replicas: it sends a request where its prefix is cached, unless that replica is busy.

The router never asks a replica what it has cached. It remembers what it sent where, in one tree for all replicas. A
node is a block after the blocks above it, and names the replicas that were sent it:

    root ─▶ [you are a helpful] {A, B} ─▶ [assistant for law] {A} ─▶ [what is a tort] {A}
                                     └──▶ [assistant for art] {B}

    route("you are a helpful | assistant for law | who may sue"):  A has 2 blocks, B has 1

The tree only approximates the caches: a wrong guess costs time, never correctness. The router forgets what a replica
was sent longest ago, as the replica itself does. A replica that has a block has all blocks above it: each use of a
block also renews the blocks above it, so a block is forgotten before the blocks that lead to it.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

from mini_vllm.checks import real_number, refusal, whole_number

DEFAULT_MAX_BLOCKS = 2**14
DEFAULT_MAX_IMBALANCE = 16
DEFAULT_LOAD_WEIGHT = 1.0

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


class _Node:
    """A block after the blocks above it, and the replicas that were sent it."""

    __slots__ = ("block", "parent", "children", "replicas")

    def __init__(self, block: Block, parent: _Node | None) -> None:
        self.block, self.parent = block, parent
        self.children: dict[Block, _Node] = {}
        self.replicas: set[str] = set()


class PrefixMap:
    """Which replica has probably cached which blocks.

    It has no list of replicas: a replica without remembered blocks has nothing cached.
    """

    def __init__(self, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        """Remember at most ``max_blocks`` blocks of each replica: about as many as its cache has room for."""
        self.max_blocks = whole_number("max_blocks", max_blocks, 1)
        self._root = _Node(None, None)
        #: Replica → the nodes that name it, least recently used first. The values mean nothing. (A plain dict finds its
        #: first key slowly after many of its first keys were deleted.)
        self._nodes: dict[str, OrderedDict[_Node, None]] = {}

    def record(self, replica: str, blocks: Sequence[Block]) -> None:
        """Note that ``replica`` is about to cache ``blocks``, but no more than ``max_blocks`` of them.

        Then forget what goes beyond ``max_blocks``: the blocks that were used longest ago.
        """
        self.touch(replica, blocks[:self.max_blocks])
        while self.num_blocks[replica] > self.max_blocks:
            self.forget_oldest(replica)

    def touch(self, replica: str, blocks: Sequence[Block]) -> None:
        """Add ``blocks`` to what ``replica`` has. They are now the blocks that it used last, the first one last of all.

        The first block is worth keeping longest: without it, the ones below are useless.
        """
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

    def num_cached(self, blocks: Sequence[Block]) -> dict[str, int]:
        """Return how many of the first ``blocks`` each replica has; without the replicas that have none of them."""
        counts: dict[str, int] = {}
        node = self._root
        for depth, block in enumerate(blocks, start=1):
            child = node.children.get(block)
            if child is None:
                break
            node = child
            counts.update(dict.fromkeys(node.replicas, depth))
        return counts

    def forget_oldest(self, replica: str) -> None:
        """Forget the block that ``replica`` used longest ago."""
        oldest, _ = self._nodes[replica].popitem(last=False)
        self._take_from(oldest, replica)

    def forget(self, replica: str) -> None:
        """Forget everything about ``replica``."""
        for node in self._nodes.pop(replica, {}):  # a block is older than those above it, so children come first
            self._take_from(node, replica)

    def _take_from(self, node: _Node, replica: str) -> None:
        """Note that ``replica`` does not have this block any more. A node without replicas leaves the tree."""
        node.replicas.remove(replica)
        if not node.replicas and node.parent is not None:
            del node.parent.children[node.block]

    @property
    def num_blocks(self) -> dict[str, int]:
        """The number of blocks remembered of each replica that ever used one."""
        return {replica: len(nodes) for replica, nodes in self._nodes.items()}

    def check_integrity(self) -> None:
        """Raise RuntimeError if the tree and the lists of nodes disagree, or if too much is remembered."""
        found: dict[str, set[_Node]] = {replica: set() for replica in self._nodes}
        todo = list(self._root.children.values())
        while todo:
            node = todo.pop()
            above = node.parent.replicas if node.parent not in (None, self._root) else set(self._nodes)
            if not node.replicas or not node.replicas <= above:
                raise RuntimeError(f"router integrity: block {node.block!r} is at {sorted(node.replicas)}, the block "
                                   f"above it at {sorted(above)}")
            for replica in node.replicas:
                found[replica].add(node)
            todo += node.children.values()
        for replica, nodes in found.items():
            if nodes != set(self._nodes[replica]) or len(nodes) > self.max_blocks:
                raise RuntimeError(f"router integrity: {len(nodes)} blocks of the tree are at {replica!r}, its list "
                                   f"has {len(self._nodes[replica])}, the limit is {self.max_blocks}")


class CacheAwareRouter(Router):
    """Weighs the cached blocks of a replica against its load.

    A replica may get a request if its load is less than ``max_imbalance`` above the lowest load. Among these replicas,
    the one with the most cached blocks wins; each request in flight counts like ``load_weight`` missing blocks. If two
    are equal, the one that was sent less so far wins, so that prefixes spread evenly, and then the older one.
    """

    def __init__(self, replicas: Iterable[str] = (), *, max_blocks: int = DEFAULT_MAX_BLOCKS,
                 max_imbalance: int = DEFAULT_MAX_IMBALANCE, load_weight: float = DEFAULT_LOAD_WEIGHT) -> None:
        """Remember at most ``max_blocks`` blocks of each replica: about as many as its cache has room for."""
        self.max_imbalance = whole_number("max_imbalance", max_imbalance, 1)
        self.load_weight = real_number("load_weight", load_weight, 0)
        self._map = PrefixMap(max_blocks)
        super().__init__(replicas)

    @property
    def max_blocks(self) -> int:
        return self._map.max_blocks

    def remove_replica(self, replica: str) -> list[str]:
        orphans = super().remove_replica(replica)
        self._map.forget(replica)
        return orphans

    def num_cached(self, blocks: Sequence[Block]) -> dict[str, int]:
        """Return for each replica how many of the first blocks it probably has cached."""
        return {**dict.fromkeys(self.loads, 0), **self._map.num_cached(blocks)}

    @property
    def num_blocks(self) -> dict[str, int]:
        """The number of blocks remembered of each replica."""
        return {**dict.fromkeys(self.loads, 0), **self._map.num_blocks}

    def _choose(self, blocks: Sequence[Block]) -> str:
        loads, num_cached, num_blocks = self.loads, self.num_cached(blocks), self.num_blocks
        bound = min(loads.values()) + self.max_imbalance
        return max((replica for replica, load in loads.items() if load < bound), key=lambda replica: (
            num_cached[replica] - self.load_weight * loads[replica], -num_blocks[replica]))

    def _remember(self, replica: str, blocks: Sequence[Block]) -> None:
        self._map.record(replica, blocks)

    def check_integrity(self) -> None:
        """Raise RuntimeError if the router has counted wrongly, or remembers what it should not."""
        super().check_integrity()
        self._map.check_integrity()


# ---- routers to compare with: they know nothing about what a replica has cached, or remember nothing


class RoundRobinRouter(Router):
    """Gives each replica a request in turn. Each prefix is soon computed on every replica."""

    def __init__(self, replicas: Iterable[str] = ()) -> None:
        self._num_routed = 0
        super().__init__(replicas)

    def _choose(self, blocks: Sequence[Block]) -> str:
        return list(self.loads)[self._num_routed % len(self.loads)]

    def _remember(self, replica: str, blocks: Sequence[Block]) -> None:
        self._num_routed += 1


class FirstBlockRouter(Router):
    """Gives requests with the same first block to the same replica, whatever its load.

    The replica with the highest hash wins (rendezvous hashing): if a replica leaves, only its own prefixes move.
    """

    def _choose(self, blocks: Sequence[Block]) -> str:
        first = blocks[0] if len(blocks) else None
        return max(self.loads, key=lambda replica: zlib.crc32(f"{replica} {first!r}".encode("utf-8", "replace")))

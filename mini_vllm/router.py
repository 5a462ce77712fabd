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

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from mini_vllm.checks import real_number, whole_number
from mini_vllm.routing.base import Block, Router

DEFAULT_MAX_BLOCKS = 2**14
DEFAULT_MAX_IMBALANCE = 16
DEFAULT_LOAD_WEIGHT = 1.0


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

"""Lab 3.5: what a prefix cache forgets. The arena in which an eviction policy is tried on a trace of requests.

    request   A ─ B ─ C ─ D        a chain of blocks from the root
    cached    A ─ B                the longest prefix that is there is a hit: 2 of 4 blocks
    computed          C ─ D        takes room: if the cache is full, the policy says which block goes
    at its end                     freed(D), freed(C), freed(B), freed(A): they stay, and may be forgotten

One request runs at a time, and its own blocks cannot go while it runs. A policy sees nothing but these calls, so it
does not know what will be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from course.testing.measure import deferring, repeated


class Block(NamedTuple):
    """One block of a chain. ``key`` stands for its tokens and all before it: no two blocks of a trace have the same."""

    key: int
    #: The key of the block before it; None for the first block of a request.
    parent: int | None
    #: How many blocks stand before it.
    depth: int


#: What a request asks for: its blocks from the root, each the child of the one before.
Chain = tuple[Block, ...]


@dataclass(frozen=True)
class Trace:
    """Requests, one after the other, and the cache that they find. Raises ValueError if one could not be served."""

    name: str
    #: How many blocks the cache holds.
    num_blocks: int
    requests: Sequence[Chain]

    def __post_init__(self) -> None:
        for chain in self.requests:
            if not 0 < len(chain) <= self.num_blocks:
                raise ValueError(f"trace {self.name!r}: a request has {len(chain)} blocks, must be within 1 and "
                                 f"{self.num_blocks}, the size of the cache")
            parent = None
            for depth, block in enumerate(chain):
                if block.depth != depth or block.parent != parent:
                    raise ValueError(f"trace {self.name!r}: {block} stands at depth {depth} of its request, after the "
                                     f"block with key {parent}")
                parent = block.key

    @property
    def num_asked(self) -> int:
        return sum(len(chain) for chain in self.requests)


class EvictionPolicy(Protocol):
    """What the arena asks of a policy; the lab's ``EvictionPolicy`` has the contract."""

    def freed(self, block: Block) -> None: ...

    def taken(self, block: Block) -> None: ...

    def evict(self) -> Block: ...


PolicyClass = Callable[[int], EvictionPolicy]


class IllegalEviction(Exception):
    """A policy named a block that cannot go."""


class Served(NamedTuple):
    """What became of one request."""

    num_hits: int
    #: The blocks that went to make room for it, in this order.
    gone: list[Block]


class PrefixCache:
    """A cache, and a new policy that says what it forgets. It is handed one request at a time."""

    # The future does not lie in the open: of the functions of this module, none that runs while a policy is asked has a
    # variable with the trace or its requests. This keeps out who looks at the frame that called, and no more. Who calls
    # num_hits has the trace, an iterator can be copied, the garbage collector finds everything, and a file may import
    # the traces: in one process there is no hiding. A lab's test compares two traces that differ in their second half.

    def __init__(self, name: str, num_blocks: int, policy_class: PolicyClass) -> None:
        """``name`` is for messages: what the requests are of."""
        self._name = name
        self._num_blocks = num_blocks
        self._policy = deferring(policy_class(num_blocks), "freed", "taken")
        self._cached: dict[int, Block] = {}
        self._num_served = 0

    def serve(self, chain: Chain) -> Served:
        """Run one request to its end.

        If a block went before its descendants, these are still there, but no hit reaches them. A request that asks for
        them computes them again, in their old places: the policy hears ``taken``, and it is no hit.
        Raises IllegalEviction for an answer that is no block, or one that is in use or not cached.
        """
        policy, cached = self._policy, self._cached
        self._num_served += 1
        num_hits = next((depth for depth, block in enumerate(chain) if block.key not in cached), len(chain))
        missing = [block for block in chain if block.key not in cached]
        for block in chain:
            if block.key in cached:
                policy.taken(block)
        in_use = {block.key for block in chain}
        gone = []
        for block in repeated(policy, "evict", max(0, len(cached) + len(missing) - self._num_blocks)):
            _check_answer(block, cached, in_use, f"request {self._num_served} of {self._name!r} needs room, evict()")
            gone.append(block)
            del cached[block.key]
        cached.update((block.key, block) for block in missing)
        for block in reversed(chain):
            policy.freed(block)
        return Served(num_hits, gone)


def play(trace: Trace, policy_class: PolicyClass) -> Iterator[Served]:
    """Serve the requests of ``trace`` one after the other, from an empty cache; see ``PrefixCache``."""
    name, num_blocks, requests = trace.name, trace.num_blocks, iter(trace.requests)
    del trace
    cache = PrefixCache(name, num_blocks, policy_class)
    for chain in requests:
        yield cache.serve(chain)


def num_hits(trace: Trace, policy_class: PolicyClass) -> int:
    """How many blocks of ``trace`` are found in the cache if a new policy of this class says what is forgotten.

    Raises IllegalEviction for an answer that is no block, or one that is in use or not cached.
    """
    run = play(trace, policy_class)
    del trace
    return sum(served.num_hits for served in run)


def _check_answer(block: object, cached: dict[int, Block], in_use: set[int], call: str) -> None:
    if not isinstance(block, Block):
        raise IllegalEviction(f"{call} returned {block!r}, expected a Block that was freed and not taken since")
    if block.key in in_use:
        raise IllegalEviction(f"{call} returned {block}, which the running request uses: "
                              "only a block that was freed and not taken since may go")
    if cached.get(block.key) != block:
        raise IllegalEviction(f"{call} returned {block}, which is not in the cache: it went before, or never was there")

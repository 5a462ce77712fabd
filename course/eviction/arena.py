"""Lab 3.5: the arena, a simulated prefix cache in which an eviction policy serves a trace of requests.

    request   A ─ B ─ C ─ D        a chain of blocks from the root
    cached    A ─ B                the longest cached prefix is a hit: 2 of 4 blocks
    computed          C ─ D        needs room: if the cache is full, the policy chooses the block to evict
    ends                           freed(D), freed(C), freed(B), freed(A): still cached, and may be evicted

One request runs at a time, and its own blocks cannot be evicted while it runs. A policy sees nothing but these calls,
so it does not know future requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from course.testing.measure import deferring, repeated


class Block(NamedTuple):
    """One block of a chain. ``key`` represents its tokens and all tokens before them; it is unique in a trace."""

    key: int
    #: The key of the block before this one; None for the first block of a request.
    parent: int | None
    #: The number of blocks before this one.
    depth: int


#: The blocks of a request from the root on; each block is the child of the block before it.
Chain = tuple[Block, ...]


@dataclass(frozen=True)
class Trace:
    """A sequence of requests and the size of the cache. Raises ValueError if the cache could not serve a request."""

    name: str
    #: The number of blocks in the cache.
    num_blocks: int
    requests: Sequence[Chain]

    def __post_init__(self) -> None:
        for chain in self.requests:
            if not 0 < len(chain) <= self.num_blocks:
                raise ValueError(f"trace {self.name!r}: a request has {len(chain)} blocks, must have between 1 "
                                 f"and {self.num_blocks}, the size of the cache")
            parent = None
            for depth, block in enumerate(chain):
                if block.depth != depth or block.parent != parent:
                    raise ValueError(f"trace {self.name!r}: {block} is at depth {depth} of its request, after the "
                                     f"block with key {parent}")
                parent = block.key

    @property
    def num_asked(self) -> int:
        return sum(len(chain) for chain in self.requests)


class EvictionPolicy(Protocol):
    """The methods that the arena calls; the lab's ``EvictionPolicy`` documents the contract."""

    def freed(self, block: Block) -> None: ...

    def taken(self, block: Block) -> None: ...

    def evict(self) -> Block: ...


PolicyClass = Callable[[int], EvictionPolicy]


class IllegalEviction(Exception):
    """A policy named a block that cannot be evicted."""


class Served(NamedTuple):
    """The outcome of one request."""

    num_hits: int
    #: The blocks that were evicted to make room for the request, in this order.
    gone: list[Block]


class PrefixCache:
    """A simulated cache with a new policy, which chooses the blocks to evict. It serves one request at a time."""

    # Future requests are kept out of plain sight: while a policy is being called, no running function of this module
    # has a variable that holds the trace or its requests. This only stops a policy that inspects its caller's frame.
    # Nothing can be hidden within one process: the caller of num_hits has the trace, an iterator can be copied, the
    # garbage collector finds every object, and a policy's file may import the traces. So a test of the lab also
    # compares two traces that differ in their second half.

    def __init__(self, name: str, num_blocks: int, policy_class: PolicyClass) -> None:
        """Create an empty cache. ``name`` says where the requests come from, for error messages."""
        self._name = name
        self._num_blocks = num_blocks
        self._policy = deferring(policy_class(num_blocks), "freed", "taken")
        self._cached: dict[int, Block] = {}
        self._num_served = 0

    def serve(self, chain: Chain) -> Served:
        """Run one request to its end.

        If a block is evicted before its descendants, they stay in the cache, but no request can find them. A request
        that needs them computes them again, in their old places: the policy gets ``taken``, but this is not a hit.

        Raise IllegalEviction if the policy's answer is not a block, or is a block that is in use or not cached.
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
            _check_answer(block, cached, in_use,
                          f"request {self._num_served} of {self._name!r} needs room, but evict()")
            gone.append(block)
            del cached[block.key]
        cached.update((block.key, block) for block in missing)
        for block in reversed(chain):
            policy.freed(block)
        return Served(num_hits, gone)


def play(trace: Trace, policy_class: PolicyClass) -> Iterator[Served]:
    """Serve the requests of ``trace`` one after another, from an empty cache; see ``PrefixCache``."""
    name, num_blocks, requests = trace.name, trace.num_blocks, iter(trace.requests)
    del trace
    cache = PrefixCache(name, num_blocks, policy_class)
    for chain in requests:
        yield cache.serve(chain)


def num_hits(trace: Trace, policy_class: PolicyClass) -> int:
    """Count the blocks of ``trace`` that are found in the cache with a new policy of this class.

    Raise IllegalEviction if the policy's answer is not a block, or is a block that is in use or not cached.
    """
    run = play(trace, policy_class)
    del trace
    return sum(served.num_hits for served in run)


def _check_answer(block: object, cached: dict[int, Block], in_use: set[int], call: str) -> None:
    if not isinstance(block, Block):
        raise IllegalEviction(f"{call} returned {block!r}, expected a Block that was freed and not taken since")
    if block.key in in_use:
        raise IllegalEviction(f"{call} returned {block}, which the running request uses: "
                              "only a block that was freed and not taken since may be evicted")
    if cached.get(block.key) != block:
        raise IllegalEviction(f"{call} returned {block}, which is not in the cache: it was evicted before, or was "
                              "never cached")

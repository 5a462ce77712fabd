"""Lab 3.5: what a prefix cache forgets. The arena in which an eviction policy is tried on a trace of requests.

    request   A ─ B ─ C ─ D        a chain of blocks from the root
    cached    A ─ B                the longest prefix that is there is a hit: 2 of 4 blocks
    computed          C ─ D        takes room: if the cache is full, the policy says which block goes
    at its end                     freed(D), freed(C), freed(B), freed(A): they stay, and may be forgotten

One request runs at a time, and its own blocks cannot go while it runs. A policy sees nothing but these calls, so it
does not know what will be asked for.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


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


class Policy(Protocol):
    """What the arena asks of a policy; the lab's ``EvictionPolicy`` has the contract."""

    def freed(self, block: Block) -> None: ...

    def taken(self, block: Block) -> None: ...

    def evict(self) -> Block: ...


PolicyClass = Callable[[int], Policy]


class IllegalEviction(Exception):
    """A policy named a block that cannot go."""


def num_hits(trace: Trace, policy_class: PolicyClass) -> int:
    """How many blocks of ``trace`` are found in the cache if a new policy of this class says what is forgotten.

    If a block goes before its descendants, these are still there, but no hit reaches them. A request that asks for
    them computes them again, in their old places: the policy hears ``taken``, and it is no hit.
    Raises IllegalEviction for an answer that is no block, or one that is in use or not cached.
    """
    policy = policy_class(trace.num_blocks)
    cached: dict[int, Block] = {}
    hits = 0
    for number, chain in enumerate(trace.requests, start=1):
        hits += next((depth for depth, block in enumerate(chain) if block.key not in cached), len(chain))
        missing = [block for block in chain if block.key not in cached]
        for block in chain:
            if block.key in cached:
                policy.taken(block)
        in_use = {block.key for block in chain}
        for block in missing:
            if len(cached) == trace.num_blocks:
                gone = policy.evict()
                _check_answer(gone, cached, in_use, f"request {number} of {trace.name!r} needs room, evict()")
                del cached[gone.key]
            cached[block.key] = block
        for block in reversed(chain):
            policy.freed(block)
    return hits


def _check_answer(block: object, cached: dict[int, Block], in_use: set[int], call: str) -> None:
    if not isinstance(block, Block):
        raise IllegalEviction(f"{call} returned {block!r}, expected a Block that was freed and not taken since")
    if block.key in in_use:
        raise IllegalEviction(f"{call} returned {block}, which the running request uses: "
                              "only a block that was freed and not taken since may go")
    if cached.get(block.key) != block:
        raise IllegalEviction(f"{call} returned {block}, which is not in the cache: it went before, or never was there")


def remembered_keys(policy: object, keys: set[int]) -> set[int]:
    """Which of these keys can be reached from ``policy``, in whatever it keeps: blocks, keys, lists, dictionaries.

    Keys must be numbers that mean nothing else to a policy, such as those from a billion on. A block counts as itself;
    that it names its parent does not count.
    """
    found: set[int] = set()
    seen: set[int] = set()
    todo: list[object] = [policy]
    while todo:
        thing = todo.pop()
        if isinstance(thing, (int, Block)):
            found.update({thing.key if isinstance(thing, Block) else thing} & keys)
        elif id(thing) not in seen and not isinstance(thing, (type, types.FunctionType, types.ModuleType)):
            seen.add(id(thing))
            todo += gc.get_referents(thing)
    return found

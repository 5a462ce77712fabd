"""The state of a pool at one moment, as data: read from live objects, or from one step of a trace.

Only names that every implementation has are used (``blocks``, ``ref_cnt``, ``block_hash``, ``is_null``,
``get_block_ids``, and ``pending_copies`` if it exists), so that a student's pool can be drawn like the reference's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mini_vllm.request import Request
from mini_vllm.trace.files import draft_of
from mini_vllm.trace.recorder import StepTrace

#: A token whose position is known, but not its id.
UNKNOWN_TOKEN = -1


class AnyBlock(Protocol):
    block_id: int
    ref_cnt: int
    block_hash: Hashable | None
    is_null: bool


class AnyQueue(Protocol):
    def get_all_free_blocks(self) -> Sequence[AnyBlock]: ...


class AnyPool(Protocol):
    @property
    def blocks(self) -> Sequence[AnyBlock]: ...

    @property
    def free_block_queue(self) -> AnyQueue: ...


class AnyManager(Protocol):
    @property
    def block_size(self) -> int: ...

    @property
    def block_pool(self) -> AnyPool: ...

    def get_block_ids(self, request_id: str) -> list[int]: ...


@dataclass(frozen=True)
class BlockState:
    block_id: int
    ref_cnt: int = 0
    #: Whether its contents are cached.
    is_cached: bool = False
    is_null: bool = False
    #: The requests whose tables name it, in the order of the tables.
    owners: tuple[str, ...] = ()
    #: Whether no block table names it, and only a pending copy holds it.
    is_kept: bool = False

    @property
    def kind(self) -> str:
        if self.is_null:
            return "null"
        if self.ref_cnt == 0:
            return "cached" if self.is_cached else "empty"
        if self.is_kept:
            return "kept"
        return "shared" if self.ref_cnt > 1 else "used"


@dataclass(frozen=True)
class PoolState:
    blocks: list[BlockState]
    #: Request id → block ids.
    tables: dict[str, list[int]] = field(default_factory=dict)
    #: Request id → the known tokens in its blocks.
    token_ids: dict[str, list[int]] = field(default_factory=dict)
    block_size: int | None = None
    #: Copies that are planned but not made yet, as block ids (source, destination).
    copies: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of_pool(cls, pool: AnyPool, tables: Mapping[str, Sequence[int | AnyBlock]] | None = None) -> PoolState:
        """Read the state of a pool. ``tables``, if given, maps each request to its blocks or block ids."""
        known = {name: [block if isinstance(block, int) else block.block_id for block in table]
                 for name, table in (tables or {}).items()}
        return cls(_blocks_of(pool, known), known, copies=_copies_of(pool))

    @classmethod
    def of_manager(cls, manager: AnyManager, requests: Iterable[Request]) -> PoolState:
        """Read the state of a manager's pool. Requests that hold no blocks get no table."""
        by_id = {request.request_id: request for request in requests}
        tables = {name: table for name in by_id if (table := manager.get_block_ids(name))}
        tokens = {name: list(by_id[name].all_token_ids[:by_id[name].num_computed_tokens]) for name in tables}
        return cls(_blocks_of(manager.block_pool, tables), tables, tokens, manager.block_size,
                   _copies_of(manager.block_pool))

    @classmethod
    def of_step(cls, trace: StepTrace, index: int) -> PoolState:
        """Read the state planned for step ``index``, with the tokens that exist after the step.

        A trace contains the number of tokens, but not their ids.
        """
        state = cls._of_plan(trace, index)
        nums = {name: sum(span) + draft_of(step, name)[1]
                for step in trace.steps[:index + 1] for name, span in step["tokens"].items()}
        state.token_ids.update({name: [UNKNOWN_TOKEN] * nums[name] for name in state.tables if name in nums})
        return state

    @classmethod
    def _of_plan(cls, trace: StepTrace, index: int) -> PoolState:
        """Read only the blocks and tables. A trace records only changes, so it is read from its beginning."""
        tables: dict[str, list[int]] = {}
        states: dict[int, tuple[int, bool]] = {}
        for step in trace.steps[:index + 1]:
            tables |= step["tables"]
            states |= {block_id: (ref_cnt, bool(is_cached)) for block_id, ref_cnt, is_cached in step["blocks"]}
        tables = {name: table for name, table in tables.items() if table}
        copies = tuple((source, copy) for source, copy in trace.steps[index]["copies"])
        owners, copied = _owners(tables), {block_id for pair in copies for block_id in pair}
        blocks = [BlockState(0, is_null=True)]
        blocks += [BlockState(block_id, *states.get(block_id, (0, False)), owners=owners.get(block_id, ()),
                              is_kept=block_id in copied and block_id not in owners)
                   for block_id in range(1, trace.header["num_blocks"])]
        return cls(blocks, tables, block_size=trace.header["block_size"], copies=copies)


def _blocks_of(pool: AnyPool, tables: Mapping[str, Sequence[int]]) -> list[BlockState]:
    owners, copied = _owners(tables), {block_id for pair in _copies_of(pool) for block_id in pair}
    return [BlockState(block.block_id, block.ref_cnt, block.block_hash is not None, block.is_null,
                       owners.get(block.block_id, ()), bool(tables) and block.block_id in copied - owners.keys())
            for block in pool.blocks]


def _copies_of(pool: AnyPool) -> tuple[tuple[int, int], ...]:
    """Return the pending copies; none for a pool of lab 2.1, which has no such attribute."""
    return tuple((source.block_id, copy.block_id) for source, copy in getattr(pool, "pending_copies", ()))


def _owners(tables: Mapping[str, Sequence[int]]) -> dict[int, tuple[str, ...]]:
    owners: dict[int, tuple[str, ...]] = {}
    for request_id, table in tables.items():
        for block_id in dict.fromkeys(table):
            owners[block_id] = (*owners.get(block_id, ()), request_id)
    return owners

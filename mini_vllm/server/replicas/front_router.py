"""The front's own router: it remembers a prompt once it was answered, and no caller's prompts push out all others.

Anyone can send long prompts that a replica rejects. If the router remembered those, they would push out the prompts
that the replicas really have in their caches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

from mini_vllm.router import Block, CacheAwareRouter, PrefixMap
from mini_vllm.server.replicas.prompt_blocks import owner_of

#: The first blocks of a prompt that is not answered yet, with which new prompts are compared.
MAX_ASKED = 64


class FrontRouter(CacheAwareRouter):
    """Expects a block at a replica if it was computed there, or if a request in flight computes it there."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._map = CallerMaps(self.max_blocks)
        #: Request in flight → the blocks of its prompt.
        self._asked: dict[str, tuple[Block, ...]] = {}

    def route(self, request_id: str, blocks: Sequence[Block]) -> str:
        replica = super().route(request_id, blocks)
        self._asked[request_id] = tuple(blocks)
        return replica

    def _remember(self, replica: str, blocks: Sequence[Block]) -> None:
        """Wait for the answer."""

    def answered(self, request_id: str) -> None:
        """Note that the replica of a request in flight has computed its prompt."""
        replica = self.replica_of(request_id)
        if replica is not None:
            self._map.record(replica, self._asked[request_id])

    def finished(self, request_id: str) -> None:
        super().finished(request_id)
        del self._asked[request_id]

    def remove_replica(self, replica: str) -> list[str]:
        orphans = super().remove_replica(replica)
        for request_id in orphans:
            del self._asked[request_id]
        return orphans

    def num_cached(self, blocks: Sequence[Block]) -> dict[str, int]:
        counts = super().num_cached(blocks)
        for request_id, asked in self._asked.items():
            replica = self.replica_of(request_id)
            if replica is not None and asked[:1] == tuple(blocks[:1]):
                counts[replica] = max(counts[replica], _num_shared(asked[:MAX_ASKED], blocks))
        return counts


class CallerMaps(PrefixMap):
    """One map per caller. If a replica has too many blocks, the caller with the most of them loses its oldest."""

    def __init__(self, max_blocks: int) -> None:
        super().__init__(max_blocks)
        self._maps: defaultdict[str | None, PrefixMap] = defaultdict(partial(PrefixMap, max_blocks))

    def record(self, replica: str, blocks: Sequence[Block]) -> None:
        if not blocks:
            return
        self._maps[_caller(blocks)].touch(replica, blocks[:self.max_blocks])
        sizes = {each: each.num_blocks.get(replica, 0) for each in self._maps.values()}
        for _ in range(sum(sizes.values()) - self.max_blocks):
            largest = max(sizes, key=lambda each: sizes[each])
            largest.forget_oldest(replica)
            sizes[largest] -= 1

    def num_cached(self, blocks: Sequence[Block]) -> dict[str, int]:
        return self._maps[_caller(blocks)].num_cached(blocks) if blocks else {}

    def forget(self, replica: str) -> None:
        for each in self._maps.values():
            each.forget(replica)

    @property
    def num_blocks(self) -> dict[str, int]:
        return dict(sum((Counter(each.num_blocks) for each in self._maps.values()), Counter()))

    def check_integrity(self) -> None:
        for each in self._maps.values():
            each.check_integrity()


def _caller(blocks: Sequence[Block]) -> str | None:
    return owner_of(blocks[0])[1]


def _num_shared(one: Sequence[Block], other: Sequence[Block]) -> int:
    return next((place for place, (left, right) in enumerate(zip(one, other)) if left != right),
                min(len(one), len(other)))

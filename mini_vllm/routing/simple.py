"""Routers to compare with: they know nothing about what a replica has cached, or remember nothing."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from mini_vllm.routing.base import Block, Router


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

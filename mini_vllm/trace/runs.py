"""The elements of one row of a replayed trace: runs of equal cells."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

PROMPT, AGAIN, DECODE, DRAFTED, FORKED = "prompt", "recomputed", "decode", "drafted", "forked"
WAITING, IDLE, PREEMPTED = "waiting", "idle", "preempted"
USED, SHARED, CACHED, KEPT = "used", "shared", "cached", "kept"


@dataclass
class Run:
    """Adjacent equal cells in one row, from step ``first`` to step ``last``."""

    first: int
    last: int
    kind: str
    num_tokens: int = 0
    #: Tokens of the request that were computed before ``first``.
    num_before: int = 0
    #: How many of ``num_tokens`` the request had before, computed or found in the cache, and lost.
    num_again: int = 0
    is_sampled: bool = False
    #: Guessed tokens that were computed besides ``num_tokens``, and those of them that were right.
    num_drafted: int = 0
    num_accepted: int = 0
    #: For a block: the requests whose tables contain it.
    owners: tuple[str, ...] = ()
    #: For a block: [(step, slots that hold a token from that step on)].
    levels: list[tuple[int, int]] = field(default_factory=list)

    @property
    def steps(self) -> str:
        return f"step {self.first}" if self.first == self.last else f"steps {self.first} to {self.last}"

    def is_continued_by(self, cell: Run) -> bool:
        """Check whether the next step continues this run: the same activity, with the tokens that follow."""
        num_before = self.num_before + (self.num_tokens + self.num_accepted) * (self.last + 1 - self.first)
        return cell == replace(self, first=self.last + 1, last=self.last + 1, num_before=num_before)


@dataclass(frozen=True)
class Totals:
    """The tokens that one step computed, by kind, and the number of blocks in use."""

    num_prompt: int = 0
    num_again: int = 0
    num_decode: int = 0
    num_used_blocks: int = 0
    num_drafted: int = 0
    num_accepted: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + self.num_again + self.num_decode + self.num_drafted


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

"""The latest decisions of the router, and the beginnings of the latest prompts: what the live page shows.

Everything here is bounded, whatever clients send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mini_vllm.router import Block
from mini_vllm.server.replicas.router_numbers import RouterError, failure, numbers_of

#: The number of decisions, of different prompts, and of blocks of a prompt that are kept.
MAX_DECISIONS, MAX_PROMPTS, MAX_BLOCKS = 50, 16, 32


@dataclass
class Decision:
    """Where the router sent a request, and what happened there. A request that is sent again gets a new decision."""

    number: int
    #: What is shown of the prompt.
    text: str
    num_blocks: int
    #: Replica → the number of cached blocks that the router expected there before it decided, if it can tell.
    expected: dict[str, int] | None = None
    replica: str | None = None
    #: The status of the answer, or a few words if there is none.
    status: str = "running"
    #: How the router failed.
    error: str | None = None

    def fail(self, name: str, error: Exception) -> None:
        """Note that the method ``name`` of the router raised an error."""
        self.error = str(failure(name, error))

    @property
    def was_answered(self) -> bool:
        return self.status.isdigit()


class RoutingLog:
    """Keeps the latest decisions and prompts."""

    def __init__(self) -> None:
        self.num_decisions = 0
        self._decisions: deque[Decision] = deque(maxlen=MAX_DECISIONS)
        #: The first blocks of each prompt, the latest prompt last. The values mean nothing.
        self._prompts: dict[tuple[Block, ...], None] = {}

    def begin(self, router: object, up: Iterable[str], text: str, blocks: Sequence[Block]) -> Decision:
        """Note that ``router`` is about to choose one of the replicas that are up."""
        self.num_decisions += 1
        decision = Decision(self.num_decisions, text, len(blocks))
        self._decisions.append(decision)
        if prompt := tuple(blocks[:MAX_BLOCKS]):
            self._prompts.pop(prompt, None)
            self._prompts[prompt] = None
            if len(self._prompts) > MAX_PROMPTS:
                del self._prompts[next(iter(self._prompts))]
        try:
            decision.expected = numbers_of(router, "num_cached", up, tuple(blocks))
        except RouterError as error:
            decision.error = str(error)
        return decision

    def decisions(self) -> list[Decision]:
        """Return the decisions, the latest one first."""
        return [*reversed(self._decisions)]

    def prompts(self) -> list[tuple[Block, ...]]:
        """Return the first blocks of the latest different prompts, the latest one first."""
        return [*reversed(self._prompts)]

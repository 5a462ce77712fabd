"""The replicas: which of them are up, and which one serves a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from mini_vllm.router import Block, Router
from mini_vllm.server.errors import ApiError, retry_later
from mini_vllm.server.replicas.exchange import Address, Connections, ReplicaError
from mini_vllm.server.replicas.front_router import FrontRouter
from mini_vllm.server.replicas.routing_log import Decision, RoutingLog

log = logging.getLogger("mini_vllm.server")

#: How often each replica is asked whether it is well, how long it may take to answer, and how many checks in a row may
#: fail. A busy replica answers late. One that refuses the connection is down at once.
CHECK_S, CHECK_TIMEOUT_S, MAX_LATE_CHECKS = 1.0, 5.0, 3
#: The Retry-After of a client when no replica is up.
RETRY_AFTER_S = 5.0


@dataclass
class Replica:
    """One server, and what is known about it."""

    name: str
    connections: Connections
    is_up: bool = False
    num_late_checks: int = 0
    num_routed: int = 0
    num_answered: int = 0
    #: Set when a request failed there: do not wait for the next check.
    suspect: asyncio.Event = field(default_factory=asyncio.Event)


class Fleet:
    """All replicas behind one router. It belongs to one event loop."""

    health_path = b"/health"

    def __init__(self, addresses: Mapping[str, Address], router: Router | None = None,
                 check_s: float = CHECK_S) -> None:
        self.router = FrontRouter() if router is None else router
        self.replicas = {name: Replica(name, Connections(address)) for name, address in addresses.items()}
        self.check_s = check_s
        #: Requests that were sent to another replica because the first one failed.
        self.num_moved = 0
        self.log = RoutingLog()

    # ---- a request

    @asynccontextmanager
    async def routed(self, request_id: str, blocks: Sequence[Block],
                     text: str = "") -> AsyncIterator[tuple[Replica, Decision]]:
        """Choose a replica for a request, and count the request there. Raise ApiError if no replica is up.

        The caller sets the status of the decision. ``text`` is shown for the prompt.
        """
        decision = self.log.begin(self.router, [replica.name for replica in self.up()], text, blocks)
        try:
            replica = self._choose(request_id, blocks, decision)
            try:
                yield replica, decision
            finally:
                replica.num_answered += decision.was_answered
        finally:
            self._finished(request_id, decision)

    def _choose(self, request_id: str, blocks: Sequence[Block], decision: Decision) -> Replica:
        if not self.up():  # a student's router has an exception of its own for this
            decision.status = "no replica"
            raise nothing_up()
        try:
            replica = self.replicas[self.router.route(request_id, blocks)]
        except Exception as error:  # the router may be a student's
            decision.status = "router failed"
            decision.fail("route", error)
            raise
        decision.replica = replica.name
        replica.num_routed += 1
        return replica

    def _finished(self, request_id: str, decision: Decision) -> None:
        try:
            if self.router.replica_of(request_id) is not None:  # None if the replica has left meanwhile
                if isinstance(self.router, FrontRouter) and decision.status == "200":
                    self.router.answered(request_id)
                self.router.finished(request_id)
        except Exception as error:  # the client has its answer already
            log.exception("the router failed")
            decision.fail("finished", error)

    def first(self) -> Replica:
        """Return the first replica that is up. Raise ApiError if none is."""
        for replica in self.up():
            return replica
        raise nothing_up()

    def up(self) -> list[Replica]:
        return [replica for replica in self.replicas.values() if replica.is_up]

    # ---- up and down

    def arrive(self, replica: Replica) -> None:
        if not replica.is_up:
            self.router.add_replica(replica.name)
            log.info("%s is up at %s", replica.name, replica.connections.address)
            replica.is_up = True

    def leave(self, replica: Replica, why: object, *, cut_off: bool = False) -> None:
        """Send no more requests to ``replica``. If ``cut_off``, break off the answers in progress there."""
        if replica.is_up:
            log.warning("%s is down: %s", replica.name, why)
            replica.is_up = False
            self.router.remove_replica(replica.name)
        if cut_off:
            replica.connections.abort()

    def failed(self, replica: Replica, why: ReplicaError) -> None:
        """Note that a request failed at ``replica``."""
        self.leave(replica, why)
        replica.suspect.set()

    def move(self, replica: Replica, address: Address) -> None:
        """Note that a replica was started again, at another address."""
        self.leave(replica, "it was started again", cut_off=True)
        replica.connections = Connections(address)
        replica.suspect.set()

    async def check(self, replica: Replica) -> None:
        """Ask a replica whether it is well, and note the answer."""
        try:
            status = await asyncio.wait_for(self._health(replica), CHECK_TIMEOUT_S)
        except ReplicaError as error:
            replica.num_late_checks = 0
            # A server that drains has closed its port, and finishes what it has begun. If it has died instead, the
            # system has closed its connections, so nothing waits for it.
            self.leave(replica, error, cut_off=not error.was_refused)
        except asyncio.TimeoutError:
            replica.num_late_checks += 1
            if replica.num_late_checks >= MAX_LATE_CHECKS:
                self.leave(replica, f"{MAX_LATE_CHECKS} checks in a row took more than {CHECK_TIMEOUT_S:g} s",
                           cut_off=True)
        else:
            replica.num_late_checks = 0
            if status == 200:
                self.arrive(replica)
            else:  # it stops: it may finish what it has begun
                self.leave(replica, f"{self.health_path.decode()} answers with status {status}")

    async def _health(self, replica: Replica) -> int:
        async with replica.connections.ask("GET", self.health_path) as answer:
            await answer.body()
            return answer.status

    async def watch(self) -> None:
        """Check all replicas, until cancelled."""
        await asyncio.gather(*map(self._watch, self.replicas.values()))

    async def _watch(self, replica: Replica) -> None:
        while True:
            try:
                await self.check(replica)
            except Exception:  # from the router, which may be a student's
                log.exception("the check of %s failed", replica.name)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(replica.suspect.wait(), self.check_s)
            replica.suspect.clear()


def nothing_up() -> ApiError:
    return retry_later(503, "no replica is up; try again later", "no_replica", RETRY_AFTER_S)



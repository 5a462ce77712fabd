"""The live page of a front: the page's files, the state of the replicas, and the way to the engine of each of them.

The files come from the front. The page sends what concerns one engine to ``/replicas/NAME/live/…``, which the front
passes to ``/live/…`` of that replica. Both this and the state show prompts, so they are for admins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope, Send

from mini_vllm.server.access.caller import require_admin
from mini_vllm.server.errors import ApiError, json_response, retry_later
from mini_vllm.server.live.files import page_router
from mini_vllm.server.replicas.belief_tree import belief_rows
from mini_vllm.server.replicas.fleet import RETRY_AFTER_S, Fleet, Replica
from mini_vllm.server.replicas.proxy import Attempt, ProxyResponse
from mini_vllm.server.replicas.router_numbers import RouterError, has, numbers_of


def replicas_router(fleet: Fleet, fleet_of_replicas: Fleet) -> APIRouter:
    """Make the routes. The two fleets are one, unless the only member of ``fleet`` is a production router."""
    router, admin = APIRouter(), [Depends(require_admin)]
    router.include_router(page_router())

    @router.get("/live/replicas", dependencies=admin)
    async def replicas() -> Response:
        return json_response(state_of(fleet, fleet_of_replicas))

    @router.api_route("/replicas/{name}/live/{verb}", methods=["GET", "POST"], dependencies=admin)
    async def one(name: str, verb: str, request: Request) -> Response:
        replica = fleet_of_replicas.replicas.get(name)
        if replica is None:
            raise ApiError(404, f"there is no replica {name[:100]!r}")
        return OneReplicaResponse(fleet_of_replicas, await request.body(), replica, f"/live/{quote(verb, safe='')}")

    return router


def state_of(fleet: Fleet, fleet_of_replicas: Fleet) -> dict[str, Any]:
    """Return what the page shows. Its size is bounded."""
    router = RouterState()
    if fleet is fleet_of_replicas:
        router.read(fleet)
    else:  # a production router says nothing about the replicas behind it
        router.name = next(iter(fleet.replicas))
    return {
        "router": {"name": router.name, "error": router.error},
        "replicas": [{"name": name, "is_up": replica.is_up, "num_running": (router.loads or {}).get(name),
                      "num_answered": replica.num_answered if fleet is fleet_of_replicas else None,
                      "num_blocks": (router.num_blocks or {}).get(name)}
                     for name, replica in fleet_of_replicas.replicas.items()],
        "requests": [vars(decision) for decision in fleet.log.decisions()],
        "prefixes": router.prefixes}


@dataclass
class RouterState:
    """What a router says about the replicas that are up. A field is None if it cannot say that, or failed."""

    name: str = ""
    loads: dict[str, int] | None = None
    num_blocks: dict[str, int] | None = None
    prefixes: list[dict[str, Any]] | None = None
    error: str | None = None

    def read(self, fleet: Fleet) -> None:
        router, up = fleet.router, [replica.name for replica in fleet.up()]
        self.name = type(router).__name__[:100]
        try:
            self.loads = numbers_of(router, "loads", up)
            self.num_blocks = numbers_of(router, "num_blocks", up)
            if has(router, "num_cached"):
                self.prefixes = belief_rows({prompt: numbers_of(router, "num_cached", up, prompt) or {}
                                             for prompt in fleet.log.prompts()})
        except RouterError as error:
            self.error = str(error)


class OneReplicaResponse(ProxyResponse):
    """The answer of this replica: no other one can give it."""

    def __init__(self, fleet: Fleet, body: bytes, replica: Replica, path: str) -> None:
        super().__init__(fleet, body)
        self.replica, self.path = replica, path

    async def _try_replicas(self, scope: Scope, send: Send) -> None:
        attempt = Attempt({**scope, "raw_path": self.path.encode()}, send, self.request_body)
        if not self.replica.is_up or not await self._ask(self.replica, attempt):
            raise retry_later(503, f"{self.replica.name} is down", "replica_failed", RETRY_AFTER_S)

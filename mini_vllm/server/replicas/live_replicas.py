"""The live page of a front: the page's files, the state of the replicas, and the way to the engine of each of them.

The files come from the front. The page sends what concerns one engine to ``/replicas/NAME/live/…``, which the front
passes to ``/live/…`` of that replica. Both this and the state show prompts, so they are for admins.
"""

from __future__ import annotations

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


def replicas_router(fleet: Fleet) -> APIRouter:
    router, admin = APIRouter(), [Depends(require_admin)]
    router.include_router(page_router())

    @router.get("/live/replicas", dependencies=admin)
    async def replicas() -> Response:
        return json_response(state_of(fleet))

    @router.api_route("/replicas/{name}/live/{verb}", methods=["GET", "POST"], dependencies=admin)
    async def one(name: str, verb: str, request: Request) -> Response:
        if name not in fleet.replicas:
            raise ApiError(404, f"there is no replica {name[:100]!r}")
        return OneReplicaResponse(fleet, await request.body(), fleet.replicas[name], f"/live/{quote(verb, safe='')}")

    return router


def state_of(fleet: Fleet) -> dict[str, Any]:
    """Return what the page shows. Its size is bounded."""
    up = [replica.name for replica in fleet.up()]
    beliefs = error = None
    loads: dict[str, int] | None = None
    num_blocks: dict[str, int] | None = None
    try:
        loads = numbers_of(fleet.router, "loads", up)
        num_blocks = numbers_of(fleet.router, "num_blocks", up)
        cached = {prompt: numbers_of(fleet.router, "num_cached", up, prompt) for prompt in fleet.log.prompts()}
        if has(fleet.router, "num_cached"):
            beliefs = belief_rows({prompt: numbers or {} for prompt, numbers in cached.items()})
    except RouterError as failure:
        error = str(failure)
    return {
        "router": {"name": type(fleet.router).__name__[:100], "error": error},
        "replicas": [{"name": name, "is_up": replica.is_up, "num_running": (loads or {}).get(name),
                      "num_answered": replica.num_answered, "num_blocks": (num_blocks or {}).get(name)}
                     for name, replica in fleet.replicas.items()],
        "requests": [vars(decision) for decision in fleet.log.decisions()],
        "prefixes": beliefs}


class OneReplicaResponse(ProxyResponse):
    """The answer of this replica: no other one can give it."""

    def __init__(self, fleet: Fleet, body: bytes, replica: Replica, path: str) -> None:
        super().__init__(fleet, body)
        self.replica, self.path = replica, path

    async def _try_replicas(self, scope: Scope, send: Send) -> None:
        attempt = Attempt({**scope, "raw_path": self.path.encode()}, send, self.request_body)
        if not self.replica.is_up or not await self._ask(self.replica, attempt):
            raise retry_later(503, f"{self.replica.name} is down", "replica_failed", RETRY_AFTER_S)

"""The application in front of the replicas. Its middleware is that of a server, and it computes nothing itself.

    Guard ─▶ AccessGate ─▶ Farewell ─▶ BodyBound ─▶ DrainGate ─▶ /v1/completions, /v1/chat/completions: by the router
                                                                 /health, /metrics: of all replicas
                                                                 the live page: see live_replicas
                                                                 all other paths: the first replica that is up

If a production router sends the requests to the replicas, it is the only member of ``fleet``, and ``replicas`` has the
replicas themselves: for health, metrics and all other paths. Clients never reach the router's own paths.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from fastapi import Depends, FastAPI
from starlette.requests import Request
from starlette.responses import Response

from mini_vllm.server.access.body_limit import BodyBound
from mini_vllm.server.access.caller import AccessGate, caller_of, require_admin
from mini_vllm.server.access.keys import read_keys
from mini_vllm.server.access.request_checks import Guard
from mini_vllm.server.app import METRICS_TYPE
from mini_vllm.server.errors import ApiError, add_handlers, json_response
from mini_vllm.server.replicas.fleet import Fleet
from mini_vllm.server.replicas.live_replicas import replicas_router
from mini_vllm.server.replicas.merged_metrics import merged_metrics
from mini_vllm.server.replicas.prompt_blocks import blocks_of, num_texts, read_fields, summary_of
from mini_vllm.server.replicas.proxy import ProxyResponse
from mini_vllm.server.settings import ServerSettings
from mini_vllm.server.shutdown import DrainGate, Farewell

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


def make_front(settings: ServerSettings, fleet: Fleet,
               running: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
               replicas: Fleet | None = None) -> FastAPI:
    """Make the application. ``running`` is entered while it serves, for example to keep the replicas alive.

    Raise OSError or ValueError if the keys cannot be read.
    """
    keys = None if settings.keys_file is None else read_keys(settings.keys_file)
    fleets = [fleet] if replicas is None else [fleet, replicas]

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await asyncio.gather(*(each.check(replica) for each in fleets for replica in each.replicas.values()))
        async with running():
            watches = [asyncio.create_task(each.watch()) for each in fleets]
            yield
            for watch in watches:
                watch.cancel()

    app = FastAPI(title="mini-vllm", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None,
                  redirect_slashes=False)
    app.state.draining = asyncio.Event()
    add_handlers(app)
    _add_routes(app, fleet, fleets[-1])
    # The last one added is the outermost.
    app.add_middleware(DrainGate, draining=app.state.draining)
    app.add_middleware(BodyBound, max_body_bytes=settings.max_body_bytes)
    app.add_middleware(Farewell, draining=app.state.draining)
    app.add_middleware(AccessGate, keys=keys)
    app.add_middleware(Guard, hosts=(settings.host, *settings.allowed_hosts))
    return app


def _add_routes(app: FastAPI, fleet: Fleet, replicas: Fleet) -> None:
    @app.post("/v1/completions")
    @app.post("/v1/chat/completions")
    async def generate(request: Request) -> Response:
        body, caller = await request.body(), caller_of(request)
        fields = read_fields(body)
        caller.pay_for(num_texts(fields))
        return ProxyResponse(fleet, body, blocks_of(fields, caller.name), summary_of(fields))

    @app.head("/health")
    @app.get("/health")
    async def health() -> Response:
        if app.state.draining.is_set():
            raise ApiError(503, "the server is stopping", code="stopping")
        for each in (fleet, replicas):
            each.first()  # raises the 503
        states = {name: "up" if replica.is_up else "down" for name, replica in replicas.replicas.items()}
        return json_response({"status": "ok", "replicas": states, **({} if fleet is replicas else {"router": "up"})})

    @app.get("/metrics", dependencies=[Depends(require_admin)])
    async def metrics(request: Request) -> Response:
        return Response(await merged_metrics(fleet, replicas, request.headers.get("authorization")),
                        media_type=METRICS_TYPE)

    app.include_router(replicas_router(fleet, replicas))

    @app.api_route("/{path:path}", methods=METHODS)
    async def other(request: Request) -> Response:
        return ProxyResponse(replicas, await request.body())

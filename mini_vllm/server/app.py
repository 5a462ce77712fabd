"""The application: the routes, and the middleware before them.

    Guard ─▶ AccessGate ─▶ Farewell ─▶ BodyBound ─▶ DrainGate ─▶ /v1/completions, /v1/chat/completions, /v1/models,
                                                                 /health, /metrics, the live page
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI
from starlette.requests import Request
from starlette.responses import Response

from mini_vllm import __version__
from mini_vllm.engine_thread import EngineStoppedError
from mini_vllm.server.access.body_limit import BodyBound
from mini_vllm.server.access.caller import AccessGate, caller_of, require_admin
from mini_vllm.server.access.keys import read_keys
from mini_vllm.server.access.request_checks import Guard
from mini_vllm.server.api.chat import ChatResponse
from mini_vllm.server.api.completions import CompletionResponse
from mini_vllm.server.api.prompt_readers import Readers
from mini_vllm.server.api.protocol import NO_EFFECT, ChatRequest, CompletionRequest, GenerationRequest
from mini_vllm.server.api.schema import ERRORS, ChatCompletion, Completion, Health, ModelCard, ModelList, answers
from mini_vllm.server.engine_state import EngineState
from mini_vllm.server.errors import ApiError, add_handlers, json_response
from mini_vllm.server.live.routes import live_router
from mini_vllm.server.metrics import Metrics
from mini_vllm.server.models.model_registry import ModelShelf
from mini_vllm.server.settings import ServerSettings
from mini_vllm.server.shutdown import DrainGate, Farewell

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def make_app(settings: ServerSettings, shelf: ModelShelf | None = None) -> FastAPI:
    """Make the application.

    Raise OSError or ValueError if the keys cannot be read, and ValueError if two models have the same name.
    """
    keys = None if settings.keys_file is None else read_keys(settings.keys_file)
    shelf = ModelShelf(settings) if shelf is None else shelf

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await shelf.close()

    app = FastAPI(title="mini-vllm", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
                  openapi_url=None, redirect_slashes=False)
    app.state.shelf, app.state.metrics = shelf, Metrics()
    #: Set when the server is told to stop.
    app.state.draining = asyncio.Event()
    add_handlers(app)
    _add_model_routes(app, shelf)
    _add_generation_routes(app, shelf, app.state.metrics, settings.strict_fields)
    _add_state_routes(app, shelf, app.state.metrics)
    app.include_router(live_router(shelf))
    # The last one added is the outermost.
    app.add_middleware(DrainGate, draining=app.state.draining)
    app.add_middleware(BodyBound, max_body_bytes=settings.max_body_bytes)
    app.add_middleware(Farewell, draining=app.state.draining)
    app.add_middleware(AccessGate, keys=keys, counts_rates=not settings.is_replica)
    app.add_middleware(Guard, hosts=(settings.host, *settings.allowed_hosts))
    return app


def _add_generation_routes(app: FastAPI, shelf: ModelShelf, metrics: Metrics, strict_fields: bool) -> None:
    readers = Readers()

    def check_effects(body: GenerationRequest) -> None:
        for name in NO_EFFECT if strict_fields else ():
            if name in body.model_fields_set:
                raise ApiError(400, f"{name} has no effect, and this server runs with --strict-fields; leave it out",
                               param=name, code="no_effect")

    @app.post("/v1/completions", response_model=None, responses=answers(Completion))
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        check_effects(body)
        return CompletionResponse(body, caller_of(request), shelf, metrics, readers)

    @app.post("/v1/chat/completions", response_model=None, responses=answers(ChatCompletion))
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        check_effects(body)
        return ChatResponse(body, caller_of(request), shelf, metrics, readers)


def _add_model_routes(app: FastAPI, shelf: ModelShelf) -> None:
    created = int(time.time())

    def card(name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": created, "owned_by": "mini-vllm"}

    @app.get("/v1/models", response_model=ModelList, responses=ERRORS)
    async def list_models() -> Response:
        return json_response({"object": "list", "data": [card(name) for name in shelf.names()]})

    @app.get("/v1/models/{name:path}", response_model=ModelCard, responses=ERRORS)
    async def retrieve_model(name: str) -> Response:
        shelf.seats(name)  # raises the 404
        return json_response(card(name))


def _add_state_routes(app: FastAPI, shelf: ModelShelf, metrics: Metrics) -> None:
    @functools.cache  # it takes milliseconds to write, and needs no key
    def schema() -> Response:
        return json_response(app.openapi())

    @app.get("/openapi.json", include_in_schema=False)
    async def read_schema() -> Response:
        return schema()

    @app.head("/health", include_in_schema=False)  # monitoring tools ask this way
    @app.get("/health", response_model=Health, responses=ERRORS)
    async def health() -> Response:
        if app.state.draining.is_set():
            raise ApiError(503, "the server is stopping", code="stopping")
        return json_response({"status": "ok"})

    @app.get("/metrics", response_class=Response, dependencies=[Depends(require_admin)], responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **ERRORS})
    async def read_metrics() -> Response:
        states = {}
        for served in shelf.loaded():
            try:
                states[served.name] = await served.engine.call(EngineState.read)
            except EngineStoppedError:
                pass  # it was unloaded meanwhile
        return Response(metrics.render(states), media_type=METRICS_TYPE)


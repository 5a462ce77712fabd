"""The routes of the live page: its files, its events, and its controls of the engine.

All routes but those of the files show prompts, or stop other users' requests, so they are for admins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response, StreamingResponse

from mini_vllm.engine_config import EngineConfig
from mini_vllm.server.access.caller import require_admin
from mini_vllm.server.errors import ApiError
from mini_vllm.server.live.files import page_router
from mini_vllm.server.live.stream import event_stream
from mini_vllm.server.models.model_registry import ModelBusyError

if TYPE_CHECKING:
    from mini_vllm.server.models.loaded_model import ServedModel
    from mini_vllm.server.models.model_registry import ModelShelf

#: The largest pool that the page may request.
MAX_NUM_BLOCKS = 4096
#: The fields that the page may change.
CHANGEABLE = ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "aging_rate")


class Which(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str


class Restart(Which):
    """The changes for a restart. Omitted fields stay as they are."""

    num_blocks: Annotated[int, Field(ge=2, le=MAX_NUM_BLOCKS)] | None = None
    block_size: Annotated[int, Field(ge=1, le=256)] | None = None
    max_num_seqs: Annotated[int, Field(ge=1, le=256)] | None = None
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=8192)] | None = None
    aging_rate: Annotated[float, Field(ge=0, le=100)] | None = None
    #: Reset all fields to their values at the start of the server.
    as_started: bool = False
    #: Running requests end with the output they have.
    abort_running: bool = False


def live_router(shelf: ModelShelf) -> APIRouter:
    router, admin = APIRouter(include_in_schema=False), [Depends(require_admin)]
    hand = _Hand(shelf)

    router.include_router(page_router())

    @router.get("/live/models", dependencies=admin)
    async def models() -> dict[str, Any]:
        return {"models": shelf.names()}

    @router.post("/live/model", dependencies=admin)
    async def model(which: Which) -> dict[str, Any]:
        return await hand.describe(which.model)

    @router.get("/live/events", dependencies=admin)
    async def events(model: str) -> Response:
        return StreamingResponse(event_stream(hand.loaded(model)), media_type="text/event-stream",
                                 headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    @router.post("/live/pause", dependencies=admin)
    async def pause(which: Which) -> dict[str, Any]:
        served = await hand.served(which.model)
        await served.engine.pause()
        return {"is_paused": True}

    @router.post("/live/resume", dependencies=admin)
    async def resume(which: Which) -> dict[str, Any]:
        served = await hand.served(which.model)
        served.engine.resume()
        return {"is_paused": False}

    @router.post("/live/step", dependencies=admin)
    async def step(which: Which) -> dict[str, Any]:
        return {"has_computed": await hand.step(which.model)}

    @router.post("/live/restart", dependencies=admin)
    async def restart(wish: Restart) -> dict[str, Any]:
        return await hand.restart(wish)

    return router


class _Hand:
    """The actions of the page on a model."""

    def __init__(self, shelf: ModelShelf) -> None:
        self._shelf = shelf
        #: Model → its configuration when it was first seen.
        self._started: dict[str, EngineConfig] = {}

    async def served(self, name: str) -> ServedModel:
        """Load the model, and return it without a lease: a watcher does not keep a model from being unloaded."""
        async with self._shelf.lease(name) as served:
            self._started.setdefault(name, served.config)
            return served

    def loaded(self, name: str) -> ServedModel:
        """Return the model if it is loaded, else raise ApiError.

        A GET must not load a model, because any page can make a browser send one.
        """
        self._shelf.seats(name)  # raises the 404
        for served in self._shelf.loaded():
            if served.name == name:
                return served
        raise ApiError(409, f"the model {name!r} is not loaded; POST /live/model loads it", code="model_not_loaded")

    async def describe(self, name: str) -> dict[str, Any]:
        """Load the model, and return what the page needs to know before it asks the model for anything."""
        served = await self.served(name)
        sizes = await served.engine.call(lambda engine: {
            "num_blocks": engine.kv_cache.block_pool.num_blocks, "block_size": engine.kv_cache.block_size,
            "max_num_seqs": engine.config.max_num_seqs, "max_num_batched_tokens": engine.max_num_batched_tokens,
            "aging_rate": engine.config.aging_rate, "max_model_len": engine.max_model_len})
        started = self._started[name]
        return {"model": name, "has_chat_template": served.has_chat_template, "is_paused": served.engine.is_paused,
                "sizes": sizes, "is_as_started": served.config == started}

    async def step(self, name: str) -> bool:
        served = await self.served(name)
        try:
            return await served.engine.step_once()
        except RuntimeError as error:
            raise ApiError(409, str(error)) from None

    async def restart(self, wish: Restart) -> dict[str, Any]:
        served = await self.served(wish.model)
        before = self._started[wish.model] if wish.as_started else served.config
        changes = {name: getattr(before if value is None else wish, name)
                   for name in CHANGEABLE for value in [getattr(wish, name)]}
        budget = changes["max_num_batched_tokens"]
        if budget is not None and wish.max_num_seqs is None:  # each seat computes one token per step
            changes["max_num_seqs"] = min(self._started[wish.model].max_num_seqs, budget)
        try:
            await self._shelf.restart(wish.model, abort_running=wish.abort_running, **changes)
        except ModelBusyError as error:
            raise ApiError(409, str(error)) from None
        except ValueError as error:
            raise ApiError(400, str(error)) from None
        return await self.describe(wish.model)

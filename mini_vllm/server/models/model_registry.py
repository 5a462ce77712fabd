"""The models of a server: each is loaded on first use, and unloaded when another model needs its memory.

    lease ──▶ loaded? ── yes ──▶ return it; it is not unloaded while it is leased
                 │ no
                 └──▶ files valid? ── no ──▶ 503; they are not read again for a while, unless one of them changes
                          │ yes
                          └──▶ room within the memory limit? ── no ──▶ unload the least recently used models without
                                       │                               a lease; if that is not enough: 503, retry later
                                       └── yes ──▶ load

``model_eviction.py`` chooses the models to unload, and ``model_entry.py`` unloads one. Everything runs in one event
loop: between two ``await`` nothing else changes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from mini_vllm.backend import mx
from mini_vllm.engine_thread import EngineStoppedError
from mini_vllm.metrics import NoTrace
from mini_vllm.models.catalogue import find_model
from mini_vllm.models.config import LoadError
from mini_vllm.models.loader import check
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.request import Priority
from mini_vllm.server.access.concurrency_limit import Seats
from mini_vllm.server.errors import ApiError
from mini_vllm.server.live_feed.feed import LiveFeed
from mini_vllm.server.models.loaded_model import MemoryLimitError, ServedModel, estimated_bytes, public_names, stamp_of
from mini_vllm.server.models.model_entry import Place
from mini_vllm.server.models.model_eviction import who_must_go
from mini_vllm.server.settings import ServerSettings

log = logging.getLogger("mini_vllm.server")

#: After this many seconds without a request to a model, MLX's cache of freed memory is cleared.
IDLE_S = 1.0
#: Files that could not be loaded are tried again after this many seconds, or when one of them changes.
DAMAGED_S = 60.0


class ModelBusyError(RuntimeError):
    """A model has running requests, so it is not restarted. Nothing has changed."""


class ModelShelf:
    """The models of one server, by their names in the API."""

    def __init__(self, settings: ServerSettings, make_feed: Callable[[], NoTrace] | None = None) -> None:
        """Make a place for each model. ``make_feed`` makes the trace of an engine; by default, the live page's feed.

        Raise ValueError if two models have the same name.
        """
        self._settings, self._make_feed = settings, make_feed or LiveFeed
        self._uses = itertools.count(1)
        self._places = {name: Place(name, replace(settings.engine, model=source),
                                    Seats(settings.engine.max_num_seqs, settings.max_waiting, settings.key_share))
                        for name, source in public_names(settings.models).items()}

    def names(self) -> list[str]:
        return list(self._places)

    def loaded(self) -> list[ServedModel]:
        """Return the loaded models, the most recently used last."""
        places = sorted(self._places.values(), key=lambda place: place.last_used)
        return [place.served for place in places if place.served is not None]

    def num_in_flight(self, name: str) -> int:
        return self._place(name).num_leases

    def seats(self, name: str) -> Seats:
        return self._place(name).seats

    @asynccontextmanager
    async def lease(self, name: str) -> AsyncIterator[ServedModel]:
        """Load the model if necessary, and keep it loaded until the block is left.

        Raise ApiError: 404 for a name that is not served, 503 if there is no room for the model or it cannot be loaded.
        """
        place = self._place(name)
        place.num_leases += 1
        try:
            yield await self._ready(place)
        finally:
            place.num_leases -= 1
            place.last_used = next(self._uses)
            if not place.num_leases:
                asyncio.get_running_loop().call_later(IDLE_S, self._rest, place, place.last_used)

    def _rest(self, place: Place, last_used: int) -> None:
        """Free memory if the model was not used since.

        MLX keeps freed arrays for later ones of the same size, and over time there are many sizes.
        """
        if place.may_go and place.last_used == last_used:
            mx.clear_cache()

    async def restart(self, name: str, *, abort_running: bool = False, **changes: Any) -> ServedModel:
        """Restart the model with these fields of its EngineConfig changed, and return it.

        Raise ValueError if the model cannot be started with these values; its configuration is as before then. Raise
        ModelBusyError, and change nothing, if it has running requests that may not be aborted.
        """
        place, before = self._place(name), self._place(name).config
        config = replace(before, **changes)
        if place.num_leases and not abort_running:
            many, them = ("1 request", "it") if place.num_leases == 1 else (f"{place.num_leases} requests", "them")
            raise ModelBusyError(f"{name} has {many} in flight; wait, or abort {them}")
        place.let_go()
        place.configure(config)
        try:
            return await self._ready(place)
        except ApiError as error:
            place.configure(before)
            raise ValueError(f"{name} cannot be started with these sizes: {_cause(error)}") from error

    async def close(self, drain: bool = False) -> None:
        """Unload all models. Running requests end with the output they have; if ``drain``, they are finished first."""
        await asyncio.gather(*(place.leave(drain) for place in self._places.values()))

    def _place(self, name: str) -> Place:
        if name not in self._places:
            raise ApiError(404, f"there is no model {name[:100]!r} here; this server has: {', '.join(self._places)}",
                           param="model", code="model_not_found")
        return self._places[name]

    # ---- loading

    async def _ready(self, place: Place) -> ServedModel:
        """Wait until the model is loaded, and return it. An engine that has died is replaced.

        A caller that is cancelled does not stop the load, because other requests may wait for it.
        """
        if place.served is not None and (end := place.served.engine.ended_by) is not None:
            log.error("%s is loaded again: %s", place.name, end)
            place.let_go()
        if place.loading is None:
            place.loading = asyncio.create_task(self._load(place))
            place.loads.add(place.loading)
            place.loading.add_done_callback(place.loads.discard)
            place.loading.add_done_callback(lambda task: task.cancelled() or task.exception())  # marks it as retrieved
        task = place.loading
        try:
            return await asyncio.shield(task)
        finally:
            if task.done() and place.loading is task and place.served is None:
                place.loading, place.num_bytes = None, 0  # the next request tries again

    async def _load(self, place: Place) -> ServedModel:
        """Load the model. Raise ApiError (503) for every error."""
        not_loaded = ApiError(503, f"the model {place.name!r} could not be loaded; the server's log says why",
                              code="model_not_loaded")
        loop, stamp = asyncio.get_running_loop(), None
        try:
            path = await asyncio.to_thread(find_model, place.config.model)
            stamp = await asyncio.to_thread(stamp_of, path)
            if place.damaged is not None and place.damaged[0] == stamp and loop.time() < place.damaged[1]:
                raise not_loaded
            return await self._load_sound(place, await asyncio.to_thread(check, path))
        except ApiError:
            raise
        except Exception as error:
            cause = _cause(error)
            log.error("%s could not be loaded: %s", place.name, str(cause) or repr(cause))
            if isinstance(cause, LoadError) and stamp is not None:
                place.damaged = stamp, loop.time() + DAMAGED_S
            if isinstance(cause, MemoryLimitError):
                place.measured_bytes = cause.num_bytes  # the next load fails before it unloads other models
                raise ApiError(503, f"the model {place.name!r} could not be loaded: {cause}",
                               code="model_too_large") from error
            raise not_loaded from error

    async def _load_sound(self, place: Place, tokenizer: Tokenizer | None) -> ServedModel:
        """Load a model whose files were checked, after making room for it."""
        needed = place.measured_bytes
        if needed is None:
            needed = await asyncio.to_thread(estimated_bytes, place.config)
        self._make_room(place, needed)
        await asyncio.gather(*(other.leaving for other in self._places.values() if other.leaving is not None))
        served = await ServedModel.start(place.name, place.config, self._settings.parts, self._make_feed(),
                                         len(Priority) * place.seats.bound, self._most_bytes(place), tokenizer)
        place.measured_bytes = served.num_bytes
        try:
            self._make_room(place, served.num_bytes)
        except ApiError:
            await served.end()
            raise
        log.info("%s is loaded: %.0f MB", place.name, served.num_bytes / 1e6)
        return served

    def _most_bytes(self, place: Place) -> int | None:
        """Return the memory left for a model if all others that may go are unloaded; None if there is no limit."""
        limit = self._settings.max_memory_bytes
        return None if limit is None else limit - sum(other.num_bytes for other in self._places.values()
                                                      if other is not place and not other.may_go)

    def _make_room(self, place: Place, num_bytes: int) -> None:
        """Reserve the memory, and unload other models if necessary.

        Raise ApiError, and unload nothing, if that would not be enough.
        """
        others = [other for other in self._places.values() if other is not place and other.num_bytes]
        leaving = who_must_go(place.name, num_bytes, others, self._settings.max_memory_bytes)
        place.num_bytes = num_bytes
        for other in leaving:
            log.info("%s is unloaded to make room for %s", other.name, place.name)
            other.let_go()


def _cause(error: BaseException) -> BaseException:
    """Return the original error of a failed load, without the exceptions that wrap it."""
    while isinstance(error, (ApiError, EngineStoppedError)) and error.__cause__ is not None:
        error = error.__cause__
    return error

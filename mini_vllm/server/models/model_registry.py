"""The models of a server: each is loaded when it is first asked for, and let go when another needs its room.

    lease ──▶ on the shelf? ── yes ──▶ here it is; while it is leased, nobody takes it down
                   │ no
                   └──▶ files sound? ── no ──▶ 503; they are not read again for a while, unless one of them changes
                            │ yes
                            └──▶ room within the memory limit? ── no ──▶ let go who was not used for longest, of
                                         │              those without a lease; if that is not enough: 503, ask later
                                         └── yes ──▶ load

``room.py`` chooses who is let go, ``place.py`` knows how one model leaves. Everything runs in one event loop: between
two ``await`` nobody else changes anything.
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
from mini_vllm.models.json_fields import LoadError
from mini_vllm.models.loader import check
from mini_vllm.models.resolve_name import find_model
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.request import Priority
from mini_vllm.server.access.concurrency_limit import Seats
from mini_vllm.server.errors import ApiError
from mini_vllm.server.live_feed.feed import LiveFeed
from mini_vllm.server.models.loaded_model import MemoryLimitError, ServedModel, estimated_bytes, public_names, stamp_of
from mini_vllm.server.models.model_entry import Place
from mini_vllm.server.models.model_eviction import who_must_go
from mini_vllm.server.settings import ServerSettings
from mini_vllm.trace.recorder import NoTrace

log = logging.getLogger("mini_vllm.server")

#: After so many seconds without a request, a model gives memory back.
IDLE_S = 1.0
#: Files that could not be loaded are tried again after this many seconds, or when one of them has changed.
DAMAGED_S = 60.0


class ModelBusyError(RuntimeError):
    """A model has requests in flight, so it is not restarted. Nothing has changed."""


class ModelShelf:
    """The models of one server, by their names in the API."""

    def __init__(self, settings: ServerSettings, make_feed: Callable[[], NoTrace] | None = None) -> None:
        """``make_feed`` makes what an engine tells its steps to; by default the live page's. Raises ValueError for
        two models of one name."""
        self._settings, self._make_feed = settings, make_feed or LiveFeed
        self._uses = itertools.count(1)
        self._places = {name: Place(name, replace(settings.engine, model=source),
                                    Seats(settings.engine.max_num_seqs, settings.max_waiting, settings.key_share))
                        for name, source in public_names(settings.models).items()}

    def names(self) -> list[str]:
        return list(self._places)

    def loaded(self) -> list[ServedModel]:
        """Those that are ready, the most recently used last."""
        places = sorted(self._places.values(), key=lambda place: place.last_used)
        return [place.served for place in places if place.served is not None]

    def num_in_flight(self, name: str) -> int:
        return self._place(name).num_leases

    def seats(self, name: str) -> Seats:
        return self._place(name).seats

    @asynccontextmanager
    async def lease(self, name: str) -> AsyncIterator[ServedModel]:
        """The model, loaded; it stays until the block is left. Raises ApiError: 404 for a name that is not served, 503
        if there is no room for it or it cannot be loaded."""
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
        """Give memory back, if nobody has come since: MLX keeps freed arrays for the next of the same size, and in time
        there have been many sizes."""
        if place.may_go and place.last_used == last_used:
            mx.clear_cache()

    async def restart(self, name: str, *, abort_running: bool = False, **changes: Any) -> ServedModel:
        """The model with these fields of its EngineConfig changed. Raises ValueError for values that cannot be,
        ModelBusyError while there are requests in flight unless they may be aborted; all is as before then."""
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
            raise ValueError(f"{name} cannot be started so: {_cause(error)}") from error

    async def close(self, drain: bool = False) -> None:
        """Let all go. What is in flight ends with what it has, or is finished first."""
        await asyncio.gather(*(place.leave(drain) for place in self._places.values()))

    def _place(self, name: str) -> Place:
        if name not in self._places:
            raise ApiError(404, f"there is no model {name[:100]!r} here; there are: {', '.join(self._places)}",
                           param="model", code="model_not_found")
        return self._places[name]

    # ---- loading

    async def _ready(self, place: Place) -> ServedModel:
        """Wait until it is loaded. Who leaves meanwhile does not stop the loading: others may wait for it, too. An
        engine that has died is replaced."""
        if place.served is not None and (end := place.served.engine.ended_by) is not None:
            log.error("%s is loaded anew: %s", place.name, end)
            place.let_go()
        if place.loading is None:
            place.loading = asyncio.create_task(self._load(place))
            place.loads.add(place.loading)
            place.loading.add_done_callback(place.loads.discard)
            place.loading.add_done_callback(lambda task: task.cancelled() or task.exception())  # it counts as seen
        task = place.loading
        try:
            return await asyncio.shield(task)
        finally:
            if task.done() and place.loading is task and place.served is None:
                place.loading, place.num_bytes = None, 0  # the next one tries again

    async def _load(self, place: Place) -> ServedModel:
        """Raises ApiError: 503 for whatever goes wrong."""
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
                place.measured_bytes = cause.num_bytes  # the next one is refused before others are let go for it
                raise ApiError(503, f"the model {place.name!r} could not be loaded: {cause}",
                               code="model_too_large") from error
            raise not_loaded from error

    async def _load_sound(self, place: Place, tokenizer: Tokenizer | None) -> ServedModel:
        """Load a model whose files were checked, once there is room for it."""
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
        """Return what the limit leaves for a model if all others go that may; None if there is no limit."""
        limit = self._settings.max_memory_bytes
        return None if limit is None else limit - sum(other.num_bytes for other in self._places.values()
                                                      if other is not place and not other.may_go)

    def _make_room(self, place: Place, num_bytes: int) -> None:
        """Reserve the memory, and let go what stands in its way. Raises ApiError, and lets nothing go, if there is too
        little even so."""
        others = [other for other in self._places.values() if other is not place and other.num_bytes]
        leaving = who_must_go(place.name, num_bytes, others, self._settings.max_memory_bytes)
        place.num_bytes = num_bytes
        for other in leaving:
            log.info("%s is let go to make room for %s", other.name, place.name)
            other.let_go()


def _cause(error: BaseException) -> BaseException:
    """Why a model could not be loaded, without what was put around it on the way."""
    while isinstance(error, (ApiError, EngineStoppedError)) and error.__cause__ is not None:
        error = error.__cause__
    return error

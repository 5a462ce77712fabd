"""The page's stream of server-sent events: the whole picture, then the changes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast

from mini_vllm.engine_thread import EngineStoppedError
from mini_vllm.server.live_feed.feed import LiveFeed
from mini_vllm.server.live_feed.watcher import Watcher

if TYPE_CHECKING:
    from mini_vllm.server.models.loaded_model import ServedModel

#: After this time without events, the stream checks whether anything has changed between two steps.
SILENCE_S = 0.25


async def event_stream(served: ServedModel) -> AsyncIterator[str]:
    """Yield events until the reader disconnects or the engine ends.

    If the engine ends, the last message has the type "end", and the page may connect again. When the last reader has
    disconnected, a paused engine resumes, because requests wait for it.
    """
    feed, engine, watcher, is_paused = cast(LiveFeed, served.feed), served.engine, Watcher(), None
    try:
        await engine.call(lambda inner: feed.open(watcher, inner))
        while True:
            messages = await watcher.next(SILENCE_S)
            if watcher.is_behind:
                await engine.call(lambda inner: feed.open(watcher, inner))
                continue
            if not messages:
                await engine.call(lambda inner: feed.look(inner.scheduler))
            if is_paused is not engine.is_paused:
                is_paused = engine.is_paused
                messages.append({"type": "state", "is_paused": is_paused})
            yield "".join(map(_told, messages)) or ":\n\n"  # a comment, which detects a closed connection
    except EngineStoppedError:
        yield _told({"type": "end"})
    finally:
        watcher.is_gone = True
        if not feed.is_watched:
            engine.resume()


def _told(message: dict[str, Any]) -> str:
    return f"data: {json.dumps(message, separators=(',', ':'))}\n\n"

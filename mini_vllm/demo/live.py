"""The live page, with a pool that fits on the screen. It shows how two prompts share blocks."""

from __future__ import annotations

import threading
import webbrowser

from mini_vllm.checks import check_installed
from mini_vllm.engine_config import EngineConfig
from mini_vllm.native.advice import tell_slow_blas

#: How long running requests may take to finish after Ctrl-C.
DRAIN_S = 3.0


def show_live(port: int, is_opened: bool) -> None:
    """Serve tiny-tales until Ctrl-C. ``port`` 0 is any free port; ``is_opened``: open the page in a browser.

    Raise ValueError, before anything is shown, if a package of the server is missing or the port cannot be used.
    """
    check_installed("serve", "the live page")
    from mini_vllm.server.live.small_pool import BLOCK_SIZE, NUM_BLOCKS, SIZES
    from mini_vllm.server.serving import serve
    from mini_vllm.server.settings import ServerSettings
    config = EngineConfig(preempt_for_priority=True, **SIZES)
    settings = ServerSettings(port=port, drain_s=DRAIN_S, engine=config)

    def say_where(address: str) -> None:
        tell_slow_blas()
        print(f"Open {address}/ to see tiny-tales at work in {NUM_BLOCKS} blocks of {BLOCK_SIZE} tokens.\n"
              "Press “Send all” there: the two prompts begin alike, so they share the first blocks.\n"
              "Ctrl-C stops the server.", flush=True)
        if is_opened and not _takes_the_terminal():
            # In a thread: a browser that is not running yet may take seconds to start, and then waits for this server.
            threading.Thread(target=webbrowser.open, args=(f"{address}/",), daemon=True).start()

    serve(settings, say_where)


def _takes_the_terminal() -> bool:
    """Check whether the only browser is one like lynx, which would run in this server's terminal."""
    try:
        return type(webbrowser.get()) is webbrowser.GenericBrowser
    except webbrowser.Error:  # there is no browser, and webbrowser.open does nothing
        return False

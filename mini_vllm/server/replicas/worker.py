"""The process of one replica: a server on a free port of this machine.

It reads its settings from standard input and prints its address. When standard input ends, the front has ended, and the
replica stops.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

from mini_vllm.engine_config import EngineParts
from mini_vllm.server.serving import serve
from mini_vllm.server.settings import ServerSettings


def main() -> None:
    """Serve until told to stop."""
    settings: ServerSettings
    make_parts: Callable[[], EngineParts] | None
    settings, make_parts = pickle.load(sys.stdin.buffer)
    if make_parts is not None:
        settings = replace(settings, parts=make_parts())
    threading.Thread(target=_stop_with_the_front, daemon=True).start()
    serve(settings, lambda address: print(address, flush=True))


def _stop_with_the_front() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()

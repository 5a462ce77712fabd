"""Python's garbage collector, and why a process that serves tells it what to leave alone."""

from __future__ import annotations

import gc


def leave_what_is_there_alone() -> None:
    """Everything that exists now is not searched for garbage any more.

    Now and then the collector goes through all objects, while every request waits. A server's libraries make 70,000 of
    them, nearly all of which stay to the end, and that takes 40 ms. What is made and becomes garbage after this call is
    still found; an engine is freed without the collector.
    """
    gc.collect()
    gc.freeze()

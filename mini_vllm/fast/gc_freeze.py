"""Python's garbage collector, and why a server tells it to ignore some objects."""

from __future__ import annotations

import gc


def leave_what_is_there_alone() -> None:
    """Exclude all existing objects from garbage collection.

    Occasionally the collector goes through all objects, while every request waits. A server's libraries create 70,000
    objects, nearly all of which stay until the end, and one pass takes 40 ms. Objects that are created after this call
    are still collected; an engine is freed without the collector.
    """
    gc.collect()
    gc.freeze()

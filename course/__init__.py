"""The classroom: labs, the pytest plugin that grades them, and the ``course`` command.

In a notebook or a script:

    lab = course.load("2.1")           the block allocator: yours once lab 2.1 passes, the engine's until then
    parts = course.load_parts()        the parts of an ``LLMEngine``, each yours where its lab passes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import types

    from mini_vllm.engine_config import EngineParts


def load(number: str) -> types.ModuleType:
    """The module of a lab, and a line that says whose it is. Raises LabError if there is no such lab."""
    from course.student import my_labs  # here, so that the name costs nobody else an import
    return my_labs.load(number)


def load_parts() -> EngineParts:
    """An engine's parts, each the student's own where a lab that gives it passes, and a line that says whose."""
    from course.student import my_labs
    return my_labs.load_parts()

"""The classroom: labs, the pytest plugin that grades them, and the ``course`` command.

In a notebook or a script:

    lab = course.load("2.1")           the block allocator: yours once lab 2.1 passes, the engine's until then
    parts = course.load_parts()        the parts of an ``LLMEngine``, each yours once its lab passes
    parts = course.engine_parts(scheduler=MyScheduler)         the reference's parts, except those given
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import types

    from mini_vllm.engine_config import EngineParts


def load(number: str) -> types.ModuleType:
    """Load the module of a lab, and print whose it is. Raise LabError if there is no such lab."""
    from course.student import my_labs  # imported late, so that other users of this package do not pay for it
    return my_labs.load(number)


def load_parts() -> EngineParts:
    """Load an engine's parts, each the student's own if a lab that provides it passes, and print whose they are."""
    from course.student import my_labs
    return my_labs.load_parts()


def engine_parts(**parts: Any) -> EngineParts:
    """Return an engine's parts, of which some are given: ``engine_parts(scheduler=lab_4_2.Scheduler)``.

    What a simpler part lacks is added. Raise PartError, which names the class and what is wrong, for a part that the
    engine cannot use.
    """
    from course.own_engine.build_parts import complete
    from mini_vllm.engine_config import EngineParts
    return complete(EngineParts(**parts))

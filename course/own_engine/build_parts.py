"""The parts of an engine from a student's files: built, adapted, checked, and completed with what they lack."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from course.lab import base_labs
from course.lab.lab import Lab, LabError, discover, find_lab
from course.own_engine import adapters
from course.own_engine.check_parts import INTERFACES, PartError, check_attention, check_class, check_object, name_of
from mini_vllm.engine_config import EngineParts

#: Slot → the methods or attributes whose absence shows that a part lacks something, each with its adapter.
ADAPTERS: dict[str, dict[str, type]] = {
    "block_pool": {"fork_block": adapters.CopyOnWrite},
    "kv_cache_manager": {"fork": adapters.Forking, "give_back_slots": adapters.GivingBack,
                         "forget_unwritten": adapters.Forgetting},
    "request_queue": {"clock": adapters.Clock},
    "scheduler": {"preempt": adapters.Preempting},
    "sampler": {"sample": adapters.Sampling, "choose": adapters.Sampling},
    "model_runner": {"step_ahead": adapters.NotAhead},
    "drafter": {"propose_all": adapters.OneByOne},
    "grammar": {"num_tokens_needed": adapters.AnyLength},
}
#: Slot → attributes that a part may lack. An attribute of its own counts.
DEFAULTS: dict[str, type] = {"scheduler": adapters.SchedulerDefaults, "model_runner": adapters.RunnerDefaults,
                             "drafter": adapters.DrafterDefaults}


def complete(parts: EngineParts) -> EngineParts:
    """Return the parts with what they lack added.

    Raise PartError for a part that lacks a method or takes other arguments. A part whose objects lack an attribute
    raises PartError when the engine creates one.
    """
    defaults = {part.name: part.default for part in fields(EngineParts)}
    own = {slot: part for slot in INTERFACES
           if (part := getattr(parts, slot)) is not None and part is not defaults[slot]}
    if "prefix_tree" in own and not _takes_tree(parts.kv_cache_manager):
        raise PartError("prefix_tree", f"{name_of(parts.prefix_tree)} would never be used: the kv_cache_manager, "
                                       f"{name_of(parts.kv_cache_manager)}, takes no tree_class")
    if parts.attention is not defaults["attention"]:
        check_attention(parts.attention)
    return replace(parts, **{slot: _complete(slot, part) for slot, part in own.items() if isinstance(part, type)})


def _complete(slot: str, part: type) -> type:
    """Return a class with the part's name that adds what the part lacks, and checks each object when it is created."""
    completed: Any = _subclass(part, _adapters_for(slot, part), [DEFAULTS[slot]] if slot in DEFAULTS else [], {})
    check_class(slot, part, completed)

    @functools.wraps(completed.__init__)  # it still shows the arguments
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        completed.__init__(self, *args, **kwargs)
        check_object(slot, self)

    return _subclass(completed, [], [], {"__init__": __init__})


def _adapters_for(slot: str, part: type) -> list[type]:
    chosen = [adapter for name, adapter in ADAPTERS.get(slot, {}).items() if not hasattr(part, name)]
    if slot == "sampler" and len(chosen) == 1:
        return []  # it has one of two methods that belong together, so it is rejected
    if slot == "kv_cache_manager":
        if isinstance(inspect.getattr_static(part, "stats", None), property):
            chosen.append(adapters.CountingAllHits)
        if not _takes_tree(part):
            chosen.append(adapters.WithoutTree)
    elif slot == "scheduler" and hasattr(part, "schedule") and hasattr(part, "update_from_output"):
        chosen.append(adapters.Planning)
    return [adapter for adapter in dict.fromkeys(chosen) if not issubclass(part, adapter)]


def _subclass(part: type, before: list[type], after: list[type], body: dict[str, Any]) -> type:
    return type(part.__name__, (*before, part, *after), {
        "__module__": part.__module__, "__qualname__": part.__qualname__, "__doc__": part.__doc__, **body})


def _takes_tree(manager: Callable[..., object]) -> bool:
    parameters = inspect.signature(manager).parameters
    return "tree_class" in parameters or any(parameter.kind is inspect.Parameter.VAR_KEYWORD
                                             for parameter in parameters.values())


def build(files: Mapping[str, Path], labs: Sequence[Lab]) -> EngineParts:
    """Return an engine's parts, with the piece of every lab in ``labs``.

    Raise PartError if the engine cannot use a piece; see also ``pieces_of``.
    """
    return complete(EngineParts(**pieces_of(files, labs)))


def pieces_of(files: Mapping[str, Path], labs: Sequence[Lab]) -> dict[str, Any]:
    """Run the files, each on its bases, and return the pieces of ``labs`` by slot, as they are in the files.

    Raise LabError if a file lacks its piece. Errors that a file raises are passed on.
    """
    pieces: dict[str, Any] = {}
    with base_labs.using(files):
        for lab in labs:
            module = base_labs.load_base(lab.number)
            for slot, name in lab.parts.items():
                if not hasattr(module, name):
                    raise LabError(f"lab {lab.number}: {module.__file__} has no {name}")
                pieces[slot] = _adapted(lab, getattr(module, name))
    return pieces


def build_in(root: str, files: Mapping[str, str], numbers: Sequence[str]) -> EngineParts:
    """Build the pieces of these labs of the course in ``root``; see ``build``. Another process can call this."""
    labs = discover(Path(root)) if numbers else []
    return build({number: Path(file) for number, file in files.items()}, [find_lab(number, labs) for number in numbers])


def _adapted(lab: Lab, piece: Any) -> Any:
    """Wrap a piece in the adapter that its lab names, for example because the piece uses numpy."""
    if lab.adapter is None:
        return piece
    module, name = lab.adapter.rsplit(".", 1)
    return getattr(import_module(module), name)(piece)

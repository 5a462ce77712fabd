"""Checks whether a part can take its slot of the engine, before anything runs."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from mini_vllm import parts
from mini_vllm.engine_frame import EngineFrame
from mini_vllm.prefix_tree import PrefixIndex
from mini_vllm.structured.compiler import Grammar

#: Slot → its interface, and the arguments that an object is created with, in this order.
INTERFACES: dict[str, tuple[type, tuple[str, ...]]] = {
    "block_pool": (parts.BlockPoolPart, ("num_blocks", "enable_caching")),
    "kv_cache_manager": (parts.KVCacheManagerPart, ("num_blocks", "block_size", "enable_caching")),
    "prefix_tree": (PrefixIndex, ("block_pool", "block_size")),
    "request_queue": (parts.RequestQueuePart, ("aging_rate",)),
    "scheduler": (parts.SchedulerPart, ("kv_cache", "max_num_seqs", "max_num_batched_tokens", "queue", "watermark")),
    "sampler": (parts.SamplerPart, ()),
    "model_runner": (parts.ModelRunnerPart, ("model", "num_blocks", "block_size", "attention")),
    "drafter": (parts.DrafterPart, ()),
    "guess_record": (parts.GuessRecordPart, ()),
    "verifier": (parts.VerifierPart, ()),
    "grammar": (Grammar, ("tree", "vocabulary")),
    "engine": (EngineFrame, ("config", "parts", "loaded", "trace")),
}
#: Attention is a function, or a class whose objects are called.
ATTENTION = tuple(inspect.signature(parts.AttentionPart.__call__).parameters)[1:]


class PartError(ValueError):
    """A part does not fit. The message names its class, and the method or the arguments that are wrong."""

    def __init__(self, slot: str, message: str) -> None:
        super().__init__(f"{slot}: {message}")
        self.slot = slot


def methods_of(slot: str) -> dict[str, tuple[str, ...]]:
    """Return the methods that the engine calls on a part, each with the names of its arguments."""
    return {name: tuple(inspect.signature(method).parameters)[1:]
            for name, method in vars(INTERFACES[slot][0]).items()
            if inspect.isfunction(method) and (not name.startswith("_") or name in ("__len__", "__iter__"))}


def attributes_of(slot: str) -> list[str]:
    """Return the attributes that the engine reads from an object of the part."""
    own = vars(INTERFACES[slot][0])
    properties = [name for name, value in own.items() if isinstance(value, property)]
    return [name for name in (*own.get("__annotations__", ()), *properties) if not name.startswith("_")]


def name_of(part: object) -> str:
    """Return the name and the file of a part: ``BlockPool (phase-02-…/starter.py)``."""
    name = getattr(part, "__qualname__", type(part).__qualname__)
    module = sys.modules.get(getattr(part, "__module__", None) or type(part).__module__)
    file = getattr(module, "__file__", None)
    if file is None or module is None or module.__name__.startswith("mini_vllm."):
        return name
    near = os.path.relpath(file)
    return f"{name} ({file if near.startswith('..') else near})"


def check_class(slot: str, part: type, completed: type) -> None:
    """Raise PartError unless ``part`` can be created and called as the engine does.

    A method that it lacks may be one that an adapter has added in ``completed``.
    """
    _check_arguments(slot, part, f"{name_of(part)} is created with", part, INTERFACES[slot][1])
    for method, arguments in methods_of(slot).items():
        found = getattr(part, method, getattr(completed, method, None))
        call = f"{method}({', '.join(arguments)})"
        if not callable(found) or getattr(found, "__isabstractmethod__", False):
            raise PartError(slot, f"{name_of(part)} has no method {call}, which the engine calls")
        _check_arguments(slot, part, f"{name_of(part)}: {method} is called with", found, ("self", *arguments))


def check_attention(part: Callable[..., object]) -> None:
    """Raise PartError unless ``part`` can be called like ``attention.paged_attention``."""
    if isinstance(part, type):
        _check_arguments("attention", part, f"{name_of(part)} is created with", part, ())
        called: Any = next((vars(base)["__call__"] for base in part.__mro__ if "__call__" in vars(base)), None)
        if called is None:
            raise PartError("attention", f"{name_of(part)} has no method __call__({', '.join(ATTENTION)}), "
                                         "which the engine calls")
        wanted: tuple[str, ...] = ("self", *ATTENTION)
    else:
        called, wanted = part, ATTENTION
    names = _parameter_names(called)
    if names is not None and names[:len(wanted)] != list(wanted):
        raise PartError("attention", f"{name_of(part)} is called with ({', '.join(ATTENTION)}), "
                                     f"but takes ({', '.join(name for name in names if name != 'self')})")


def check_object(slot: str, made: object) -> None:
    """Raise PartError unless an object of the part has the attributes that the engine reads."""
    for attribute in attributes_of(slot):
        if not hasattr(made, attribute):
            raise PartError(slot, f"an object of {name_of(type(made))} has no {attribute}, which the engine reads")


def _check_arguments(slot: str, part: type, what: str, called: Callable[..., object],
                     arguments: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # for example, a class written in C
        return
    given = ", ".join(name for name in arguments if name != "self")
    taken = ", ".join(str(parameter) for name, parameter in signature.parameters.items() if name != "self")
    try:
        bound = signature.bind(*arguments).arguments
    except TypeError:
        raise PartError(slot, f"{what} ({given}), but takes ({taken})") from None
    for name, argument in bound.items():  # bound to the name of another argument: the order is wrong
        if isinstance(argument, str) and name != argument and name in arguments:
            raise PartError(slot, f"{what} ({given}), in this order, but takes ({taken})")


def _parameter_names(called: Callable[..., object]) -> list[str] | None:
    """Return the names of the positional parameters; None if they are unknown or their number is unlimited."""
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters
            if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)]

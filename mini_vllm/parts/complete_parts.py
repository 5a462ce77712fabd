"""Makes parts fit: missing features of a simpler part are added, and parts that cannot fit are rejected."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from mini_vllm.engine_config import EngineParts
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.parts.adapters import CopyOnWrite, Forgetting, Forking, GivingBack, Preempting, SamplesByRules
from mini_vllm.parts.check import PartError, check_attention, check_class, check_object, name_of
from mini_vllm.parts.interfaces import JOINTS

#: Slot → the methods whose absence shows that a part lacks a feature, each with the class that adds the feature.
GIVEN: dict[str, tuple[tuple[str, type], ...]] = {
    "block_pool": (("fork_block", CopyOnWrite),),
    "kv_cache_manager": (("fork", Forking), ("give_back_slots", GivingBack), ("forget_unwritten", Forgetting)),
    "scheduler": (("preempt", Preempting),),
    "sampler": (("sample", SamplesByRules), ("choose", SamplesByRules)),
}


def fit(parts: EngineParts) -> EngineParts:
    """Return the parts with missing features added.

    Raise PartError for a part that lacks a method or takes other arguments.
    """
    defaults = {part.name: part.default for part in fields(EngineParts)}
    own = {slot: part for slot in JOINTS if (part := getattr(parts, slot)) is not None and part is not defaults[slot]}
    completed = {slot: _complete(slot, part) for slot, part in own.items() if isinstance(part, type)}
    for slot, part in completed.items():
        check_class(slot, part)
    if parts.attention is not defaults["attention"]:
        check_attention(parts.attention)
    if "prefix_tree" in own and not _takes_tree(parts.kv_cache_manager):
        raise PartError("prefix_tree", f"{name_of(parts.prefix_tree)} would never be used: the kv_cache_manager, "
                                       f"{name_of(parts.kv_cache_manager)}, takes no tree_class")
    return replace(parts, **completed)


def _complete(slot: str, part: type) -> type:
    missing = dict.fromkeys(given for method, given in GIVEN.get(slot, ()) if not hasattr(part, method))
    if not missing:
        return part
    return type(part.__name__, (*missing, part), {"__module__": part.__module__, "__qualname__": part.__qualname__,
                                                  "__doc__": part.__doc__})


def make_kv_cache(parts: EngineParts, num_blocks: int, block_size: int, enable_caching: bool) -> KVCacheManager:
    """Create the manager over its pool.

    A manager that takes no tree is created without one: its hits are whole blocks.
    """
    tree = {"tree_class": parts.prefix_tree} if _takes_tree(parts.kv_cache_manager) else {}
    kv_cache: KVCacheManager = parts.kv_cache_manager(num_blocks, block_size, enable_caching,
                                                      pool_class=parts.block_pool, **tree)
    check_object("kv_cache_manager", kv_cache)
    check_object("block_pool", kv_cache.block_pool)
    return kv_cache


def checked(slot: str, made: Any) -> Any:
    """Return ``made`` if it has the attributes that the engine reads."""
    check_object(slot, made)
    return made


def _takes_tree(manager: Callable[..., object]) -> bool:
    parameters = inspect.signature(manager).parameters
    return "tree_class" in parameters or any(parameter.kind is inspect.Parameter.VAR_KEYWORD
                                             for parameter in parameters.values())

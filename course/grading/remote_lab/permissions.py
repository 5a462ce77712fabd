"""The sandbox's permissions on the grader's objects: what a student's file is meant to do with them, and no more.

In one process a file can reach everything from anything: ``request.__class__.__init__.__globals__``. Here it can use
what the lab lists (``surface``) and functions that a test passes to it, and it can ask whether two objects are the
same.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Sequence
from typing import Any

from course.grading.protocol.access_rules import Permissions
from course.grading.protocol.proxies import Remote, RemoteMethod
from course.grading.protocol.tags import static
from course.grading.remote_lab.guards import Arguments, guarded, guarded_attribute
from course.grading.remote_lab.surface import Offer, Surface

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType,
              functools.partial)
#: Plain attributes that never change once an object has been created.
FIXED = {"mini_vllm.block_pool.KVCacheBlock": ["block_id"], "mini_vllm.request.Request": ["request_id"],
         "mini_vllm.kv_cache.KVCacheManager": ["block_size", "block_pool"],
         "mini_vllm.logit_rules.SamplerRow": ["params", "key", "output_token_ids", "prompt_token_ids"],
         "mini_vllm.request.SamplingParams": ["temperature", "top_k", "top_p", "min_p", "seed", "logprobs"],
         "mini_vllm.model_runner.RequestStep": ["context_len", "needs_logits", "needs_all_logits", "token_ids",
                                                "block_ids"],
         "mini_vllm.scheduler.SchedulerOutput": ["num_scheduled_tokens", "requests", "copies", "preempted", "finished"],
         "mini_vllm.executor.StepResult": ["token_ids", "logprobs", "errors"],
         "mini_vllm.sequences.SequenceGroup": ["request_id"],
         "mini_vllm.sequences.SequenceState": ["request", "row"]}
#: Properties that only return the length of the object's own lists.
COMPUTED = {"mini_vllm.request.Request": ["num_tokens", "num_prompt_tokens"]}
#: Containers that the file may change. It decides their content anyway, for example with ``append_output_token``.
SHARED = {"mini_vllm.request.Request": ("output_token_ids",),
          "mini_vllm.logit_rules.SamplerRow": ("output_token_ids",),
          "mini_vllm.structured.vocabulary.Vocabulary": ("shared",),
          "mini_vllm.executor.StepResult": ("token_ids", "logprobs", "errors")}
#: Types that cross as data. An honest side computes with them on its own.
DATA = (type(None), bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, range, slice)
#: Operators that any object allows, to find out whether it is the same as another.
_IDENTITY = ("__eq__", "__ne__", "__hash__")
#: The text of an object, which may be asked for if its class is listed. That of a container has all that is in it, so
#: it must be listed itself: a test may count what is read.
_WORDS, _CONTAINERS = ("__repr__", "__str__"), (list, tuple, dict, set, frozenset)
#: Objects of these types are never handed out, whatever returns them.
_NEVER = (types.ModuleType, types.FrameType, types.TracebackType, types.CodeType, types.CellType)


def _own_dict(owner: Any) -> dict[str, Any]:
    """Return the object's attributes without running code of its class."""
    try:
        found: dict[str, Any] = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return found


def _refuse_its_own(kind: type) -> None:
    """Raise TypeError for a stand-in: no honest file makes the grader use an object of the file's own. Reading the
    stand-in's ``__class__`` would return the grader's class that the object claims to be."""
    if issubclass(kind, (Remote, RemoteMethod)):
        raise TypeError("the file under test passes an object of its own to the grader")


def _check_numbers(name: str, offer: Offer, arguments: Sequence[Any]) -> None:
    """Raise ValueError for a number beyond the bound: creating a pool of 10**15 blocks would take forever."""
    bound = offer.max_number
    for value in arguments if bound is not None else ():
        if type(value).__module__.split(".")[0] in ("numpy", "mlx") and value.size == 1:  # a number in an array
            value = value.item()
        if isinstance(value, (int, float)) and bound is not None and not -bound <= value <= bound:
            raise ValueError(f"{name} was called with {value!r:.40}; the grader accepts numbers up to {bound:,}")


class GraderPermissions(Permissions):
    def __init__(self, surface: Surface) -> None:
        self.surface = surface
        #: The class and name of attributes that were found to be readable.
        self._readable: set[tuple[type, str]] = set()

    def check_get(self, owner: Any, name: str) -> None:
        kind = type(owner)
        if (kind, name) in self._readable:
            return
        _refuse_its_own(kind)
        if isinstance(owner, type):
            if name not in self.surface.of(owner).reads:
                raise AttributeError(f"the file under test may not use {name} of {owner.__name__}")
            return
        if kind is types.SimpleNamespace:  # a test made it from what the file may use
            if name.startswith("_") or name not in vars(owner):
                raise AttributeError(f"it has no {name}")
            return
        if isinstance(owner, _FUNCTIONS) or name not in self.surface.of(kind).reads \
                and not self._answers_itself(owner, kind, name):
            raise AttributeError(f"{kind.__name__} has no {name} for the file under test")
        if name in self.surface.of(kind).reads:
            self._readable.add((kind, name))

    def _answers_itself(self, owner: Any, kind: type, name: str) -> bool:
        """Return whether an object of a test lacks the name, and its ``__getattr__`` decides what the name means."""
        return (self.surface.is_of_tests(kind) and not name.startswith("_") and static(kind, "__getattr__") is not None
                and static(kind, name) is None and name not in _own_dict(owner))

    def check_set(self, owner: Any, name: str) -> None:
        kind = type(owner)
        _refuse_its_own(kind)
        if isinstance(owner, type) or name not in self.surface.of(kind).sets:
            raise AttributeError(f"{name} of {kind.__name__} cannot be set: use the object as it was passed in")
        if callable(static(kind, name)) or callable(_own_dict(owner).get(name)):
            raise AttributeError(f"the file under test may not replace {name} of {kind.__name__}")

    def check_call(self, function: Any, arguments: Sequence[Any] = ()) -> None:
        kind = type(function)
        _refuse_its_own(kind)
        if isinstance(function, (types.MethodType, types.MethodWrapperType)):
            return  # it was found by a name that may be read
        if isinstance(function, type):
            offer = self.surface.of(function)
            if not offer.can_be_called:
                raise TypeError(f"the file under test may not create a {function.__name__}")
            _check_numbers(function.__name__, offer, arguments)
        elif isinstance(function, _FUNCTIONS):
            listed = self.surface.of_function(function)
            if listed is not None:
                if not listed.can_be_called:
                    raise TypeError(f"the file under test may not call {function!r:.80}")
                _check_numbers(str(getattr(function, "__name__", "it")), listed, arguments)
        elif "__call__" not in self.surface.of(kind).reads:
            raise TypeError(f"the file under test may not call a {kind.__name__}")

    def found(self, owner: Any, name: str, value: Any) -> Any:
        return guarded_attribute(owner, name, value)

    def arguments_for(self, function: Any, positional: Sequence[Any], named: dict[str, Any]) -> Arguments:
        return guarded(function, positional, named)

    def check_operator(self, owner: Any, name: str) -> None:
        kind = type(owner)
        _refuse_its_own(kind)
        if kind in DATA or kind.__module__.split(".")[0] in ("numpy", "mlx"):
            # No honest side makes the grader compute with the side's own numbers: "a" * 10**10.
            raise TypeError(f"the grader does not compute {name} of a {kind.__name__}")
        if name in _IDENTITY or name in self.surface.of(kind).reads and not isinstance(owner, type):
            return
        if name in _WORDS and (isinstance(owner, type)
                               or self.surface.lists(kind) and not issubclass(kind, _CONTAINERS)):
            return
        if name in ("__iter__", "__next__") and kind.__module__ == "builtins" and isinstance(owner, Iterator):
            return  # an iterator over something that may be iterated over
        raise TypeError(f"the file under test may not use {name} of {kind.__name__}")

    def check_handle(self, value: Any) -> None:
        if isinstance(value, _NEVER):
            raise TypeError(f"a {type(value).__name__} may not enter the sandbox")

    def guards(self, owner: Any, name: str) -> bool:
        return not any(name in SHARED.get(f"{kind.__module__}.{kind.__qualname__}", ()) for kind in type(owner).__mro__)

    def readable_fields(self, kind: type, names: list[str]) -> list[str]:
        reads = self.surface.of(kind).reads
        return [name for name in names if name in reads]

    def fixed_fields(self, kind: type) -> list[str]:
        return self.readable_fields(kind, FIXED.get(f"{kind.__module__}.{kind.__qualname__}", []))

    def computed_fields(self, kind: type) -> list[str]:
        return self.readable_fields(kind, COMPUTED.get(f"{kind.__module__}.{kind.__qualname__}", []))

    def methods_of(self, kind: type) -> list[str]:
        return self.readable_fields(kind, super().methods_of(kind))

"""What the sandbox may do with the grader's objects: what a student's file is meant to do with them, and no more.

In one process a file can reach everything from anything: ``request.__class__.__init__.__globals__``. Here it sees
public names of the course's own objects. It can call their methods, and set numbers of a request; it cannot replace a
method, nor reach a module, a frame, a class's insides or the tests.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

from course.grading.allowing import Policy
from course.grading.describing import static
from course.grading.remote import Remote

#: Objects of classes from here are the course's own.
PACKAGES = ("mini_vllm", "course")
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType,
              functools.partial)
#: Plain attributes that never change once an object is made.
FIXED = {"mini_vllm.block_pool.KVCacheBlock": ["block_id"], "mini_vllm.request.Request": ["request_id"],
         "mini_vllm.kv_cache.KVCacheManager": ["block_size", "block_pool"],
         "mini_vllm.sampling.row.SamplerRow": ["params", "key", "output_token_ids", "prompt_token_ids"],
         "mini_vllm.request.SamplingParams": ["temperature", "top_k", "top_p", "min_p", "seed", "logprobs"],
         "mini_vllm.model_runner.RequestStep": ["context_len", "needs_logits", "needs_all_logits", "token_ids",
                                                "block_ids"],
         "mini_vllm.scheduler.SchedulerOutput": ["num_scheduled_tokens", "requests", "copies", "preempted", "finished"],
         "mini_vllm.engine_room.executor.StepResult": ["token_ids", "logprobs", "errors"],
         "mini_vllm.sequences.SequenceGroup": ["request_id"],
         "mini_vllm.sequences.SequenceState": ["request", "row"]}
#: Properties that say how long the object's own lists are, and nothing else.
COMPUTED = {"mini_vllm.request.Request": ["num_tokens", "num_prompt_tokens"]}
#: What a lab's file has to write to. Everything else that is handed in is changed by its own methods.
SETTABLE = {"mini_vllm.request.Request": ("status", "arrival_time", "num_computed_tokens", "num_cached_tokens",
                                          "num_preemptions", "num_sequences"),
            "mini_vllm.scheduler.Scheduler": ("max_num_chunk_tokens",),
            "mini_vllm.sequences.SequenceGroup": ("error",),
            "mini_vllm.request.CompletionOutput": ("finish_reason",)}
#: Containers that are changed here if the file changes them: it says with ``append_output_token`` what is in it anyway.
SHARED = {"mini_vllm.request.Request": ("output_token_ids",),
          "mini_vllm.sampling.row.SamplerRow": ("output_token_ids",)}
#: Private names that code given in a starter reads.
READABLE = {"mini_vllm.block_pool.BlockPool": ("_kept_for_copy",)}
#: What crosses as data. An honest side computes with it by itself.
DATA = (type(None), bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, range, slice)
#: Of these nothing but what is named. A network can also be taken apart and given other weights.
ONLY = {"mini_vllm.models.network.Model": ("config", "model", "logits"), "mini_vllm.models.network.Body": ("norm",),
        "mlx.nn.layers.normalization.RMSNorm": ("weight",)}
#: What may be done with any of the grader's objects, whatever else it can.
_HARMLESS = ("__eq__", "__ne__", "__hash__", "__repr__", "__str__")
#: Never handed out, whoever returns them.
_NEVER = (types.ModuleType, types.FrameType, types.TracebackType, types.CodeType, types.CellType)


def _own_dict(owner: Any) -> dict[str, Any]:
    """Its attributes, without running code of its class."""
    try:
        found: dict[str, Any] = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return found


class GraderPolicy(Policy):
    def __init__(self, test_module: str | None = None) -> None:
        #: Classes that the tests define are the course's, too.
        self.test_modules: set[str] = {test_module} if test_module else set()
        #: Class and name of what was found to be allowed, of objects of the course's own: to read, and to write.
        self._allowed: set[tuple[type, str]] = set()
        self._settable: set[tuple[type, str]] = set()

    def _is_ours(self, kind: type) -> bool:
        module = kind.__module__
        return (module.split(".")[0] in PACKAGES or module in self.test_modules or module == "pools"
                or module.startswith("lab_file_"))

    def check_get(self, owner: Any, name: str) -> None:
        if isinstance(owner, type):
            kinds = (*owner.__mro__, *inspect.getmro(type(owner)))
            if not self._is_ours(owner) or name.startswith("_") or self._is_foreign(kinds, name):
                raise AttributeError(f"{name} of {owner.__name__} is not for the sandbox")
            return
        kind = type(owner)
        if (kind, name) in self._allowed or issubclass(kind, Remote):  # which is its own
            return
        full_name = f"{kind.__module__}.{kind.__qualname__}"
        if name in ONLY.get(full_name, READABLE.get(full_name, ())):
            return
        if full_name in ONLY:
            raise AttributeError(f"{kind.__name__} has no {name} for the sandbox")
        if name.startswith("_") or isinstance(owner, _FUNCTIONS) or not self._is_named(owner, kind, name):
            raise AttributeError(f"{kind.__name__} has no {name} for the sandbox")
        if kind is not types.SimpleNamespace:  # which has other names each time
            self._allowed.add((kind, name))

    def _is_named(self, owner: Any, kind: type, name: str) -> bool:
        if kind is types.SimpleNamespace:
            return name in vars(owner)
        return self._is_ours(kind) and not self._is_foreign(kind.__mro__, name)

    def _is_foreign(self, kinds: tuple[type, ...], name: str) -> bool:
        """Whether a class has this name from one that is not the course's: a model's ``save_weights`` writes files."""
        return next((not self._is_ours(each) for each in kinds if name in vars(each)), False)

    def check_set(self, owner: Any, name: str) -> None:
        kind = type(owner)
        if (kind, name) in self._settable or issubclass(kind, Remote):
            return
        if name not in SETTABLE.get(f"{kind.__module__}.{kind.__qualname__}", ()) \
                and kind.__module__ not in self.test_modules:
            raise AttributeError(f"{name} of {kind.__name__} cannot be set: what was handed in is to be used")
        if name.startswith("_") or callable(static(kind, name)) or callable(_own_dict(owner).get(name)):
            raise AttributeError(f"{name} of {kind.__name__} is not for the file under test to replace")
        if kind.__module__ not in self.test_modules:  # whose objects may have functions for attributes
            self._settable.add((kind, name))

    def check_call(self, function: Any) -> None:
        if isinstance(function, type) and not self._is_ours(function):
            raise TypeError(f"{function.__name__} is not for the sandbox to make")

    def check_operator(self, owner: Any, name: str) -> None:
        kind = type(owner)
        if issubclass(kind, Remote):
            return
        if kind in DATA or kind.__module__.split(".")[0] in ("numpy", "mlx"):
            # No honest side has us compute with its own numbers: "a" * 10**10.
            raise TypeError(f"{name} of a {kind.__name__} is not for the grader to compute")
        if name in _HARMLESS:
            return
        if isinstance(owner, type):
            raise TypeError(f"{name} of a class is not for the sandbox")
        if f"{kind.__module__}.{kind.__qualname__}" in ONLY:
            raise TypeError(f"{name} of {kind.__name__} is not for the sandbox")

    def check_handle(self, value: Any) -> None:
        if isinstance(value, _NEVER):
            raise TypeError(f"a {type(value).__name__} is not for the sandbox")

    def guards(self, owner: Any, name: str) -> bool:
        kind = type(owner)
        return name not in SHARED.get(f"{kind.__module__}.{kind.__qualname__}", ())

    def fixed_fields(self, kind: type) -> list[str]:
        return FIXED.get(f"{kind.__module__}.{kind.__qualname__}", [])

    def computed_fields(self, kind: type) -> list[str]:
        return COMPUTED.get(f"{kind.__module__}.{kind.__qualname__}", [])

    def methods_of(self, kind: type) -> list[str]:
        if not self._is_ours(kind):
            return []
        only = ONLY.get(f"{kind.__module__}.{kind.__qualname__}")
        return [name for name in super().methods_of(kind) if not name.startswith("_")
                and not self._is_foreign(kind.__mro__, name) and (only is None or name in only)]

"""Parts from a Python file: ``mini-vllm generate --parts my_parts.py``.

The file may define ``parts``, an EngineParts. Otherwise every class or function defined in the file that has the name
of one of the engine's, such as ``BlockPool`` or ``paged_attention``, replaces it.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

from mini_vllm.engine_config import EngineParts

#: The name that fills each slot.
NAMES = {"BlockPool": "block_pool", "KVCacheManager": "kv_cache_manager", "PrefixTree": "prefix_tree",
         "PriorityQueueWithAging": "request_queue", "Scheduler": "scheduler", "Sampler": "sampler",
         "paged_attention": "attention", "ModelRunner": "model_runner", "LLMEngine": "engine"}


def load_parts(path: Path) -> EngineParts:
    """Run the file and return its parts. Raise ValueError if it has none, or if it cannot be run."""
    module = types.ModuleType(f"parts_of_{path.stem}")
    module.__file__ = str(path)
    source = path.read_bytes()
    sys.modules[module.__name__] = module  # dataclasses look up their module there
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except Exception as error:
        raise ValueError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    parts = getattr(module, "parts", None)
    if parts is not None:
        if not isinstance(parts, EngineParts):
            raise ValueError(f"{path}: parts is a {type(parts).__name__}, must be an EngineParts")
        return parts
    own: dict[str, Any] = {slot: part for name, slot in NAMES.items()
                           if getattr(part := getattr(module, name, None), "__module__", None) == module.__name__}
    if not own:
        raise ValueError(f"{path} has no parts: it must define parts = EngineParts(...), or one of {', '.join(NAMES)}")
    return EngineParts(**own)

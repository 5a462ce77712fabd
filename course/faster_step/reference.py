"""The reference of lab 5.4: the engine's runner on the path that the course teaches.

It writes with ``PagedKVCache.write`` and attends with ``paged_attention`` of ``mini_vllm/attention.py``: one request at
a time, indices and masks made again in every layer. The engine itself attends by ``mini_vllm/fast``. In the grader this
module runs in a sandbox of its own, and no submission can import it.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.attention import paged_attention
from mini_vllm.model_runner import ModelRunner
from mini_vllm.models.network import Model


class ReferenceRunner(ModelRunner):
    """The engine's model runner with the simple attention."""

    def __init__(self, model: Model, num_blocks: int, block_size: int, attention: Any = None) -> None:
        """Create the K/V arrays. ``attention`` is not used."""
        super().__init__(model, num_blocks, block_size, paged_attention)

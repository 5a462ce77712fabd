"""mlx-lm on the same weights: its network, and its BatchGenerator under our measurement."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from mini_vllm.attention import PagedKVCache
from mini_vllm.backend import mx, nn
from mini_vllm.benchmark.drawing import GREEDY, Drawing
from mini_vllm.benchmark.request_times import CountingModel, OnToken, Watch
from mini_vllm.benchmark.results import PEER, BenchmarkResult
from mini_vllm.benchmark.workloads import Workload
from mini_vllm.extras import install_line
from mini_vllm.models.export import export_folder
from mini_vllm.models.loader import LoadedModel

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class PeerResponse(Protocol):
    """What mlx-lm reports of a request: ``progress`` while a prompt is being read, the other fields for a new token."""

    uid: int
    progress: tuple[int, int]
    token: int
    finish_reason: str | None


class PeerGenerator(Protocol):
    """The interface of mlx-lm's BatchGenerator that is used here; its own methods have no types."""

    @property
    def prompt_cache_nbytes(self) -> int: ...

    @property
    def stream(self) -> mx.Stream: ...

    def insert(self, prompts: list[list[int]], max_tokens: list[int]) -> Sequence[int]: ...

    def next(self) -> tuple[Sequence[PeerResponse], Sequence[PeerResponse]]: ...

    def next_generated(self) -> Sequence[PeerResponse]: ...

    def close(self) -> None: ...


def make_generator(model: Callable[..., mx.array], drawing: Drawing, batch_size: int | None = None) -> PeerGenerator:
    """Create a generator. ``batch_size`` limits the requests that decode together; None: mlx-lm's default."""
    from mlx_lm.generate import BatchGenerator
    options: dict[str, Any] = {} if batch_size is None else {"completion_batch_size": batch_size}
    generator: PeerGenerator = BatchGenerator(cast(nn.Module, model), sampler=drawing.peer_sampler(), **options)
    return generator


def has_peer() -> bool:
    """Check whether mlx-lm is installed."""
    return importlib.util.find_spec("mlx_lm") is not None


def without_peer() -> str:
    """Return the sentence for a run without mlx-lm."""
    return f"without {PEER}, which is not installed; to compare with it: {install_line('bench')}"


def load_peer(loaded: LoadedModel) -> tuple[nn.Module, TokenizerWrapper]:
    """Load the same weights in mlx-lm, through a folder in the layout both read; and a tokenizer with no end of text.

    Raise ValueError, which says how to install it, if mlx-lm is missing.
    """
    try:
        from mlx_lm.tokenizer_utils import TokenizerWrapper
        from mlx_lm.utils import load_model
        from transformers import PreTrainedTokenizerFast
    except ImportError:
        raise ValueError(f"a comparison with mlx-lm needs that package: {install_line('bench')}") from None
    with tempfile.TemporaryDirectory() as folder:
        export_folder(loaded, Path(folder))
        model, _ = load_model(Path(folder))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=loaded.tokenizer._backend)
    return model, TokenizerWrapper(tokenizer, eos_token_ids=[-1])


def serve_by_peer(model: nn.Module, loaded: LoadedModel, workload: Workload, on_token: OnToken,
                  drawing: Drawing = GREEDY, batch_size: int | None = None) -> tuple[BenchmarkResult, list[list[int]]]:
    """Run a workload through mlx-lm's BatchGenerator, like ``throughput.serve``.

    Its settings are the defaults, except for ``batch_size`` if given.
    """
    config = loaded.config
    token_bytes = PagedKVCache.block_bytes(config.num_layers, config.num_kv_heads, 1, config.head_dim,
                                           loaded.model.model.norm.weight.dtype)
    counting = CountingModel(model)
    watch = Watch(workload.items, on_token)
    generator = make_generator(counting, drawing, batch_size)
    index_of: dict[int, int] = {}
    num_cached: dict[int, int] = {}  # id of a request in the generator → its number of tokens that have K/V
    while watch.num_to_come or index_of:
        new = watch.arrivals()
        if new:
            ids = generator.insert([workload.items[index].prompt for index in new],
                                   [workload.items[index].num_tokens for index in new])
            index_of.update(zip(ids, new))
        of_prompts, generated = generator.next()
        for response in of_prompts:
            num_cached[response.uid] = response.progress[0]
        for response in generated:
            index = index_of[response.uid]
            num_cached[response.uid] = len(workload.items[index].prompt) + len(watch.token_ids[index])
            watch.tokens(index, [int(response.token)])
            if response.finish_reason is not None:
                del index_of[response.uid], num_cached[response.uid]
        watch.kv_held += generator.prompt_cache_nbytes / token_bytes
        watch.kv_used += sum(num_cached.values())
    generator.close()
    num_asked = workload.num_prompt_tokens + workload.num_output_tokens - len(workload.items)
    return watch.result(workload, PEER, counting.num_rows, num_asked), watch.token_ids

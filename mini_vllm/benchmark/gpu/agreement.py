"""Checks whether the fast computation is also right: our tokens against mlx-lm's scores, with the same weights.

mlx-lm reads each prompt followed by our output, all at once. Where its best token is not ours, the question is by how
much. In bfloat16 a number has three digits, and every layer rounds, so two sums of the same numbers in different orders
differ. Among 151,936 tokens, the scores of the two best often differ by less than such a rounding error. mlx-lm itself
shows the effect of rounding: its scores in bfloat16 are compared with its own in float32. That difference is the
*noise*; tokens whose scores are only a few times the noise apart are a near-tie.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mini_vllm.backend import mx, nn
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE
from mini_vllm.models.export import export_folder
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.models.random_model import write_byte_tokenizer
from mini_vllm.request import SamplingParams

Scores = NDArray[np.float32]

#: A difference depends on four scores with noise: two of ours and two of mlx-lm's. So its own noise is on average twice
#: that of a single score, and the largest of hundreds of differences can be a few times that average.
MAX_NOISES = 10.0
#: In float32 there is nothing more exact to compare with. A smaller difference is a tie.
FLOAT32_NOISE = 1e-5
#: The number of differences that are shown.
MAX_SHOWN = 5
#: Packed weights, by mlx-lm's own recipe.
BITS, GROUP_SIZE = 4, 64


@dataclass(frozen=True)
class Difference:
    """A token of ours that is not mlx-lm's first choice."""

    request: int
    place: int
    ours: int
    peers: int
    #: How much higher mlx-lm's score for its own choice is, and how many times the noise that is.
    gap: float
    num_noises: float

    def __str__(self) -> str:
        return (f"request {self.request}, token {self.place}: we chose {self.ours}, mlx-lm chose {self.peers}; its "
                f"choice scores {self.gap:.3f} higher, {self.num_noises:.1f} times the noise")


@dataclass(frozen=True)
class Agreement:
    num_tokens: int
    #: The noise of mlx-lm's own scores.
    noise: float
    differences: tuple[Difference, ...]

    @property
    def is_good(self) -> bool:
        """Whether all differences are near-ties."""
        return all(each.num_noises <= MAX_NOISES for each in self.differences)

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "is_good": self.is_good}

    def __str__(self) -> str:
        lines = [f"{self.num_tokens} tokens; different from mlx-lm's first choice: {len(self.differences)}"]
        if self.differences:
            lines.append(f"  a near-tie is a difference of at most {MAX_NOISES:g} times the noise of mlx-lm's own "
                         f"scores, which is {self.noise:.2g}")
        worst = sorted(self.differences, key=lambda each: -each.num_noises)
        lines += [f"  {each}" for each in worst[:MAX_SHOWN]]
        lines += [f"  and {len(worst) - MAX_SHOWN} smaller differences"] * (len(worst) > MAX_SHOWN)
        return "\n".join(lines + ["THE TOKENS DO NOT AGREE"] * (not self.is_good))


def agree(loaded: LoadedModel, peer: nn.Module, num_requests: int = 12, num_tokens: int = 24) -> Agreement:
    """Compare prompts of different lengths, some with a common beginning, so that chunks, decoding and copies all
    occur."""
    rng = np.random.default_rng(0)
    vocab_size = min(loaded.config.vocab_size, 10_000)
    shared = rng.integers(0, vocab_size, 70).tolist()
    prompts = [(shared if index % 3 == 0 else []) + rng.integers(0, vocab_size, 5 + 29 * index).tolist()
               for index in range(num_requests)]
    return compare(peer, prompts, generate(loaded, prompts, num_tokens))


def generate(loaded: LoadedModel, prompts: Sequence[list[int]], num_tokens: int) -> list[list[int]]:
    """Return the greedy tokens of each prompt. Raise RuntimeError if a request fails."""
    num_blocks = sum(-(-(len(prompt) + num_tokens) // DEFAULT_BLOCK_SIZE) + 1 for prompt in prompts) + 2
    engine = LLMEngine(EngineConfig(num_blocks=num_blocks), loaded=loaded)
    params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)
    found: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        engine.add_request(prompt, params, str(index))
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.error:
                raise RuntimeError(f"request {output.request_id}: {output.error}")
            found[output.request_id] = output.token_ids
    return [found[str(index)] for index in range(len(prompts))]


def compare(peer: nn.Module, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> Agreement:
    """Compare ``outputs``, which are ours, each the continuation of a prompt."""
    rounded = [scores_of(peer, prompt, output) for prompt, output in zip(prompts, outputs)]
    with in_float32(peer):
        exact = [scores_of(peer, prompt, output) for prompt, output in zip(prompts, outputs)]
    errors = [float(np.square(one - other).mean()) for one, other in zip(rounded, exact)]
    noise = max(float(np.sqrt(np.mean(errors))), FLOAT32_NOISE)
    differences: list[Difference] = []
    for request, (scores, output) in enumerate(zip(rounded, outputs)):
        for place in np.flatnonzero(scores.argmax(axis=-1) != np.asarray(output)).tolist():
            ours, best = output[place], int(scores[place].argmax())
            gap = float(scores[place, best] - scores[place, ours])
            differences.append(Difference(request, place, ours, best, gap, gap / noise))
    return Agreement(sum(map(len, outputs)), noise, tuple(differences))


def scores_of(peer: nn.Module, prompt: Sequence[int], output: Sequence[int]) -> Scores:
    """Return mlx-lm's scores of every token at each position of the output, [len(output), vocab_size]."""
    logits = peer(mx.array([[*prompt, *output[:-1]]]))[0, len(prompt) - 1:]
    scores: Scores = np.array(logits.astype(mx.float32))
    return scores


@contextlib.contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Convert the model's numbers to float32 while the block runs; packed weights stay packed."""
    parameters = model.parameters()
    model.set_dtype(mx.float32)
    try:
        yield
    finally:
        model.update(parameters)


def quantise(loaded: LoadedModel) -> tuple[LoadedModel, nn.Module]:
    """Return a model whose weights stay packed, 4 bits each, as ours and as mlx-lm's. This needs mlx-lm."""
    from mlx.utils import tree_flatten
    from mlx_lm.utils import load_model, quantize_model
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export_folder(loaded, folder)
        write_byte_tokenizer(folder)
        peer, config = load_model(folder)
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it did
            peer, config = quantize_model(peer, config, GROUP_SIZE, BITS)
        mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(peer.parameters())))
        (folder / "config.json").write_text(json.dumps(config))
        return load(folder), peer

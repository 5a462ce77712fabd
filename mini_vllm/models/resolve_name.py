"""From a name to the folder or file that it stands for.

    "tiny-tales"          ships with the project
    "smollm2"             after `mini-vllm pull smollm2`
    "path/to/folder"      Hugging Face layout
    "path/to/model.gguf"  one file
    "org/name"            from the hub, where there is a network
"""

from __future__ import annotations

import re
import reprlib
from pathlib import Path

from mini_vllm.extras import install_line
from mini_vllm.models.catalogue import KNOWN, all_names, cached_model, did_you_mean, shipped_model
from mini_vllm.models.json_fields import LoadError

#: Longer paths are rejected by the file system, with its own error.
MAX_NAME_CHARS = 1000
HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]


def find_model(name: str | Path) -> Path:
    """Return the folder or GGUF file that a name stands for. A hub name is downloaded."""
    text = str(name)
    if shipped := shipped_model(text):
        return shipped
    if text in KNOWN:
        path = cached_model(text)
        if path is None:
            raise LoadError(f"the model {text!r} is not here yet; `mini-vllm pull {text}` downloads it")
        return path
    if len(text) > MAX_NAME_CHARS or "\0" in text:
        raise LoadError(f"the model's name is {reprlib.repr(text)} of {len(text)} characters, must be at most "
                        f"{MAX_NAME_CHARS} and without NUL")
    path = Path(text).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.exists():
        raise LoadError(f"{text} is neither a folder nor a .gguf file")
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", text):
        return _fetch_from_hub(text)
    if "/" in text or path.suffix == ".gguf":
        raise LoadError(f"{text}: there is no such {'file' if path.suffix == '.gguf' else 'folder'}")
    raise LoadError(f"there is no model {text!r}; " + (did_you_mean(text) or (
        f"it may be {all_names()}, a folder, a .gguf file or a hub name (org/name)")))


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

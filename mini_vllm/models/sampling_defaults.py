"""How a model's makers would have it sampled: by the file that came with it, else by the catalogue.

    generation_config.json   in a checkpoint folder
    catalogue                for a model that was pulled: a .gguf has no such file

What neither says is left to whoever asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mini_vllm.models.catalogue import KNOWN
from mini_vllm.models.json_fields import Fields, LoadError, read_object
from mini_vllm.request import SamplingParams

#: What is followed of the file. All are fields of SamplingParams, which says what each may be.
FOLLOWED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_defaults(path: Path) -> Mapping[str, Any]:
    """Fields of SamplingParams for the model in this folder or .gguf file; empty if nothing is known.

    Raises LoadError naming the file and the field that cannot be.
    """
    file = path / "generation_config.json"
    if file.is_file():
        return _read(file)
    of_pulled = {model.path.resolve(): model.sampling_defaults for model in KNOWN.values()}
    return of_pulled.get(path.resolve(), {})


def _read(file: Path) -> dict[str, Any]:
    fields = Fields(read_object(file))
    defaults: dict[str, Any] = {name: fields.get(name) for name in FOLLOWED if name in fields}
    try:
        SamplingParams(**defaults)
        if "do_sample" in fields and not fields.flag("do_sample"):  # it draws nothing, whatever else the file says
            defaults["temperature"] = 0.0
    except ValueError as error:  # by SamplingParams, or a FieldError
        raise LoadError(f"{file}: {error}") from None
    return defaults

"""The recommended sampling parameters of a model: from the file that comes with it, else from the catalogue.

    generation_config.json   in a checkpoint folder
    catalogue                for a model that was pulled: a .gguf has no such file

A parameter that is in neither is left to the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mini_vllm.models.catalogue import KNOWN
from mini_vllm.models.json_fields import Fields, LoadError, read_object
from mini_vllm.request import SamplingParams

#: The fields of the file that are used. All are fields of SamplingParams, which defines their valid values.
FOLLOWED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_defaults(path: Path) -> Mapping[str, Any]:
    """Return fields of SamplingParams for the model in this folder or .gguf file; empty if nothing is known.

    Raise LoadError that names the file and the invalid field.
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
        if "do_sample" in fields and not fields.flag("do_sample"):  # greedy, whatever else the file says
            defaults["temperature"] = 0.0
    except ValueError as error:  # from SamplingParams, or a FieldError
        raise LoadError(f"{file}: {error}") from None
    return defaults

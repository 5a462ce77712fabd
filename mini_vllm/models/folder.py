"""A checkpoint folder in the Hugging Face layout: its config, and its weights from one or several safetensors files."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from mini_vllm.backend import mx
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.json_fields import FieldError, Fields, LoadError, check_inside, read_object, shown
from mini_vllm.models.quantised import MODES

#: Limit for the header of a safetensors file: room for a hundred thousand tensors.
MAX_HEADER_BYTES = 16 * 2**20


def read_folder(folder: Path) -> tuple[ModelConfig, dict[str, mx.array]]:
    """Read config and weights. Raise LoadError that names the file, and the missing or invalid field."""
    config, files = check_folder(folder)
    weights: dict[str, mx.array] = {}
    for file in files:
        weights.update(_read_safetensors(file))
    # Old checkpoints contain the rotary frequencies, which follow from the config.
    return config, {name: array for name, array in weights.items() if not name.endswith("rotary_emb.inv_freq")}


def check_folder(folder: Path) -> tuple[ModelConfig, list[Path]]:
    """Return the config and the files that hold the weights.

    Raise LoadError for the same errors as ``read_folder``, if they can be found without reading tensors.
    """
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise LoadError(f"{folder} has no config.json: it is not a model folder")
    raw = read_object(config_file)
    try:
        config = ModelConfig.from_dict(raw)
        _check_quantization(Fields(raw))
    except ValueError as error:
        raise LoadError(f"{config_file}: {error}") from None
    files = _weight_files(folder)
    for file in files:
        check_safetensors(file)
    return config, files


def _weight_files(folder: Path) -> list[Path]:
    """Return all safetensors files, or those that the index names, if there is one."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise LoadError(f"{folder} has no *.safetensors files")
    index_file = folder / "model.safetensors.index.json"
    if not index_file.is_file():
        return files
    wanted = _files_of_index(index_file)
    missing = sorted(wanted - {file.name for file in files})
    if missing:
        raise LoadError(f"{folder.name}: {index_file.name} names {shown(missing[0])}, which is missing")
    return [file for file in files if file.name in wanted]


def _read_safetensors(file: Path) -> dict[str, mx.array]:
    try:
        arrays = mx.load(str(file))
    except (RuntimeError, ValueError) as error:
        raise LoadError(f"{file}: {error}") from None
    assert isinstance(arrays, dict)  # true of every safetensors file
    return arrays


def _check_quantization(config: Fields) -> None:
    """Raise LoadError for an unknown mode or method of quantisation. The packing itself is read from the tensors."""
    quantization = config.part("quantization")
    quantization.only("mode", *MODES)
    for name in quantization:
        if isinstance(quantization.get(name), dict):
            quantization.part(name).only("mode", *MODES)
    method = config.part("quantization_config")
    if "quantization" not in config and "quant_method" in method:
        raise method.error("quant_method", "supported: the format that mlx_lm.convert writes")


def _files_of_index(file: Path) -> set[str]:
    """Return the names of the files that hold the weights."""
    index = Fields(read_object(file))
    try:
        if "weight_map" not in index:
            raise index.error("weight_map", "must be an object")
        weight_map, files = index.part("weight_map"), set()
        for name in weight_map:
            file_name = weight_map.get(name)
            if not isinstance(file_name, str):
                raise weight_map.error(name, "must be the name of a file")
            files.add(file_name)
    except FieldError as error:
        raise LoadError(f"{file}: {error}") from None
    if not files:
        raise LoadError(f"{file}: weight_map is empty, must name at least one file")
    return files


def check_safetensors(file: Path) -> None:
    """Raise LoadError if the file is shorter or longer than its header says: reading it would give garbage."""
    if not file.is_file():  # a pipe or a device has no end
        raise LoadError(f"{file} is not a regular file")
    check_inside(file)
    size = file.stat().st_size
    with open(file, "rb") as stream:
        head = stream.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if len(head) < 8 or length > size - 8:
            raise LoadError(f"{file}: truncated: {size} bytes, its header alone needs {8 + length}")
        if length > MAX_HEADER_BYTES:
            raise LoadError(f"{file}: its header has {length} bytes, must have at most {MAX_HEADER_BYTES}")
        try:
            header = json.loads(stream.read(length))
            ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            raise LoadError(f"{file}: its header is not that of a safetensors file") from None
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise LoadError(f"{file}: {'truncated' if size < expected else 'too long'}: {size} bytes, expected {expected}")

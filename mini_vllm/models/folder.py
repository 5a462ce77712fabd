"""A checkpoint folder in the Hugging Face layout.

    config.json              the numbers that define the network
    *.safetensors            the weights, in one or several files; an index may name them
    tokenizer.json           vocabulary, merges, how a text is split
    tokenizer_config.json    which tokens begin and end a text; the chat template, in older checkpoints
    special_tokens_map.json  those tokens, if tokenizer_config.json lacks them
    generation_config.json, config.json   further ids that end a text
    chat_template.jinja      the chat template, in newer checkpoints
"""

from __future__ import annotations

import json
import reprlib
import struct
from collections.abc import Mapping
from pathlib import Path

import tokenizers

from mini_vllm.backend import mx
from mini_vllm.models.config import Fields, LoadError, ModelConfig, read_object
from mini_vllm.models.tokenizer import Tokenizer, TokenizerError, panics_told


def read_folder(folder: Path) -> tuple[ModelConfig, dict[str, mx.array]]:
    """Read config and weights. Raise LoadError that names the file, and the missing or invalid field."""
    config, files = check_folder(folder)
    weights: dict[str, mx.array] = {}
    for file in files:
        try:
            arrays = mx.load(str(file))
        except (RuntimeError, ValueError) as error:
            raise LoadError(f"{file}: {error}") from None
        assert isinstance(arrays, dict)  # true of every safetensors file
        weights.update(arrays)
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
        method = Fields(raw).part("quantization_config")
        if "quantization" not in raw and "quant_method" in method:
            raise method.error("quant_method", "supported: the format that mlx_lm.convert writes")
    except ValueError as error:
        raise LoadError(f"{config_file}: {error}") from None
    files = sorted(folder.glob("*.safetensors"))
    index_file = folder / "model.safetensors.index.json"
    if index_file.is_file():
        files = _files_of_index(index_file)
    if not files:
        raise LoadError(f"{folder} has no *.safetensors files")
    for file in files:
        _check_safetensors(file)
    return config, files


def _files_of_index(index_file: Path) -> list[Path]:
    """Return the files that an index names. Raise LoadError for a missing one."""
    weight_map = read_object(index_file).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise LoadError(f"{index_file}: weight_map is {reprlib.repr(weight_map)}, must give the file of each tensor")
    files = [index_file.parent / name for name in sorted(set(weight_map.values()))]
    for file in files:
        if not file.is_file():
            raise LoadError(f"{index_file} names {file.name}, which is missing")
    return files


def _check_safetensors(file: Path) -> None:
    """Raise LoadError if the file is shorter or longer than its header says: reading it would give garbage."""
    size = file.stat().st_size
    with open(file, "rb") as stream:
        head = stream.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if len(head) < 8 or length > size - 8:
            raise LoadError(f"{file}: truncated: {size} bytes, its header alone needs {8 + length}")
        try:
            header = json.loads(stream.read(length))
            ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            raise LoadError(f"{file}: its header is not that of a safetensors file") from None
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise LoadError(f"{file}: {'truncated' if size < expected else 'too long'}: {size} bytes, expected {expected}")


def tokenizer_from_folder(folder: Path, num_rows: int | None = None) -> Tokenizer:
    """Read the tokenizer; only ``tokenizer.json`` is required. Raise TokenizerError that names the file and the field.

    ``num_rows`` is the size of the network's vocabulary. The tokenizer may have larger ids, as in some real
    checkpoints; a text that contains one is rejected.
    """
    folder = Path(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(f"{path} is missing: a checkpoint folder needs it")
    try:
        with panics_told():
            backend = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"{path} is not a tokenizer: {error}") from error
    config = _read_optional(folder / "tokenizer_config.json")
    special_map = _read_optional(folder / "special_tokens_map.json")
    special: dict[str, str | None] = {}
    eos_ids = _read_eos_ids(folder)
    for field in ("bos_token", "eos_token"):
        token = special_map.get(field) if config.get(field) is None else config[field]
        token = token.get("content") if isinstance(token, dict) else token
        if token is not None and (not isinstance(token, str) or backend.token_to_id(token) is None):
            raise TokenizerError(f"{folder}: {field} is {reprlib.repr(token)}, which is not in the vocabulary")
        special[field] = token
    eos_id = None if special["eos_token"] is None else backend.token_to_id(special["eos_token"])
    if eos_id is not None:
        eos_ids.add(eos_id)
    return Tokenizer(backend, special["bos_token"], special["eos_token"], frozenset(eos_ids),
                     _read_template(folder, config), num_rows)


def _read_optional(file: Path) -> dict[str, object]:
    """Read a file that need not exist; without it, nothing is set."""
    return read_object(file, TokenizerError) if file.is_file() else {}


def _read_eos_ids(folder: Path) -> set[int]:
    """Return the ids that end a text, from the configs of the network and of its generation: one, a list, or none."""
    eos_ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = _read_optional(folder / name).get("eos_token_id")
        for token_id in value if isinstance(value, list) else [] if value is None else [value]:
            if type(token_id) is not int or token_id < 0:
                raise TokenizerError(f"{folder / name}: eos_token_id is {reprlib.repr(value)}, must be one token id "
                                     "or a list")
            eos_ids.add(token_id)
    return eos_ids


def _read_template(folder: Path, config: Mapping[str, object]) -> str | None:
    """Return the chat template.

    Newer checkpoints have a file for it, older ones a field: one template, or several with names.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except ValueError as error:
            raise TokenizerError(f"{path} is not a text: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list) and all(isinstance(entry, dict) for entry in template):
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    if template is not None and not isinstance(template, str):
        raise TokenizerError(f"{folder / 'tokenizer_config.json'}: chat_template is {reprlib.repr(template)}, "
                             "must be a text or a list of named texts")
    return template

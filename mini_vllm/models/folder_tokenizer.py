"""The tokenizer of a checkpoint folder in the Hugging Face layout. Only ``tokenizer.json`` must be there.

    tokenizer.json           vocabulary, merges, how a text is cut
    tokenizer_config.json    which tokens begin and end a text; the chat template, in older checkpoints
    special_tokens_map.json  those tokens again, if they are not there
    generation_config.json, config.json   further ids that end a text
    chat_template.jinja      the chat template, in newer checkpoints
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path

import tokenizers

from mini_vllm.models.fields import read_object
from mini_vllm.models.tokenizer import Tokenizer, TokenizerError, panics_told


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Raises TokenizerError naming the file, and the field, that cannot be."""
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
            raise TokenizerError(f"{folder}: {field} is {token!r}, which is not in the vocabulary")
        special[field] = token
    eos_id = None if special["eos_token"] is None else backend.token_to_id(special["eos_token"])
    return Tokenizer(backend, special["bos_token"], special["eos_token"],
                     frozenset(eos_ids if eos_id is None else eos_ids | {eos_id}), _read_template(folder, config))


def _read_optional(file: Path) -> dict[str, object]:
    """A file that need not be there; without it, nothing is set."""
    return read_object(file, TokenizerError) if file.is_file() else {}


def _read_eos_ids(folder: Path) -> set[int]:
    """The ids that end a text, by the configs of the network and of its generation: one, or a list, or none."""
    eos_ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = _read_optional(folder / name).get("eos_token_id")
        for token_id in value if isinstance(value, list) else [] if value is None else [value]:
            if type(token_id) is not int or token_id < 0:
                raise TokenizerError(f"{folder / name}: eos_token_id is {value!r}, must be one token id or a list")
            eos_ids.add(token_id)
    return eos_ids


def _read_template(folder: Path, config: Mapping[str, object]) -> str | None:
    """Newer checkpoints have a file for it, older ones a field: one template, or several with names."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except ValueError as error:
            raise TokenizerError(f"{path} is not a text: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list) and all(isinstance(entry, dict) and isinstance(entry.get("name"), str)
                                          for entry in template):
        template = {entry["name"]: entry.get("template") for entry in template}.get("default")
    if template is not None and not isinstance(template, str):
        raise TokenizerError(f"{folder / 'tokenizer_config.json'}: chat_template is {reprlib.repr(template)}, "
                             "must be a text or a list of named texts")
    return template

"""The tokenizer of a checkpoint folder in the Hugging Face layout. Only ``tokenizer.json`` is required.

    tokenizer.json           vocabulary, merges, how a text is split
    tokenizer_config.json    which tokens begin and end a text; the chat template, in older checkpoints
    special_tokens_map.json  those tokens, if tokenizer_config.json lacks them
    generation_config.json, config.json   further ids that end a text
    chat_template.jinja      the chat template, in newer checkpoints
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from mini_vllm.models.growth import check_growth
from mini_vllm.models.json_fields import read_object, read_text
from mini_vllm.models.tokenizer import MAX_TEMPLATE_CHARS, MAX_TOKENS, Tokenizer, TokenizerError, panics_told

#: Limits for ``tokenizer.json``. Real ones reach 35 MB, 70,000 added tokens and 515,000 merges. While the library reads
#: a file, no other thread runs: with these limits, for a few seconds at most.
MAX_BYTES, MAX_ADDED_TOKENS, MAX_MERGES = 48 * 2**20, 2**17, 2**20


def tokenizer_from_folder(folder: Path, num_rows: int | None = None) -> Tokenizer:
    """Read the tokenizer. Raise TokenizerError that names the file and the invalid field.

    If ``num_rows`` is given, also raise it for a vocabulary with ids that a network of this many rows does not have.
    Added tokens may have such ids, as in some real checkpoints; a text that contains one is rejected.
    """
    folder = Path(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(f"{path} is missing: a checkpoint folder needs it")
    try:
        text = read_text(path, MAX_BYTES, TokenizerError)
        content = json.loads(text, object_pairs_hook=_without_repeats)
        with panics_told():
            _check_vocabulary(content, num_rows)
            check_growth(content)
            backend = tokenizers.Tokenizer.from_str(text)
    except TokenizerError:
        raise
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
    return Tokenizer(backend, special["bos_token"], special["eos_token"],
                     frozenset(eos_ids if eos_id is None else eos_ids | {eos_id}), _read_template(folder, config),
                     num_rows)


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object. Reject repeated fields: the library might use another one than we do."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("it has an object with the same field twice")
    return content


def _check_vocabulary(content: Any, num_rows: int | None) -> None:
    """Raise TokenizerError for a vocabulary that is too large to be read, or larger than the network's.

    Another error is raised for anything that is not a tokenizer.
    """
    model = content["model"]
    vocab = model.get("vocab")
    for name, entries, most in (("model.vocab", vocab, MAX_TOKENS), ("model.merges", model.get("merges"), MAX_MERGES),
                                ("added_tokens", content.get("added_tokens"), MAX_ADDED_TOKENS)):
        if isinstance(entries, (dict, list)) and len(entries) > most:
            raise TokenizerError(f"tokenizer.json: {name} has {len(entries)} entries, must have at most {most}")
    ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab)) if isinstance(vocab, list) else ()
    largest = max((token_id for token_id in ids if isinstance(token_id, int)), default=0)
    most = MAX_TOKENS if num_rows is None else min(num_rows, MAX_TOKENS)
    if largest >= most:
        raise TokenizerError(f"tokenizer.json: model.vocab has the token id {largest}, must be at most "
                             f"{most - 1}: the network has no more tokens")


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
            return read_text(path, 4 * MAX_TEMPLATE_CHARS, TokenizerError)
        except TokenizerError:
            raise
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

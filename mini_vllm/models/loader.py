"""From a name to a network with its weights and tokenizer: find it, read it, build it."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_vllm.backend import check_process
from mini_vllm.models.catalogue import KNOWN, find_model
from mini_vllm.models.config import Fields, LoadError, ModelConfig, read_object
from mini_vllm.models.folder import check_folder, read_folder, tokenizer_from_folder
from mini_vllm.models.gguf import read_gguf
from mini_vllm.models.gguf_file import GGUFFile
from mini_vllm.models.network import Model
from mini_vllm.models.tokenizer import Tokenizer, TokenizerError
from mini_vllm.models.weights import Packing, make_model
from mini_vllm.request import SamplingParams

DEFAULT_MODEL = "tiny-tales"
#: The fields of a generation_config.json that are used. All are fields of SamplingParams, which checks their values.
FOLLOWED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class LoadedModel:
    #: The name that was passed to ``load``.
    name: str
    path: Path
    model: Model
    config: ModelConfig
    tokenizer: Tokenizer
    #: The model's recommended sampling: fields of SamplingParams. Empty if there is none.
    sampling_defaults: Mapping[str, Any]

    #: The size of its parameters.
    num_bytes: int


def load(name: str | Path, tokenizer: Tokenizer | None = None,
         kept: Callable[[ModelConfig], Container[Packing]] = lambda config: ()) -> LoadedModel:
    """Load a model by any of its names.

    ``tokenizer`` is the result of ``check``, if that was called. ``kept`` returns which packings whoever computes can
    use as they are; see ``make_model``. Raise LoadError with what is wrong and what to do.
    """
    check_process()
    path = find_model(name)
    defaults = sampling_defaults(path)
    try:
        if path.suffix == ".gguf":
            config, weights, tokenizer = read_gguf(path)
        else:
            config, weights = read_folder(path)
            tokenizer = tokenizer or tokenizer_from_folder(path, config.vocab_size)
        model = make_model(config, weights, kept)
    except TokenizerError as error:
        raise LoadError(f"{path.name}: {error}") from None
    return LoadedModel(str(name), path, model, model.config, tokenizer, defaults, model.num_bytes)


def check(path: Path) -> Tokenizer | None:
    """Raise LoadError for a model that cannot be loaded, as far as that shows without reading its weights.

    Return the tokenizer, if it was read.
    """
    sampling_defaults(path)
    try:
        if path.suffix == ".gguf":
            GGUFFile(path)
            return None
        config, _ = check_folder(path)
        return tokenizer_from_folder(path, config.vocab_size)
    except TokenizerError as error:
        raise LoadError(f"{path.name}: {error}") from None


def sampling_defaults(path: Path) -> Mapping[str, Any]:
    """Return the recommended sampling of the model in this folder or .gguf file: fields of SamplingParams.

    They are in the folder's generation_config.json or, for a model that was pulled, in the catalogue. Raise LoadError
    that names the file and the invalid field.
    """
    file = path / "generation_config.json"
    if not file.is_file():
        of_pulled = {model.path.resolve(): model.sampling_defaults for model in KNOWN.values()}
        return of_pulled.get(path.resolve(), {})
    fields = Fields(read_object(file))
    defaults: dict[str, Any] = {name: fields.get(name) for name in FOLLOWED if name in fields}
    try:
        SamplingParams(**defaults)
        if "do_sample" in fields and not fields.flag("do_sample"):  # greedy, whatever else the file says
            defaults["temperature"] = 0.0
    except ValueError as error:  # from SamplingParams, or a FieldError
        raise LoadError(f"{file}: {error}") from None
    return defaults

"""A model as the numbers that decide its cost: the weights in bytes, and the keys and values of one token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mini_vllm.checks import real_number, whole_number
from mini_vllm.models.catalogue import ASSETS, SHIPPED
from mini_vllm.models.config import Fields, LoadError, ModelConfig, read_object
from mini_vllm.models.random_model import RANDOM_MODELS

#: The largest number of layers, heads, … that is accepted: all products stay far below the limit of a float.
LARGEST = 10**7


@dataclass(frozen=True)
class ModelShape:
    """The shape of a Llama-like network. Raises ValueError that names the field, its value and its bound."""

    name: str
    layers: int
    width: int
    mlp_width: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    #: The output matrix is the embedding.
    is_tied: bool = True
    #: The longest text; None: unknown.
    max_tokens: int | None = None
    #: Bits per weight, if the checkpoint is packed: 4 bits in groups of 64 take 4.5, with their scales.
    packed_bits: float | None = None

    def __post_init__(self) -> None:
        for field in ("layers", "width", "mlp_width", "heads", "kv_heads", "head_size", "vocabulary"):
            whole_number(field, getattr(self, field), 1, LARGEST)
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads is {self.kv_heads}, must divide heads ({self.heads})")

    @classmethod
    def from_config(cls, name: str, raw: Mapping[str, object]) -> ModelShape:
        """Read a Hugging Face config. A config that does not say whether the output matrix is tied counts as untied."""
        config, packing = ModelConfig.from_dict(raw), Fields(raw).part("quantization")
        bits = None
        if "bits" in packing:  # each group has a scale and a bias of 16 bits
            bits = packing.whole("bits") + 32 / packing.whole("group_size", 64)
        return cls(name, config.num_layers, config.hidden_size, config.intermediate_size, config.num_heads,
                   config.num_kv_heads, config.head_dim, config.vocab_size, bool(config.tie_word_embeddings),
                   config.max_position_embeddings, bits)

    def check_length(self, num_tokens: int) -> None:
        """Raise ValueError if a prompt and its output together are longer than the model's context."""
        if self.max_tokens is not None and num_tokens > self.max_tokens:
            raise ValueError(f"prompt + output is {num_tokens}, must be at most {self.max_tokens}, the context of "
                             f"{self.name}")

    @property
    def layer_weights(self) -> int:
        """The weights of one layer's matrices: queries and output, keys and values, and the MLP's three."""
        attention = 2 * self.width * self.head_size * (self.heads + self.kv_heads)
        return attention + 3 * self.width * self.mlp_width

    @property
    def output_weights(self) -> int:
        return self.vocabulary * self.width

    @property
    def num_weights(self) -> int:
        """All matrices. Norms and biases, less than a thousandth, are left out."""
        return self.layers * self.layer_weights + self.output_weights * (1 if self.is_tied else 2)

    @property
    def weights_per_token(self) -> int:
        """The weights that a decoded token is multiplied with; one row of an embedding matrix is only looked up."""
        return self.layers * self.layer_weights + self.output_weights

    def kv_bytes(self, bytes_per_number: float) -> float:
        """Return the bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * real_number("bytes_per_number", bytes_per_number,
                                                                              above=0)


#: Shapes by name, besides those of ``RANDOM_MODELS``, from the published configs.
SHAPES = {
    "smollm2": ModelShape("smollm2", 30, 576, 1536, 9, 3, 64, 49_152, True, 8192),
    "qwen3-8b": ModelShape("qwen3-8b", 36, 4096, 12_288, 32, 8, 128, 151_936, False, 40_960),
    "llama-3.1-8b": ModelShape("llama-3.1-8b", 32, 4096, 14_336, 32, 8, 128, 128_256, False, 131_072),
    "llama-3.1-70b": ModelShape("llama-3.1-70b", 80, 8192, 28_672, 64, 8, 128, 128_256, False, 131_072),
}
NAMES = (*SHIPPED, *RANDOM_MODELS, *SHAPES)


def find_shape(name: str) -> ModelShape:
    """Return the shape of a known name, or of a folder that has a config.json. Nothing is downloaded.

    Raise LoadError that names what is missing or invalid.
    """
    if name in SHAPES:
        return SHAPES[name]
    if name in RANDOM_MODELS:
        return ModelShape.from_config(name, RANDOM_MODELS[name])
    folder = ASSETS / name if name in SHIPPED else Path(name).expanduser()
    file = folder / "config.json"
    if not file.is_file():
        raise LoadError(f"there is no model {name!r}: give one of {', '.join(NAMES)}, a folder with a config.json, or "
                        "the shape with --layers and the options next to it")
    try:
        return ModelShape.from_config(name, read_object(file))
    except LoadError:
        raise
    except ValueError as error:
        raise LoadError(f"{file}: {error}") from None

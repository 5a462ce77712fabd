"""From a name to a network with its weights and tokenizer: shipped models, folders, GGUF files, hub names.

    "tiny-tales"          ships with the project
    "smollm2"             after `mini-vllm pull smollm2`
    "path/to/folder"      Hugging Face layout: config.json, *.safetensors, tokenizer.json; float or MLX-quantised
    "path/to/model.gguf"  as far as MLX reads it
    "org/name"            from the hub, where there is a network
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlx.utils import tree_flatten

from mini_vllm.backend import dequantise_is_faster, mx
from mini_vllm.model import Model, ModelConfig
from mini_vllm.pull import KNOWN, cached_model
from mini_vllm.tokenizer import Tokenizer, TokenizerError
from mini_vllm.weights import LoadError, make_model, unstack

ASSETS = Path(__file__).parent / "assets"
DEFAULT_MODEL = "tiny-tales"
HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]

#: Parameter names of a GGUF file → those of a Hugging Face checkpoint
GGUF_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True)
class LoadedModel:
    name: str
    path: Path
    model: Model
    config: ModelConfig
    tokenizer: Tokenizer


def load(name: str | Path) -> LoadedModel:
    """Load a model by any of its names. Raises LoadError with what is wrong and what to do."""
    path = find_model(name)
    try:
        if path.suffix == ".gguf":
            config, weights, tokenizer = _read_gguf(path)
        else:
            config, weights, tokenizer = _read_folder(path)
        model = make_model(config, weights)
    except TokenizerError as error:
        raise LoadError(f"{path.name}: {error}") from None
    return LoadedModel(str(name), path, model, model.config, tokenizer)


def find_model(name: str | Path) -> Path:
    """The folder or GGUF file that a name stands for. A hub name is fetched."""
    text = str(name)
    if (ASSETS / text / "config.json").is_file():
        return ASSETS / text
    if text in KNOWN:
        path = cached_model(text)
        if path is None:
            raise LoadError(f"the model {text!r} is not here yet; `mini-vllm pull {text}` fetches it")
        return path
    path = Path(text).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.exists():
        raise LoadError(f"{text} is neither a folder nor a .gguf file")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        return _fetch_from_hub(text)
    shipped = sorted(p.parent.name for p in ASSETS.glob("*/config.json"))
    raise LoadError(f"there is no model {text!r}: not a folder, not a .gguf file, not a hub name (org/name), "
                    f"and not one of {', '.join([*shipped, *KNOWN])}")


def _fetch_from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise LoadError(f"{name!r} is no folder here; to fetch it from the hub: pip install 'mini-vllm[hub]'") from None
    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # the client raises many kinds; all mean that the model did not come
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LoadError(f"{name!r} is no folder here and could not be fetched from the hub: {first_line}") from None


# ---- reading


def _read_folder(folder: Path) -> tuple[ModelConfig, dict[str, mx.array], Tokenizer]:
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise LoadError(f"{folder} has no config.json: it is not a model folder")
    try:
        raw = json.loads(config_file.read_text(encoding="utf-8"))
        config = ModelConfig.from_dict(raw)
    except json.JSONDecodeError as error:
        raise LoadError(f"{config_file}: not JSON: {error}") from None
    except ValueError as error:
        raise LoadError(f"{folder.name}: {error}") from None
    weights: dict[str, mx.array] = {}
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise LoadError(f"{folder} has no *.safetensors files")
    index_file = folder / "model.safetensors.index.json"
    if index_file.is_file():
        wanted = set(json.loads(index_file.read_text(encoding="utf-8"))["weight_map"].values())
        missing = sorted(wanted - {file.name for file in files})
        if missing:
            raise LoadError(f"{folder.name}: {index_file.name} names {missing[0]}, which is missing")
        files = [file for file in files if file.name in wanted]
    for file in files:
        check_safetensors(file)
        weights.update(mx.load(str(file)))
    weights = {name: array for name, array in weights.items() if not name.endswith("rotary_emb.inv_freq")}
    weights = _unpack(weights, raw.get("quantization") or {})
    return config, weights, Tokenizer.from_folder(folder)


def check_safetensors(file: Path) -> None:
    """Raise LoadError if the file is shorter or longer than its header says: reading it would give garbage."""
    size = file.stat().st_size
    with open(file, "rb") as stream:
        head = stream.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if len(head) < 8 or length > size - 8:
            raise LoadError(f"{file}: truncated: {size} bytes, its header alone needs {8 + length}")
        try:
            header = json.loads(stream.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise LoadError(f"{file}: its header is not that of a safetensors file") from None
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise LoadError(f"{file}: {'truncated' if size < expected else 'too long'}: {size} bytes, expected {expected}")


def _read_gguf(file: Path) -> tuple[ModelConfig, dict[str, mx.array], Tokenizer]:
    try:
        arrays, metadata = mx.load(str(file), return_metadata=True)
    except (RuntimeError, ValueError) as error:
        raise LoadError(f"{file}: {error}") from None
    metadata = {key: value.tolist() if isinstance(value, mx.array) else value for key, value in metadata.items()}
    architecture = metadata.get("general.architecture")

    def number(key: str) -> object:
        return metadata.get(f"{architecture}.{key}")

    heads, width = number("attention.head_count"), number("embedding_length")
    try:
        config = ModelConfig.from_dict({
            "model_type": architecture, "vocab_size": len(metadata.get("tokenizer.ggml.tokens") or ()),
            "hidden_size": width, "intermediate_size": number("feed_forward_length"),
            "num_hidden_layers": number("block_count"), "num_attention_heads": heads,
            "num_key_value_heads": number("attention.head_count_kv"), "head_dim": number("attention.key_length"),
            "max_position_embeddings": number("context_length"),
            "rms_norm_eps": number("attention.layer_norm_rms_epsilon"), "rope_theta": number("rope.freq_base"),
            # Files of the llama architecture store queries and keys in the order of interleaved pairs.
            "rope_traditional": architecture == "llama"})
    except ValueError as error:
        raise LoadError(f"{file}: {error}") from None
    weights = {_name_from_gguf(name): array for name, array in arrays.items()}
    return config, _unpack(weights, {}), Tokenizer.from_gguf(metadata)


def _name_from_gguf(name: str) -> str:
    """``blk.3.attn_q.weight`` → ``model.layers.3.self_attn.q_proj.weight``"""
    stem, _, kind = name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if block:
        return f"model.layers.{block[1]}.{GGUF_NAMES.get(block[2], block[2])}.{kind}"
    return f"{GGUF_NAMES.get(stem, stem)}.{kind}"


def _unpack(weights: dict[str, mx.array], quantization: Mapping[str, object]) -> dict[str, mx.array]:
    """Dequantise where the device multiplies floats faster, and use its best float type."""
    if not dequantise_is_faster():
        return weights
    unpacked = {}
    for name, array in weights.items():
        stem, _, kind = name.rpartition(".")
        if kind in ("scales", "biases"):
            continue
        if f"{stem}.scales" in weights:
            group_size, bits = _group_and_bits(stem, weights, quantization)
            array = mx.dequantize(array, weights[f"{stem}.scales"], weights.get(f"{stem}.biases"), group_size, bits)
        unpacked[name] = array.astype(mx.float32)
    return unpacked


def _group_and_bits(stem: str, weights: Mapping[str, mx.array], quantization: Mapping[str, object]) -> tuple[int, int]:
    """Group size from the config (GGUF: 32); the bits follow from the shapes."""
    own = quantization.get(stem)
    group_size = (own if isinstance(own, Mapping) else quantization).get("group_size", 32)
    num_values = weights[f"{stem}.scales"].shape[-1] * group_size
    return group_size, weights[f"{stem}.weight"].shape[-1] * 32 // num_values


def export_folder(loaded: LoadedModel, folder: Path) -> None:
    """Write a model as a Hugging Face folder, weights and config only. Other programs load it from there."""
    config = loaded.config
    folder.mkdir(parents=True, exist_ok=True)
    weights = unstack(config, dict(tree_flatten(loaded.model.parameters())))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps({
        "model_type": config.model_type, "vocab_size": config.vocab_size, "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size, "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim, "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps, "rope_theta": config.rope_theta, "rope_scaling": config.rope_scaling,
        "tie_word_embeddings": config.tie_word_embeddings, "attention_bias": config.output_bias,
        "mlp_bias": config.mlp_bias}, indent=2))

"""From a name to a network with its weights and tokenizer: shipped models, folders, GGUF files, hub names.

    "tiny-tales"          ships with the project
    "smollm2"             after `mini-vllm pull smollm2`
    "path/to/folder"      Hugging Face layout: config.json, *.safetensors, tokenizer.json; in floats, or quantised as
                          mlx_lm.convert does it
    "path/to/model.gguf"  as far as MLX reads it
    "org/name"            from the hub, where there is a network
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from mini_vllm.backend import mx
from mini_vllm.models.config import FULL, SLIDING, ModelConfig
from mini_vllm.models.fields import FieldError, Fields, LoadError, read_object
from mini_vllm.models.network import Model
from mini_vllm.models.packed import MODES
from mini_vllm.models.pull import KNOWN, cached_model
from mini_vllm.models.tokenizer import Tokenizer, TokenizerError
from mini_vllm.models.weights import make_model, unstack

ASSETS = Path(__file__).parents[1] / "assets"
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

#: Fields of a config.json → what a GGUF file calls them, after the name of the architecture
ROPE_FIELDS = {"rope_type": "type", "factor": "factor", "original_max_position_embeddings": "original_context_length"}
GGUF_FIELDS = {
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length", "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon", "rope_theta": "rope.freq_base",
    **{f"rope_scaling.{field}": f"rope.scaling.{key}" for field, key in ROPE_FIELDS.items()},
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
        raise LoadError(f"{name!r} is no folder here; to fetch it from the hub: pip install huggingface_hub") from None
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
    raw = read_object(config_file)
    try:
        config = ModelConfig.from_dict(raw)
        _check_quantization(Fields(raw))
    except ValueError as error:
        raise LoadError(f"{config_file}: {error}") from None
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise LoadError(f"{folder} has no *.safetensors files")
    index_file = folder / "model.safetensors.index.json"
    if index_file.is_file():
        wanted = _files_of_index(index_file)
        missing = sorted(wanted - {file.name for file in files})
        if missing:
            raise LoadError(f"{folder.name}: {index_file.name} names {missing[0]}, which is missing")
        files = [file for file in files if file.name in wanted]
    weights: dict[str, mx.array] = {}
    for file in files:
        check_safetensors(file)
        try:
            weights.update(mx.load(str(file)))
        except (RuntimeError, ValueError) as error:
            raise LoadError(f"{file}: {error}") from None
    weights = {name: array for name, array in weights.items() if not name.endswith("rotary_emb.inv_freq")}
    return config, weights, Tokenizer.from_folder(folder)


def _check_quantization(config: Fields) -> None:
    """How a matrix is packed is read off its tensors, but a mode or a method that we do not know is said here."""
    quantization = config.part("quantization")
    quantization.only("mode", *MODES)
    for name in quantization:
        if isinstance(quantization.get(name), dict):
            quantization.part(name).only("mode", *MODES)
    method = config.part("quantization_config")
    if "quantization" not in config and "quant_method" in method:
        raise method.error("quant_method", "supported: what mlx_lm.convert writes")


def _files_of_index(file: Path) -> set[str]:
    """Names of the files that hold the weights."""
    index = Fields(read_object(file))
    try:
        if "weight_map" not in index:
            raise index.error("weight_map", "must be an object")
        weight_map = index.part("weight_map")
        for name in weight_map:
            if not isinstance(weight_map.get(name), str):
                raise weight_map.error(name, "must be the name of a file")
    except FieldError as error:
        raise LoadError(f"{file}: {error}") from None
    files = {weight_map.get(name) for name in weight_map}
    if not files:
        raise LoadError(f"{file}: weight_map is empty, must name at least one file")
    return files


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
            ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
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
    keys = {field: f"{architecture}.{key}" for field, key in GGUF_FIELDS.items()}
    scaling = {name: metadata.get(keys[f"rope_scaling.{name}"]) for name in ROPE_FIELDS}
    if scaling["rope_type"] in (None, "none"):
        scaling = None
    tokens = metadata.get("tokenizer.ggml.tokens")
    try:
        config = ModelConfig.from_dict({
            **{field: metadata.get(key) for field, key in keys.items() if "." not in field},
            "model_type": architecture, "rope_scaling": scaling,
            "vocab_size": len(tokens) if tokens and isinstance(tokens, list) else 1,  # the tokenizer will complain
            # Files of the llama architecture store queries and keys in the order of interleaved pairs.
            "rope_traditional": architecture == "llama"})
    except FieldError as error:
        raise LoadError(f"{file}: {keys.get(error.field, error.field)} {error.complaint}") from None
    except ValueError as error:
        raise LoadError(f"{file}: {error}") from None
    weights = {_name_from_gguf(name): array for name, array in arrays.items()}
    return config, weights, Tokenizer.from_gguf(metadata)


def _name_from_gguf(name: str) -> str:
    """``blk.3.attn_q.weight`` → ``model.layers.3.self_attn.q_proj.weight``"""
    stem, _, kind = name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if block:
        return f"model.layers.{block[1]}.{GGUF_NAMES.get(block[2], block[2])}.{kind}"
    return f"{GGUF_NAMES.get(stem, stem)}.{kind}"


def export_folder(loaded: LoadedModel, folder: Path) -> None:
    """Write a model as a Hugging Face folder, weights and config only. Other programs load it from there."""
    config = loaded.config
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), unstack(loaded.model))
    (folder / "config.json").write_text(json.dumps({
        "model_type": config.model_type, "vocab_size": config.vocab_size, "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size, "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim, "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps, "rope_theta": config.rope_theta, "rope_scaling": config.rope_scaling,
        "tie_word_embeddings": config.tie_word_embeddings, "attention_bias": config.output_bias,
        "mlp_bias": config.mlp_bias, **_exported_windows(config)}, indent=2))


def _exported_windows(config: ModelConfig) -> dict[str, object]:
    if config.sliding_window is None:
        return {}
    if config.model_type == "mistral" and len(config.sliding_layers) == config.num_layers:
        return {"sliding_window": config.sliding_window}  # in all layers: that needs no list
    return {"sliding_window": config.sliding_window, "use_sliding_window": True,
            "layer_types": [SLIDING if layer in config.sliding_layers else FULL for layer in range(config.num_layers)]}

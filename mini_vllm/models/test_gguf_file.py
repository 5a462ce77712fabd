"""GGUF files: the numbers of each quantised type, whole models, and damaged files."""

import json
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from damaged_files import LOAD_ALL, damaged
from tokenizers import pre_tokenizers

from mini_vllm.backend import mx
from mini_vllm.conftest import LLAMA3_ROPE, write_checkpoint
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.config import LoadError
from mini_vllm.models.export import export_folder
from mini_vllm.models.gguf import read_gguf
from mini_vllm.models.gguf_file import NAMES, TYPES, GGUFFile
from mini_vllm.models.loader import check, load
from mini_vllm.models.test_wrong_files import change_fields
from mini_vllm.models.weights import packing_of, unpacked

#: Blocks of each quantised type, and the numbers that the package ``gguf`` unpacks from them
BLOCKS = json.loads((Path(__file__).parent / "gguf_blocks.json").read_text())


def text(content):
    return struct.pack("<Q", len(content.encode())) + content.encode()


def field(name, kind, value):
    return text(name) + struct.pack("<I", kind) + value


def tensor(name="a", shape=(4,), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


ONE_TENSOR = (tensor(),)


def gguf(fields=(), tensors=ONE_TENSOR, version=3, data=bytes(16), num_tensors=None, num_fields=None):
    """Return the bytes of a file: its header, and data aligned to 32."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors) if num_tensors is None else num_tensors,
                                 len(fields) if num_fields is None else num_fields) + b"".join([*fields, *tensors])
    return head + b"\0" * (-len(head) % 32) + data


def read(path, content):
    path.write_bytes(content)
    file = GGUFFile(path)
    return file.fields, dict(file.tensors(mx.float32))


# ---- what a file contains


@pytest.mark.parametrize("kind", BLOCKS)
def test_the_numbers_of_a_quantised_type_are_those_of_the_gguf_package(tmp_path, kind):
    data, expected = bytes.fromhex(BLOCKS[kind]["blocks"]), np.array(BLOCKS[kind]["numbers"], np.float32)
    data = data * 2000  # they are unpacked in several pieces
    expected = np.tile(expected, 2000).reshape(-1, TYPES[kind].block_size)
    number = next(number for number, name in NAMES.items() if name == kind)
    _, tensors = read(tmp_path / "a.gguf", gguf(tensors=[tensor("a.weight", expected.shape[::-1], number)], data=data))
    weights = tensors["a.weight"]
    packing = packing_of("a", expected.shape, weights)
    got = unpacked("a", packing, weights) if packing else weights["a.weight"]
    assert got.dtype == mx.float32 and np.array_equal(np.array(got), expected)


def test_every_quantised_type_that_is_read_has_expected_numbers():
    assert {*TYPES} - {*BLOCKS} == {"F32", "F16", "BF16"}


@pytest.mark.parametrize("kind, name", [(9, "Q8_1"), (20, "IQ4_NL"), (99, "99"), (4, "4")])
def test_a_type_without_expected_numbers_is_refused_by_its_name(tmp_path, kind, name):
    with pytest.raises(LoadError, match=f"blk.0.attn_q.weight is of type {name}, which is not supported; "
                                        "supported: F32, .*Q6_K"):
        read(tmp_path / "a.gguf", gguf(tensors=[tensor("blk.0.attn_q.weight", (256,), kind)], data=bytes(2000)))


def test_floats_of_each_kind_are_read(tmp_path):
    numbers = np.array([[1.5, -2.0], [0.0078125, 300.0]], np.float32)
    bfloats = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    data = b"".join(array.tobytes().ljust(32, b"\0") for array in (numbers, numbers.astype(np.float16), bfloats))
    _, tensors = read(tmp_path / "a.gguf", gguf(data=data, tensors=[
        tensor(name, (2, 2), kind, offset) for name, kind, offset in (("a", 0, 0), ("b", 1, 32), ("c", 30, 64))]))
    for name, dtype in (("a", mx.float32), ("b", mx.float16), ("c", mx.bfloat16)):
        array = tensors[name][name]
        assert array.dtype == dtype and array.astype(mx.float32).tolist() == numbers.tolist()


def test_fields_of_each_type_are_read(tmp_path):
    scalars = {0: ("B", 200), 1: ("b", -3), 2: ("H", 60_000), 3: ("h", -300), 4: ("I", 2**32 - 1), 5: ("i", -5),
               6: ("f", 0.5), 7: ("?", True), 10: ("Q", 2**64 - 1), 11: ("q", -2**40), 12: ("d", 0.1)}
    entries = [field(f"one {kind}", kind, struct.pack(f"<{code}", value)) for kind, (code, value) in scalars.items()]
    entries += [field(f"list {kind}", 9, struct.pack(f"<IQ3{code}", kind, 3, *[value] * 3))
                for kind, (code, value) in scalars.items()]
    entries += [field("text", 8, text("Zoë")), field("texts", 9, struct.pack("<IQ", 8, 2) + text("one") + text(""))]
    fields, _ = read(tmp_path / "a.gguf", gguf(entries, version=2))
    assert fields == {**{f"one {kind}": value for kind, (_, value) in scalars.items()},
                      **{f"list {kind}": [value] * 3 for kind, (_, value) in scalars.items()},
                      "text": "Zoë", "texts": ["one", ""]}


# ---- damaged files


@pytest.mark.parametrize("content, complaint", [
    (b"", "cannot mmap an empty file"), (b"GGUF", "truncated: 4 bytes"), (b"GGML" + gguf()[4:], "begins with b'GGML'"),
    (gguf(num_tensors=2**63), "has 0 dimensions"), (gguf(num_fields=2**40), "truncated"),
    (gguf(version=1), "is version 1 of GGUF"), (gguf(num_tensors=2), "has 0 dimensions"),
    (gguf()[:40], "truncated: 40 bytes, its header is longer"), (gguf(data=bytes(15)), "truncated: .* a ends at"),
    (gguf(tensors=[tensor(offset=2**62)]), "truncated: .* a ends at"),
    (gguf(tensors=[tensor(shape=(2**40, 2**40))]), "truncated: .* a ends at"),
    (gguf(tensors=[tensor(shape=(33,), kind=2)]), r"a has the shape \(33,\), but Q4_0 packs 32 numbers together"),
    (gguf(tensors=[tensor(shape=(1,) * 5)]), "has 5 dimensions"),
    (gguf([field("a", 77, b"")]), "a has type 77"), (gguf([field("a", 9, struct.pack("<IQ", 9, 1))]), "a has type 9"),
    *((gguf([field("a", 9, struct.pack("<IQ", kind, count))]), "truncated: .* its header is longer")
      for kind in (4, 8) for count in (1000, 2**60, 2**64 - 1)),
    *((gguf([field("a", 8, struct.pack("<Q", length))]), "truncated") for length in (1000, 2**62, 2**64 - 1)),
    (gguf([field("general.alignment", 4, struct.pack("<I", 0))]), "general.alignment is 0"),
    (gguf([field("general.alignment", 8, text("32"))]), "general.alignment is '32'"),
], ids=lambda value: value if isinstance(value, str) else "file")
def test_a_header_that_does_not_fit_its_file_is_refused(tmp_path, content, complaint):
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(LoadError, match=complaint):
        read_gguf(tmp_path / "a.gguf")
    with pytest.raises(LoadError, match=complaint):
        check(tmp_path / "a.gguf")


def test_no_damage_ends_the_process(tmp_path):
    rng, file = random.Random(0), tmp_path / "sound.gguf"
    mx.save_gguf(str(file), {f"blk.{i}.a.weight": mx.ones((8, 32)) for i in range(4)},
                 {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a", "b", "c"] * 20})
    sound = file.read_bytes()
    for number in range(60):
        (tmp_path / f"{number}.gguf").write_bytes(damaged(sound, rng))
    done = subprocess.run([sys.executable, "-c", LOAD_ALL, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


# ---- a model in a file, against the same in a folder


#: The names of a Hugging Face checkpoint → those of a GGUF file
STORED = {"model.layers.": "blk.", "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
          "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
          "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
          "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def value(given):
    """Return the type and the bytes of a field."""
    if isinstance(given, list):
        kind = 8 if isinstance(given[0], str) else 5
        return struct.pack("<IIQ", 9, kind, len(given)) + b"".join(value(entry)[4:] for entry in given)
    if isinstance(given, str):
        return struct.pack("<I", 8) + text(given)
    return struct.pack("<If", 6, given) if isinstance(given, float) else struct.pack("<Ii", 5, given)


def write_model(path, folder, packs=False, tensors=None, **metadata):
    """Write the checkpoint in ``folder`` as a GGUF file, with the names, rows and metadata of such files.

    With ``packs``, matrices become Q8_0: a float16 scale and 32 signed bytes per group. The weights in the folder are
    rounded in the same way.
    """
    config = json.loads((folder / "config.json").read_text())
    kind, weights, heads, data = config["model_type"], mx.load(str(folder / "model.safetensors")), [], b""
    for name, array in {**weights, **(tensors or {})}.items():
        is_packed = packs and array.ndim == 2
        if kind == "llama" and (".q_proj" in name or ".k_proj" in name):  # rows of pairs (0, 1), (2, 3), …
            half, width = config["hidden_size"] // config["num_attention_heads"] // 2, array.shape[1]
            array = mx.swapaxes(array.reshape(-1, 2, half, width), 1, 2).reshape(array.shape)
        content = np.array(array)
        if is_packed:
            groups = content.reshape(-1, 32)
            scales = (np.abs(groups).max(axis=1, keepdims=True) / 127).astype(np.float16)
            rounded = np.rint(groups / scales.astype(np.float32)).clip(-127, 127).astype(np.int8)
            weights[name] = mx.array((rounded * scales.astype(np.float32)).reshape(content.shape))
            content = np.hstack([scales.view(np.uint8), rounded.view(np.uint8)])
        for ours, theirs in STORED.items():
            name = name.replace(ours, theirs)
        heads.append(tensor(name, array.shape[::-1], 8 if is_packed else 0, len(data)))
        data += content.tobytes()
        data += b"\0" * (-len(data) % 32)
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    fields = {"general.architecture": kind, f"{kind}.embedding_length": config["hidden_size"],
              f"{kind}.feed_forward_length": config["intermediate_size"], f"{kind}.block_count": 3,
              f"{kind}.attention.head_count": 8, f"{kind}.attention.head_count_kv": config["num_key_value_heads"],
              f"{kind}.context_length": 512, f"{kind}.attention.layer_norm_rms_epsilon": 1e-5,
              f"{kind}.rope.freq_base": 10000.0, **fields_of_a_tokenizer(), **metadata}
    path.write_bytes(gguf([text(name) + value(given) for name, given in fields.items()], heads, data=data))
    return path


def fields_of_a_tokenizer():
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>", "ab"]
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.merges": ["a b"],
            "tokenizer.ggml.tokens": [*tokens, *(f"<unused-{i}>" for i in range(len(tokens), 300))],
            "tokenizer.ggml.token_type": [1] * 256 + [3, 1] + [5] * 42, "tokenizer.ggml.eos_token_id": 256}


@pytest.fixture
def folder(tmp_path):
    return write_checkpoint(tmp_path / "folder", model_type="llama", num_key_value_heads=8)


def logits_of(path, num_tokens=40):
    token_ids = np.random.default_rng(0).integers(0, 256, num_tokens).tolist()
    return np.array(ModelRunner(load(path).model, 12, 8).step([RequestStep(token_ids, [1, 2, 3, 4, 5, 6], num_tokens,
                                                                           True)])[0])


def with_rope_scaling(folder, **scaling):
    copy = shutil.copytree(folder, folder.with_name("scaled"))
    return change_fields(copy, rope_scaling=scaling)


@pytest.mark.parametrize("kind, packs, is_float", [("llama", False, True), ("qwen2", True, True),
                                                   ("qwen2", True, False)])
def test_a_file_has_the_logits_of_the_folder(tmp_path, monkeypatch, kind, packs, is_float):
    monkeypatch.setattr("mini_vllm.models.weights.is_cpu", lambda: is_float)
    folder = write_checkpoint(tmp_path / "folder", model_type=kind, num_key_value_heads=8 if kind == "llama" else 4,
                              intermediate_size=96)
    file = write_model(tmp_path / "model.gguf", folder, packs)
    # Packed weights are computed in the float16 of their scales.
    assert np.abs(logits_of(file) - logits_of(folder)).max() < (1e-4 if is_float else 0.1)
    assert load(file).tokenizer.encode("abc<|endoftext|>") == [257, load(file).tokenizer.encode("c")[0], 256]


def test_rope_factors_of_a_file_are_those_of_llama3_scaling(folder, tmp_path):
    """Write the tensor as converters do for Llama 3.1 and later: what each pair's frequency is divided by."""
    factors = []
    for pair in range(4):
        num_turns = LLAMA3_ROPE["original_max_position_embeddings"] * 10000.0 ** (-2 * pair / 8) / (2 * np.pi)
        share = np.clip((num_turns - 1.0) / (4.0 - 1.0), 0, 1)  # low_freq_factor, high_freq_factor
        factors.append(1 / ((1 - share) / LLAMA3_ROPE["factor"] + share))
    assert min(factors) == 1 < max(factors)
    file = tmp_path / "model.gguf"
    for wrong in (factors[1:], [0.0, *factors[1:]]):
        write_model(file, folder, tensors={"rope_freqs.weight": mx.array(wrong)})
        with pytest.raises(LoadError, match=r"rope_freqs.weight must have 4 numbers above 0"):
            load(file)
    write_model(file, folder, tensors={"rope_freqs.weight": mx.array(factors)})
    expected = logits_of(with_rope_scaling(folder, **LLAMA3_ROPE))
    assert np.abs(logits_of(file) - expected).max() < 1e-4
    assert np.abs(logits_of(folder) - expected).max() > 0.1
    with pytest.raises(LoadError, match="model.gguf divides its rotary frequencies, which a config.json cannot say"):
        export_folder(load(file), tmp_path / "exported")


@pytest.mark.parametrize("metadata", [
    {}, {"llama.rope.scaling.type": "linear"},
    {"llama.rope.dimension_count": 8, "llama.rope.scaling.finetuned": 1},
], ids=["as in llama.cpp, without a type", "linear", "fields that change nothing"])
def test_rope_scaling_in_a_file_is_followed(folder, tmp_path, metadata):
    file = write_model(tmp_path / "model.gguf", folder, **{"llama.rope.scaling.factor": 4.0, **metadata})
    assert np.abs(logits_of(file) - logits_of(with_rope_scaling(folder, rope_type="linear", factor=4.0))).max() < 1e-4
    write_model(file, folder, **{"llama.rope.scaling.factor": 4.0, "llama.rope.scaling.type": "none"})
    assert load(file).config.rope_scaling is None


@pytest.mark.parametrize("metadata, complaint", [
    ({"llama.embedding_length": "64"}, "model.gguf: llama.embedding_length is '64', must be a whole number"),
    ({"llama.attention.head_count": [8, 8, 8]}, r"llama.attention.head_count is \[8, 8, 8\], must be a whole"),
    ({"llama.attention.layer_norm_rms_epsilon": "x"},
     "model.gguf: llama.attention.layer_norm_rms_epsilon is 'x', must be a number above 0"),
    ({"llama.rope.freq_base": "x"}, "model.gguf: llama.rope.freq_base is 'x', must be a number above 1"),
    ({"llama.rope.scaling.type": "linear"}, "model.gguf: llama.rope.scaling.factor is missing"),
    ({"llama.rope.scaling.type": "longrope"}, "rope scaling 'longrope' is not supported"),
    ({"llama.rope.scaling.attn_factor": 2.0}, "llama.rope.scaling.attn_factor is 2.0, which is not supported"),
    ({"llama.rope.dimension_count": 4}, "llama.rope.dimension_count is 4, supported: 8"),
    ({"tokenizer.ggml.tokens": 5}, "tokenizer.ggml.tokens is 5"),
    ({"tokenizer.ggml.merges": [1, 2]}, "tokenizer.ggml.merges"),
    ({"general.architecture": "bert"}, "'bert'"), ({"general.architecture": 5}, "model_type 5"),
])
def test_metadata_of_a_file_that_cannot_be_is_named(folder, tmp_path, metadata, complaint):
    file = write_model(tmp_path / "model.gguf", folder, **metadata)
    with pytest.raises(LoadError, match=complaint):
        load(file)


def test_a_truncated_file_is_refused(folder, tmp_path):
    file = write_model(tmp_path / "model.gguf", folder)
    data = file.read_bytes()
    for keep in (100, len(data) // 2, len(data) - 1000):
        file.write_bytes(data[:keep])
        with pytest.raises(LoadError, match=r"model.gguf: truncated"):
            load(file)

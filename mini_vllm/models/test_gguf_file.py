"""GGUF files: the numbers of each quantised type, and damaged files."""

import json
import random
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from damaged_files import LOAD_ALL, damaged

from mini_vllm.backend import mx
from mini_vllm.models.config import LoadError
from mini_vllm.models.gguf import read_gguf
from mini_vllm.models.gguf_file import NAMES, TYPES, GGUFFile
from mini_vllm.models.loader import check
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


@pytest.mark.parametrize("kind, name", [(9, "Q8_1"), (20, "IQ4_NL"), (39, "MXFP4"), (26, "I32"), (99, "99"), (4, "4")])
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

"""Damaged GGUF files: each is rejected with its name before MLX reads it, and none crashes the process."""

import os
import random
import struct
import subprocess
import sys

import pytest
from damaged_files import LOAD_ALL, damaged

from mini_vllm.backend import mx
from mini_vllm.models.gguf import read_gguf
from mini_vllm.models.gguf_header import MAX_FIELDS_BYTES, SCALARS, check_gguf
from mini_vllm.models.json_fields import LoadError
from mini_vllm.models.loader import load


def text(content):
    return struct.pack("<Q", len(content)) + content.encode()


def field(name, kind, value):
    return text(name) + struct.pack("<I", kind) + value


def tensor(name="a", shape=(4,), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


ONE_TENSOR = (tensor(),)


def gguf(fields=(), tensors=ONE_TENSOR, version=3, num_data=16, num_tensors=None, num_fields=None):
    """Return the bytes of a file: its header, and data aligned to 32."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors) if num_tensors is None else num_tensors,
                                 len(fields) if num_fields is None else num_fields) + b"".join([*fields, *tensors])
    return head + b"\0" * (-len(head) % 32) + b"\0" * num_data


NUMBERS = struct.pack("<IQ3I", 4, 3, 1, 2, 3)
TEXTS = struct.pack("<IQ", 8, 2) + text("one") + text("")


@pytest.mark.parametrize("content", [
    gguf(), gguf(version=2), gguf([field("general.alignment", 4, struct.pack("<I", 32))]),
    gguf([field("a", 9, NUMBERS), field("b", 9, TEXTS), field("c", 8, text("word")), field("d", 6, b"\0" * 4)]),
    gguf(tensors=[tensor("q", (32, 2), kind=2), tensor("r", (4,), offset=64)], num_data=80),
    gguf(tensors=(), num_data=0),
    *(gguf([field("a", kind, bytes(size)), field("b", 9, struct.pack("<IQ", kind, 3) + bytes(3 * size)),
            field("c", 9, struct.pack("<IQ", kind, 0))]) for kind, size in SCALARS.items()),
], ids=range(6 + len(SCALARS)))
def test_a_sound_header_is_taken_by_us_and_by_mlx(tmp_path, content):
    (tmp_path / "a.gguf").write_bytes(content)
    check_gguf(tmp_path / "a.gguf")
    _, metadata = mx.load(str(tmp_path / "a.gguf"), return_metadata=True)
    assert all(value.tolist() is not None for value in metadata.values() if isinstance(value, mx.array))


@pytest.mark.parametrize("content, complaint", [
    (b"", "truncated: 0 bytes"), (b"GGUF", "truncated: 4 bytes"), (b"GGML" + gguf()[4:], "begins with b'GGML'"),
    (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), f"has {2**63} tensors, must be at most 65536"),
    (gguf(num_fields=2**40), f"has {2**40} fields"), (gguf(version=1), "is version 1 of GGUF"),
    (gguf(num_tensors=9), "has 0 dimensions"), (gguf(num_fields=1), "has 0 dimensions"),
    (gguf()[:40], "truncated"), (gguf(num_data=15), "truncated: .* a ends at"),
    (gguf(tensors=[tensor(offset=2**62)]), "truncated: .* a ends at"),
    (gguf(tensors=[tensor(offset=7)]), "the offset of a is 7, must be a multiple of 32"),
    (gguf(tensors=[tensor(shape=(2**40, 2**40))]), "has the shape"),
    (gguf(tensors=[tensor(shape=(0,))]), "has the shape"),
    (gguf(tensors=[tensor(shape=(33,), kind=2)]), "has the shape"), (gguf(tensors=[tensor(kind=99)]), "has type 99"),
    (gguf(tensors=[tensor(shape=(1,) * 5)]), "has 5 dimensions"),
    (gguf(tensors=[tensor(shape=())]), "has 0 dimensions"),
    (gguf([text("x" * 70_000)]), "the name of field 0 has 70000 bytes"), (gguf([field("a", 77, b"")]), "a has type 77"),
    (gguf([field("a", 8, struct.pack("<Q", 2**62))]), "truncated: .* a ends at"),
    (gguf([field("a", 9, struct.pack("<IQ", 4, 2**20))]), "truncated: .* a ends at"),
    *((gguf([field("a", 9, struct.pack("<IQ", kind, 2**60))]), f"a has {2**60} entries, must have at most {2**20}")
      for kind in (4, 8)),
    (gguf([field("a", 9, struct.pack("<IQQ", 8, 2, 2**60))]), "a text of a ends after the file"),
    (gguf([field("a", 9, struct.pack("<IQ", 9, 1) + NUMBERS)]), "a has type 9"),
    (gguf([field("\x1b[31m\n" + "x" * 200, 77, b"")]), r": '\\x1b\[31m\\nx+\.\.\.x+' has type 77"),
    *((gguf([field("general.alignment", 4, struct.pack("<I", number))]), f"general.alignment is {number}")
      for number in (0, 1, 48, 2**31)),
    (gguf([field("general.alignment", 8, text("32"))]), "general.alignment has type 8"),
], ids=lambda value: value if isinstance(value, str) else "file")
def test_a_header_that_does_not_fit_its_file_is_refused(tmp_path, content, complaint):
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(LoadError, match=complaint):
        read_gguf(tmp_path / "a.gguf")


@pytest.mark.parametrize("value", [field("a", 12, bytes(8)), field("a", 9, struct.pack("<IQ", 12, 1) + bytes(8)),
                                   field("a", 9, struct.pack("<IQ", 12, 0))], ids=["one", "a list", "an empty list"])
def test_a_float64_is_refused_since_mlx_would_end_the_process(tmp_path, value):
    (tmp_path / "a.gguf").write_bytes(gguf([value]))
    with pytest.raises(LoadError, match="a has type 12, which is not supported"):
        check_gguf(tmp_path / "a.gguf")


def test_fields_of_more_than_64_mib_are_refused_unread(tmp_path):
    file = tmp_path / "a.gguf"
    file.write_bytes(gguf([field("a", 8, struct.pack("<Q", MAX_FIELDS_BYTES))]))
    os.truncate(file, 2 * MAX_FIELDS_BYTES)
    with pytest.raises(LoadError, match=f"its fields have more than {MAX_FIELDS_BYTES} bytes"):
        check_gguf(file)


def test_a_pipe_is_no_file_of_weights(tmp_path, checkpoints):
    os.mkfifo(tmp_path / "a.gguf")
    with pytest.raises(LoadError, match="neither a folder nor a .gguf file|is not a regular file"):
        load(tmp_path / "a.gguf")
    with pytest.raises(LoadError, match="is not a regular file"):
        check_gguf(tmp_path / "a.gguf")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_bytes((checkpoints("llama2") / "config.json").read_bytes())
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(LoadError, match="model.safetensors is not a regular file"):
        load(folder)


def test_no_damage_ends_the_process(tmp_path):
    rng, file = random.Random(0), tmp_path / "sound.gguf"
    mx.save_gguf(str(file), {f"blk.{i}.a.weight": mx.ones((8, 32)) for i in range(4)},
                 {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a", "b", "c"] * 20})
    sound = file.read_bytes()
    for number in range(60):
        (tmp_path / f"{number}.gguf").write_bytes(damaged(sound, rng))
    done = subprocess.run([sys.executable, "-c", LOAD_ALL, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr

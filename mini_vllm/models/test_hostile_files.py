"""Untrusted model folders: each is rejected with its name, quickly, and real ones of every kind still load."""

import base64
import json
import os
import shutil
import struct
from types import SimpleNamespace

import pytest
import tokenizers

from mini_vllm.backend import mx
from mini_vllm.llm import LLM
from mini_vllm.models import folder_tokenizer
from mini_vllm.models.folder import MAX_HEADER_BYTES
from mini_vllm.models.folder_tokenizer import tokenizer_from_folder
from mini_vllm.models.gguf_tokenizer import tokenizer_from_gguf
from mini_vllm.models.json_fields import MAX_JSON_BYTES, LoadError
from mini_vllm.models.loader import check, load
from mini_vllm.models.test_tokenizer import byte_level_backend, gguf_metadata
from mini_vllm.models.tokenizer import MAX_PANICS, MAX_PIECE_CHARS, MAX_TEMPLATE_CHARS, Tokenizer, TokenizerError
from mini_vllm.request import SamplingParams


@pytest.fixture
def folder(checkpoints, tmp_path):
    """Return the folder of a valid model of 300 tokens that the test may damage."""
    return shutil.copytree(checkpoints("llama2"), tmp_path / "model")


def change(folder, file="tokenizer.json", **fields):
    """Set fields of a JSON file, which is created if it does not exist."""
    path = folder / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **fields}))
    return folder


def added(content, token_id, **fields):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True, **fields}


# ---- token ids that the network does not have


def template(ids):
    return {"type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
            "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"x": {"id": "x", "ids": ids, "tokens": ["x"] * len(ids)}}}


def test_a_vocabulary_larger_than_the_networks_is_refused(folder):
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    for token_id in (299, 300, 300_000_000):
        model["vocab"]["z"] = token_id
        change(folder, model=model)
        if token_id == 299:
            assert load(folder).tokenizer.encode("z") == [299]
            continue
        with pytest.raises(LoadError, match=f"model.vocab has the token id {token_id}, must be at most 299"):
            load(folder)


@pytest.mark.parametrize("fields, text", [
    ({"added_tokens": [added("<|endoftext|>" if token_id == 256 else f"<{token_id}>", token_id)
                       for token_id in range(256, 310)]}, "a<300>"),
    ({"post_processor": template([300_000_000])}, "a"),
], ids=["an added token", "a template"])
def test_an_id_beyond_the_network_is_refused_with_its_text(folder, fields, text):
    """Load a checkpoint with added tokens that the network lacks, as real ones have for padding; they may not be
    used."""
    engine = LLM(change(folder, **fields), num_blocks=50).engine
    complaint = r"has the token id \d+, which the model does not have: it must be at most 299"
    with pytest.raises(ValueError, match=complaint):
        engine.add_request(text)
    with pytest.raises(TokenizerError, match=complaint):
        engine.prompts.read(text)
    if "added_tokens" in fields:
        assert engine.prompts.read("a<299>").token_ids[1:] == [299]
        with pytest.raises(ValueError, match=complaint):
            engine.add_request("a", SamplingParams(bad_words=[text]))


# ---- steps that make a text grow


def replace(content, **pattern):
    return {"type": "Replace", "pattern": pattern or {"String": "a"}, "content": content}


def sequence(name, *steps):
    return {"type": "Sequence", name: list(steps)}


def table(*entries):
    """Return a SentencePiece table with a trie that finds nothing."""
    content = struct.pack("<I1024x", 1024) + b"\0".join(entry.encode() for entry in entries)
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
A = {"Sequence": {"id": "A", "type_id": 0}}
GROWING = {
    "six replacements": ("normalizer", sequence("normalizers", *[replace("a" * 2)] * 6), "step 4 .*Replace.* 16 times"),
    "one replacement": ("normalizer", replace("a" * 9), r"step 1 of the normalizer \(Replace\) .* up to 9 times"),
    "sequences in sequences": ("normalizer", sequence("normalizers", *[sequence("normalizers", replace("aaa"))] * 2),
                               "step 2 .* 9 times"),
    "a pattern that matches nothing": ("normalizer", replace("a" * 8, Regex=""), "9 times"),
    "an empty text": ("normalizer", replace("a" * 8, String=""), "9 times"),
    "a type that the library guesses": ("normalizer", {**replace("a" * 9), "type": "replace"}, "Replace.* 9 times"),
    "a prefix": ("normalizer", {"type": "Prepend", "prepend": "a" * 8}, r"\(Prepend\) .* 9 times"),
    "bytes of bytes": ("pre_tokenizer", sequence("pretokenizers", *[BYTES] * 4), r"step 4 .*\(ByteLevel\) .* 16 times"),
    "a text many times": ("post_processor", {**template([5]), "single": [A] * 9}, r"\(TemplateProcessing\) .* 9 times"),
    "many tokens before it": ("post_processor", template([5] * 8), "9 times"),
    "the decoder": ("decoder", sequence("decoders", BYTES, *[replace("a" * 4)] * 2), "step 3 of the decoder .* 16 tim"),
    "two tables": ("normalizer", sequence("normalizers", *[table("a" * 18)] * 2), r"step 2 .*\(Precompiled\) .* 18"),
    "one table": ("normalizer", table("a", "a" * 19), "19 times"),
}


@pytest.mark.parametrize("name", GROWING)
def test_steps_that_make_a_text_grow_are_refused(folder, name):
    part, steps, complaint = GROWING[name]
    with pytest.raises(LoadError, match=complaint):
        load(change(folder, **{part: steps}))


def test_the_steps_are_refused_before_they_run_over_the_added_tokens(folder, monkeypatch):
    given = []
    watched = SimpleNamespace(from_str=lambda text: given.append(text) or tokenizers.Tokenizer.from_str(text))
    monkeypatch.setattr(folder_tokenizer, "tokenizers", SimpleNamespace(Tokenizer=watched))
    change(folder, normalizer=replace("a" * 16), added_tokens=[added("aaaa", 256, normalized=True)])
    with pytest.raises(LoadError, match="16 times"):
        load(folder)
    assert given == []


@pytest.mark.parametrize("parts", [
    {"normalizer": sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replace("▁", String=" ")),
     "decoder": sequence("decoders", replace(" ", String="▁"), {"type": "ByteFallback"}, {"type": "Fuse"},
                         {"type": "Strip", "content": " ", "start": 1, "stop": 0}), "post_processor": template([1])},
    {"normalizer": replace("▁", String=" "), "decoder": sequence("decoders", replace(" ", String="▁"))},
    {"normalizer": {"type": "NFC"}, "pre_tokenizer": sequence("pretokenizers", {
        "type": "Split", "pattern": {"Regex": r"\p{N}{1,3}"}, "behavior": "Isolated", "invert": False}, BYTES)},
    {"normalizer": sequence("normalizers", {"type": "NFKD"}, {"type": "Lowercase"}, table("a" * 18, "é"),
                            replace(" ", Regex=" {2,}")),
     "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}},
], ids=["llama 2", "gemma", "llama 3 and qwen", "xlm-r"])
def test_steps_of_real_tokenizers_are_taken(folder, parts):
    assert load(change(folder, **parts)).tokenizer.encode("a")


def test_a_field_that_is_there_twice_is_refused(folder):
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace("{", '{"normalizer": null, ', 1))
    with pytest.raises(LoadError, match="is not a tokenizer: it has an object with the same field twice"):
        load(folder)


# ---- too large


@pytest.mark.parametrize("file, most", [
    ("config.json", MAX_JSON_BYTES), ("generation_config.json", MAX_JSON_BYTES),
    ("tokenizer_config.json", MAX_JSON_BYTES), ("special_tokens_map.json", MAX_JSON_BYTES),
    ("model.safetensors.index.json", MAX_JSON_BYTES), ("tokenizer.json", folder_tokenizer.MAX_BYTES),
    ("chat_template.jinja", 4 * MAX_TEMPLATE_CHARS),
])
def test_a_file_is_read_only_up_to_a_bound(folder, file, most):
    with open(folder / file, "ab") as stream:
        stream.truncate(most + 1)
    with pytest.raises(LoadError, match=f"{file} has {most + 1} bytes, must have at most {most}$"):
        load(folder)


def test_a_header_of_gigabytes_is_not_read(folder):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", MAX_HEADER_BYTES + 1))
    os.truncate(folder / "model.safetensors", MAX_HEADER_BYTES + 100)
    with pytest.raises(LoadError, match=f"its header has {MAX_HEADER_BYTES + 1} bytes, must have at most"):
        load(folder)


@pytest.mark.parametrize("name, most", [("vocab", "MAX_TOKENS"), ("merges", "MAX_MERGES"),
                                        ("added_tokens", "MAX_ADDED_TOKENS")])
def test_a_vocabulary_that_would_take_too_long_to_read_is_refused(folder, monkeypatch, name, most):
    entries = {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]] * 3}
    change(folder, model={"type": "BPE", **entries}, added_tokens=[added(f"<{index}>", index) for index in range(3)])
    monkeypatch.setattr(folder_tokenizer, most, 2)
    with pytest.raises(LoadError, match=f"{name} has 3 entries, must have at most 2"):
        load(folder)


def test_layers_are_counted_before_anything_is_made_of_them(folder):
    weights = dict(mx.load(str(folder / "model.safetensors")))
    weights["model.layers.999.input_layernorm.weight"] = mx.zeros(64)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    with pytest.raises(LoadError, match="the config has 1000 layers of at least 9 tensors, the files have 31 tensors"):
        load(change(folder, "config.json", num_hidden_layers=1000))


def test_a_template_or_an_entry_that_is_too_long_is_refused_in_every_layout(folder):
    complaint = f"the chat template has {MAX_TEMPLATE_CHARS + 1} characters, must have at most {MAX_TEMPLATE_CHARS}"
    source = "x" * (MAX_TEMPLATE_CHARS + 1)
    with pytest.raises(LoadError, match=complaint):
        load(change(folder, "tokenizer_config.json", chat_template=source))
    metadata = gguf_metadata(byte_level_backend())
    with pytest.raises(TokenizerError, match=complaint):
        tokenizer_from_gguf({**metadata, "tokenizer.chat_template": source})
    metadata["tokenizer.ggml.tokens"][-1] = "y" * (MAX_PIECE_CHARS + 1)
    with pytest.raises(TokenizerError, match="the longest entry of the vocabulary has 1025 characters, must have at"):
        tokenizer_from_gguf(metadata)


def test_no_request_walks_over_the_vocabulary(folder):
    """Check that the vocabulary is not walked: that takes long, and the first request would do it in the server's
    loop."""
    tokenizer = load(folder).tokenizer
    tokenizer._backend = None
    assert tokenizer.min_num_tokens("some text" * 100) > 0


# ---- the text of an error


NASTY = "x\n\x1b[31m" * 100_000


def with_index(folder, name, file):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {name: file}}))


def with_tensor(folder, name):
    mx.save_safetensors(str(folder / "model.safetensors"), {**mx.load(str(folder / "model.safetensors")),
                                                            name: mx.zeros(1)})


SPOILT = {
    "eos_token": lambda folder: change(folder, "tokenizer_config.json", eos_token=NASTY),
    "eos_token_id": lambda folder: change(folder, "config.json", eos_token_id=[NASTY]),
    "architecture": lambda folder: change(folder, "config.json", architectures=[NASTY], model_type=NASTY),
    "rope": lambda folder: change(folder, "config.json", rope_scaling={"rope_type": NASTY}),
    "layer_types": lambda folder: change(folder, "config.json", layer_types=[NASTY] * 3),
    "quantization": lambda folder: change(folder, "config.json", quantization={NASTY: {"mode": NASTY}}),
    "a file of the index": lambda folder: with_index(folder, "a", NASTY),
    "a tensor of the index": lambda folder: with_index(folder, NASTY, 5),
    "a tensor": lambda folder: with_tensor(folder, f"z{NASTY[:10_000]}"),
    "a file's name": lambda folder: (folder / "a\n\x1b[31m.safetensors").write_bytes(b"x"),
    "a merge": lambda folder: change(folder, model={"type": "BPE", "vocab": {}, "merges": [[NASTY, "a"]]}),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_a_file_says_is_shown_in_one_short_line(folder, name):
    SPOILT[name](folder)
    with pytest.raises(LoadError) as caught:
        load(folder)
    message = str(caught.value)
    assert message.isprintable() and len(message) < 2200, f"{len(message)} characters: {message[:300]!r}"
    assert r"\x1b" in message and (len(message) < 400 or name == "a merge"), "there the library speaks"


# ---- links


def test_a_link_out_of_the_folder_is_not_followed(folder, tmp_path):
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "chat_template.jinja"):
        outside, inside = tmp_path / file, folder / file
        if inside.exists():
            inside.rename(outside)
        else:
            outside.write_text("{{ messages[0].content }}")
        inside.symlink_to(outside)
        with pytest.raises(LoadError, match=f"{file} is a link that leads out of"):
            load(folder)
        inside.unlink()
        outside.rename(folder / f"real-{file}")
        inside.symlink_to(f"real-{file}")
        assert load(folder), "a link within the folder is followed"
        inside.unlink()
        (folder / f"real-{file}").rename(inside)


def test_links_of_hugging_faces_cache_are_followed(folder, tmp_path):
    cache = tmp_path / "hub" / "models--org--name"
    snapshot = cache / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for number, file in enumerate(folder.iterdir()):
        file.rename(cache / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert load(snapshot)
    (tmp_path / "linked").symlink_to(snapshot)
    assert load(tmp_path / "linked"), "the folder itself may be a link"
    (snapshot / "chat_template.jinja").symlink_to(tmp_path / "hub" / "token")
    (tmp_path / "hub" / "token").write_text("secret")
    with pytest.raises(LoadError, match="is a link that leads out of .*/models--org--name$"):
        load(snapshot)


# ---- panics


def test_a_tokenizer_that_panics_again_and_again_is_not_asked_any_more(folder):
    class PanicException(BaseException):
        pass

    class Panicking:
        num_calls = 0

        def encode_batch_fast(self, *_, **__):
            self.num_calls += 1
            raise PanicException("too many steps")

    tokenizer = load(folder).tokenizer
    tokenizer._backend = Panicking()
    for index in range(3 * MAX_PANICS):
        complaint = "too many steps" if index < MAX_PANICS else f"has failed {MAX_PANICS} times and is not used again"
        with pytest.raises(TokenizerError, match=complaint):
            tokenizer.encode("a")
    assert tokenizer._backend.num_calls == MAX_PANICS


# ---- checked before it is loaded


def test_what_a_check_finds_is_what_a_load_finds(folder):
    assert isinstance(check(folder), Tokenizer) and load(folder, check(folder)).tokenizer.encode("a")
    (folder / "tokenizer.json").write_text("{}")
    for function in (check, load):
        with pytest.raises(LoadError, match="model: .*tokenizer.json is not a tokenizer"):
            function(folder)
    with pytest.raises(TokenizerError):
        tokenizer_from_folder(folder)

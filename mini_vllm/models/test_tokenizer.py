"""The tokenizer: tiny vocabularies trained here, written to files, read back, and streamed token by token."""

import json
import random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from mini_vllm.conftest import examples
from mini_vllm.models.folder import tokenizer_from_folder
from mini_vllm.models.gguf import tokenizer_from_gguf
from mini_vllm.models.tokenizer import StreamingDetokenizer, Tokenizer, TokenizerError

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog doesn't mind.",
    "Zwölf Boxkämpfer jagen über den Deich.",
    "敏捷的棕色狐狸跳过了懒狗。",
    "In 2024 there were 365 days, and 3.14 pies 🥧🥧 🙂👩\u200d👩\u200d👧.",
    "  two  spaces\n\n\ttab",
]
TEXTS = ["The dog", " leading space", "trailing ", "two  spaces", "über 狐狸 🙂", "👩\u200d👩\u200d👧🥧",
         "0 12 345 6789", "a\n\n b\t", "I'LL don't", "�", "é\u0301", ""]
#: Text without special tokens, the space sign and U+FFFD, which have a special meaning here.
plain_text = st.text(st.characters(codec="utf-8", exclude_characters="<▁�"))
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = """\
{% if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\nBe kind.<|im_end|>\\n' -}}
{% endif %}
{% for message in messages %}
    {% if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('no such role: ' + message['role']) }}
    {% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}"""

CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}NUMBERS| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(numbers):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CL100K.replace("NUMBERS", numbers)), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


PRE_TOKENIZERS = {
    "default": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                       pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    "llama-bpe": split("{1,3}"),
    "qwen2": split(""),
}


#: GPT-2's alphabet: printable bytes stand for themselves, the others follow from U+0100 on.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTE_OF = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(OTHERS)}


def byte_level_backend(pre="gpt-2", vocab_size=380):
    """Train a GPT-2 style tokenizer: every byte has a token, so every text round-trips."""
    backend = tokenizers.Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]
    backend.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.train_from_iterator(CORPUS * 4, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    backend.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return backend


def sentencepiece_backend(llama_2=True):
    """Train a tokenizer in which spaces are ▁ and a text begins with one.

    The Llama 2 style has byte tokens for characters that the vocabulary lacks.
    """
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=llama_2, fuse_unk=True))
    trainer = trainers.BpeTrainer(vocab_size=600 if llama_2 else 300, show_progress=False, special_tokens=[
        "<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256) if llama_2)])
    if llama_2:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                             decoders.Strip(" ", 1, 0)])
        backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
    backend.train_from_iterator(["The quick brown fox.", "the lazy dog über"] * 4, trainer)
    # Byte tokens are not added tokens: only the three special ones are.
    state = json.loads(backend.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def write_folder(folder, backend, **files):
    """Write ``tokenizer.json`` and further files: ``tokenizer_config={...}`` is ``tokenizer_config.json``."""
    (folder / "tokenizer.json").write_text(backend.to_str(), encoding="utf-8")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def gguf_metadata(backend, pre="gpt-2", **fields):
    """Return the fields of a GGUF file with this tokenizer."""
    model = json.loads(backend.to_str())["model"]
    vocab = backend.get_vocab(with_added_tokens=True)
    tokens = sorted(vocab, key=vocab.get)
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.token_type": [3 if t in SPECIAL else 4 if t == "<tool>" else 1 for t in tokens],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }
    metadata |= {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
    return {name: value for name, value in metadata.items() if value is not None}


BYTE_LEVEL = Tokenizer(byte_level_backend(), "<|im_start|>", "<|im_end|>", frozenset({2}), CHATML)
LLAMA_2 = Tokenizer(sentencepiece_backend(), "<s>", "</s>", frozenset({2}))
METASPACE = Tokenizer(sentencepiece_backend(llama_2=False), "<s>", "</s>", frozenset({2}))
TOKENIZERS = {"byte-level": BYTE_LEVEL, "llama-2": LLAMA_2, "metaspace": METASPACE}
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)


def token_id(tokenizer, piece):
    """Return the id of a vocabulary entry. For byte-level, ``piece`` uses its alphabet: Ã is the byte 0xC3."""
    found = tokenizer._backend.token_to_id(piece)
    assert found is not None, f"the vocabulary made for this test lacks {piece!r}"
    return found


def stream(tokenizer, token_ids, skip_special_tokens=True):
    detokenizer = StreamingDetokenizer(tokenizer, skip_special_tokens)
    chunks = []
    for token in token_ids:
        chunks.append(detokenizer.add(token))
        assert detokenizer.text == "".join(chunks)
    chunks.append(detokenizer.finish())
    assert detokenizer.text == "".join(chunks)
    return chunks


# ---- encode and decode


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_text_comes_back_as_it_was(text):
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_sentencepiece_text_comes_back_with_its_spaces(text):
    assert LLAMA_2.decode(LLAMA_2.encode(text)) == text


@given(plain_text)
def test_any_text_comes_back(text):
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text)) == text
    assert LLAMA_2.decode(LLAMA_2.encode(text)) == text


def test_merges_are_used():
    assert len(BYTE_LEVEL.encode("The quick brown fox")) < len("The quick brown fox")
    assert len(BYTE_LEVEL.encode("über")) < len("über".encode())


def test_special_tokens_are_put_around_a_text_only_when_asked():
    assert LLAMA_2.encode("fox")[0] == LLAMA_2.bos_token_id == 1
    assert LLAMA_2.encode("fox", add_special_tokens=False) == LLAMA_2.encode("fox")[1:]


def test_special_tokens_in_a_text_become_one_id_and_are_skipped_in_decode():
    ids = BYTE_LEVEL.encode("<|im_start|>dog<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert BYTE_LEVEL.decode(ids) == "dog"
    assert BYTE_LEVEL.decode(ids, skip_special_tokens=False) == "<|im_start|>dog<|im_end|>"


def test_an_added_token_that_is_not_special_is_one_id_and_stays_in_the_text():
    ids = BYTE_LEVEL.encode("<tool>")
    assert ids == [BYTE_LEVEL.vocab_size - 1]
    assert BYTE_LEVEL.decode(ids) == "<tool>"


def test_vocab_size_counts_added_tokens():
    backend = byte_level_backend()
    assert Tokenizer(backend).vocab_size == backend.get_vocab_size(with_added_tokens=False) + 1


def test_ids_outside_the_vocabulary_have_no_text():
    ids = BYTE_LEVEL.encode("dog")
    assert BYTE_LEVEL.decode([10**6, *ids, 10**6]) == "dog"
    assert "".join(stream(BYTE_LEVEL, [10**6, *ids, 10**6])) == "dog"


@pytest.mark.parametrize("text", ["lone \ud800", None, 7])
def test_what_is_not_text_is_refused(text):
    with pytest.raises(TokenizerError, match="text is") as caught:
        BYTE_LEVEL.encode(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("bad", [-1, 2**40, "x", 1.5])
def test_what_is_no_token_id_is_refused(bad):
    with pytest.raises(TokenizerError, match=f"token ids are .*{bad!r}"):
        BYTE_LEVEL.decode([5, bad])
    with pytest.raises(TokenizerError, match=f"token id is {bad!r}"):
        StreamingDetokenizer(BYTE_LEVEL).add(bad)


def test_a_pattern_that_never_ends_is_an_error_and_no_panic():
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="b"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    tokenizer = Tokenizer(backend)
    with pytest.raises(TokenizerError, match="the tokenizer failed: .*retry-limit"):
        tokenizer.encode("a" * 5000 + "b")
    assert tokenizer.encode("a") == [0]


def test_truncation_and_padding_of_the_training_are_switched_off(tmp_path):
    backend = byte_level_backend()
    backend.enable_truncation(3)
    backend.enable_padding(length=64)
    text = "The quick brown fox"
    assert tokenizer_from_folder(write_folder(tmp_path, backend)).encode(text) == BYTE_LEVEL.encode(text)


# ---- streaming


@every_tokenizer
@pytest.mark.parametrize("text", TEXTS)
def test_a_streamed_text_equals_the_decoded_one(tokenizer, text):
    ids = tokenizer.encode(text)
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@every_tokenizer
@given(text=st.text())
def test_any_streamed_text_equals_the_decoded_one(tokenizer, text):
    ids = tokenizer.encode(text)
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@every_tokenizer
@settings(max_examples=examples(100))
@given(data=st.data(), skip_special_tokens=st.booleans())
def test_any_streamed_ids_equal_the_decoded_ones(tokenizer, data, skip_special_tokens):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    assert "".join(stream(tokenizer, ids, skip_special_tokens)) == tokenizer.decode(ids, skip_special_tokens)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, LLAMA_2], ids=["byte-level", "llama-2"])
@pytest.mark.parametrize("seed", range(20))
def test_streamed_bytes_equal_the_decoded_ones(tokenizer, seed):
    """Stream random bytes, chosen so that characters begin, break off and continue all the time, over many windows."""
    by_byte = sorted(pre_tokenizers.ByteLevel.alphabet()) if tokenizer is BYTE_LEVEL else \
        [f"<0x{byte:02X}>" for byte in (0x41, 0x80, 0x9F, 0xA9, 0xBF, 0xC3, 0xE2, 0xED, 0xF0, 0xF4, 0xFF)] + ["▁", "a"]
    rng = random.Random(seed)
    ids = [token_id(tokenizer, rng.choice(by_byte)) for _ in range(300)]
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


def test_half_a_character_stays_back():
    # é is C3 A9, ğ is C4 9F; the alphabet of bytes writes them as Ã © and Ä Ł.
    ids = [token_id(BYTE_LEVEL, piece) for piece in ["a", "Ã", "©", "Ä"]]
    assert stream(BYTE_LEVEL, ids) == ["a", "", "é", "", "�"]


def test_a_broken_character_comes_out_as_soon_as_something_follows():
    ids = [token_id(BYTE_LEVEL, piece) for piece in ["Ã", "a", "Ã", "Ã", "©"]]
    assert stream(BYTE_LEVEL, ids) == ["", "�a", "", "�", "é", ""]


@given(plain_text)
def test_no_chunk_ends_in_half_a_character(text):
    """Check that exactly the complete characters of the bytes so far have been emitted."""
    detokenizer, so_far = StreamingDetokenizer(BYTE_LEVEL), b""
    for token in BYTE_LEVEL.encode(text):
        detokenizer.add(token)
        so_far += bytes(BYTE_OF[character] for character in BYTE_LEVEL.piece(token))
        assert detokenizer.text == so_far.decode(errors="ignore")


def test_a_run_of_byte_tokens_waits_for_its_end():
    ids = [token_id(LLAMA_2, piece) for piece in ["a", "<0xC3>", "<0xA9>", "b"]]
    assert stream(LLAMA_2, ids) == ["a", "", "", "éb", ""]
    # One bad byte spoils the run, including the good character before it. That is why it had to wait.
    ids = [token_id(LLAMA_2, piece) for piece in ["a", "<0xC3>", "<0xA9>", "<0xFF>", "b"]]
    assert stream(LLAMA_2, ids) == ["a", "", "", "", "���b", ""]
    assert stream(LLAMA_2, ids[:3]) == ["a", "", "", "é"]


@pytest.mark.parametrize("tokenizer", [LLAMA_2, METASPACE], ids=["llama-2", "metaspace"])
def test_spaces_are_neither_lost_nor_doubled(tokenizer):
    text = "the dog  the " + "fox " * 20
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) > 3 * StreamingDetokenizer.NUM_CONTEXT_TOKENS
    assert "".join(stream(tokenizer, ids)) == text
    # The first space of the text belongs to the tokenizer, also after special tokens.
    first = tokenizer.encode("dog", add_special_tokens=False)
    assert "".join(stream(tokenizer, [1, 1, *first])) == "dog"
    assert "".join(stream(tokenizer, [*first, 2, *first])) == "dog dog"


def test_special_tokens_are_streamed_only_when_asked():
    ids = BYTE_LEVEL.encode("<|im_start|>a<|im_end|>")
    assert stream(BYTE_LEVEL, ids) == ["", "a", "", ""]
    assert stream(BYTE_LEVEL, ids, skip_special_tokens=False) == ["<|im_start|>", "a", "<|im_end|>", ""]


def test_a_skipped_token_does_not_break_a_character():
    a_half, its_end = (token_id(BYTE_LEVEL, piece) for piece in "Ã©")
    assert stream(BYTE_LEVEL, [a_half, 2, its_end]) == ["", "", "é", ""]


def test_finish_can_be_called_again():
    detokenizer = StreamingDetokenizer(BYTE_LEVEL)
    detokenizer.add(token_id(BYTE_LEVEL, "Ã"))
    assert [detokenizer.finish(), detokenizer.finish(), detokenizer.text] == ["�", "", "�"]
    assert StreamingDetokenizer(BYTE_LEVEL).finish() == ""


@pytest.mark.parametrize("piece", ["a", "Ã", "ÿ"], ids=["letter", "half a character", "no character"])
def test_the_cost_of_a_token_does_not_grow(monkeypatch, piece):
    num_decoded = []
    decode = Tokenizer.decode

    def counting_decode(self, token_ids, skip_special_tokens=True):
        num_decoded.append(len(token_ids))
        return decode(self, token_ids, skip_special_tokens)

    monkeypatch.setattr(Tokenizer, "decode", counting_decode)
    stream(BYTE_LEVEL, [token_id(BYTE_LEVEL, piece)] * 500)
    assert max(num_decoded) <= StreamingDetokenizer.NUM_CONTEXT_TOKENS + 1
    assert len(num_decoded) <= 2 * 501


def test_a_long_run_of_byte_tokens_is_decoded_once(monkeypatch):
    num_decoded = []
    decode = Tokenizer.decode
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids, skip: num_decoded.append(len(ids)) or decode(self, ids))
    ids = [token_id(LLAMA_2, piece) for piece in ["<0xC3>", "<0xA9>"] * 250] + [token_id(LLAMA_2, "a")]
    assert "".join(stream(LLAMA_2, ids)) == "é" * 250 + "a"
    assert sum(num_decoded) <= 501 + 3 * StreamingDetokenizer.NUM_CONTEXT_TOKENS


# ---- a folder


def test_a_folder_with_nothing_but_a_tokenizer(tmp_path):
    tokenizer = tokenizer_from_folder(write_folder(tmp_path, byte_level_backend()))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.chat_template) == (None, frozenset(), None)
    assert tokenizer.encode("The dog 🙂") == BYTE_LEVEL.encode("The dog 🙂")


@pytest.mark.parametrize("files, bos_token_id, eos_token_ids", [
    ({"tokenizer_config": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}}, 1, {2}),
    ({"tokenizer_config": {"bos_token": None, "eos_token": {"content": "<|im_end|>", "lstrip": False}}}, None, {2}),
    ({"special_tokens_map": {"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|endoftext|>"}}, 1, {0}),
    ({"tokenizer_config": {"eos_token": "<|im_end|>"}, "special_tokens_map": {"eos_token": "<tool>"}}, None, {2}),
    ({"tokenizer_config": {"eos_token": None}, "special_tokens_map": {"eos_token": "<|endoftext|>"}}, None, {0}),
    ({"generation_config": {"eos_token_id": [2, 0]}}, None, {0, 2}),
    ({"generation_config": {"eos_token_id": 2}}, None, {2}),
    ({"config": {"eos_token_id": 5}}, None, {5}),
    ({"config": {"eos_token_id": None}, "generation_config": {}}, None, set()),
    ({"tokenizer_config": {"eos_token": "<|im_end|>"}, "generation_config": {"eos_token_id": [0]},
      "config": {"eos_token_id": [7, 8]}}, None, {0, 2, 7, 8}),
])
def test_first_and_last_tokens_are_found_in_every_place(tmp_path, files, bos_token_id, eos_token_ids):
    tokenizer = tokenizer_from_folder(write_folder(tmp_path, byte_level_backend(), **files))
    assert tokenizer.bos_token_id == bos_token_id
    assert tokenizer.eos_token_ids == eos_token_ids and isinstance(tokenizer.eos_token_ids, frozenset)


@pytest.mark.parametrize("chat_template, expected", [
    ("one", "one"),
    ([{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}], "plain"),
    ([{"name": "tool_use", "template": "tools"}], None),
])
def test_the_template_of_the_config(tmp_path, chat_template, expected):
    folder = write_folder(tmp_path, byte_level_backend(), tokenizer_config={"chat_template": chat_template})
    assert tokenizer_from_folder(folder).chat_template == expected


def test_the_template_file_wins_over_the_config(tmp_path):
    folder = write_folder(tmp_path, byte_level_backend(), tokenizer_config={"chat_template": "old"})
    (folder / "chat_template.jinja").write_text("new: ü", encoding="utf-8")
    assert tokenizer_from_folder(str(folder)).chat_template == "new: ü"


def test_a_folder_without_tokenizer_json_is_refused(tmp_path):
    with pytest.raises(TokenizerError) as caught:
        tokenizer_from_folder(tmp_path)
    assert f"{tmp_path / 'tokenizer.json'} is missing" in str(caught.value)


@pytest.mark.parametrize("content", ["{", "{}", '{"model": {"type": "Poetry"}}'])
def test_a_broken_tokenizer_json_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError) as caught:
        tokenizer_from_folder(tmp_path)
    assert f"{tmp_path / 'tokenizer.json'} is not a tokenizer" in str(caught.value)


@pytest.mark.parametrize("name", ["tokenizer_config", "special_tokens_map", "generation_config", "config"])
@pytest.mark.parametrize("content, complaint", [("{'a': 1}", ": not JSON"), ("[3]", " holds [3], must be")])
def test_a_broken_json_file_is_named(tmp_path, name, content, complaint):
    (write_folder(tmp_path, byte_level_backend()) / f"{name}.json").write_text(content)
    with pytest.raises(TokenizerError) as caught:
        tokenizer_from_folder(tmp_path)
    assert f"{tmp_path / name}.json{complaint}" in str(caught.value)


@pytest.mark.parametrize("files, complaint", [
    ({"tokenizer_config": {"eos_token": "<nowhere>"}}, "eos_token is '<nowhere>'"),
    ({"special_tokens_map": {"bos_token": {"content": "<nowhere>"}}}, "bos_token is '<nowhere>'"),
    ({"tokenizer_config": {"bos_token": 7}}, "bos_token is 7"),
    ({"config": {"eos_token_id": "2"}}, "config.json: eos_token_id is '2'"),
    ({"config": {"eos_token_id": -1}}, "config.json: eos_token_id is -1"),
    ({"generation_config": {"eos_token_id": [2, True]}}, "generation_config.json: eos_token_id is [2, True]"),
    ({"tokenizer_config": {"chat_template": 3}}, "tokenizer_config.json: chat_template is 3"),
    ({"tokenizer_config": {"chat_template": ["x"]}}, "tokenizer_config.json: chat_template is ['x']"),
])
def test_a_wrong_value_in_a_folder_is_named(tmp_path, files, complaint):
    with pytest.raises(TokenizerError) as caught:
        tokenizer_from_folder(write_folder(tmp_path, byte_level_backend(), **files))
    assert complaint in str(caught.value) and str(tmp_path) in str(caught.value)


# ---- chat templates


def chat(template, messages=({"role": "user", "content": "hi"},), **options):
    return Tokenizer(byte_level_backend(), "<|im_start|>", "<|im_end|>", frozenset({2}), template).apply_chat_template(
        list(messages), **options)


def test_a_chat_becomes_one_text():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"
    assert BYTE_LEVEL.apply_chat_template(messages, add_generation_prompt=False) == expected
    assert BYTE_LEVEL.apply_chat_template(messages) == expected + "<|im_start|>assistant\n"


def test_a_template_may_bring_its_own_system_message():
    text = BYTE_LEVEL.apply_chat_template([{"role": "user", "content": "Why?"}])
    assert text == ("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"
                    "<|im_start|>assistant\n")


def test_an_encoded_chat_has_each_special_token_once():
    tokenizer = Tokenizer(sentencepiece_backend(), "<s>", "</s>", frozenset({2}),
                          "{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}")
    ids = tokenizer.encode_chat([{"role": "user", "content": "the dog"}])
    assert (ids.count(1), ids[0], ids[-1]) == (1, 1, 2)
    assert tokenizer.encode("<s>")[:2] == [1, 1], "encode would have added a second one"
    chat_ids = BYTE_LEVEL.encode_chat([{"role": "user", "content": "Why?"}])
    assert (chat_ids.count(1), chat_ids.count(2)) == (3, 2)


@pytest.mark.parametrize("template, expected", [
    ("{{ bos_token }}|{{ eos_token }}", "<|im_start|>|<|im_end|>"),
    ("{{ messages | tojson }}", '[{"role": "user", "content": "hi"}]'),
    ("{{ {'b': '<ü>', 'a': 1} | tojson(sort_keys=true, indent=1) }}", '{\n "a": 1,\n "b": "<ü>"\n}'),
    ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
    ("{% if tools is none and documents is none %}plain{% endif %}", "plain"),
    ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
    ("{{ strftime_now('%%') }}", "%"),
    ("{{ strftime_now('%Y') | int > 2000 }}", "True"),
])
def test_what_a_template_may_use(template, expected):
    assert chat(template) == expected


def test_tokens_that_a_model_lacks_are_empty_in_a_template():
    tokenizer = Tokenizer(byte_level_backend(), chat_template="[{{ bos_token }}{{ eos_token }}]")
    assert tokenizer.apply_chat_template([]) == "[]"


def test_a_model_without_a_template_says_so():
    with pytest.raises(TokenizerError, match="no chat template"):
        LLAMA_2.apply_chat_template([{"role": "user", "content": "hi"}])
    with pytest.raises(TokenizerError, match="no chat template"):
        LLAMA_2.encode_chat([{"role": "user", "content": "hi"}])


def test_what_a_template_complains_about_is_passed_on():
    with pytest.raises(TokenizerError, match="chat template: TemplateError: no such role: wizard"):
        BYTE_LEVEL.apply_chat_template([{"role": "wizard", "content": "hi"}])


@pytest.mark.parametrize("template, complaint", [
    ("{% if %}", "TemplateSyntaxError"),
    ("{{ 'a' + messages[0].nothing }}", "UndefinedError.*nothing"),
    ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ("{{ 'a' + 1 }}", "TypeError"),
])
def test_a_broken_template_is_a_tokenizer_error(template, complaint):
    with pytest.raises(TokenizerError, match=f"chat template: {complaint}"):
        chat(template)


@pytest.mark.parametrize("template, complaint", [
    ("{{ ''.__class__.__mro__ }}", "__class__"),
    ("{{ ''.__class__.__base__.__subclasses__() }}", "__class__"),
    ("{{ (''|attr('__class__')).__base__ }}", "__class__"),
    ("{{ raise_exception.__globals__['json'] }}", "__globals__"),
    ("{{ strftime_now.__code__.co_consts }}", "__code__"),
    ("{{ '{0.__class__.__base__}'.format('') }}", "__class__"),
    ("{{ messages.append(1) }}", "append"),
    ("{{ messages[0].update(role='x') }}", "update"),
])
def test_a_template_does_not_get_out_of_its_sandbox(template, complaint):
    with pytest.raises(TokenizerError, match=f"chat template: SecurityError: .*{complaint}"):
        chat(template)


# ---- GGUF


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_a_gguf_tokenizer_equals_the_one_it_was_made_from(pre):
    backend = byte_level_backend(pre)
    original, tokenizer = Tokenizer(backend), tokenizer_from_gguf(gguf_metadata(backend, pre))
    assert tokenizer.vocab_size == original.vocab_size
    for text in [*TEXTS, *CORPUS, "<|im_start|>user\nThe dog <tool> 12345<|im_end|>\n"]:
        ids = original.encode(text)
        assert tokenizer.encode(text) == ids
        for skip_special_tokens in (True, False):
            assert tokenizer.decode(ids, skip_special_tokens) == original.decode(ids, skip_special_tokens)


@pytest.mark.parametrize("pre, expected", [
    ("default", ["I", "'", "LLgo", " 12345", "!!", "\n\n \n ", " x"]),
    ("gpt-2", ["I", "'", "LLgo", " 12345", "!!", "\n\n \n ", " x"]),
    ("smollm", ["I", "'", "LLgo", " ", "1", "2", "3", "4", "5", "!!", "\n\n \n ", " x"]),
    ("llama-bpe", ["I", "'LL", "go", " ", "123", "45", "!!\n\n", " \n", " ", " x"]),
    ("qwen2", ["I", "'LL", "go", " ", "1", "2", "3", "4", "5", "!!\n\n", " \n", " ", " x"]),
])
def test_where_each_split_rule_cuts(pre, expected):
    tokenizer = tokenizer_from_gguf(gguf_metadata(byte_level_backend(pre), pre))
    words = tokenizer._backend.pre_tokenizer.pre_tokenize_str("I'LLgo 12345!!\n\n \n  x")
    assert [word.replace("Ġ", " ").replace("Ċ", "\n") for word, _ in words] == expected


def test_only_qwen2_composes_characters():
    ids = {pre: tokenizer_from_gguf(gguf_metadata(byte_level_backend(pre), pre)).encode("u\u0308")
           for pre in ("qwen2", "llama-bpe")}
    assert Tokenizer(byte_level_backend("qwen2")).decode(ids["qwen2"]) == "ü"
    assert Tokenizer(byte_level_backend("llama-bpe")).decode(ids["llama-bpe"]) == "u\u0308"


def test_llama_3_takes_a_whole_word_before_any_merge():
    metadata = gguf_metadata(byte_level_backend())
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "xyzzy"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 1]
    whole = [len(metadata["tokenizer.ggml.tokens"]) - 1]
    assert tokenizer_from_gguf({**metadata, "tokenizer.ggml.pre": "llama-bpe"}).encode("xyzzy") == whole
    assert tokenizer_from_gguf(metadata).encode("xyzzy") != whole


def test_control_tokens_are_special_and_user_defined_ones_are_not():
    tokenizer = tokenizer_from_gguf(gguf_metadata(byte_level_backend()))
    ids = tokenizer.encode("<|im_start|><tool>")
    assert len(ids) == 2
    assert tokenizer.decode(ids) == "<tool>"


def test_a_gguf_chat():
    tokenizer = tokenizer_from_gguf(gguf_metadata(byte_level_backend()))
    messages = [{"role": "user", "content": "The dog 🙂"}]
    assert tokenizer.encode_chat(messages) == BYTE_LEVEL.encode_chat(messages)
    assert (tokenizer.bos_token_id, tokenizer.chat_template) == (1, CHATML)
    without = gguf_metadata(byte_level_backend())
    del without["tokenizer.chat_template"]
    assert tokenizer_from_gguf(without).chat_template is None


@pytest.mark.parametrize("fields, eos_token_ids", [
    ({}, {2}),
    ({"eos_token_id": None}, set()),
    ({"eot_token_id": 0}, {0, 2}),
    ({"eot_token_id": 0, "eom_token_id": 7}, {0, 2, 7}),
])
def test_every_end_in_a_gguf(fields, eos_token_ids):
    tokenizer = tokenizer_from_gguf(gguf_metadata(byte_level_backend(), **fields))
    assert tokenizer.eos_token_ids == eos_token_ids and isinstance(tokenizer.eos_token_ids, frozenset)


@pytest.mark.parametrize("pre, add_bos_token, is_added", [
    ("gpt-2", True, True), ("gpt-2", False, False), ("gpt-2", None, False),
    ("llama-bpe", None, True), ("llama-bpe", False, False),
])
def test_a_gguf_says_whether_a_text_begins_with_a_special_token(pre, add_bos_token, is_added):
    metadata = gguf_metadata(byte_level_backend(pre), pre, add_bos_token=add_bos_token)
    tokenizer = tokenizer_from_gguf(metadata)
    body = tokenizer.encode("dog", add_special_tokens=False)
    assert 1 not in body
    assert tokenizer.encode("dog") == ([1] if is_added else []) + body


def test_a_gguf_without_a_split_rule_gets_the_default_one():
    metadata = gguf_metadata(byte_level_backend())
    del metadata["tokenizer.ggml.pre"]
    assert tokenizer_from_gguf(metadata).encode(CORPUS[3]) == BYTE_LEVEL.encode(CORPUS[3])


@pytest.mark.parametrize("name", ["model", "tokens", "merges", "token_type"])
def test_a_missing_gguf_field_is_named(name):
    with pytest.raises(TokenizerError, match=f"tokenizer.ggml.{name} is missing"):
        tokenizer_from_gguf(gguf_metadata(byte_level_backend(), **{name: None}))


@pytest.mark.parametrize("fields, complaint", [
    ({"model": "llama"}, "tokenizer.ggml.model is 'llama', supported: 'gpt2'"),
    ({"model": 3}, "tokenizer.ggml.model is 3, must be of type str"),
    ({"tokens": "abc"}, "tokenizer.ggml.tokens is 'abc', must be of type list"),
    ({"token_type": [1, 1]}, "tokenizer.ggml.token_type has 2 entries, tokenizer.ggml.tokens has"),
    ({"tokens": ["a", "b", "a"], "token_type": [1, 1, 1]}, "tokenizer.ggml.tokens has 3, 2 of them different"),
    ({"merges": ["Ġ nowhere"]}, "tokenizer.ggml.merges do not fit tokenizer.ggml.tokens: .*nowhere"),
    ({"merges": ["alone"]}, "tokenizer.ggml.merges do not fit tokenizer.ggml.tokens"),
    ({"bos_token_id": 9999}, "tokenizer.ggml.bos_token_id is 9999, must be from 0 to"),
    ({"eos_token_id": -1}, "tokenizer.ggml.eos_token_id is -1, must be from 0 to"),
    ({"eot_token_id": 9999}, "tokenizer.ggml.eot_token_id is 9999, must be from 0 to"),
    ({"eos_token_id": True}, "tokenizer.ggml.eos_token_id is True, must be of type int"),
    ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token is 1, must be of type bool"),
    ({"add_bos_token": True, "bos_token_id": None}, "tokenizer.ggml.bos_token_id is missing"),
])
def test_a_wrong_gguf_field_is_named(fields, complaint):
    with pytest.raises(TokenizerError, match=complaint):
        tokenizer_from_gguf(gguf_metadata(byte_level_backend(), **fields))


def test_an_unknown_split_rule_is_named_with_those_that_are_known():
    with pytest.raises(TokenizerError) as caught:
        tokenizer_from_gguf(gguf_metadata(byte_level_backend(), pre="falcon"))
    assert str(caught.value) == ("tokenizer.ggml.pre is 'falcon', supported: default, gpt-2, llama-bpe, qwen2, smollm")


def test_a_template_that_is_no_text_is_named():
    with pytest.raises(TokenizerError, match="tokenizer.chat_template is 3"):
        tokenizer_from_gguf({**gguf_metadata(byte_level_backend()), "tokenizer.chat_template": 3})

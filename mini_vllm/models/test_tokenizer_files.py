"""Tokenizers from folders and GGUF files, and chat templates."""

import json

import pytest

from mini_vllm.models.folder import tokenizer_from_folder
from mini_vllm.models.gguf import tokenizer_from_gguf
from mini_vllm.models.test_tokenizer import (
    BYTE_LEVEL,
    CHATML,
    CORPUS,
    LLAMA_2,
    PRE_TOKENIZERS,
    SPECIAL,
    TEXTS,
    byte_level_backend,
    sentencepiece_backend,
)
from mini_vllm.models.tokenizer import Tokenizer, TokenizerError


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


def test_truncation_and_padding_of_the_training_are_switched_off(tmp_path):
    backend = byte_level_backend()
    backend.enable_truncation(3)
    backend.enable_padding(length=64)
    text = "The quick brown fox"
    assert tokenizer_from_folder(write_folder(tmp_path, backend)).encode(text) == BYTE_LEVEL.encode(text)


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
    ("{% if %}", "TemplateSyntaxError"), ("{{ 'a' + messages[0].nothing }}", "UndefinedError.*nothing"),
    ("{{ 1 / 0 }}", "ZeroDivisionError"),
])
def test_a_broken_template_is_a_tokenizer_error(template, complaint):
    with pytest.raises(TokenizerError, match=f"chat template: {complaint}"):
        chat(template)


@pytest.mark.parametrize("template, complaint", [
    ("{{ ''.__class__.__mro__ }}", "__class__"),
    ("{{ (''|attr('__class__')).__base__ }}", "__class__"),
    ("{{ raise_exception.__globals__['json'] }}", "__globals__"),
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


@pytest.mark.parametrize("fields, complaint", [
    *(({name: None}, f"tokenizer.ggml.{name} is missing") for name in ("model", "tokens", "merges", "token_type")),
    ({"model": "llama"}, "tokenizer.ggml.model is 'llama', supported: 'gpt2'"),
    ({"pre": "falcon"}, "tokenizer.ggml.pre is 'falcon', supported: default, gpt-2, llama-bpe, qwen2, smollm"),
    ({"tokens": "abc"}, "tokenizer.ggml.tokens is 'abc', must be of type list"),
    ({"token_type": [1, 1]}, "tokenizer.ggml.token_type has 2 entries, tokenizer.ggml.tokens has"),
    ({"tokens": ["a", "b", "a"], "token_type": [1, 1, 1]}, "tokenizer.ggml.tokens has 3, 2 of them different"),
    ({"merges": ["Ġ nowhere"]}, "tokenizer.ggml.merges do not fit tokenizer.ggml.tokens: .*nowhere"),
    ({"bos_token_id": 9999}, "tokenizer.ggml.bos_token_id is 9999, must be from 0 to"),
    ({"eos_token_id": -1}, "tokenizer.ggml.eos_token_id is -1, must be from 0 to"),
    ({"eos_token_id": True}, "tokenizer.ggml.eos_token_id is True, must be of type int"),
    ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token is 1, must be of type bool"),
    ({"add_bos_token": True, "bos_token_id": None}, "tokenizer.ggml.bos_token_id is missing"),
])
def test_a_wrong_gguf_field_is_named(fields, complaint):
    with pytest.raises(TokenizerError, match=complaint):
        tokenizer_from_gguf(gguf_metadata(byte_level_backend(), **fields))


def test_a_template_that_is_no_text_is_named():
    with pytest.raises(TokenizerError, match="tokenizer.chat_template is 3"):
        tokenizer_from_gguf({**gguf_metadata(byte_level_backend()), "tokenizer.chat_template": 3})

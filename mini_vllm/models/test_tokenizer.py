"""The tokenizer: tiny vocabularies trained here, written to files, read back, and streamed token by token."""

import json
import random
import re

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from mini_vllm.conftest import examples
from mini_vllm.models.tokenizer import StreamingDetokenizer, Tokenizer, TokenizerError, token_bytes

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


def test_texts_come_back_with_their_spaces_and_characters():
    for text in TEXTS:
        assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text)) == text == LLAMA_2.decode(LLAMA_2.encode(text))


@given(plain_text)
def test_any_text_comes_back(text):
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text)) == text
    assert LLAMA_2.decode(LLAMA_2.encode(text)) == text


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


def test_ids_outside_the_vocabulary_have_no_text():
    ids = BYTE_LEVEL.encode("dog")
    assert BYTE_LEVEL.decode([10**6, *ids, 10**6]) == "dog"
    assert "".join(stream(BYTE_LEVEL, [10**6, *ids, 10**6])) == "dog"


@pytest.mark.parametrize("text", ["lone \ud800", None, 7])
def test_what_is_not_text_is_refused(text):
    with pytest.raises(TokenizerError, match="text is") as caught:
        BYTE_LEVEL.encode(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("bad", [-1, 2**40, "x", 1.5, 1.0, [1]])
def test_what_is_no_token_id_is_refused(bad):
    with pytest.raises(TokenizerError, match=f"token ids are .*{re.escape(repr(bad))}"):
        BYTE_LEVEL.decode([5, bad])
    detokenizer = StreamingDetokenizer(BYTE_LEVEL)
    detokenizer.add(1)
    with pytest.raises(TokenizerError, match=f"token id is {re.escape(repr(bad))}"):
        detokenizer.add(bad)


def test_a_pattern_that_never_ends_is_an_error_and_no_panic():
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="b"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    tokenizer = Tokenizer(backend)
    with pytest.raises(TokenizerError, match="the tokenizer failed: .*retry-limit"):
        tokenizer.encode("a" * 5000 + "b")
    assert tokenizer.encode("a") == [0]
    spaces = tokenizers.Tokenizer(models.WordLevel({" ": 0}, unk_token=" "))
    spaces.decoder = decoders.Strip(" ", 1, 1)
    with pytest.raises(TokenizerError, match="the tokenizer failed"):
        Tokenizer(spaces).decode([0])


# ---- streaming


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
@pytest.mark.parametrize("seed", range(6))
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


def test_the_cost_of_a_token_does_not_grow(monkeypatch):
    num_decoded = []
    decode = Tokenizer.decode

    def counting_decode(self, token_ids, skip_special_tokens=True):
        num_decoded.append(len(token_ids))
        return decode(self, token_ids, skip_special_tokens)

    monkeypatch.setattr(Tokenizer, "decode", counting_decode)
    stream(METASPACE, [token_id(METASPACE, "a")] * 500)
    assert max(num_decoded) <= StreamingDetokenizer.NUM_CONTEXT_TOKENS + 1
    assert len(num_decoded) <= 2 * 501


def test_a_long_run_of_byte_tokens_is_decoded_once(monkeypatch):
    num_decoded = []
    decode = Tokenizer.decode
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids, skip: num_decoded.append(len(ids)) or decode(self, ids))
    ids = [token_id(LLAMA_2, piece) for piece in ["<0xC3>", "<0xA9>"] * 250] + [token_id(LLAMA_2, "a")]
    assert "".join(stream(LLAMA_2, ids)) == "é" * 250 + "a"
    assert sum(num_decoded) <= 501 + 3 * StreamingDetokenizer.NUM_CONTEXT_TOKENS


# ---- how few tokens a text may have


def with_steps(normalizer=None, pre_tokenizer=None, added=None, **options):
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "abc": 1, "<unk>": 2}, [], **options))
    if added is not None:
        backend.add_tokens([added])
    if normalizer is not None:
        backend.normalizer = normalizer
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    return Tokenizer(backend)


def test_the_bound_follows_from_the_longest_entry_of_the_vocabulary():
    longest = max(len(BYTE_LEVEL._backend.id_to_token(token_id)) for token_id in range(BYTE_LEVEL.vocab_size))
    assert BYTE_LEVEL.min_num_tokens("x" * (10 * longest + 1)) == 10
    composing = Tokenizer(byte_level_backend("qwen2"))
    assert composing.min_num_tokens("x" * (40 * longest)) == 10, "NFC may make one character of four"
    assert with_steps(byte_fallback=True).min_num_tokens("x" * 50) == 10
    assert LLAMA_2.min_num_tokens("x" * 1000) > 0


@pytest.mark.parametrize("tokenizer", [
    with_steps(), with_steps(unk_token="<unk>", fuse_unk=True), with_steps(pre_tokenizer=PRE_TOKENIZERS["gpt-2"]),
    with_steps(normalizers.NFKC(), byte_fallback=True), with_steps(normalizers.Replace("x", ""), byte_fallback=True),
    with_steps(pre_tokenizer=pre_tokenizers.Split("x", "removed"), byte_fallback=True),
    with_steps(normalizers.Replace(Regex("x+"), "a"), byte_fallback=True),
    with_steps(normalizers.Replace("xx", "a"), byte_fallback=True),
    with_steps(added=AddedToken("x", rstrip=True), byte_fallback=True),
    Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))),
], ids=["characters", "fused", "without all bytes", "NFKC", "a replacement", "a split", "a pattern", "two for one",
        "an added token", "words"])
def test_without_a_bound_no_text_is_certainly_too_long(tokenizer):
    assert tokenizer.min_num_tokens("x" * 10**6) == 0


@every_tokenizer
@given(text=st.text())
def test_no_text_has_fewer_tokens_than_the_bound(tokenizer, text):
    assert len(tokenizer.encode(text, add_special_tokens=False)) >= tokenizer.min_num_tokens(text)


# ---- the bytes of tokens


BACKENDS = {"bytes": byte_level_backend, "bytes like Qwen's": lambda: byte_level_backend("qwen2"),
            "llama 2": sentencepiece_backend, "metaspace": lambda: sentencepiece_backend(llama_2=False)}


@pytest.mark.parametrize("name", BACKENDS)
def test_the_bytes_of_tokens_are_the_text(name):
    tokenizer = Tokenizer(BACKENDS[name]())
    of_token, not_first = token_bytes(tokenizer)
    assert len(of_token) == tokenizer.vocab_size
    rng = np.random.default_rng(0)
    texts = [token_id for token_id, each in enumerate(of_token) if each]
    firsts = [token_id for token_id in texts if token_id not in set(not_first)]
    num_compared = 0
    for _ in range(300):
        token_ids = [int(rng.choice(firsts)), *rng.choice(texts, rng.integers(0, 8)).tolist()]
        joined = b"".join(of_token[token_id] for token_id in token_ids)
        try:
            text = joined.decode()
        except UnicodeDecodeError:
            continue
        num_compared += 1
        assert tokenizer.decode(token_ids) == text
    assert num_compared > 50


def test_bytes_of_tokens_are_known_whatever_follows_the_decoder_of_bytes():
    backend = byte_level_backend()
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
    tokenizer = Tokenizer(backend)
    assert token_bytes(tokenizer) == token_bytes(BYTE_LEVEL)
    ids = tokenizer.encode("é ğ fox")
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids) == "é ğ fox"
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("o", "0")])
    assert "".join(stream(Tokenizer(backend), ids)) == "é ğ f0x"


def test_special_tokens_have_no_bytes_and_others_that_were_added_do():
    tokenizer = Tokenizer(byte_level_backend())
    of_token, _ = token_bytes(tokenizer)
    special = {token_id for token_id in range(tokenizer.vocab_size) if tokenizer.piece(token_id) is None}
    assert special and all(of_token[token_id] == b"" for token_id in special)
    assert of_token[tokenizer.encode("<tool>", add_special_tokens=False)[0]] == b"<tool>"


def test_a_token_that_loses_its_space_at_the_beginning_is_not_first():
    tokenizer = Tokenizer(sentencepiece_backend())
    of_token, not_first = token_bytes(tokenizer)
    spaced = [token_id for token_id in range(tokenizer.vocab_size) if (tokenizer.piece(token_id) or "").startswith("▁")]
    assert spaced and set(spaced) <= set(not_first)
    for token_id in spaced:
        assert of_token[token_id].decode() == f" {tokenizer.decode([token_id])}"

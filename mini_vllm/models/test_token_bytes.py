"""The bytes of the tokens, one after the other, are the text that the tokenizer decodes."""

import numpy as np
import pytest

from mini_vllm.models.loader import load
from mini_vllm.models.test_tokenizer import byte_level_backend, sentencepiece_backend
from mini_vllm.models.tokenizer import Tokenizer, token_bytes

BACKENDS = {"bytes": byte_level_backend, "bytes like Qwen's": lambda: byte_level_backend("qwen2"),
            "llama 2": sentencepiece_backend, "metaspace": lambda: sentencepiece_backend(llama_2=False),
            "tiny-tales": lambda: load("tiny-tales").tokenizer._backend}


@pytest.mark.parametrize("name", BACKENDS)
def test_the_bytes_of_tokens_are_the_text(name):
    tokenizer = Tokenizer(BACKENDS[name]())
    of_token, not_first = token_bytes(tokenizer)
    assert len(of_token) == tokenizer.vocab_size
    random = np.random.default_rng(0)
    texts = [token_id for token_id, each in enumerate(of_token) if each]
    firsts = [token_id for token_id in texts if token_id not in set(not_first)]
    num_compared = 0
    for _ in range(300):
        token_ids = [int(random.choice(firsts)), *random.choice(texts, random.integers(0, 8)).tolist()]
        joined = b"".join(of_token[token_id] for token_id in token_ids)
        try:
            text = joined.decode()
        except UnicodeDecodeError:
            continue
        num_compared += 1
        assert tokenizer.decode(token_ids) == text
    assert num_compared > 50


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

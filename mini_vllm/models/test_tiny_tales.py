"""The model that ships: it loads here and in mlx-lm, and tells the same tale in both."""

import json

import pytest

from mini_vllm.backend import is_cpu, mx
from mini_vllm.llm import LLM
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.catalogue import ASSETS
from mini_vllm.models.loader import load
from mini_vllm.request import SamplingParams

FOLDER = ASSETS / "tiny-tales"
OPENING = "Once upon a time there was a king who had three sons, and"


@pytest.fixture(scope="module")
def llm():
    return LLM("tiny-tales", num_blocks=64)


def test_it_is_small_enough_to_ship():
    sizes = {file.name: file.stat().st_size for file in FOLDER.iterdir()}
    assert sizes["model.safetensors"] <= 16_000_000
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "README.md"} <= sizes.keys()


def test_it_is_a_llama_of_3_to_8_million_parameters():
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["model_type"] == "llama" and config["vocab_size"] == 4096
    weights = mx.load(str(FOLDER / "model.safetensors"))
    assert 3_000_000 <= sum(array.size for array in weights.values()) <= 8_000_000


def test_mlx_lm_loads_the_folder_and_gives_the_same_tokens(llm):
    utils = pytest.importorskip("mlx_lm.utils")
    model, _ = utils.load_model(FOLDER)
    if is_cpu():
        model.set_dtype(mx.float32)  # as our loader does
    prompt = llm.tokenizer.encode(OPENING)
    tokens = llm.generate([prompt], SamplingParams(max_tokens=64, temperature=0, ignore_eos=True))[0].token_ids
    likeliest = mx.argmax(model(mx.array([[*prompt, *tokens[:-1]]]))[0], axis=-1).tolist()
    assert len(tokens) == 64 and tokens == likeliest[len(prompt) - 1:]


def test_it_prefers_a_tale_to_word_salad(llm):
    """Compare the mean log-probability per token of a sentence and of the same words shuffled."""
    def score(text):
        ids = llm.tokenizer.encode(text)
        logits = all_logits(ids)
        return sum((logits[i] - mx.logsumexp(logits[i]))[ids[i + 1]].item() for i in range(len(ids) - 1)) / len(ids)

    tale = "The king went into the garden, and there he saw a little bird sitting upon a tree."
    salad = "bird into king there saw upon and a garden the he little tree went the a sitting in."
    assert score(tale) > score(salad) + 1


def all_logits(ids):
    """Return the logits after every token."""
    runner = ModelRunner(load("tiny-tales").model, num_blocks=9, block_size=32)
    return runner.step([RequestStep(ids, list(range(1, 9)), len(ids), True, needs_all_logits=True)])

"""The recommended sampling parameters of a model, and that ``LLM`` uses them by default."""

import json
import shutil

import pytest

from mini_vllm.conftest import make_talker
from mini_vllm.llm import LLM
from mini_vllm.models.catalogue import KNOWN
from mini_vllm.models.config import LoadError
from mini_vllm.models.loader import FOLLOWED, load, sampling_defaults
from mini_vllm.request import SamplingParams


def write(folder, content):
    folder.mkdir(exist_ok=True)
    (folder / "generation_config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


OF_SMOLLM2 = {"temperature": 0.0, "frequency_penalty": 0.5}
ALL = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}


@pytest.mark.parametrize("content, expected", [
    (ALL, ALL),
    ({"do_sample": True, "temperature": 0.6}, {"temperature": 0.6}),
    ({"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1},
     {"temperature": 0.0, "repetition_penalty": 1.1}),
    ({"do_sample": False}, {"temperature": 0.0}),
    ({"temperature": None, "top_k": 0, "do_sample": None}, {"top_k": 0}),
    ({"max_new_tokens": 5, "eos_token_id": [2, 3], "presence_penalty": 1.0, "seed": 1, "n": 7}, {}),
    ({}, {}),
], ids=str)
def test_of_the_file_the_five_fields_and_do_sample_are_followed(tmp_path, content, expected):
    assert sampling_defaults(write(tmp_path, content)) == expected
    assert set(FOLLOWED) == set(ALL)


@pytest.mark.parametrize("content, complaint", [
    ({"temperature": "0.6"}, "temperature is '0.6', must be a finite number, at least 0"),
    ('{"temperature": NaN}', "temperature is nan, must be"),
    ({"top_k": 2.5}, "top_k is 2.5, must be a whole number, at least -1"),
    ({"do_sample": "no"}, "do_sample is 'no', must be true or false"),
    ({"do_sample": 0, "temperature": 0.5}, "do_sample is 0, must be true or false"),
], ids=str)
def test_what_cannot_be_is_refused_with_file_and_field(checkpoints, tmp_path, content, complaint):
    folder = tmp_path / "bad"
    shutil.copytree(checkpoints("llama2"), folder)
    with pytest.raises(LoadError) as caught:
        load(write(folder, content))
    assert str(caught.value).startswith(f"{folder / 'generation_config.json'}: {complaint}")


def test_a_pulled_model_is_known_by_where_it_lies_and_by_no_other_file(tmp_path, monkeypatch):
    monkeypatch.setenv("MINI_VLLM_CACHE", str(tmp_path / "cache"))
    model = KNOWN["smollm2"]
    model.path.parent.mkdir(parents=True)
    model.path.write_bytes(b"")
    assert sampling_defaults(model.path) == OF_SMOLLM2
    monkeypatch.chdir(tmp_path)
    assert sampling_defaults(model.path.relative_to(tmp_path)) == OF_SMOLLM2
    assert sampling_defaults(tmp_path / model.path.name) == {}


def test_the_defaults_of_tiny_tales_are_those_of_its_file():
    assert load("tiny-tales").sampling_defaults == {"temperature": 0.8}


# ---- LLM


def test_without_parameters_the_models_own_are_used_and_nothing_is_mixed_into_others(checkpoints, tmp_path, used):
    llm = LLM(write(make_talker(checkpoints, tmp_path), ALL))
    assert llm.get_default_sampling_params() == SamplingParams(**ALL)
    llm.generate(["a", "b"])
    llm.chat([{"role": "user", "content": "hello"}])
    assert used == [SamplingParams(**ALL)] * 3
    own = SamplingParams(max_tokens=2, seed=1)
    llm.generate("a", own)
    llm.generate(["a", "b"], [own, own])
    llm.engine.add_request("a")
    assert used[3:] == [own] * 3 + [None]


def test_a_model_that_says_nothing_is_sampled_from_its_own_distribution(checkpoints, used):
    llm = LLM(checkpoints("llama2"))
    assert llm.get_default_sampling_params() == SamplingParams()
    llm.generate("a")
    assert used == [SamplingParams()]

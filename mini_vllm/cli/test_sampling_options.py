"""The sampling options: they cover all of SamplingParams, and options that are not given come from the model."""

import contextlib
import io
import json
import re
import shutil
import sys
from dataclasses import fields, replace

import pytest

from mini_vllm.cli import main, make_parser
from mini_vllm.cli.arguments import option_of
from mini_vllm.cli.sampling_options import given, sampling_params, with_defaults
from mini_vllm.conftest import make_talker
from mini_vllm.llm import LLM
from mini_vllm.models import loader
from mini_vllm.models.catalogue import KNOWN
from mini_vllm.request import SamplingParams

#: Field → the typed option, and the resulting value.
TYPED = {
    "max_tokens": (["--max-tokens", "40"], 40),
    "min_tokens": (["--min-tokens", "3"], 3),
    "temperature": (["--temperature", "0.5"], 0.5),
    "top_k": (["--top-k", "7"], 7),
    "top_p": (["--top-p", "0.7"], 0.7),
    "min_p": (["--min-p", "0.1"], 0.1),
    "repetition_penalty": (["--repetition-penalty", "1.2"], 1.2),
    "presence_penalty": (["--presence-penalty", "-0.5"], -0.5),
    "frequency_penalty": (["--frequency-penalty", "0.4"], 0.4),
    "logit_bias": (["--logit-bias", "5=-3.5", "--logit-bias", "6=2"], {5: -3.5, 6: 2.0}),
    "allowed_token_ids": (["--allowed-token-ids", "5,6"], (5, 6)),
    "bad_words": (["--bad-word", "king", "--bad-word", "the queen"], ("king", "the queen")),
    "seed": (["--seed", "9"], 9),
    "logprobs": (["--logprobs", "2"], 2),
    "prompt_logprobs": (["--prompt-logprobs", "0"], 0),
    "stop": (["--stop", ".", "--stop", "!"], (".", "!")),
    "stop_token_ids": (["--stop-token-id", "3", "--stop-token-id", "4"], (3, 4)),
    "include_stop_str_in_output": (["--include-stop-str-in-output"], True),
    "ignore_eos": (["--ignore-eos"], True),
    "skip_special_tokens": (["--keep-special-tokens"], False),
    "n": (["--n", "2"], 2),
    "structured_outputs": (["--regex", "a|b"], {"regex": "a|b"}),
}
#: A chat shows one text, as it arrives.
NOT_IN_CHAT = {"n", "logprobs", "prompt_logprobs", "structured_outputs"}


def parse(*words):
    return make_parser().parse_args(words)


@pytest.mark.parametrize("name", [field.name for field in fields(SamplingParams)])
def test_every_field_of_sampling_params_has_an_option(name):
    words, value = TYPED[name]
    params = sampling_params(parse("generate", *words))
    assert params == replace(SamplingParams(max_tokens=128), **{name: value})
    (field,) = [field for field in fields(SamplingParams) if field.name == name]
    assert words[0] in option_of(field)
    if name not in NOT_IN_CHAT:
        assert sampling_params(parse("chat", *words)) == replace(SamplingParams(max_tokens=512), **{name: value})


def test_an_option_that_is_not_given_sets_nothing():
    assert given(parse("generate")) == {"max_tokens": 128} and given(parse("chat")) == {"max_tokens": 512}


# ---- options that are not given


ADVISED = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}


@pytest.mark.parametrize("words, of_model, expected", [
    ([], ADVISED, ADVISED),
    (["--temperature", "0"], ADVISED, {**ADVISED, "temperature": 0}),
    (["--top-p", "1", "--top-k", "0", "--min-p", "0", "--repetition-penalty", "1"], ADVISED, {"temperature": 0.6}),
    ([], {}, {"temperature": 0.8}),
    ([], {"top_p": 0.5}, {"temperature": 0.8, "top_p": 0.5}),
], ids=str)
def test_what_is_not_given_comes_from_the_model_and_else_a_temperature_of_0_8(words, of_model, expected):
    arguments = parse("generate", *words)
    assert with_defaults(sampling_params(arguments), arguments, of_model) == SamplingParams(max_tokens=128, **expected)


@pytest.fixture
def talker(checkpoints, tmp_path):
    folder = make_talker(checkpoints, tmp_path)
    (folder / "generation_config.json").write_text(json.dumps(ADVISED))
    return str(folder)


def test_generate_and_chat_follow_the_model(talker, used, monkeypatch):
    assert main(["generate", "--model", talker, "--max-tokens", "2", "--top-k", "3", "hello"]) == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("first\nsecond\n"))
    assert main(["chat", talker, "--max-tokens", "2", "--temperature", "0.1"]) == 0
    assert used == [SamplingParams(**{**ADVISED, "max_tokens": 2, "top_k": 3}),
                    *[SamplingParams(**{**ADVISED, "max_tokens": 2, "temperature": 0.1})] * 2]


def test_the_command_line_takes_the_likeliest_token_of_smollm2_and_ends_loops():
    arguments = parse("chat", "smollm2")
    params = with_defaults(sampling_params(arguments), arguments, KNOWN["smollm2"].sampling_defaults)
    assert params == SamplingParams(max_tokens=512, temperature=0.0, frequency_penalty=0.5)


# ---- invalid values


@pytest.mark.parametrize("words, complaint", [
    (["--min-p", "2"], "min_p is 2.0, must be a finite number from 0 to 1"),
    (["--min-tokens", "200"], "min_tokens is 200, must be a whole number from 0 to 128"),
    (["--logit-bias=-5=1"], "logit_bias has the token id -5, must be"),
    (["--stop-token-id", "-1"], "stop_token_ids has the token id -1, must be"),
    (["--logprobs", "21", "--json"], "logprobs is 21, must be None or a whole number from 0 to 20"),
    (["--logprobs", "1"], "--logprobs needs --json"),
    (["--logprobs", "1", "--prompt-logprobs", "1"], "--logprobs and --prompt-logprobs need --json"),
])
def test_a_wrong_value_is_refused_in_one_line_before_a_model_is_loaded(monkeypatch, capsys, words, complaint):
    monkeypatch.setattr(loader, "find_model", lambda name: pytest.fail("a model is looked for"))
    assert main(["generate", "hello", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"mini-vllm: {complaint}") and captured.err.count("\n") == 1 and not captured.out


@pytest.mark.parametrize("words, complaint", [
    (["--logit-bias", "5"], "argument --logit-bias: must be a token id and a number, such as 42=-5, not '5'"),
    (["--logit-bias", "x=1"], "argument --logit-bias: must be a token id and a number, such as 42=-5, not 'x=1'"),
    (["--allowed-token-ids", "1, 2,x"],
     "argument --allowed-token-ids: must be token ids separated by commas, such as 5,42, not '1, 2,x'"),
])
def test_what_cannot_be_read_is_refused_with_an_example(capsys, words, complaint):
    with pytest.raises(SystemExit):
        main(["generate", "hello", *words])
    assert capsys.readouterr().err.endswith(f"mini-vllm generate: error: {complaint}\n")


@pytest.mark.parametrize("name", [name for name in TYPED if name not in ("max_tokens", "ignore_eos",
                                                                       "structured_outputs")])
def test_what_says_how_to_draw_does_not_go_with_beams(capsys, name):
    assert main(["generate", "hello", "--beams", "2", *TYPED[name][0]]) == 2
    assert capsys.readouterr().err == f"mini-vllm: {TYPED[name][0][0]} cannot be combined with --beams\n"


def test_an_output_that_must_match(tmp_path, capsys):
    assert main(["generate", "--seed", "3", "--choice", "yes", "--choice", "no", "Shall we go?"]) == 0
    assert capsys.readouterr().out.strip().removeprefix("Shall we go?") in ("yes", "no")
    assert main(["generate", "--seed", "3", "--regex", r"\d\d:\d\d", "It is"]) == 0
    assert re.fullmatch(r"It is\d\d:\d\d", capsys.readouterr().out.strip())
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}},
                                  "required": ["age"], "additionalProperties": False}))
    assert main(["generate", "--json", "--seed", "3", "--json-schema", str(schema), "He was"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert json.loads(output["text"]).keys() == {"age"} and output["finish_reason"] == "stop"


def test_beams_that_must_match(capsys):
    assert main(["generate", "--beams", "3", "--json", "--regex", "(the|a) (king|queen)s?", "Once there was"]) == 0
    texts = [each["text"] for each in json.loads(capsys.readouterr().out)["outputs"]]
    assert len(texts) == 3 and len(set(texts)) > 1  # a text may consist of other tokens a second time
    assert all(re.fullmatch("(the|a) (king|queen)s?", text) for text in texts)


@pytest.mark.parametrize("words, complaint", [
    (["--regex", "a(?=b)"], "structured_outputs.regex: lookarounds, flags and other groups with (? are not supported"),
    (["--choice", ""], "structured_outputs.choice is ['']"),
    (["--regex", "a", "--ignore-eos"], "ignore_eos is True, must be False with structured_outputs"),
    (["--regex", "x{40}", "--max-tokens", "2"], "max_tokens is 2, but the shortest output that matches"),
    (["--json-schema", "none-such.json"], "none-such.json cannot be read: No such file"),
    (["--regex", "a", "--choice", "b"], "not allowed with argument --regex")])
def test_a_structure_that_cannot_be_is_refused(capsys, words, complaint):
    with contextlib.suppress(SystemExit):
        assert main(["generate", "hello", *words]) != 0
    assert complaint in capsys.readouterr().err


def test_beams_go_on_after_the_end_of_the_text_if_asked_to(checkpoints, tmp_path, capsys):
    folder = tmp_path / "brief"
    shutil.copytree(checkpoints("llama2"), folder)
    first = LLM(folder).beam_search("hello", beam_width=1, max_tokens=4)[0][0].token_ids
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": first[1]}))
    words = ["generate", "--model", str(folder), "--max-tokens", "4", "--beams", "1", "--json", "hello"]
    reasons = []
    for more in ([], ["--ignore-eos"]):
        assert main([*words, *more]) == 0
        (beam,) = json.loads(capsys.readouterr().out)["outputs"]
        reasons.append((beam["finish_reason"], len(beam["token_ids"])))
    assert reasons[0][0] == "stop" and reasons[1] == ("length", 4)


# ---- output


def test_json_has_the_log_probabilities_that_were_asked_for(checkpoints, capsys):
    model = str(checkpoints("llama2"))
    words = ["--model", model, "--max-tokens", "3", "--temperature", "0", "--json"]
    assert main(["generate", *words, "--logprobs", "2", "--prompt-logprobs", "1", "hello"]) == 0
    entry = json.loads(capsys.readouterr().out)
    expected = LLM(model).generate("hello", SamplingParams(max_tokens=3, temperature=0, logprobs=2, prompt_logprobs=1))
    chosen = entry["outputs"][0]["logprobs"]
    assert [each["token_id"] for each in chosen] == entry["outputs"][0]["token_ids"]
    for got, wanted in zip(chosen, expected[0].outputs[0].logprobs):
        assert got["logprob"] == pytest.approx(wanted.logprob, rel=1e-4) and got["rank"] == 1
        assert list(got["top"]) == list(map(str, wanted.top)) and len(got["top"]) == 2
    assert entry["prompt_logprobs"][0] is None and len(entry["prompt_logprobs"]) == len("hello")
    assert [each["text"] for each in entry["prompt_logprobs"][1:]] == list("ello")
    assert main(["generate", *words, "hello"]) == 0
    assert "logprobs" not in capsys.readouterr().out


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_help_is_grouped_and_fits_80_columns(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 80 and lines[0].startswith(f"usage: mini-vllm {command} [options]")
    groups = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert {"how a token is chosen:", "where the output ends, and what is shown:", "the engine:"} <= set(groups)
    assert "recommended value, else 0.8)" in " ".join(" ".join(lines).split())

"""What commands say on standard error: notes, a sign of life while a model is loaded, and the line after an answer."""

import io
import sys
from pathlib import Path

import pytest

from mini_vllm.cli import main
from mini_vllm.cli.messages import in_seconds, loading, print_usage, short_name, tell, usage_line
from mini_vllm.request import CompletionOutput, PromptTokensDetails, RequestOutput, RequestTimings, Usage


def screen_of(monkeypatch):
    """Make standard error a terminal of 20 columns, and return a function that returns its text."""
    class Screen(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys, "stderr", Screen())
    return sys.stderr.getvalue


# ---- notes


def test_at_a_terminal_lines_break_between_words_and_paths_stay_whole(monkeypatch):
    screen = screen_of(monkeypatch)
    tell("[two] words and 12 more in /a/path/that/is/longer", dim=True)
    assert screen() == "\x1b[2m[two] words and 12\nmore in\n/a/path/that/is/longer\x1b[0m\n"
    tell("one\n\ntwo\n")
    assert screen().endswith("\none\n\ntwo\n\n")


def test_elsewhere_a_line_stays_a_line_and_there_is_no_sign_of_life(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    with loading("smollm2"):
        tell("[two] words and 12 more in /a/path/that/is/longer", dim=True)
    assert capsys.readouterr() == ("", "[two] words and 12 more in /a/path/that/is/longer\n")


# ---- loading


def test_the_sign_of_life_goes_and_what_cannot_be_loaded_is_told_on_a_line_of_its_own(monkeypatch):
    screen = screen_of(monkeypatch)
    assert main(["generate", "--model", "nonsense", "hello"]) == 2
    assert screen().startswith("Loading nonsense …\r\x1b[2Kmini-vllm: there is no model 'nonsense'")


@pytest.mark.parametrize("model, name", [("smollm2", "smollm2"), ("org/model", "org/model"), ("folder/model/", "model"),
                                         ("folder/../folder", "folder"), (".", None)])
def test_a_path_is_called_by_its_last_part(model, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder/model").mkdir(parents=True)
    assert short_name(model) == (name or tmp_path.name)


# ---- the line after an answer


def output(num_tokens=10, reason="stop", timings=(0.1, 0.3, 0.5), prompt_tokens=105, cached=79, n=1, error=None):
    texts = [CompletionOutput(i, "x" * num_tokens, [1] * num_tokens, reason) for i in range(n)]
    usage = Usage(prompt_tokens, n * num_tokens, PromptTokensDetails(cached))
    return RequestOutput("r", "p", [1] * prompt_tokens, texts, True, usage, error, timings=RequestTimings(*timings))


@pytest.mark.parametrize("one, expected", [
    (output(), "first token 0.4 s (79 of 105 tokens cached), then 18 tokens/s"),
    (output(1, timings=(0.1, 0.3, 0.0)), "first token 0.4 s (79 of 105 tokens cached)"),
    (output(4, "abort"), "first token 0.4 s (79 of 105 tokens cached), then 6.0 tokens/s; stopped"),
    (output(0, "abort", (None, None, None)), "no token was generated; stopped"),
    (output(0, "abort", (0.1, None, None)), "no token was generated; stopped"),
    (output(0, "error", (0.1, None, None), error="broken"), "no token was generated; failed"),
    (output(51, "length"), "first token 0.4 s (79 of 105 tokens cached), then 100 tokens/s; stopped at 51 tokens "
                           "(raise it with --max-tokens)"),
    (output(6, "length"), "first token 0.4 s (79 of 105 tokens cached), then 10 tokens/s; stopped: the context of 111 "
                          "tokens is full"),
    (output(6, "kv_cache_full"), "first token 0.4 s (79 of 105 tokens cached), then 10 tokens/s; stopped at 6 "
                                 "tokens: the KV cache is full (see --kv-memory)"),
])
def test_one_text(one, expected):
    assert usage_line([one], 9.0, max_tokens=51) == expected


def test_several_prompts():
    outputs = [output(40, prompt_tokens=100, cached=0, timings=(0.02, 0.08, 1.0)),
               output(40, prompt_tokens=56, cached=48), output(40, prompt_tokens=56, cached=48)]
    assert usage_line(outputs, 1.304, 128) == ("3 prompts, 212 tokens (96 cached); first tokens after 0.1 to 0.4 s; "
                                               "120 tokens in 1.3 s, 92 tokens/s in total")


def test_several_continuations_of_one_prompt():
    assert usage_line([output(10, n=3)], 2.0, 128) == (
        "1 prompt, 105 tokens (79 cached), 3 continuations; first token after 0.4 s; 30 tokens in 2.0 s, 15 tokens/s "
        "in total")


def test_several_texts_say_how_many_ended_how():
    outputs = [output(), output(20, "length"), output(20, "length"), output(0, "abort", (None, None, None))]
    assert usage_line(outputs, 2.0, 20).endswith("; 2 of 4 stopped at 20 tokens (raise it with --max-tokens); "
                                                 "1 of 4 stopped")
    nobody = [output(0, "abort", (None, None, None))] * 2
    assert usage_line(nobody, 2.0, 20) == ("2 prompts, 210 tokens (158 cached); 0 tokens in 2.0 s, 0.0 tokens/s "
                                           "in total; 2 of 2 stopped")


@pytest.mark.parametrize("seconds, expected", [
    (0.0004, "0.0004"), (0.004, "0.004"), (0.041, "0.04"), (0.094, "0.09"), (0.0951, "0.1"), (0.44, "0.4"),
    (1.26, "1.3"), (9.94, "9.9"), (9.96, "10"), (12.3, "12"), (345.0, "345"),
])
def test_seconds_read_well(seconds, expected):
    assert in_seconds(seconds) == expected


def test_it_is_printed_in_one_line_however_long_and_not_at_all_for_nothing(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    print_usage([output()], 1.0, 16)
    assert capsys.readouterr() == ("", "first token 0.4 s (79 of 105 tokens cached), then 18 tokens/s\n")
    print_usage([], 1.0, 16)
    assert capsys.readouterr() == ("", "")

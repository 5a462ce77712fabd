"""``mini-vllm chat`` from question to answer, through a pipe. Keys are tested in test_chat_input.py."""

import io
import re
import signal
import sys

import pytest

from mini_vllm.cli import main
from mini_vllm.cli.chat import AnswerPrinter
from mini_vllm.conftest import SHAPE, checkpoint_width, make_talker
from mini_vllm.engine import LLMEngine
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.trace.recorder import StepTrace

NUMBER = r"[\d.]+"


@pytest.fixture
def talk(shallow, tmp_path, monkeypatch, capsys):
    """Return a function that sends lines to a model with random weights and returns both output streams."""
    talker = make_talker(shallow, tmp_path)
    settings = talker / "tokenizer_config.json"  # as in real templates, an answer continues where its prompt ends
    settings.write_text(settings.read_text().replace('assistant:"', 'assistant: "'))

    def run(lines, *arguments, status=0, max_tokens=3):
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        assert main(["chat", str(talker), "--max-tokens", str(max_tokens), "--temperature", "0", *arguments]) == status
        return capsys.readouterr()
    return run


@pytest.fixture
def asked(monkeypatch):
    """Record the prompts that reach the engine, as texts."""
    prompts = []
    real = LLMEngine.add_request

    def add_request(self, prompt, *args, **kwargs):
        prompts.append(self.tokenizer.decode(prompt))
        return real(self, prompt, *args, **kwargs)

    monkeypatch.setattr(LLMEngine, "add_request", add_request)
    return prompts


@pytest.fixture
def ctrl_c(monkeypatch):
    """Return a function: ``ctrl_c(Class, "method", number)`` presses Ctrl-C during this call of the method."""
    def press(owner, name, number):
        calls, real = iter(range(10**6)), getattr(owner, name)

        def pressed(self, *args, **kwargs):
            if next(calls) == number:
                signal.raise_signal(signal.SIGINT)
            return real(self, *args, **kwargs)
        monkeypatch.setattr(owner, name, pressed)
    return press


def hits(error):
    """Return (cached, prompt) tokens of every answer."""
    return [(int(cached), int(prompt)) for cached, prompt in re.findall(r"\((\d+) of (\d+) tokens cached\)", error)]


# ---- turns


def test_chat_needs_a_template(shallow, capsys):
    assert main(["chat", str(shallow("llama2"))]) == 2
    assert "has no chat template; it continues texts" in capsys.readouterr().err


def test_chat_keeps_the_conversation(talk, asked):
    talk("first\nsecond\n", "--system", "Be brief.")
    assert asked[0] == "system: Be brief.\nuser: first\nassistant: "
    assert asked[1].startswith("system: Be brief.\nuser: first\nassistant: ")
    assert asked[1].endswith("user: second\nassistant: ")


def test_chat_answers_every_question_of_a_pipe(talk, asked):
    captured = talk("first\n\n  \nsecond\n\n")
    assert len(asked) == 2 and asked[1].endswith("user: second\nassistant: ")
    assert re.fullmatch(rf"(first token {NUMBER} s \(\d+ of \d+ tokens cached\), then {NUMBER} tokens/s; "
                        r"stopped at 3 tokens \(raise it with --max-tokens\)\n){2}", captured.err), "and nothing else"
    assert captured.out.count("\n") == 2


def test_a_follow_up_finds_all_that_was_said_in_the_cache(talk):
    (_, first), (cached, second) = hits(talk("first\nsecond\n", max_tokens=40).err)
    assert second > cached >= first + 39, "but for the last token said, which nobody has computed yet"


def test_without_the_prefix_cache_nothing_is_found(talk):
    assert [cached for cached, _ in hits(talk("first\nsecond\n", "--no-prefix-caching", max_tokens=40).err)] == [0, 0]


def test_after_forget_the_next_message_is_computed_in_full(talk):
    error = talk("first\n/forget\nsecond\n", max_tokens=40).err
    assert hits(error)[1][0] == 0 and re.search(r"^[1-9]\d* cached blocks forgotten\.$", error, re.MULTILINE)


# ---- commands


def test_reset_begins_anew_and_the_system_message_stays(talk, asked):
    captured = talk("first\n/reset\nsecond\n", "--system", "Be brief.")
    assert asked[1] == "system: Be brief.\nuser: second\nassistant: "
    assert "A new conversation starts.\n" in captured.err


def test_stats_are_what_the_engine_counts(talk, asked):
    captured = talk("first\n/stats\n")
    assert len(asked) == 1 and captured.out.count("\n") == 1
    assert captured.err.splitlines()[1].startswith("1 request in 3 steps"), "what --stats prints"


def test_help_through_a_pipe_lists_the_commands(talk, asked):
    captured = talk("/help\n")
    assert captured.out == "" and not asked
    assert [line.split()[0] for line in captured.err.splitlines()] == ["/help", "/reset", "/forget", "/stats", "/quit"]


@pytest.mark.parametrize("quit", ["/quit", "  /quit ", "/Quit"])
def test_quit_ends(talk, asked, quit):
    talk(f"first\n{quit}\nsecond\n")
    assert len(asked) == 1


@pytest.mark.parametrize("typed, answer", [
    ("/rest", "There is no command /rest; did you mean /reset?\n"),
    ("/exit", "There is no command /exit; did you mean /quit?\n"),
    ("/bye", "There is no command /bye, only /help, /reset, /forget, /stats and /quit.\n"),
    ("/quit?", "There is no command /quit?; did you mean /quit?\n"),
])
def test_an_unknown_command_does_not_reach_the_model(talk, asked, typed, answer):
    assert talk(f"{typed}\n") == ("", answer) and not asked


@pytest.mark.parametrize("text", ["/etc/passwd is what?", "/quit or not?", "what is /quit", "/usr/bin", "/"])
def test_a_message_that_begins_with_a_slash_is_a_message(talk, asked, text):
    talk(f"{text}\n")
    assert asked == [f"user: {text}\nassistant: "]


# ---- Ctrl-C


def test_ctrl_c_stops_an_answer_and_what_was_said_is_remembered(talk, asked, ctrl_c):
    ctrl_c(LLMEngine, "step", 2)
    captured = talk("first\nsecond\n", max_tokens=9)
    said = asked[1].removeprefix("user: first\nassistant: ").removesuffix("\nuser: second\nassistant: ")
    assert said and captured.out.startswith(said.strip())
    first, second = captured.err.splitlines()
    assert first.endswith("; stopped") and second.endswith("; stopped at 9 tokens (raise it with --max-tokens)")


def test_ctrl_c_before_the_first_token_does_not_end_the_chat(talk, asked, ctrl_c):
    ctrl_c(Tokenizer, "apply_chat_template", 0)
    captured = talk("first\nsecond\n")
    assert asked == ["user: first\nassistant: ", "user: first\nassistant: \nuser: second\nassistant: "]
    assert captured.err.startswith("no token was generated; stopped\n")


def test_ctrl_c_is_itself_again_after_an_answer(talk, ctrl_c):
    before = signal.getsignal(signal.SIGINT)
    ctrl_c(LLMEngine, "step", 0)
    talk("first\n")
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_while_a_pipe_is_waited_for_ends_the_chat_and_the_run_is_saved(talk, tmp_path, monkeypatch):
    class Pipe(io.StringIO):
        def __next__(self):
            if line := self.readline():
                return line
            raise KeyboardInterrupt

    monkeypatch.setattr(io, "StringIO", Pipe)
    talk("first\n", "--trace", str(tmp_path / "run.jsonl"), status=130)
    assert (tmp_path / "run.jsonl").stat().st_size


# ---- a full context: the talker has 512 tokens


def test_a_full_context_forgets_the_oldest_turns_and_the_next_ones_hit_the_cache_again(talk, asked):
    """Check that turns are forgotten many at once.

    With about 40 tokens per turn, forgetting one at a time would recompute the whole prompt in every turn from the
    twelfth on.
    """
    error = talk("".join(f"question {number:02}\n" for number in range(40)), max_tokens=4).err
    computed = [index for index, (cached, prompt) in enumerate(hits(error)) if prompt - cached > 40]
    assert len(hits(error)) == 40 and len(computed) <= 6, f"computed again: turns {computed}"
    notes = re.findall("The conversation no longer fits into the model's 512 tokens: the oldest "
                       r"(\d+) turns are forgotten\.", error)
    assert len(notes) == len(computed) and sum(map(int, notes)) == 40 - asked[-1].count("question ")


def test_a_pool_that_is_smaller_than_the_context_bounds_the_conversation(talk):
    memory = f"{500 * checkpoint_width() // SHAPE['hidden_size']}KB"
    error = talk("".join(f"question {number:02}\n" for number in range(12)), "--kv-memory", memory, max_tokens=8).err
    assert re.search(r"no longer fits into the \d+ tokens that --kv-memory holds: the oldest \d turns are "
                     "forgotten", error)
    assert "KV cache is full" not in error


def test_an_answer_may_have_what_is_left_of_the_context(talk):
    assert talk("x" * 480 + "\n", max_tokens=100).err.endswith("; stopped: the context of 512 tokens is full\n")


# ---- the end


def test_stats_and_trace_close_the_chat(talk, tmp_path):
    captured = talk("first\n/quit\n", "--stats", "--trace", str(tmp_path / "run.jsonl"))
    assert captured.err.splitlines()[1].startswith("1 request in 3 steps")
    assert StepTrace.load(tmp_path / "run.jsonl").steps


def test_a_trace_that_cannot_be_saved_is_told_before_the_model_is_loaded(tmp_path, capsys):
    assert main(["chat", "nonsense", "--trace", str(tmp_path / "nowhere" / "run.svg")]) == 2
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["run.jsonl", "run.svg"])
def test_a_chat_without_a_question_has_no_trace_and_is_no_error(talk, tmp_path, name):
    captured = talk("", "--trace", str(tmp_path / name))
    assert captured.err.startswith("mini-vllm: ") and captured.err.count("\n") == 1
    assert not (tmp_path / name).exists()


# ---- how an answer is shown


@pytest.mark.parametrize("texts, shown", [
    (["\n", "\n\n", "\n\nYes", "\n\nYes.\n", "\n\nYes.\n\nNo.\n\n"], "Yes.\n\nNo.\n"),
    ([" ", " Yes"], "Yes\n"),
    (["\n    def f():\n        pass"], "    def f():\n        pass\n"),
    ([], "\n"),
    ([" \n"], "\n"),
])
def test_blank_lines_around_an_answer_are_not_shown(texts, shown):
    stream = io.StringIO()
    printer = AnswerPrinter(stream)
    for text in texts:
        printer.show(text)
    printer.end()
    assert stream.getvalue() == shown


@pytest.mark.needs_model("smollm2")
def test_smollm2_knows_the_capital_of_france(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is the capital of France?\n"))
    assert main(["chat", "smollm2", "--temperature", "0", "--max-tokens", "30"]) == 0
    assert "Paris" in capsys.readouterr().out

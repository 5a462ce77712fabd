"""The streams of a command: substitutes on an ASCII terminal, and a reader that closes the pipe."""

import io
import os
import subprocess
import sys

import pytest

from mini_vllm.terminal import ERRORS, READER_GONE, STAND_INS, ReaderGone, run_command


def written(text, encoding="ascii"):
    """Return the bytes that a terminal of this encoding receives."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=ERRORS)
    stream.write(text)
    stream.flush()
    return stream.buffer.getvalue()


@pytest.mark.parametrize("text, expected", [
    ("✓ 2 ✗ 1 – …", "ok 2 x 1 - ..."), ("4′ → 5", "4' -> 5"), ("██░░", "##.."), ("┌─┬─┐│x│", "+-+-+|x|"),
    ("déjà “vu”", 'deja "vu"'), ("2³ × 10⁻¹²", "2^3 x 10^-12"), ("⠋ Testing", "* Testing"), ("日", "?"),
    ("plain", "plain"),
])
def test_an_ascii_terminal_gets_stand_ins(text, expected):
    assert written(text) == expected.encode()


def test_every_stand_in_is_ascii():
    assert all(stand_in.isascii() and stand_in for stand_in in STAND_INS.values())


def test_what_an_encoding_has_is_left_alone():
    assert written("é ✓", "latin-1") == b"\xe9 ok" and written("é ✓", "utf-8") == "é ✓".encode()


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_byte_of_an_argument_that_is_no_text_is_written_as_it_came(encoding):
    assert written("a\udcffb", encoding) == b"a\xffb"


def test_input_is_never_changed_by_the_stand_ins():
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", ERRORS)


def test_streams_that_are_not_files_are_left_alone_and_come_back(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    assert run_command(lambda: print("✓") or 3) == 3
    assert sys.stdout is out and out.getvalue() == "✓\n"


class GonePipe(io.StringIO):
    """A pipe whose reader has closed it."""

    def __init__(self, fails_at):
        super().__init__()
        self.fails_at = fails_at
        self.end = os.open(os.devnull, os.O_WRONLY)

    def fileno(self):
        return self.end

    def write(self, text):
        if self.fails_at == "write":
            raise BrokenPipeError
        return super().write(text)

    def flush(self):
        if self.fails_at == "flush":
            raise BrokenPipeError


@pytest.mark.parametrize("fails_at", ["write", "flush"])
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_reader_that_goes_ends_the_command(monkeypatch, name, fails_at):
    def command():
        try:
            print("text", file=getattr(sys, name))
        except (OSError, Exception):  # as many functions in between do
            return 0
        return 0

    pipe = GonePipe(fails_at)
    monkeypatch.setattr(sys, name, pipe)
    assert run_command(command) == READER_GONE == 141
    assert getattr(sys, name) is pipe


def test_what_was_begun_is_put_away_when_the_reader_goes(monkeypatch):
    monkeypatch.setattr(sys, "stdout", GonePipe("write"))
    put_away = []

    def command():
        try:
            print("text")
        finally:
            put_away.append(True)

    assert run_command(command) == READER_GONE and put_away == [True] and issubclass(ReaderGone, SystemExit)


def test_who_tidies_up_after_the_reader_has_gone_may_still_print(monkeypatch):
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr(sys, "stdout", open(write, "w"))
    tidied_up = []

    def command():
        try:
            print("text", flush=True)
        finally:
            print("tidying up", flush=True)
            tidied_up.append(True)

    assert run_command(command) == READER_GONE and tidied_up == [True]
    sys.stdout.close()


PLAIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}


def in_ascii(*arguments, given=b""):
    environment = {**os.environ, **PLAIN}
    return subprocess.run([sys.executable, *arguments], env=environment, input=given, capture_output=True)


def test_a_prompt_in_utf_8_is_served_in_an_ascii_terminal():
    prompt, command = "Der König …".encode(), ["-m", "mini_vllm", "generate", "--max-tokens", "2", "--temperature", "0",
                                                  "--kv-memory", "8MB"]
    run = in_ascii(*command, prompt)
    assert run.returncode == 0 and run.stdout.startswith(b"Der Konig ..."), run.stderr
    piped = in_ascii(*command, given=prompt)
    assert piped.stdout == run.stdout and piped.returncode == 0


def test_the_demo_is_readable_in_an_ascii_terminal():
    run = in_ascii("-m", "mini_vllm.demo", "blocks")
    assert run.returncode == 0 and b"free queue 4 -> 5 -> 6" in run.stdout and b"?" not in run.stdout, run.stderr


#: Does what ``mini-vllm doctor`` does, with a clock that leaves no time to measure anything.
DOCTOR = ("import itertools, sys, time; time.perf_counter = itertools.count().__next__\n"
          "from mini_vllm.cli import main; sys.exit(main(['doctor']))")


@pytest.mark.parametrize("arguments", [
    ["-m", "mini_vllm", "--help"], ["-c", DOCTOR],
    ["-m", "mini_vllm", "generate", "--max-tokens", "300", "--kv-memory", "8MB", "A king"],
], ids=["help", "doctor", "generate"])
def test_a_command_whose_reader_has_gone_says_nothing(arguments):
    read, write = os.pipe()
    os.close(read)
    run = subprocess.run([sys.executable, *arguments], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (run.returncode, run.stderr) == (READER_GONE, b"")


def test_a_closed_stream_is_no_error():
    code = "import sys; from mini_vllm.cli import main; sys.stdout = None; sys.exit(main(['--version']))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")

"""The streams of a command: a reader that closes the pipe, and characters that a stream lacks."""

import io
import os
import subprocess
import sys

import pytest

from mini_vllm.cli.messages import READER_GONE, run_command


def test_streams_that_are_not_files_are_left_alone_and_come_back(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    assert run_command(lambda: print("✓") or 3) == 3
    assert sys.stdout is out and out.getvalue() == "✓\n"


def test_characters_that_a_stream_lacks_are_replaced(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert run_command(lambda: print("2 ✗") or 3) == 3 and out.buffer.getvalue() == b"2 ?\n"


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

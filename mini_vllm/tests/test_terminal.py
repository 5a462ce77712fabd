"""The streams of a command: a reader that closes the pipe, and characters that a stream lacks."""

import io
import os
import subprocess
import sys

import pytest

from mini_vllm.terminal import READER_GONE, run_command


def test_characters_that_a_stream_lacks_are_replaced(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert run_command(lambda: print("2 ✗") or 3) == 3 and out.buffer.getvalue() == b"2 ?\n"


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

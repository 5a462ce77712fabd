"""The sign of life while a model is loaded."""

import io
import sys
from pathlib import Path

import pytest

from mini_vllm.cli import main
from mini_vllm.cli.messages import loading, short_name


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_at_a_terminal_it_shows_and_goes(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Screen())
    with loading("[smollm2]"):
        pass
    assert "Loading [smollm2] …" in sys.stderr.getvalue()
    assert sys.stderr.getvalue().endswith("\x1b[2K"), "the line is erased"


def test_through_a_pipe_there_is_nothing(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich assume a terminal
    with loading("smollm2"):
        pass
    assert capsys.readouterr() == ("", "")


def test_what_cannot_be_loaded_is_told_on_a_line_of_its_own(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Screen())
    assert main(["generate", "--model", "nonsense", "hello"]) == 2
    assert "Loading nonsense …" in sys.stderr.getvalue()
    assert sys.stderr.getvalue().split("\x1b[2K")[-1].startswith("mini-vllm: there is no model 'nonsense'")


@pytest.mark.parametrize("model, name", [("smollm2", "smollm2"), ("org/model", "org/model"), ("folder/model/", "model"),
                                         ("folder/../folder", "folder"), (".", None)])
def test_a_path_is_called_by_its_last_part(model, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder/model").mkdir(parents=True)
    assert short_name(model) == (name or tmp_path.name)

"""Messages on standard error fit a terminal, and are one line in a file."""

import io
import sys

from mini_vllm.cli.messages import tell


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_at_a_terminal_lines_break_between_words_and_paths_stay_whole(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys, "stderr", Screen())
    tell("[two] words and 12 more in /a/path/that/is/longer", dim=True)
    lines = sys.stderr.getvalue().replace("\x1b[2m", "").replace("\x1b[0m", "").splitlines()
    assert [line.rstrip() for line in lines] == ["[two] words and 12", "more in", "/a/path/that/is/longer"]
    assert "\x1b[2m" in sys.stderr.getvalue() and "\x1b[3" not in sys.stderr.getvalue(), "dim, and no colours"


def test_blank_lines_stay(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Screen())
    tell("one\n\ntwo\n")
    assert sys.stderr.getvalue() == "one\n\ntwo\n\n"


def test_elsewhere_a_line_stays_a_line(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    tell("[two] words and 12 more in /a/path/that/is/longer", dim=True)
    assert capsys.readouterr() == ("", "[two] words and 12 more in /a/path/that/is/longer\n")

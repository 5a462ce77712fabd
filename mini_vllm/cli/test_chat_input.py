"""The messages that reach the model of a chat: through a pipe, by keys and pastes, and through a pseudo-terminal."""

import fcntl
import io
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from mini_vllm.cli.chat_input import (
    held_keys,
    help_text,
    open_history,
    terminal_messages,
    terminal_session,
    without_blanks,
)
from mini_vllm.conftest import make_talker

CTRL_C, CTRL_D, CTRL_J, CTRL_R, ENTER, ALT_ENTER = "\x03", "\x04", "\n", "\x12", "\r", "\x1b\r"
TAB, UP = "\t", "\x1b[A"
#: A prompt that is ready for keys: it has enabled bracketed pastes. (A plain prompt: a line that starts with ">".)
PROMPT = r"(?:\x1b\[\?2004h[^>]*|\n)>[ \x08]"


def paste(text):
    """Return what a terminal sends for a paste: line ends are those of the Enter key, and the text is in brackets."""
    return "\x1b[200~" + text.replace("\n", "\r") + "\x1b[201~"


def typed(keys, history=None):
    """Return the messages that these keys produce."""
    with create_pipe_input() as keyboard:
        keyboard.send_text(keys)
        keyboard.close()  # otherwise a failing test might wait for keys forever
        session = terminal_session(history or InMemoryHistory(), keyboard, DummyOutput())
        return list(without_blanks(terminal_messages(session)))


# ---- keys


def test_enter_sends_and_ctrl_d_ends():
    assert typed(f"first{ENTER}second{ENTER}{CTRL_D}") == ["first", "second"]


def test_a_paste_of_several_lines_is_one_message():
    text = "Read this:\n\n    def f():\n        pass\n\nWhat does it do?"
    assert typed(f"{paste(text)}{ENTER}{paste(text)}{ENTER}{CTRL_D}") == [text, text]


def test_a_paste_waits_for_enter_and_can_be_gone_on_with():
    assert typed("Sum up: " + paste("one\n\ntwo\n") + " briefly" + ENTER + CTRL_D) == ["Sum up: one\n\ntwo\n briefly"]
    assert typed(paste("one\n") + CTRL_C + CTRL_D) == []


def test_empty_lines_around_a_message_are_no_part_of_it():
    assert typed(paste("\n  one\n\n") + ENTER + CTRL_D) == ["  one"]


@pytest.mark.parametrize("key", [CTRL_J, ALT_ENTER], ids=["ctrl-j", "alt-enter"])
def test_a_new_line_can_be_typed(key):
    assert typed(f"one{key}two{ENTER}{CTRL_D}") == ["one\ntwo"]


def test_ctrl_c_drops_the_line_and_says_how_to_end(capsys):
    assert typed(f"not this{CTRL_C}this{ENTER}{CTRL_C}{CTRL_D}") == ["this"]
    assert capsys.readouterr().err == "Ctrl-D or /quit ends the chat.\n" * 2


# ---- commands


@pytest.mark.parametrize("text, commands", [
    ("/res", ["/reset"]), ("/", ["/help", "/reset", "/forget", "/stats", "/quit"]), ("what /q", []), ("/x", []),
])
def test_tab_completes_commands_at_the_beginning(text, commands):
    with create_pipe_input() as keyboard:
        completer = terminal_session(InMemoryHistory(), keyboard, DummyOutput()).completer
    assert [found.text for found in completer.get_completions(Document(text), CompleteEvent())] == commands


@pytest.mark.parametrize("history", [Path("/root/.cache/mini_vllm/chat_history"), None])
def test_help_fits_60_columns(history):
    lines = help_text(True, history).splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[-1].endswith(str(history) if history else "cache folder is not writable")


# ---- history


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return the cache folder, which does not exist yet."""
    monkeypatch.setenv("MINI_VLLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_messages_of_earlier_chats_come_back_with_the_arrow_keys(cache):
    poem = "one\n\n  two"
    assert typed(f"first{ENTER}{paste(poem)}{ENTER}{CTRL_D}", open_history()[0]) == ["first", poem]
    assert typed(f"{UP}{ENTER}{CTRL_D}", open_history()[0]) == [poem]


def test_ctrl_r_searches_and_enter_takes_what_it_finds_without_sending_it(cache):
    typed(f"a red fox{ENTER}a blue bird{ENTER}{CTRL_D}", open_history()[0])
    assert typed(f"{CTRL_R}red{ENTER}es{ENTER}{CTRL_D}", open_history()[0]) == ["a esred fox"]


def test_only_the_owner_may_read_the_history(cache):
    _, path = open_history()
    assert path == cache / "chat_history" and path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    open_history()
    assert path.stat().st_mode & 0o777 == 0o600


def test_commands_are_not_kept(cache):
    typed(f"first{ENTER}/reset{ENTER}/quit{ENTER}{CTRL_D}", open_history()[0])
    assert typed(f"{UP}{ENTER}{CTRL_D}", open_history()[0]) == ["first"]


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_history(cache):
    cache.write_text("a file stands where the folder should")
    history, path = open_history()
    assert path is None and typed(f"first{ENTER}second{ENTER}{CTRL_D}", history) == ["first", "second"]


def test_a_history_that_can_no_longer_be_written_does_not_end_the_chat(cache):
    history, path = open_history()
    path.unlink()
    path.parent.rmdir()
    assert typed(f"first{ENTER}second{ENTER}{CTRL_D}", history) == ["first", "second"]


# ---- a pipe


@pytest.mark.parametrize("text, expected", [
    ("first\n\nsecond\n", ["first", "second"]),
    ("\n \nfirst\r\n\r\nsecond", ["first", "second"]),
    ("", []),
])
def test_each_line_of_a_pipe_is_a_message(text, expected):
    assert list(without_blanks(io.StringIO(text, newline=""))) == expected


# ---- a real terminal


class Terminal:
    """A program in a pseudo-terminal, started as a shell would start it."""

    def __init__(self, cache, *arguments):
        self.master, self.slave = os.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1",
                       "MINI_VLLM_CACHE": str(cache)}
        self.process = subprocess.Popen([sys.executable, "-m", "mini_vllm.cli", *arguments], env=environment,
                                        cwd=Path(__file__).parents[2], stdin=self.slave, stdout=self.slave,
                                        stderr=self.slave)
        self.screen = ""

    def wait_for(self, pattern):
        """Read until the screen shows ``pattern``. Output after it is kept for the next call."""
        deadline = time.monotonic() + 60
        while not (match := re.search(pattern, self.screen)):
            ready, _, _ = select.select([self.master], [], [], 0.1)
            if ready:
                self.screen += os.read(self.master, 65536).decode(errors="replace")
            elif self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{pattern!r} never came; the screen shows {self.screen!r}")
        self.screen = self.screen[match.end():]
        return match

    def send(self, keys):
        os.write(self.master, keys.encode())

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(shallow, tmp_path):
    started = Terminal(tmp_path / "cache", "chat", str(make_talker(shallow, tmp_path)), "--max-tokens", "3",
                       "--temperature", "0")
    yield started
    started.close()


def num_prompt_tokens(*messages):
    """Count the tokens of a prompt in the talker's template, ``user: ...`` per message, then ``assistant:``.

    A byte is a token.
    """
    return sum(len(f"user: {message}\n") for message in messages) + len("assistant:")


def test_a_chat_at_a_terminal_from_loading_to_quit(terminal, tmp_path):
    terminal.wait_for("Loading talker …")
    terminal.wait_for(r"Talking to talker\. /help lists commands and keys\.\r\n")
    terminal.wait_for(PROMPT)
    terminal.send("/he")
    terminal.wait_for("/he")
    terminal.send(TAB)
    terminal.wait_for("lp")
    terminal.send(ENTER)
    terminal.wait_for(r"What you type is kept in\s+" + re.escape(str(tmp_path / "cache" / "chat_history")))
    terminal.wait_for(PROMPT)
    terminal.send("first" + ENTER)
    terminal.wait_for(r"\x1b\[\?2004h")  # a paste during an answer belongs to the next prompt
    terminal.wait_for(r"\x1b\[2mfirst token")
    terminal.wait_for(PROMPT)
    terminal.send("/quit" + ENTER)
    assert terminal.process.wait(timeout=60) == 0
    assert "+first" in (tmp_path / "cache" / "chat_history").read_text()


def test_a_blank_line_in_a_paste_neither_ends_the_chat_nor_reaches_the_shell(terminal):
    terminal.wait_for(PROMPT)
    text = "Read this:\n\necho oops"
    terminal.send(paste(text) + ENTER)
    assert int(terminal.wait_for(r"\(0 of (\d+) tokens cached\)")[1]) == num_prompt_tokens(text)
    terminal.wait_for(PROMPT)
    terminal.send(ENTER)
    terminal.wait_for(PROMPT)
    terminal.send(CTRL_C)
    terminal.wait_for("Ctrl-D or /quit ends the chat")
    terminal.wait_for(PROMPT)
    terminal.send(CTRL_D)
    assert terminal.process.wait(timeout=60) == 0
    assert not select.select([terminal.slave], [], [], 0)[0], "the shell would read what is left"


def test_between_prompts_keys_are_held_and_what_is_left_is_not_for_the_shell():
    master, slave = os.openpty()
    try:
        before = termios.tcgetattr(slave)
        with open(slave, closefd=False) as stdin, held_keys(stdin):
            os.write(master, b"echo oops\r")
            assert os.read(slave, 100) == b"echo oops\r", "Enter is Enter"
            os.write(master, b"echo oops\r")
            assert select.select([slave], [], [], 60)[0]
        assert not select.select([slave], [], [], 0)[0], "the shell would read what is left"
        assert not select.select([master], [], [], 0)[0], "nothing was shown"
        assert termios.tcgetattr(slave) == before
    finally:
        os.close(master)
        os.close(slave)

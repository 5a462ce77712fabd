"""What a person says in a chat: typed and pasted at a terminal, or line by line through a pipe.

A terminal sends a paste in brackets (``ESC [200~ … ESC [201~``), so that a program can tell it from typing. One that
does not ask for the brackets reads a paste line by line, and when it ends, the shell runs the lines that are left.
"""

from __future__ import annotations

import re
import sys
import termios
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from mini_vllm.cli.chat_commands import COMMANDS

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.output import Output

HOW_TO_END = "Ctrl-D or /quit ends the chat."


def without_blanks(messages: Iterable[str]) -> Iterator[str]:
    """The messages that say something, without empty lines around them."""
    for message in messages:
        if message.strip():
            yield re.sub(r"\A\s*\n", "", message.rstrip())


def piped_messages(stream: TextIO) -> Iterator[str]:
    """Each line is a message."""
    yield from stream


def terminal_messages(session: PromptSession[str]) -> Iterator[str]:
    """What is sent, until Ctrl-D. Ctrl-C drops what was typed and says how to end.

    A paste that comes during an answer is for the next prompt: it is asked for in brackets, too.
    """
    while True:
        try:
            message = session.prompt("> ", prompt_continuation="  ")
        except KeyboardInterrupt:
            print(HOW_TO_END, file=sys.stderr)
        except EOFError:
            return
        else:
            with _bracketed_pastes(session.output):
                yield message


@contextmanager
def _bracketed_pastes(screen: Output) -> Iterator[None]:
    from prompt_toolkit.utils import is_dumb_terminal
    if is_dumb_terminal():
        yield
        return
    screen.enable_bracketed_paste()
    screen.flush()
    try:
        yield
    finally:
        screen.disable_bracketed_paste()
        screen.flush()


def check_terminal() -> None:
    """Raises ValueError, which says how to get it, if prompt_toolkit is not installed."""
    try:
        import prompt_toolkit  # noqa: F401
    except ImportError:
        raise ValueError("chat at a terminal needs prompt_toolkit: pip install prompt_toolkit") from None


def terminal_session(history: History, keyboard: Input | None = None, screen: Output | None = None
                     ) -> PromptSession[str]:
    """A line editor for messages of several lines; by default at this program's terminal, wherever its output goes."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.output import create_output
    commands = WordCompleter(list(COMMANDS), meta_dict=dict(COMMANDS), sentence=True)
    return PromptSession(multiline=True, key_bindings=_keys(), history=history, completer=commands,
                         complete_while_typing=False, input=keyboard,
                         output=screen or create_output(always_prefer_tty=True))


def _keys() -> KeyBindings:
    """Enter sends, and others begin a new line. While one searches with Ctrl-R, Enter takes what was found."""
    from prompt_toolkit.filters import is_searching
    from prompt_toolkit.key_binding import KeyBindings
    keys = KeyBindings()
    keys.add("enter", filter=~is_searching)(lambda event: event.current_buffer.validate_and_handle())
    for new_line in (("c-j",), ("escape", "enter")):
        keys.add(*new_line, filter=~is_searching)(lambda event: event.current_buffer.insert_text("\n"))
    return keys


@contextmanager
def held_keys(stream: TextIO) -> Iterator[None]:
    """What is typed between prompts waits, unseen, for the next prompt, as the keys that were pressed.

    Otherwise it would be shown in the middle of an answer, and Enter would arrive as Ctrl-J. What nobody has read in
    the end is not left for the shell to run.
    """
    terminal = stream.fileno()
    before, held = termios.tcgetattr(terminal), termios.tcgetattr(terminal)
    held[0] &= ~termios.ICRNL
    held[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(terminal, termios.TCSANOW, held)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)

"""The user's messages in a chat: typed and pasted at a terminal, or line by line through a pipe.

A terminal sends a paste in brackets (``ESC [200~ … ESC [201~``), so that a program can tell it from typing. A program
that does not ask for the brackets reads a paste line by line, and when it exits, the shell runs the remaining lines.
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
    """Yield the messages that are not blank, without the empty lines around them."""
    for message in messages:
        if message.strip():
            yield re.sub(r"\A\s*\n", "", message.rstrip())


def piped_messages(stream: TextIO) -> Iterator[str]:
    """Yield every line as a message."""
    yield from stream


def terminal_messages(session: PromptSession[str]) -> Iterator[str]:
    """Yield messages until Ctrl-D. Ctrl-C discards the typed text and prints how to end the chat.

    A paste during an answer belongs to the next prompt, so bracketed pastes are also enabled during answers.
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
    """Raise ValueError if prompt_toolkit is not installed; the message says how to install it."""
    try:
        import prompt_toolkit  # noqa: F401
    except ImportError:
        raise ValueError("chat at a terminal needs prompt_toolkit: pip install prompt_toolkit") from None


def terminal_session(history: History, keyboard: Input | None = None, screen: Output | None = None
                     ) -> PromptSession[str]:
    """Return a line editor for messages of several lines.

    By default it uses this program's terminal, even if the output is redirected.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.output import create_output
    commands = WordCompleter(list(COMMANDS), meta_dict=dict(COMMANDS), sentence=True)
    return PromptSession(multiline=True, key_bindings=_keys(), history=history, completer=commands,
                         complete_while_typing=False, input=keyboard,
                         output=screen or create_output(always_prefer_tty=True))


def _keys() -> KeyBindings:
    """Bind Enter to sending, and Ctrl-J and Alt-Enter to a new line.

    During a search with Ctrl-R these bindings are off, so that Enter accepts the match.
    """
    from prompt_toolkit.filters import is_searching
    from prompt_toolkit.key_binding import KeyBindings
    keys = KeyBindings()
    keys.add("enter", filter=~is_searching)(lambda event: event.current_buffer.validate_and_handle())
    for new_line in (("c-j",), ("escape", "enter")):
        keys.add(*new_line, filter=~is_searching)(lambda event: event.current_buffer.insert_text("\n"))
    return keys


@contextmanager
def held_keys(stream: TextIO) -> Iterator[None]:
    """Keep keys that are typed between prompts, without echo and unchanged, for the next prompt.

    Otherwise they would appear in the middle of an answer, and Enter would arrive as Ctrl-J. Keys that are still unread
    at the end are discarded, so that the shell does not run them.
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

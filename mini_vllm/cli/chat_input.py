"""What a person says in a chat: typed and pasted at a terminal, or line by line through a pipe.

    terminal_messages ─┐
                       ├─▶ questions ─▶ the model        blank messages are passed over, /quit ends
    piped_messages ────┘

A terminal sends a paste in brackets (``ESC [200~ … ESC [201~``), so that a program can tell it from typing. One that
does not ask for the brackets reads a paste line by line, and when it ends, the shell runs the lines that are left.
"""

from __future__ import annotations

import re
import sys
import termios
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output

BANNER = ("Enter sends; Ctrl-J or Alt-Enter begins a new line; a paste is one message.\n"
          "Ctrl-C stops an answer; Ctrl-D or /quit ends the chat.")


def questions(messages: Iterable[str]) -> Iterator[str]:
    """The messages that are for the model, without empty lines around them. ``/quit`` ends; it is the only command."""
    for message in messages:
        words = message.strip()
        if words == "/quit":
            return
        if re.fullmatch(r"/\w+", words):
            print(f"There is no command {words}, only /quit, which ends the chat.", file=sys.stderr)
        elif words:
            yield re.sub(r"\A\s*\n", "", message.rstrip())


def piped_messages(stream: TextIO) -> Iterator[str]:
    """Each line is a message."""
    yield from stream


def terminal_messages(session: PromptSession[str]) -> Iterator[str]:
    """What is sent, until Ctrl-D. Ctrl-C drops what was typed and says how to end."""
    while True:
        try:
            message = session.prompt("> ", prompt_continuation="  ")
        except KeyboardInterrupt:
            print("Ctrl-D or /quit ends the chat.", file=sys.stderr)
        except EOFError:
            return
        else:
            yield message


def terminal_session(keyboard: Input | None = None, screen: Output | None = None) -> PromptSession[str]:
    """A line editor for messages of several lines; by default at this program's terminal, wherever its output goes.

    Raises ValueError, which says how to get it, if prompt_toolkit is not installed.
    """
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.key_binding import KeyBindings
        from prompt_toolkit.output import create_output
    except ImportError:
        raise ValueError("chat at a terminal needs prompt_toolkit: pip install prompt_toolkit") from None
    keys = KeyBindings()
    keys.add("enter")(lambda event: event.current_buffer.validate_and_handle())
    for new_line in (("c-j",), ("escape", "enter")):
        keys.add(*new_line)(lambda event: event.current_buffer.insert_text("\n"))
    return PromptSession(multiline=True, key_bindings=keys, input=keyboard,
                         output=screen or create_output(always_prefer_tty=True))


def drop_unread(stream: TextIO) -> None:
    """What was typed or pasted at this terminal and not read is not left for the shell to run."""
    termios.tcflush(stream.fileno(), termios.TCIFLUSH)

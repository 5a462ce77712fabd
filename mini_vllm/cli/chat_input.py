"""What a person says in a chat: typed and pasted at a terminal, or line by line through a pipe.

A terminal sends a paste in brackets (``ESC [200~ … ESC [201~``), so that a program can tell it from typing. One that
does not ask for the brackets reads a paste line by line, and when it ends, the shell runs the lines that are left.
"""

from __future__ import annotations

import re
import sys
import termios
from collections.abc import Iterable, Iterator
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
    """What is sent, until Ctrl-D. Ctrl-C drops what was typed and says how to end."""
    while True:
        try:
            message = session.prompt("> ", prompt_continuation="  ")
        except KeyboardInterrupt:
            print(HOW_TO_END, file=sys.stderr)
        except EOFError:
            return
        else:
            yield message


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


def drop_unread(stream: TextIO) -> None:
    """What was typed or pasted at this terminal and not read is not left for the shell to run."""
    termios.tcflush(stream.fileno(), termios.TCIFLUSH)

"""The user's messages in a chat: typed and pasted at a terminal, or line by line through a pipe.

A message of one word that starts with a slash is a command; every other message goes to the model.

A terminal sends a paste in brackets (``ESC [200~ … ESC [201~``), so that a program can tell it from typing. A program
that does not ask for the brackets reads a paste line by line, and when it exits, the shell runs the remaining lines.
"""

from __future__ import annotations

import contextlib
import re
import sys
import termios
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from mini_vllm.checks import nearest
from mini_vllm.models.catalogue import cache_folder

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output

COMMANDS = {
    "/help": "commands and keys",
    "/reset": "start a new conversation; the system message stays",
    "/forget": "forget all cached text; the conversation stays",
    "/stats": "statistics so far: steps, blocks, the cache",
    "/quit": "end the chat",
}
KEYS = """
Enter             sends
Ctrl-J, Alt-Enter start a new line; a paste is one message
Ctrl-C            stops an answer, or clears the typed text
Ctrl-D            ends the chat
Up, Down, Ctrl-R  find earlier messages; Tab completes /…"""
HOW_TO_END = "Ctrl-D or /quit ends the chat."


def command_in(message: str) -> str | None:
    """Return the command, known or not, or None for a message to the model.

    ``/reset`` is a command; ``/etc/passwd`` and ``/reset or not?`` are messages.
    """
    words = message.strip()
    return words.lower() if re.fullmatch(r"/[^\s/]+", words) else None


def about_unknown(command: str) -> str:
    """Return the reply to an unknown command: it suggests the most similar command, or lists all of them."""
    near = nearest(command, COMMANDS, cutoff=0.6)
    if near:
        return f"There is no command {command}; did you mean {near}?"
    *first, last = COMMANDS
    return f"There is no command {command}, only {', '.join(first)} and {last}."


def help_text(is_terminal: bool, history: Path | None) -> str:
    """List the commands; at a terminal, also the keys and the file that keeps messages (None: they are not kept)."""
    commands = "\n".join(f"{name:<7} {about}" for name, about in COMMANDS.items())
    if not is_terminal:
        return commands
    kept = f"kept in {history}" if history else "not kept: the cache folder is not writable"
    return f"{commands}\n{KEYS}\n\nWhat you type is {kept}"


def without_blanks(messages: Iterable[str]) -> Iterator[str]:
    """Yield the messages that are not blank, without the empty lines around them."""
    for message in messages:
        if message.strip():
            yield re.sub(r"\A\s*\n", "", message.rstrip())


def open_history() -> tuple[History, Path | None]:
    """Return the messages of earlier chats and their file, which no other user may read.

    If the file cannot be written, messages are kept in memory; then return None.
    """
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class MessageHistory(FileHistory):
        """Does not keep commands: an old ``/quit`` is of no use."""

        def store_string(self, string: str) -> None:
            """Store a message. If the disk is full or the folder is gone, it is lost, but the chat continues."""
            if command_in(string) is None:
                with contextlib.suppress(OSError):
                    super().store_string(string)

    path = cache_folder() / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.open("ab").close()
    except OSError:
        return InMemoryHistory(), None
    return MessageHistory(path), path


def terminal_session(history: History, keyboard: Input | None = None, screen: Output | None = None
                     ) -> PromptSession[str]:
    """Return a line editor for messages of several lines: Enter sends, Ctrl-J and Alt-Enter start a new line.

    By default it uses this program's terminal, even if the output is redirected. During a search with Ctrl-R the keys
    are not bound, so that Enter accepts the match.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.filters import is_searching
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.output import create_output
    keys = KeyBindings()
    keys.add("enter", filter=~is_searching)(lambda event: event.current_buffer.validate_and_handle())
    for new_line in (("c-j",), ("escape", "enter")):
        keys.add(*new_line, filter=~is_searching)(lambda event: event.current_buffer.insert_text("\n"))
    commands = WordCompleter(list(COMMANDS), meta_dict=dict(COMMANDS), sentence=True)
    return PromptSession(multiline=True, key_bindings=keys, history=history, completer=commands,
                         complete_while_typing=False, input=keyboard,
                         output=screen or create_output(always_prefer_tty=True))


def terminal_messages(session: PromptSession[str]) -> Iterator[str]:
    """Yield messages until Ctrl-D. Ctrl-C discards the typed text and prints how to end the chat.

    A paste during an answer belongs to the next prompt, so bracketed pastes are also enabled during answers.
    """
    from prompt_toolkit.utils import is_dumb_terminal
    while True:
        try:
            message = session.prompt("> ", prompt_continuation="  ")
        except KeyboardInterrupt:
            print(HOW_TO_END, file=sys.stderr)
            continue
        except EOFError:
            return
        if is_dumb_terminal():
            yield message
            continue
        session.output.enable_bracketed_paste()
        session.output.flush()
        try:
            yield message
        finally:
            session.output.disable_bracketed_paste()
            session.output.flush()


@contextlib.contextmanager
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

"""Commands in a chat: a message of one word that starts with a slash. Every other message goes to the model."""

from __future__ import annotations

import re
from pathlib import Path

from mini_vllm.checks import nearest

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
    kept = f"kept in {_from_home(history)}" if history else "not kept: the cache folder is not writable"
    return f"{commands}\n{KEYS}\n\nWhat you type is {kept}"


def _from_home(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)

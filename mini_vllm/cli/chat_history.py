"""What was typed in earlier chats, for the arrow keys and Ctrl-R."""

from __future__ import annotations

import contextlib
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from mini_vllm.cli.chat_commands import command_in
from mini_vllm.models.catalogue import cache_folder


class MessageHistory(FileHistory):
    """Messages in a file that nobody else may read. Commands are not kept: nobody looks for an old ``/quit``."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be written."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.open("ab").close()
        super().__init__(path)

    def store_string(self, string: str) -> None:
        """A disk that is full, or a folder that is gone by now, costs the history and not the chat."""
        if command_in(string) is None:
            with contextlib.suppress(OSError):
                super().store_string(string)


def open_history() -> tuple[History, Path | None]:
    """The history, and where it is kept: nowhere, if the cache folder cannot be written."""
    path = cache_folder() / "chat_history"
    try:
        return MessageHistory(path), path
    except OSError:
        return InMemoryHistory(), None

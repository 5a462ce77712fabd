"""The messages typed in earlier chats, for the arrow keys and Ctrl-R."""

from __future__ import annotations

import contextlib
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from mini_vllm.cli.chat_commands import command_in
from mini_vllm.models.catalogue import cache_folder


class MessageHistory(FileHistory):
    """Messages in a file that no other user may read. Commands are not kept: an old ``/quit`` is of no use."""

    def __init__(self, path: Path) -> None:
        """Create the file if it does not exist. Raise OSError if it cannot be written."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.open("ab").close()
        super().__init__(path)

    def store_string(self, string: str) -> None:
        """Store a message. If the disk is full or the folder is gone, the message is lost, but the chat continues."""
        if command_in(string) is None:
            with contextlib.suppress(OSError):
                super().store_string(string)


def open_history() -> tuple[History, Path | None]:
    """Return the history and its file. If the cache folder is not writable, keep it in memory and return None."""
    path = cache_folder() / "chat_history"
    try:
        return MessageHistory(path), path
    except OSError:
        return InMemoryHistory(), None

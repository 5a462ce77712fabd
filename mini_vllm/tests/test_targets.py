"""The output path of a command is checked before it does any work: in one place, for all commands."""

import os
from pathlib import Path

import pytest

from mini_vllm.checks import writable_file
from mini_vllm.cli import main

#: The arguments before the path, and a suffix it may have. No command gets far enough to miss its model or its trace.
COMMANDS = {
    "generate --trace": (["generate", "hello", "--model", "none-such", "--trace"], ".svg"),
    "trace -o": (["trace", "none-such", "-o"], ".svg"),
    "bench --plot": (["bench", "throughput", "--model", "none-such", "--plot"], ".png"),
    "bench --output": (["bench", "throughput", "--model", "none-such", "--output"], ".json"),
}


def make_target(kind: str, folder: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a path that cannot be written. Root may write everywhere, so missing permissions are simulated."""
    target = folder / f"out{suffix}"
    match kind:
        case "a folder":
            target.mkdir()
        case "in no folder":
            return folder / "nowhere" / f"out{suffix}"
        case "in a file":
            (folder / "file").touch()
            return folder / "file" / f"out{suffix}"
        case "locked":
            target.touch()
            monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != target)
    return target


COMPLAINTS = {"a folder": "is a folder; name a file in it", "in no folder": "there is no folder",
              "in a file": "is not a folder", "locked": "you may not write to it"}


@pytest.mark.parametrize("kind", COMPLAINTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_target_that_cannot_be_written_is_told_in_one_line_before_the_work(command, kind, tmp_path, capsys,
                                                                             monkeypatch):
    arguments, suffix = COMMANDS[command]
    target = make_target(kind, tmp_path, suffix, monkeypatch)
    assert main([*arguments, str(target)]) == 2
    told = capsys.readouterr().err
    assert COMPLAINTS[kind] in told and told.count("\n") == 1 and "none-such" not in told


def test_an_old_file_and_a_device_may_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "old").write_text("old")
    monkeypatch.chdir(tmp_path)
    for path in (Path("old"), Path("new"), Path("/dev/null")):
        assert writable_file(path) == path
    assert (tmp_path / "old").read_text() == "old"

"""Run the commands and snippets of the README and the pages that continue it, in the order a reader would.

    python tools/readme.py    # in a temporary copy of the tree

The reader is a newcomer: the home folder is empty, the environment is bare, and nothing is installed except by the
README's own commands. The output of a command is printed only if the command fails.

PAGES lists the pages. A command is a line of a fenced block without a language, or the first cell of a table row. ``git
clone`` is replaced by a copy of the tree. A command that would take minutes is shortened by an option; see SHORTENED. A
command that waits for input gets a script; see SCRIPTS.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from newcomer import bare_environment

from mini_vllm.models.catalogue import cached_model

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
#: The pages, read one after another in one shell.
PAGES = ("README.md", "docs/using.md", "docs/benchmarks.md")
#: The programs that a command line starts with.
PROGRAMS = ("git", "cd", "make", "source", "pip", "course", "mini-vllm", "python", "pytest")
#: Command → options added to it, so that it does the same kind of work in seconds. (`make test` is only looked up.)
SHORTENED = {
    "mini-vllm generate --beams": "--max-tokens 12",
    "mini-vllm bench throughput": "--quick --arm ours --arm mlx-lm",
    "mini-vllm bench serve": "--quick --part rates",
    "mini-vllm bench gpu": "--quick",
    "mini-vllm bench speculation": "--quick",
    "mini-vllm serve": "--port 0",
    "mini-vllm demo live": "--no-open",
    "course serve": "--port 0",
    "make test": "--dry-run",
    "python tools/fuzz": "--seconds 1",
    "python tools/measure": "--quick",
    "course check": "1.2",
    "pytest phase-02-paged-attention/labs": "-k task_1 -p no:nbval",
    "pytest phase-02-paged-attention/labs/lab-01-block-allocator": "-p no:nbval",
    "pytest phase-05-mlx-engine/capstone": "-p no:nbval",
}
#: The escape sequence that a line editor prints when it starts to read: it turns on bracketed paste.
EDITOR_IS_READY = "\x1b[?2004h"
#: Command → what is typed, each input with the text to wait for first. The last input ends the command, such as Ctrl-D
#: or Ctrl-C.
SCRIPTS: dict[str, list[tuple[str, str]]] = {
    "mini-vllm chat": [(EDITOR_IS_READY, "What is the capital of France?\r"), (EDITOR_IS_READY, "\x04")],
    "course watch": [("Watching", "\x03")],
    **dict.fromkeys(("mini-vllm serve", "mini-vllm demo live", "course serve"), [("Ctrl-C stops", "\x03")]),
}
#: Command → its exit status, where that is not 0: a lab that does not pass has a nonzero status.
STATUS = {"pytest phase-02-paged-attention/labs --impl starter": 1,
          "pytest phase-05-mlx-engine/capstone --impl starter": 1}
LAB = "phase-02-paged-attention/labs/lab-01-block-allocator"
#: Command → a file that a person would have written by then, and the file that it is copied from.
WRITTEN = {"course test 2.1": (f"{LAB}/starter.py", f"{LAB}/solution.py"),
           f"pytest {LAB} --impl=ana.py --grade-json ana.json": ("ana.py", f"{LAB}/solution.py"),
           "course grade submissions --out grades --lab 1.2": (
               "submissions/ana/starter.py", "phase-01-intro/labs/lab-02-fragmentation/solution.py")}
#: Commands that need a downloaded model; they run only where the model is available.
NEED_SMOLLM2 = ("mini-vllm pull", "mini-vllm chat")
#: Commands that print nothing when they succeed.
SILENT = ("git clone", "cd", "source")
TIMEOUT_S = 300


@dataclass(frozen=True)
class Step:
    """A command or a Python snippet, and the line of the page on which it starts."""

    line: int
    text: str
    is_python: bool = False
    page: str = "README.md"

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text.splitlines()[0]}"


def steps_of(text: str, page: str = "README.md") -> Iterator[Step]:
    """Yield the steps of a page in the order in which they are written."""
    fence: str | None = None
    snippet: list[str] = []
    # The commands of a table whose head is `course …` are written without "course ". This is the part to put in front.
    row_begins = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            if fence == "python":
                yield Step(number - len(snippet), "\n".join(snippet), True, page)
            fence, snippet = (line[3:].strip(), []) if fence is None else (None, [])
        elif fence == "python":
            snippet.append(line)
        elif fence == "" and is_command(line):
            yield Step(number, without_comment(line), page=page)
        elif fence is None and (cell := re.match(r"\| `([^`]+)` \|", line)):
            if cell[1].endswith(" …"):
                row_begins = cell[1].removesuffix("…")
            elif is_command(row_begins + cell[1]):
                yield Step(number, row_begins + cell[1], page=page)
        elif not line.startswith("|"):
            row_begins = ""


def is_command(line: str) -> bool:
    return line.split(" ")[0] in PROGRAMS


def without_comment(line: str) -> str:
    return re.sub(r"\s+#\s.*", "", line).rstrip()


def begins_with(command: str, words: str) -> bool:
    return f"{command} ".startswith(f"{words} ")


def entry_for(command: str, table: Mapping[str, T]) -> T | None:
    """Return the first entry of ``table`` whose words the command begins with."""
    return next((entry for words, entry in table.items() if begins_with(command, words)), None)


class Reader:
    """Runs one step after another, keeping folder and environment as a shell does.

    It is a newcomer's shell: a bare environment with the home folder ``home``, and nothing installed. Only a folder of
    pulled models is kept, so that a model is not downloaded again.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        models = {name: value for name, value in os.environ.items() if name == "MINI_VLLM_CACHE"}
        self.environment = {**bare_environment(home), **models}

    def run(self, step: Step) -> str:
        """Run a step and return what it printed. Raise AssertionError if its exit status is not the expected one."""
        if step.is_python:
            return self._checked(step, self._bash("python -", step.text))
        if begins_with(step.text, "git clone"):
            return self._clone(step.text.split()[-1])
        return "".join(self._run_command(step, command) for command in step.text.split(" && "))

    def _run_command(self, step: Step, command: str) -> str:
        if command in WRITTEN:
            target, source = WRITTEN[command]
            (self.folder / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.folder / source, self.folder / target)
        if any(begins_with(command, name) for name in NEED_SMOLLM2) and cached_model("smollm2") is None:
            return "left out: smollm2 is not here\n"
        shortened = f"{command} {entry_for(command, SHORTENED) or ''}".rstrip()
        if script := entry_for(command, SCRIPTS):
            return self._type(shortened, script)
        return self._checked(step, self._bash(shortened), STATUS.get(command, 0))

    def _bash(self, command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as scratch:
            keep = f'{command}\nstatus=$?; pwd > "{scratch}/folder"; env -0 > "{scratch}/env"; exit $status'
            done = subprocess.run(["bash", "-c", keep], cwd=self.folder, env=self.environment, input=stdin,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8",
                                  timeout=TIMEOUT_S)
            self.folder = Path(Path(scratch, "folder").read_text().rstrip("\n"))
            pairs = Path(scratch, "env").read_text().split("\0")
        self.environment = dict(pair.split("=", 1) for pair in pairs if pair)
        return done

    def _checked(self, step: Step, done: subprocess.CompletedProcess[str], status: int = 0) -> str:
        assert done.returncode == status, f"{step}\nexit status {done.returncode}, expected {status}:\n{done.stdout}"
        return done.stdout

    def _type(self, command: str, script: list[tuple[str, str]]) -> str:
        """Run a command in a new terminal and type the script. Return the terminal's output."""
        import pexpect
        # Nothing here answers the line editor's query for the cursor position.
        environment = {**self.environment, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        # A background job ignores Ctrl-C, and its child processes would inherit that.
        child = pexpect.spawn("bash", ["-c", command], cwd=str(self.folder), env=environment, encoding="utf-8",
                              timeout=TIMEOUT_S, dimensions=(40, 100),
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        shown = ""
        for words, keys in script:
            child.expect_exact(words)
            shown += child.before + child.after
            child.send(keys)
        child.expect(pexpect.EOF)
        child.close()
        shown += child.before
        assert child.exitstatus == 0, f"{command}\nexit status {child.exitstatus}:\n{shown}"
        return str(shown)

    def _clone(self, name: str) -> str:
        """Copy the tree as it is."""
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                                capture_output=True, text=True, check=True).stdout
        for file in filter(None, listed.split("\0")):
            if (ROOT / file).is_file():
                (self.folder / name / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, self.folder / name / file)
        return ""


def steps_of_pages() -> list[Step]:
    """Return the steps of all pages. A command that is on several pages is included once, at its first place."""
    steps = [step for page in PAGES for step in steps_of((ROOT / page).read_text(encoding="utf-8"), page)]
    return sorted({step.text: step for step in reversed(steps)}.values(), key=steps.index)


def run_all(steps: Sequence[Step], folder: Path, home: Path) -> None:
    """Run every step. Raise AssertionError for the first one that fails, or that prints nothing although it should."""
    reader = Reader(folder, home)
    for step in steps:
        start_s = time.perf_counter()
        printed = reader.run(step)
        print(f"{time.perf_counter() - start_s:6.1f} s  {step}", flush=True)
        assert printed or any(begins_with(step.text, words) for words in SILENT), f"{step}\nprints nothing"


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        home, steps = Path(scratch, "home"), steps_of_pages()
        home.mkdir()
        try:
            run_all(steps, Path(scratch), home)
        except AssertionError as error:
            print(error)
            return 1
    print(f"{len(steps)} commands and snippets of {', '.join(PAGES)} run as written, with nothing installed beforehand")
    return 0


if __name__ == "__main__":
    sys.exit(main())

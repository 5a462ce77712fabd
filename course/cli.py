"""The ``course`` command: where you are, what is next, and how your work does."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from course.check import broken_links, check_lab
from course.hints import LEVELS, parse_hints, task_titles
from course.labs import PROJECT_ROOT, Lab, LabError, discover, find_lab, lab_of_path
from course.progress import LabProgress, Progress, State
from course.starters import clean_solution, is_as_shipped, shipped_starter

BAR_WIDTH = 20
POLL_S = 0.3


class Course:
    """The commands, over one project folder."""

    def __init__(self, root: Path = PROJECT_ROOT, console: Console | None = None) -> None:
        self.root = root
        self.labs = discover(root)
        self.progress = Progress(root)
        self.console = console or Console(highlight=False, soft_wrap=True)
        if not self.labs:
            raise LabError(f"there are no labs under {root}")

    # ---- where am I

    def status(self, as_json: bool = False) -> int:
        rows = [self.progress.of(lab) for lab in self.labs]
        points, max_points = sum(row.points for row in rows), sum(row.max_points for row in rows)
        if as_json:
            print(json.dumps({"labs": [_as_json(row) for row in rows], "points": points, "max_points": max_points},
                             indent=2))
            return 0
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading, justify in (("lab", "left"), ("", "left"), ("state", "left"), ("points", "right"), ("", "left")):
            table.add_column(heading, justify=justify, no_wrap=True)
        for row in rows:
            table.add_row(row.lab.number, row.lab.title, _state_text(row), f"{row.points}/{row.max_points}",
                          _bar(row.points, row.max_points))
        self.console.print(table)
        self.console.print(f"\n{points} of {max_points} points. " + self._what_next(rows))
        return 0

    def next(self) -> int:
        rows = [self.progress.of(lab) for lab in self.labs]
        self.console.print(self._what_next(rows))
        row = self._current(rows)
        if row is not None:
            self.console.print(f"  read   {row.lab.relative(row.lab.readme)}\n"
                               f"  edit   {row.lab.relative(row.lab.starter)}\n"
                               f"  check  course test {row.lab.number}   (or: course watch)\n"
                               f"  stuck? course hint {row.lab.number}")
        return 0

    def _what_next(self, rows: list[LabProgress]) -> str:
        row = self._current(rows)
        if row is None:
            return "Every lab passes. Well done."
        if row.state is State.NOT_STARTED:
            return f"Next: lab {row.lab.number}, {row.lab.title}."
        return f"Next: task {row.next_task} of lab {row.lab.number}, {row.lab.title}."

    def _current(self, rows: list[LabProgress]) -> LabProgress | None:
        """The lab at hand: the one you stand in, else the one you saved last, else the first that does not pass."""
        here = lab_of_path(Path.cwd(), self.labs)
        unfinished = [row for row in rows if row.state is not State.PASSED]
        started = [row for row in unfinished if row.state is State.IN_PROGRESS]
        standing = [row for row in rows if row.lab == here]
        latest = sorted(started, key=lambda row: row.lab.starter.stat().st_mtime, reverse=True)
        return next(iter([*standing, *latest, *unfinished]), None)

    def _lab(self, name: str | None) -> Lab:
        if name is not None:
            return find_lab(name, self.labs)
        row = self._current([self.progress.of(lab) for lab in self.labs])
        return row.lab if row else self.labs[-1]

    # ---- how is my work

    def test(self, names: Sequence[str]) -> int:
        if list(names) == ["all"]:
            labs = self.labs
        else:
            labs = [find_lab(name, self.labs) for name in names] or [self._lab(None)]
        results = [self._show_test(lab) for lab in labs]
        return 0 if all(results) else 1

    def _show_test(self, lab: Lab) -> bool:
        self.console.print(f"[bold]Lab {lab.number}  {lab.title}[/]   {lab.relative(lab.starter)}")
        row = self.progress.of(lab, anew=True)
        if row.state is State.NOT_STARTED:
            reason = "is as shipped" if lab.starter.is_file() else "is missing"
            self.console.print(f"  Not started: starter.py {reason}. Begin with {lab.relative(lab.readme)}.\n")
            return False
        titles = task_titles(lab.hints.read_text(encoding="utf-8")) if lab.hints.is_file() else {}
        task, said = None, set()
        for test in row.tests:
            if test.task != task:
                task = test.task
                self.console.print(f"  [bold]Task {task}[/] {titles.get(task or 0, '')}")
            verdict = row.verdicts[test.name]
            to_do = verdict.error == "NotImplementedError" and verdict.message.startswith("Task ")
            mark, style = ("✓", "green") if verdict.passed else ("·", "dim") if to_do else ("✗", "red")
            self.console.print(Text.assemble("    ", (f"{mark} {test.sentence}", style), f"  {test.points}"))
            if not verdict.passed and verdict.message not in said:  # one broken import speaks once, not 34 times
                said.add(verdict.message)
                message = f"still to do: {verdict.message}" if to_do else verdict.message
                self.console.print(Text("\n".join(f"        {line}" for line in message.splitlines()),
                                        style="dim" if to_do else ""))
        self.console.print(f"\n  {row.num_passed} of {len(row.tests)} tests, {row.points} of {row.max_points} points  "
                           f"{_bar(row.points, row.max_points)}")
        if row.state is State.PASSED:
            self.console.print(f"  [green]Passed.[/] Compare with `course solution {lab.number}`.\n")
        else:
            self.console.print(f"  Next: task {row.next_task}. A nudge: course hint {lab.number}\n")
        return row.state is State.PASSED

    def watch(self, name: str | None = None, changes: Callable[[list[Lab]], Iterator[Lab]] | None = None) -> int:
        """Test the current lab, then whichever lab is saved, until Ctrl-C."""
        lab = self._lab(name)
        watched = [lab] if name is not None else self.labs
        try:
            self._show_test(lab)
            self.console.print("[dim]Watching. Save a starter.py to test it; Ctrl-C ends.[/]")
            for lab in (changes or saved_labs)(watched):
                self.console.clear()
                if self._show_test(lab):
                    self.console.print(self._what_next([self.progress.of(other) for other in self.labs]))
                self.console.print(f"[dim]{time.strftime('%H:%M:%S')}  Watching. Ctrl-C ends.[/]")
        except KeyboardInterrupt:
            self.console.print()
        return 0

    # ---- help

    def hint(self, name: str | None, level: int, task: int | None) -> int:
        lab = self._lab(name)
        hints = parse_hints(lab.hints.read_text(encoding="utf-8"))
        if task is None:
            task = self.progress.of(lab).next_task
            if task is None:
                self.console.print(f"Lab {lab} passes; there is nothing left to hint at. (--task N shows one anyway.)")
                return 0
        if task not in hints:
            raise LabError(f"Lab {lab} has no task {task}; its tasks are {', '.join(map(str, sorted(hints)))}.")
        title = task_titles(lab.hints.read_text(encoding="utf-8")).get(task, "")
        self.console.print(f"[bold]Lab {lab.number}, task {task}[/]: {title}  [dim](hint {level} of {len(LEVELS)})[/]")
        self.console.print()
        self.console.print(Markdown(hints[task][level]))
        if level < max(LEVELS):
            self.console.print(f"\n[dim]More: course hint {lab.number} --task {task} --level {level + 1}[/]")
        return 0

    def solution(self, name: str, spoil: bool) -> int:
        lab = find_lab(name, self.labs)
        row = self.progress.of(lab)
        if not spoil and row.state is not State.PASSED:
            raise LabError(f"Lab {lab} is {_state_text(row)}; its solution opens when it passes, or with --spoil. "
                           f"Perhaps a hint first: course hint {lab.number} --level 3")
        print(clean_solution(lab.solution.read_text(encoding="utf-8")), end="")
        return 0

    def reset(self, name: str) -> int:
        lab = find_lab(name, self.labs)
        if lab.starter.is_file() and is_as_shipped(lab):
            self.console.print(f"{lab.relative(lab.starter)} is as shipped already; nothing to reset.")
            return 0
        shipped = shipped_starter(lab)
        if lab.starter.is_file():
            name = f"{lab.number}-{time.strftime('%Y-%m-%d-%H%M%S')}.py"
            backup = _free_name(self.root / ".course" / "backups" / name)
            backup.parent.mkdir(parents=True, exist_ok=True)
            backup.write_bytes(lab.starter.read_bytes())
            self.console.print(f"Your work is kept in {lab.relative(backup)}")
        lab.starter.write_text(shipped, encoding="utf-8")
        self.console.print(f"{lab.relative(lab.starter)} is as shipped again.")
        return 0

    # ---- for those who write labs

    def sync(self, names: Sequence[str]) -> int:
        for lab in [find_lab(name, self.labs) for name in names] or self.labs:
            shipped = shipped_starter(lab)
            old = lab.starter.read_text(encoding="utf-8") if lab.starter.is_file() else None
            if old != shipped:
                lab.starter.write_text(shipped, encoding="utf-8")
            self.console.print(f"{lab.relative(lab.starter)}: {'up to date' if old == shipped else 'written'}")
        return 0

    def check(self, names: Sequence[str]) -> int:
        labs = [find_lab(name, self.labs) for name in names] or self.labs
        num_problems = 0
        for lab in labs:
            problems, proved = check_lab(lab)
            self._show_check(str(lab), problems, proved)
            num_problems += len(problems)
        pages = sorted(self.root.glob("*.md")) + sorted(self.root.glob("phase-*/README.md"))
        problems = [] if names else [problem for page in pages for problem in broken_links(page, self.root)]
        if not names:
            self._show_check("pages", problems, f"the links of {len(pages)} pages resolve")
        num_problems += len(problems)
        self.console.print(f"{len(labs)} labs checked, {num_problems} problems")
        return 1 if num_problems else 0

    def _show_check(self, name: str, problems: list[str], proved: str) -> None:
        self.console.print(Text.assemble((f"{'✗' if problems else '✓'} {name}", "red" if problems else "green"),
                                         "" if problems else f"  {proved}"))
        for problem in problems:
            self.console.print(Text("    " + problem.replace("\n", "\n      ")))


def saved_labs(labs: list[Lab]) -> Iterator[Lab]:
    """Labs whose starter is saved, as it happens, for ever."""
    def stamps() -> dict[str, tuple[int, int] | None]:
        return {lab.number: _stamp(lab.starter) for lab in labs}

    before = stamps()
    while True:
        time.sleep(POLL_S)
        now = stamps()
        for lab in labs:
            if now[lab.number] != before[lab.number] and now[lab.number] is not None:
                yield lab
        before = now


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
        return stat.st_mtime_ns, stat.st_size
    except FileNotFoundError:  # some editors save by deleting and renaming
        return None


def _free_name(path: Path) -> Path:
    candidate, count = path, 1
    while candidate.exists():
        count += 1
        candidate = path.with_stem(f"{path.stem}-{count}")
    return candidate


def _state_text(row: LabProgress) -> str:
    return f"in progress {row.num_passed}/{len(row.tests)}" if row.state is State.IN_PROGRESS else row.state.value


def _bar(points: int, max_points: int) -> str:
    filled = BAR_WIDTH * points // max(max_points, 1)
    return "█" * filled + "░" * (BAR_WIDTH - filled)


def _as_json(row: LabProgress) -> dict:
    return {"lab": row.lab.number, "name": row.lab.name, "title": row.lab.title,
            "folder": row.lab.relative(row.lab.folder), "state": row.state.value, "tests_passed": row.num_passed,
            "tests": len(row.tests), "points": row.points, "max_points": row.max_points}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="course", description="The lab course: where you are and how your work does.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    lab_help = "a lab by number (2.1), name or folder; default: the one you are at"

    def command(name: str, help: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=help, description=help)

    command("status", "how far you are in each lab").add_argument("--json", action="store_true", help="for machines")
    command("next", "what to do now")
    command("test", "test your starter.py").add_argument("labs", nargs="*", metavar="lab", help=f"{lab_help}; or: all")
    command("watch", "test again whenever you save").add_argument("lab", nargs="?", help=lab_help)
    hint = command("hint", "a hint for the task you are at")
    hint.add_argument("lab", nargs="?", help=lab_help)
    hint.add_argument("--level", type=int, choices=LEVELS, default=1, help="1 a nudge, 2 the idea, 3 nearly the code")
    hint.add_argument("--task", type=int, help="another task than the one you are at")
    command("reset", "put the shipped starter.py back, keeping a backup of yours").add_argument("lab")
    solution = command("solution", "the solution of a lab that you have passed")
    solution.add_argument("lab")
    solution.add_argument("--spoil", action="store_true", help="show it before you pass")
    command("check", "for authors: prove that every lab is in order").add_argument("labs", nargs="*", metavar="lab")
    command("sync", "for authors: make starter.py anew from solution.py").add_argument("labs", nargs="*", metavar="lab")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    try:
        course = Course()
        match arguments.command:
            case "status":
                return course.status(arguments.json)
            case "next":
                return course.next()
            case "test":
                return course.test(arguments.labs)
            case "watch":
                return course.watch(arguments.lab)
            case "hint":
                return course.hint(arguments.lab, arguments.level, arguments.task)
            case "reset":
                return course.reset(arguments.lab)
            case "solution":
                return course.solution(arguments.lab, arguments.spoil)
            case "check":
                return course.check(arguments.labs)
            case _:
                return course.sync(arguments.labs)
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

"""What the ``course`` command does: where you are, what is next, and how your work does."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from course.answers import INTERVIEW, parse_answers, questions_of
from course.authoring import check_labs, check_pages, sync_starters
from course.bare import bare_starter
from course.board import show_board
from course.graded import graded_tests
from course.hints import LEVELS, parse_hints, task_titles
from course.labs import NO_COURSE, Lab, LabError, discover, find_lab, find_root, lab_of_path
from course.progress import LabProgress, Progress, State
from course.runner import LabRunFailed, run_lab
from course.running import RunCommand, Wish, choose_pieces, show_whose
from course.showing import VerdictLines, bar, state_text
from course.showpieces import Showpieces
from course.starters import clean_solution, is_as_shipped, shipped_starter
from course.verdicts import OnPoll
from course.watching import SavedMeanwhile, Saves


class Course:
    """The commands, over one project folder."""

    def __init__(self, root: Path | None = None, console: Console | None = None) -> None:
        self.root = root or find_root()
        self.labs = discover(self.root)
        self.progress = Progress(self.root)
        self.console = console or Console(highlight=False, soft_wrap=True)
        if not self.labs:
            raise LabError(NO_COURSE)

    # ---- where am I

    def status(self, as_json: bool = False) -> int:
        rows = self._rows(is_quiet=as_json)
        pieces = choose_pieces(self.labs, self.progress)
        points, max_points = sum(row.points for row in rows), sum(row.max_points for row in rows)
        if as_json:
            print(json.dumps({"labs": [_as_json(row) for row in rows], "points": points, "max_points": max_points,
                              "engine": {seat.slot: seat.lab and seat.lab.number for seat in pieces.seats}}, indent=2))
            return 0
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("lab", "", "state", "points", ""):
            table.add_column(heading, justify="right" if heading == "points" else "left", no_wrap=True)
        for row in rows:
            table.add_row(row.lab.number, row.lab.title, state_text(row), f"{row.points}/{row.max_points}",
                          bar(row.points, row.max_points))
        self.console.print(table)
        if pieces.labs:
            self.console.print()
            show_whose(pieces, self.console)
        self.console.print(Text(f"\n{points} of {max_points} points. {self._what_next(rows)}"))
        return 0

    def _rows(self, is_quiet: bool = False) -> list[LabProgress]:
        """How far each lab is. Those changed since their last test are tested first: that may take a while."""
        changed = [lab.number for lab in self.labs if self.progress.remembered(lab).is_outdated]
        if changed and not is_quiet:
            self.console.print(Text(f"Testing what has changed: {', '.join(changed)} …", style="dim"))
        return [self.progress.of(lab) for lab in self.labs]

    def next(self) -> int:
        rows = self._rows()
        self.console.print(Text(self._what_next(rows)))
        row = self._current(rows)
        if row is not None:
            left_out = [other.lab.number for other in rows[:rows.index(row)] if other.state is not State.PASSED]
            if left_out:
                self.console.print(Text(f"  Still open before it: {', '.join(left_out)}", style="dim"))
            phase = row.lab.folder.parent.parent / "README.md"
            if row.state is State.NOT_STARTED and phase.is_file():
                is_new = all(other.state is State.NOT_STARTED for other in rows if other.lab.phase == row.lab.phase)
                what = "the phase; it says what to leave for later" if is_new else "what it names for this lab"
                self.console.print(f"  first  {row.lab.relative(phase)}   ({what})")
            self.console.print(f"  read   {row.lab.relative(row.lab.readme)}{_duration(row.lab)}\n"
                               f"  edit   {row.lab.relative(row.lab.starter)}\n"
                               f"  check  course test {row.lab.number}   (or: course watch)\n"
                               f"  stuck? course hint {row.lab.number}")
        return 0

    def _what_next(self, rows: list[LabProgress]) -> str:
        row = self._current(rows)
        if row is None:
            return "Every lab passes. Well done. All of them together: course run --strict"
        if row.state is State.NOT_STARTED:
            return f"Next: lab {row.lab.number}, {row.lab.title}."
        if row.broken:
            return f"Next: lab {row.lab.number}, {row.lab.title}. {row.broken.message.splitlines()[0]}"
        next_task = f"Next: task {row.next_task} of lab {row.lab.number}, {row.lab.title}."
        return f"{next_task} {row.detour}" if row.detour else next_task

    def _current(self, rows: list[LabProgress]) -> LabProgress | None:
        """The lab to work on, one that does not pass: the one you stand in, else the one you saved last or the first
        after it, else the first of all."""
        here = lab_of_path(Path.cwd(), self.labs)
        unfinished = [row for row in rows if row.state is not State.PASSED]
        standing = [row for row in unfinished if row.lab == here]
        started = [row for row in rows if row.state is not State.NOT_STARTED]
        latest = max(started, key=lambda row: row.lab.starter.stat().st_mtime, default=rows[0])
        onwards = [row for row in rows[rows.index(latest):] if row.state is not State.PASSED]
        return next(iter([*standing, *onwards, *unfinished]), None)

    def _lab(self, name: str | None) -> Lab:
        """The lab a command means: the one named, else the one you stand in, else the one to work on."""
        if name is not None:
            return find_lab(name, self.labs)
        here = lab_of_path(Path.cwd(), self.labs)
        if here is not None:
            return here
        row = self._current([self.progress.remembered(lab) for lab in self.labs])  # to choose, nothing need run
        return row.lab if row else self.labs[-1]

    # ---- how is my work

    def test(self, names: Sequence[str], task: int | None = None, is_full: bool = False) -> int:
        """Test labs, or one task of one lab. ``is_full``: every test is shown, not only the task to work on."""
        if list(names) == ["all"]:
            labs = self.labs
        else:
            labs = [find_lab(name, self.labs) for name in names] or [self._lab(None)]
        if task is not None and len(labs) != 1:
            raise LabError(f"--task {task} is a task of one lab, but {len(labs)} labs are to be tested.")
        try:
            results = [self._show_test(lab, is_full) if task is None else self._show_task(lab, task) for lab in labs]
        except KeyboardInterrupt:
            return 130
        return 0 if all(results) else 1

    def _show_task(self, lab: Lab, task: int) -> bool:
        """Test one task of ``lab``. Whether it passes; nothing is remembered."""
        tests = [test for test in graded_tests(lab) if test.task == task]
        if not tests:
            tasks = sorted({test.task for test in graded_tests(lab) if test.task is not None})
            raise LabError(f"Lab {lab} has no task {task}; its tasks are {', '.join(map(str, tasks))}.")
        lines = VerdictLines(self.console, lab, tests, is_full=True)
        try:
            run_lab(lab, ["starter"], on_verdict=lines.show, names=[test.name for test in tests])
        except KeyboardInterrupt:
            lines.end_early()
            raise
        except LabRunFailed as failure:
            raise LabError(f"the tests could not be run:\n{failure}") from None
        return lines.end_of_task()

    def _show_test(self, lab: Lab, is_full: bool = False, on_poll: OnPoll = lambda: None) -> bool:
        """Test ``lab`` and show verdicts as they arrive. Whether it passes."""
        lines = VerdictLines(self.console, lab, graded_tests(lab), is_full)
        try:
            row = self.progress.of(lab, anew=True, on_verdict=lines.show, on_poll=on_poll)
        except KeyboardInterrupt:
            lines.end_early()
            raise
        lines.end(row)
        return row.state is State.PASSED

    def watch(self, name: str | None = None, saves_of: Callable[[list[Lab]], Saves] = Saves) -> int:
        """Test the current lab, then whichever lab is saved, until Ctrl-C. A save ends the tests that run."""
        lab = self._lab(name)
        saves = saves_of([lab] if name is not None else self.labs)
        try:
            while True:
                try:
                    if self._show_test(lab, on_poll=saves.interrupt):
                        self.console.print(Text(self._what_next([self.progress.of(other) for other in self.labs])))
                    self.console.print(f"[dim]{time.strftime('%H:%M:%S')}  Watching. Save a starter.py to test it; "
                                       "Ctrl-C ends.[/]")
                    lab = saves.wait()
                except SavedMeanwhile as saved:
                    lab = saved.lab
                self.console.clear()
        except KeyboardInterrupt:
            self.console.print()
        return 0

    # ---- help

    def hint(self, name: str | None, level: int, task: int | None) -> int:
        lab = self._lab(name)
        hints = parse_hints(lab.hints.read_text(encoding="utf-8"))
        if task is None:
            row = self.progress.of(lab)
            if row.broken:
                self.console.print(Text(f"{row.broken.message}\n(--task N shows a hint anyway.)"))
                return 0
            if row.detour:
                self.console.print(Text(row.detour, style="dim"))
            task = row.next_task
            if task is None:
                self.console.print(f"Lab {lab} passes; there is nothing left to hint at. (--task N shows one anyway.)")
                return 0
        if task not in hints:
            raise LabError(f"Lab {lab} has no task {task}; its tasks are {', '.join(map(str, sorted(hints)))}.")
        title = task_titles(lab.hints.read_text(encoding="utf-8")).get(task, "")
        self.console.print(f"[bold]Lab {lab.number}, task {task}[/]: {title}  [dim](hint {level} of {len(LEVELS)})[/]")
        self.console.print()
        self._print_markdown(hints[task][level])
        if level < max(LEVELS):
            self.console.print(f"\n[dim]More: course hint {lab.number} --task {task} --level {level + 1}[/]")
        return 0

    def _print_markdown(self, text: str) -> None:
        # Rich cuts code at the width of the terminal. A line is never cut; the terminal may fold it.
        code = [line for block in re.findall(r"```.*?```", text, flags=re.S) for line in block.splitlines()]
        self.console.width = max(self.console.width, max(map(len, code), default=0) + 4)
        self.console.print(Markdown(text))

    def solution(self, name: str | None, spoil: bool) -> int:
        lab = self._lab(name)
        row = self.progress.of(lab)
        if not spoil and row.state is not State.PASSED:
            raise LabError(f"Lab {lab} is {state_text(row)}; its solution opens when it passes, or with --spoil. "
                           f"Perhaps a hint first: course hint {lab.number} --level 3")
        print(clean_solution(lab.solution.read_text(encoding="utf-8")), end="")
        return 0

    def answer(self, name: str | None, question: str | None) -> int:
        if name is not None and question is None and re.fullmatch(rf"\d+|{INTERVIEW}", name):
            name, question = None, name
        lab = self._lab(name)
        questions = {each.name: each.text for each in questions_of(lab.readme.read_text(encoding="utf-8"))}
        if not lab.answers.is_file() or not questions:
            raise LabError(f"Lab {lab} has no questions with answers.")
        if question is None:
            self.console.print(f"[bold]Lab {lab.number}[/]: think first, then ask.\n")
            for each, text in questions.items():
                self.console.print(Text(text))
                self.console.print(f"  [dim]course answer {lab.number} {each}[/]\n")
            return 0
        if question not in questions:
            raise LabError(f"Lab {lab} has no question {question!r}; its questions are {', '.join(questions)}.")
        self.console.print(Text(f"{questions[question]}\n", style="bold"))
        self._print_markdown(parse_answers(lab.answers.read_text(encoding="utf-8"))[question])
        return 0

    def reset(self, name: str | None, is_bare: bool = False) -> int:
        lab = self._lab(name)
        shipped = bare_starter(lab) if is_bare else shipped_starter(lab)
        how = "bare" if is_bare else "as shipped"
        if lab.starter.is_file() and lab.starter.read_text(encoding="utf-8", errors="replace") == shipped:
            self.console.print(f"{lab.relative(lab.starter)} is {how} already; nothing to reset.")
            return 0
        if lab.starter.is_file() and not is_as_shipped(lab):
            name = f"{lab.number}-{time.strftime('%Y-%m-%d-%H%M%S')}.py"
            backup = _free_name(self.root / ".course" / "backups" / name)
            backup.parent.mkdir(parents=True, exist_ok=True)
            backup.write_bytes(lab.starter.read_bytes())
            self.console.print(f"Your work is kept in {lab.relative(backup)}")
        lab.starter.write_text(shipped, encoding="utf-8")
        self.console.print(f"{lab.relative(lab.starter)} is {how if is_bare else 'as shipped again'}.")
        if is_bare:
            self.console.print(f"What to write, what it refuses and the invariants are there; how is up to you.\n"
                               f"  check  course test {lab.number}\n"
                               f"  the recipe again: course reset {lab.number}")
        return 0

    # ---- the open lab

    def board(self, name: str | None = None) -> int:
        open_labs = [lab for lab in self.labs if lab.score]
        if not open_labs:
            raise LabError("This course has no lab with a score.")
        lab = find_lab(name, self.labs) if name is not None else open_labs[0]
        if not lab.score:
            raise LabError(f"Lab {lab} has no score. Labs that have one: {', '.join(map(str, open_labs))}.")
        return show_board(lab, self.root, self.console)

    # ---- the engine of one's own

    def run(self, wish: Wish) -> int:
        if re.fullmatch(r"\d+\.\d+", wish.prompt):
            raise LabError(f"{wish.prompt!r} would be the prompt. For a lab: course run --lab {wish.prompt}")
        return RunCommand(self.root, self.labs, self.progress, self.console).run(wish)

    def demo(self) -> int:
        return Showpieces(self.labs, self.console, self._passes).demo_blocks()

    def bench(self, cold: bool = False) -> int:
        return Showpieces(self.labs, self.console, self._passes).bench_allocator(cold)

    def _passes(self, lab: Lab) -> bool:
        return self.progress.of(lab).state is State.PASSED

    # ---- for those who write labs

    def sync(self, names: Sequence[str]) -> int:
        sync_starters([find_lab(name, self.labs) for name in names] or self.labs, self.console)
        return 0

    def check(self, names: Sequence[str]) -> int:
        labs = [find_lab(name, self.labs) for name in names] or self.labs
        num_problems = check_labs(self.root, labs, self.labs, self.console)
        if not names:
            num_problems += check_pages(self.root, self.console)
        self.console.print(f"{len(labs)} labs checked, {num_problems} problems")
        return 1 if num_problems else 0


def _free_name(path: Path) -> Path:
    candidate, count = path, 1
    while candidate.exists():
        count += 1
        candidate = path.with_stem(f"{path.stem}-{count}")
    return candidate


def _duration(lab: Lab) -> str:
    return f"   (about {lab.minutes} minutes)" if lab.minutes else ""


def _as_json(row: LabProgress) -> dict[str, str | int]:
    return {"lab": row.lab.number, "name": row.lab.name, "title": row.lab.title,
            "folder": row.lab.relative(row.lab.folder), "state": row.state.value, "tests_passed": row.num_passed,
            "tests": len(row.tests), "points": row.points, "max_points": row.max_points}

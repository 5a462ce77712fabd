"""The ``course`` commands: where you are, what is next, and how your work is doing."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from course.authoring.commands import check_labs, check_pages, check_surfaces, sync_starters
from course.core.terminal_text import print_side_by_side, print_wrapped
from course.lab.answers import is_question
from course.lab.graded_tests import graded_tests
from course.lab.lab import NO_COURSE, Lab, LabError, discover, find_lab, find_root, lab_of_path
from course.lab.parts import bases_of
from course.pytest_run.listeners import OnPoll
from course.pytest_run.run_lab import LabRunFailed, run_lab
from course.student.demo_commands import Showpieces
from course.student.hint_commands import Help
from course.student.leaderboard import show_board, show_boards
from course.student.progress import LabProgress, Progress, State
from course.student.report import VerdictLines
from course.student.run_command import RunCommand, RunOptions, choose_pieces, show_whose
from course.student.serve_command import OwnServer
from course.student.status_table import status_table
from course.student.watch_saves import SavedMeanwhile, Saves

if TYPE_CHECKING:
    from course.grading.class_run.merge_boards import MergeOptions

#: The note on the origin of the results in ``course status --json``.
SELF_REPORTED = ("self-reported: run by the student, on the student's machine, with the student's copy of the tests; "
                 "to grade, use `course grade`")


class Course:
    """The commands for one project folder."""

    def __init__(self, root: Path | None = None, console: Console | None = None) -> None:
        self.root = root or find_root()
        self.labs = discover(self.root)
        self.progress = Progress(self.root)
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.help = Help(self.progress, self.console)
        if not self.labs:
            raise LabError(NO_COURSE)

    # ---- where am I

    def status(self, as_json: bool = False) -> int:
        rows = self._rows(is_quiet=as_json)
        pieces = choose_pieces(self.labs, self.progress)
        points, max_points = sum(row.points for row in rows), sum(row.max_points for row in rows)
        if as_json:
            print(json.dumps({"self_reported": True, "note": SELF_REPORTED,
                              "labs": [_as_json(row) for row in rows], "points": points, "max_points": max_points,
                              "engine": {seat.slot: seat.lab and seat.lab.number for seat in pieces.seats}}, indent=2))
            return 0
        self.console.print(status_table(rows, self.console))
        if pieces.labs:
            self.console.print()
            show_whose(pieces, self.console)
        self.console.print()
        print_wrapped(self.console, f"{points} of {max_points} points. {self._what_next(rows)}")
        return 0

    def _rows(self, is_quiet: bool = False) -> list[LabProgress]:
        """Return how far each lab is. Labs changed since their last test are tested first, which may take a while."""
        changed = [lab.number for lab in self.labs if self.progress.remembered(lab).is_outdated]
        if changed and not is_quiet:
            self.console.print(Text(f"Testing changed labs: {', '.join(changed)} …", style="dim"))
        return [self.progress.of(lab) for lab in self.labs]

    def next(self) -> int:
        rows = self._rows()
        print_wrapped(self.console, self._what_next(rows))
        row = self._current(rows)
        if row is not None:
            left_out = [other.lab.number for other in rows[:rows.index(row)] if other.state is not State.PASSED]
            if left_out:
                self.console.print(Text(f"  Earlier labs that do not pass yet: {', '.join(left_out)}", style="dim"))
            if row.state is State.NOT_STARTED:
                self._say_what_comes_first(row, rows)
            self._say_where("read  ", row.lab.relative(row.lab.readme))
            self._say_where("edit  ", row.lab.relative(row.lab.starter))
            self._say_where("check ", f"course test {row.lab.number}", "or: course watch")
            self._say_where("stuck?", f"course hint {row.lab.number}")
        return 0

    def _say_what_comes_first(self, row: LabProgress, rows: list[LabProgress]) -> None:
        """Name the page to read first: the phase's primer for its first lab, else the phase's page."""
        phase = row.lab.folder.parent.parent
        is_new = all(other.state is State.NOT_STARTED for other in rows if other.lab.phase == row.lab.phase)
        if is_new and (phase / "primer.md").is_file():
            self._say_where("first ", row.lab.relative(phase / "primer.md"), "half an hour; skip what you know")
        elif (phase / "README.md").is_file():
            what = "the phase's page; it says what to leave for later" if is_new else "the parts named for this lab"
            self._say_where("first ", row.lab.relative(phase / "README.md"), what)

    def _say_where(self, when: str, where: str, note: str = "") -> None:
        print_side_by_side(self.console, [f"  {when} {escape(where)}", f"({note})" if note else ""], indent=" " * 9)

    def _what_next(self, rows: list[LabProgress]) -> str:
        row = self._current(rows)
        if row is None:
            return "Every lab passes. Well done. Run all of them together: course run --strict"
        if row.state is State.NOT_STARTED:
            duration = f" (about {row.lab.minutes} minutes)" if row.lab.minutes else ""
            return f"Next: lab {row.lab.number}, {row.lab.title}{duration}."
        if row.broken:
            return f"Next: lab {row.lab.number}, {row.lab.title}. {row.broken.message.splitlines()[0]}"
        next_task = f"Next: task {row.next_task} of lab {row.lab.number}, {row.lab.title}."
        return f"{next_task} {row.detour}" if row.detour else next_task

    def _current(self, rows: list[LabProgress]) -> LabProgress | None:
        """Return the lab to work on, one that does not pass yet.

        It is the lab of the current folder, else the lab saved last or the first one after it, else the first of all.
        """
        here = lab_of_path(Path.cwd(), self.labs)
        unfinished = [row for row in rows if row.state is not State.PASSED]
        standing = [row for row in unfinished if row.lab == here]
        started = [row for row in rows if row.state is not State.NOT_STARTED]
        latest = max(started, key=lambda row: row.lab.starter.stat().st_mtime, default=rows[0])
        onwards = [row for row in rows[rows.index(latest):] if row.state is not State.PASSED]
        return next(iter([*standing, *onwards, *unfinished]), None)

    def _lab(self, name: str | None) -> Lab:
        """Return the lab that a command is about: the named one, else the current folder's, else the one to work on."""
        if name is not None:
            return find_lab(name, self.labs)
        here = lab_of_path(Path.cwd(), self.labs)
        if here is not None:
            return here
        row = self._current([self.progress.remembered(lab) for lab in self.labs])  # choosing a lab runs no tests
        return row.lab if row else self.labs[-1]

    # ---- how is my work

    def test(self, names: Sequence[str], task: int | None = None, is_full: bool = False) -> int:
        """Test labs, or one task of one lab. With ``is_full`` every test is shown, not only the task to work on."""
        if list(names) == ["all"]:
            labs = self.labs
        else:
            labs = [find_lab(name, self.labs) for name in names] or [self._lab(None)]
        if task is not None and len(labs) != 1:
            raise LabError(f"--task {task} needs a single lab, but {len(labs)} labs are given.")
        try:
            results = [self._test(lab, is_full) if task is None else self._show_task(lab, task) for lab in labs]
        except KeyboardInterrupt:
            return 130
        return 0 if all(results) else 1

    def _test(self, lab: Lab, is_full: bool) -> bool:
        """Test ``lab``, and again on the student's own earlier labs if it builds on any. Return whether it passes."""
        has_passed = self._show_test(lab, is_full)
        if has_passed and lab.base is not None:
            self._show_on_own_bases(lab)
        return has_passed

    def _show_on_own_bases(self, lab: Lab) -> None:
        """Test ``lab`` on the student's own earlier labs that pass, instead of the reference's solutions."""
        own = {below.number: below.starter for below in bases_of(lab, self.labs) if self._passes(below)}
        if not own:
            return
        verdicts = run_lab(lab, ["starter"], bases=own)["starter"]
        failing = {name: verdict for name, verdict in verdicts.items() if not verdict.passed}
        names = f"lab{'s' if len(own) > 1 else ''} {', '.join(sorted(own))}"
        if not failing:
            print_wrapped(self.console, f"With your own {names} instead of the reference's, all {len(verdicts)} tests "
                          "pass.\n", indent=2)
            return
        print_wrapped(self.console, f"With your own {names} instead of the reference's, {len(failing)} of "
                      f"{len(verdicts)} tests fail. This costs no points, but in the engine your parts run together:",
                      indent=2)
        for name, verdict in failing.items():
            print_wrapped(self.console, f"{name}: {verdict.message.splitlines()[0] if verdict.message else 'it fails'}",
                          indent=4)
        self.console.print()

    def _show_task(self, lab: Lab, task: int) -> bool:
        """Test one task of ``lab``, and return whether it passes. Nothing is stored."""
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

    def _show_test(self, lab: Lab, is_full: bool = False, on_poll: OnPoll = lambda: None,
                   fits_screen: bool = False) -> bool:
        """Test ``lab`` and show verdicts as they arrive. Return whether it passes."""
        lines = VerdictLines(self.console, lab, graded_tests(lab), is_full, fits_screen)
        try:
            row = self.progress.of(lab, anew=True, on_verdict=lines.show, on_poll=on_poll)
        except KeyboardInterrupt:
            lines.end_early()
            raise
        lines.end(row)
        return row.state is State.PASSED

    def watch(self, name: str | None = None, saves_of: Callable[[list[Lab]], Saves] = Saves) -> int:
        """Test the current lab, then whichever lab is saved, until Ctrl-C. A save ends the running tests."""
        lab = self._lab(name)
        saves = saves_of([lab] if name is not None else self.labs)
        try:
            while True:
                self.console.clear()  # does nothing in a pipe
                try:
                    if self._show_test(lab, on_poll=saves.interrupt, fits_screen=True):
                        print_wrapped(self.console, self._what_next([self.progress.of(other) for other in self.labs]))
                    print_wrapped(self.console, f"{time.strftime('%H:%M:%S')}  Watching. Save a starter.py to test it; "
                                  "Ctrl-C ends.", style="dim")
                    lab = saves.wait()
                except SavedMeanwhile as saved:
                    lab = saved.lab
        except KeyboardInterrupt:
            self.console.print()
        return 0

    # ---- help

    def hint(self, name: str | None, level: int, task: int | None) -> int:
        return self.help.hint(self._lab(name), level, task)

    def answer(self, name: str | None, question: str | None) -> int:
        if name is not None and question is None and is_question(name):
            name, question = None, name
        return self.help.answer(self._lab(name), question)

    def solution(self, name: str | None, spoil: bool) -> int:
        return self.help.solution(self._lab(name), spoil)

    def reset(self, name: str | None, is_bare: bool = False) -> int:
        return self.help.reset(self._lab(name), is_bare)

    # ---- the open labs

    def board(self, name: str | None = None) -> int:
        """Score an open lab: the named one, else the current folder's, else the only one. If there are several, list
        the best scores."""
        open_labs = self._open_labs(name)
        here = lab_of_path(Path.cwd(), open_labs)
        if name is None and here is None and len(open_labs) > 1:
            return show_boards(open_labs, self.root, self.console)
        return show_board(here if name is None and here else open_labs[0], self.root, self.console)

    def merge_boards(self, name: str | None, wish: MergeOptions) -> int:
        """Make the board of a class for the named lab, else for each open lab, from graded submissions."""
        from course.grading.class_run.merge_boards import merge_boards  # students do not need the grader
        return merge_boards(wish, self._open_labs(name))

    def _open_labs(self, name: str | None) -> list[Lab]:
        """Return the labs that have a score, or the named one of them. Raise LabError if there is none."""
        open_labs = [lab for lab in self.labs if lab.score]
        if not open_labs:
            raise LabError("This course has no lab with a score.")
        lab = find_lab(name, self.labs) if name is not None else None
        if lab is not None and not lab.score:
            raise LabError(f"Lab {lab} has no score. Labs that have one: {', '.join(map(str, open_labs))}.")
        return [lab] if lab is not None else open_labs

    # ---- the student's own engine

    def run(self, wish: RunOptions) -> int:
        if re.fullmatch(r"\d+\.\d+", wish.prompt):
            raise LabError(f"{wish.prompt!r} would be used as the prompt. To run a lab: course run --lab {wish.prompt}")
        return RunCommand(self.root, self.labs, self.progress, self.console).run(wish)

    def serve(self, model: str, port: int, draft: bool = False, num_replicas: int = 0) -> int:
        return OwnServer(self.labs, self.console, self._passes).serve(model, port, draft, num_replicas)

    def demo(self) -> int:
        return Showpieces(self.labs, self.console, self._passes).demo_blocks()

    def bench(self) -> int:
        return Showpieces(self.labs, self.console, self._passes).bench_allocator()

    def _passes(self, lab: Lab) -> bool:
        return self.progress.of(lab).state is State.PASSED

    # ---- for authors of labs

    def sync(self, names: Sequence[str]) -> int:
        sync_starters([find_lab(name, self.labs) for name in names] or self.labs, self.console)
        return 0

    def check(self, names: Sequence[str], only_surface: bool = False) -> int:
        labs = [find_lab(name, self.labs) for name in names] or self.labs
        if only_surface:
            return 1 if check_surfaces(labs, self.console) else 0
        num_problems = check_labs(self.root, labs, self.labs, self.console)
        if not names:
            num_problems += check_pages(self.root, self.console)
        self.console.print(f"{len(labs)} labs checked, {num_problems} problems")
        return 1 if num_problems else 0


def _as_json(row: LabProgress) -> dict[str, str | int]:
    return {"lab": row.lab.number, "name": row.lab.name, "title": row.lab.title,
            "folder": row.lab.relative(row.lab.folder), "state": row.state.value, "tests_passed": row.num_passed,
            "tests": len(row.tests), "points": row.points, "max_points": row.max_points}

"""The ``course`` command's output about a lab's tests: one line per task, then the task to work on in full."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from course.core.failure_messages import is_stub, stub_task
from course.core.result import Verdict
from course.core.terminal_text import hanging, indented, num_rows, print_side_by_side, short_path
from course.lab.bare_starter import is_bare
from course.lab.graded_tests import GradedTest
from course.lab.hints import task_titles
from course.lab.lab import Lab
from course.lab.starters import unbegun_tasks
from course.student.fit_screen import ShownTest, all_lines, cut
from course.student.progress import LabProgress, State
from course.student.symbols import TO_DO, bar, is_failure, line_of, mark, mark_to_do, number_of

#: Screen rows reserved for what is printed below: the note that the command is watching, and the cursor.
NUM_ROWS_BELOW = 3


@dataclass(frozen=True)
class _InFull:
    """A task that is shown in full, after the lines of all other tasks."""

    task: int | None
    of_task: list[tuple[GradedTest, Verdict]]
    #: The names of the bodies to write, if the task was not begun.
    to_write: str | None


class VerdictLines:
    """The lines of one test run. ``show`` each test as its verdict arrives, in the order of the tasks; then ``end``.

    One wrong line may fail a dozen tests. So only the first task with a failure is shown in full, and the first
    unwritten task if nothing has failed before it. Every other task is one line, unless ``is_full``. Tasks in full are
    printed last, the next one to work on at the very end, because a terminal shows the end of the output. With
    ``fits_screen`` they are cut to its height. For a task that was not begun, only the bodies to write are listed: the
    reason why its tests fail is obvious.
    """

    def __init__(self, console: Console, lab: Lab, tests: list[GradedTest], is_full: bool = False,
                 fits_screen: bool = False) -> None:
        self._console = console
        self._fits_screen = fits_screen and console.is_terminal
        self._in_full: list[_InFull] = []
        self._lab = lab
        self._tests = {test.name: test for test in tests}
        self._is_full = is_full
        self._titles = task_titles(lab.hints.read_text(encoding="utf-8")) if lab.hints.is_file() else {}
        self._shown: dict[str, Verdict] = {}
        #: The tests of the task whose verdicts are arriving.
        self._of_task: list[tuple[GradedTest, Verdict]] = []
        self._unbegun = {} if is_full else unbegun_tasks(lab)
        self._has_failed = self._has_to_do = self._has_left_out = False
        self._said: dict[str, str] = {}
        self._last_said = ""
        print_side_by_side(console, [f"[bold]Lab {lab.number}  {escape(lab.title)}[/]",
                                     escape(self._path(lab.starter))])

    def _path(self, path: Path) -> str:
        """Return the whole path if the output is a pipe or the path fits, else its end."""
        name = self._lab.relative(path)
        return short_path(name, self._console.width - 2) if self._console.is_terminal else name

    def show(self, name: str, verdict: Verdict) -> None:
        self._shown[name] = verdict
        if verdict.concerns_the_whole_file:  # printed once, at the end
            return
        test = self._tests[name]
        if self._is_full and not self._of_task:
            self._print_heading(test.task)
        self._of_task.append((test, verdict))
        if self._is_full:
            self._print(all_lines([self._shown_test(test, verdict)]))
        if len(self._of_task) == sum(other.task == test.task for other in self._tests.values()):
            self._end_task()

    def _end_task(self) -> None:
        """Finish a task whose verdicts have all arrived: print its line, or keep it to be shown in full at the end."""
        of_task, self._of_task = self._of_task, []
        if self._is_full or not of_task:
            return
        task = of_task[0][0].task
        verdicts = [verdict for _, verdict in of_task]
        num_passed = sum(verdict.passed for verdict in verdicts)
        to_write = self._unbegun.get(task or 0) if num_passed < len(of_task) else None
        fails = to_write is None and any(is_failure(verdict) for verdict in verdicts)
        is_to_do = not fails and num_passed < len(of_task)
        if (fails and not self._has_failed) or (is_to_do and not self._has_failed and not self._has_to_do):
            self._in_full.append(_InFull(task, of_task, to_write))
        else:
            is_to_do |= any(stub_task(verdict.error, verdict.message) == task for verdict in verdicts)
            sign, style = TO_DO if is_to_do else ("✗", "red") if fails else ("✓", "green")
            is_done = num_passed == len(of_task)
            count = number_of(num_passed, "test") if is_done else f"{num_passed} of {len(of_task)} tests"
            self._console.print(Text.assemble("  ", (f"{sign} Task {task}", style),
                                              f" {self._titles.get(task or 0, '')}  {count}"))
            self._has_left_out |= not is_done
        self._has_failed |= fails
        self._has_to_do |= is_to_do

    def _print_heading(self, task: int | None) -> None:
        self._console.print(f"  [bold]Task {task}[/] {self._titles.get(task or 0, '')}")

    def _print_in_full(self, next_task: int | None = None, num_rows_below: int = 0) -> None:
        """Print the tasks that were kept, the next one last. If they must fit the screen, each is cut to its height."""
        for kept in sorted(self._in_full, key=lambda kept: kept.task == next_task):
            self._print_heading(kept.task)
            tests = self._shown_tests(kept)
            if self._fits_screen:
                height = self._console.height - num_rows_below - NUM_ROWS_BELOW - 1
                rest = f"… show everything: course test {self._lab.number} --task {kept.task}"
                self._print(cut(tests, height, self._console.width, rest))
            else:
                self._print(all_lines(tests))
        self._in_full = []

    def _shown_tests(self, kept: _InFull) -> list[ShownTest]:
        if kept.to_write is None:
            return [self._shown_test(test, verdict) for test, verdict in kept.of_task]
        line, *more = indented(self._console, f"still to do: Task {kept.task}: {kept.to_write}", "dim", indent=8)
        tests = [ShownTest(hanging(self._console, line_of(test, *mark_to_do(verdict)), indent=6), [], verdict.passed)
                 for test, verdict in kept.of_task]
        return [*tests, ShownTest(line, more, passed=False)]

    def _shown_test(self, test: GradedTest, verdict: Verdict) -> ShownTest:
        is_repeated = not verdict.passed and verdict.message in self._said
        note = self._as_before(verdict.message) if is_repeated else ""
        line = hanging(self._console, line_of(test, *mark(verdict), note), indent=6)
        told: list[Text] = []
        if not verdict.passed and not is_repeated:
            self._said[verdict.message] = test.sentence
            self._last_said = verdict.message
            to_do = is_stub(verdict.error, verdict.message)
            message = f"{'still to do: ' if to_do else ''}{verdict.message}"
            told = indented(self._console, message, "dim" if to_do else "", indent=8)
        told += indented(self._console, verdict.printed, "dim", 8, "printed: ")
        return ShownTest(line, told, verdict.passed)

    def _print(self, lines: list[Text]) -> None:
        for line in lines:
            self._console.print(line)

    def _as_before(self, message: str) -> str:
        """Return a short text in place of a repeated message: it names the earlier test unless that is the last."""
        return "  (same)" if message == self._last_said else f"  (as: {self._said[message]})"

    def end(self, row: LabProgress) -> None:
        self._end_task()
        if row.state is State.NOT_STARTED:
            self._print_not_started()
            return
        if row.broken is not None:
            self._print_broken(row.broken)
            self._console.print()
            return
        lab = self._lab
        detour = indented(self._console, row.detour or "", indent=2)
        self._print_in_full(row.next_task, num_rows_below=5 + num_rows(detour, self._console.width))
        self._console.print()
        print_side_by_side(self._console, [
            f"  {row.num_passed} of {len(row.tests)} tests, {row.points} of {row.max_points} points",
            bar(row.points, row.max_points)], gap="  ")
        if row.state is State.PASSED:
            compare = f"  [green]Passed.[/] Compare with `course solution {lab.number}`."
            run = (f"See it: course run --lab {lab.number}" if lab.see else "See it decode: course run" if lab.parts
                   else self._score() if lab.score else "")
            print_side_by_side(self._console, [compare, run], gap=" ")
        else:
            self._print(detour)
            nudge = f"  Next: task {row.next_task}. A nudge: course hint {lab.number}"
            every = f"Every test: course test {lab.number} --all" if self._has_left_out else ""
            print_side_by_side(self._console, [nudge, every])
        self._console.print()

    def _score(self) -> str:
        """Return the score that a test kept, and the command that puts it on the board."""
        scores = [verdict.score for verdict in self._shown.values() if verdict.score is not None]
        settings = self._lab.score
        shown = settings.text(scores[0]) if settings is not None and scores else ""
        return f"Your score: {f'{shown}. Keep it: ' if shown else ''}course board {self._lab.number}"

    def _print_not_started(self) -> None:
        lab = self._lab
        if lab.starter.is_file() and is_bare(lab):
            self._console.print("  Not started: starter.py is bare. The invariants are at its top.\n")
            return
        reason = "is as shipped" if lab.starter.is_file() else "is missing"
        print_side_by_side(self._console, [f"  Not started: starter.py {reason}.",
                                           escape(f"Begin with {lab.relative(lab.readme)}.")], gap=" ")
        self._console.print()

    def _print_broken(self, verdict: Verdict) -> None:
        self._print(indented(self._console, verdict.message, "red", indent=8))
        self._print(indented(self._console, verdict.printed, "dim", 8, "printed: "))

    def end_of_task(self) -> bool:
        """End a run of one task's tests, and return whether they all pass."""
        self._end_task()
        verdicts = self._shown.values()
        broken = next((verdict for verdict in verdicts if verdict.concerns_the_whole_file), None)
        if broken is not None:
            self._print(indented(self._console, broken.message, "red", indent=8))
        num_passed = sum(verdict.passed for verdict in verdicts)
        self._console.print(f"\n  {num_passed} of {len(self._tests)} tests of this task. "
                            f"The whole lab: course test {self._lab.number}\n")
        return num_passed == len(self._tests)

    def end_early(self) -> None:
        """End after Ctrl-C: print how many tests ran and passed."""
        self._end_task()
        self._print_in_full()
        verdicts = self._shown.values()
        self._console.print(f"\n  Stopped after {len(verdicts)} of {len(self._tests)} tests; "
                            f"{sum(verdict.passed for verdict in verdicts)} of these pass.\n")

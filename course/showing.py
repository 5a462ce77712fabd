"""What the ``course`` command prints about a lab's tests: the task to work on in full, the others in a line each."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from course.bare import is_bare
from course.failures import NOT_RUN, is_stub, stub_task
from course.graded import GradedTest
from course.hints import task_titles
from course.labs import Lab
from course.progress import LabProgress, State
from course.starters import unbegun_tasks
from course.verdicts import Verdict

BAR_WIDTH = 20
TO_DO = ("·", "dim")


class VerdictLines:
    """The lines of one test run. ``show`` each test as its verdict arrives, in the order of the tasks; then ``end``.

    One wrong line may fail a dozen tests. So the first task with a failure is shown in full when its tests are over, as
    is the first that is still to do if nothing has failed before it; every other task is a line, unless ``is_full``. Of
    a task that was not begun, only what there is to write is told: why its tests fail would be no news.
    """

    def __init__(self, console: Console, lab: Lab, tests: list[GradedTest], is_full: bool = False) -> None:
        self._console = console
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
        console.print(f"[bold]Lab {lab.number}  {lab.title}[/]   {lab.relative(lab.starter)}")

    def show(self, name: str, verdict: Verdict) -> None:
        self._shown[name] = verdict
        if verdict.concerns_the_whole_file:  # it is told once, at the end
            return
        test = self._tests[name]
        if self._is_full and not self._of_task:
            self._print_heading(test.task)
        self._of_task.append((test, verdict))
        if self._is_full:
            self._print_test(test, verdict)
        if len(self._of_task) == sum(other.task == test.task for other in self._tests.values()):
            self._end_task()

    def _end_task(self) -> None:
        """All verdicts of a task are there: show it in full, or in a line."""
        of_task, self._of_task = self._of_task, []
        if self._is_full or not of_task:
            return
        task = of_task[0][0].task
        verdicts = [verdict for _, verdict in of_task]
        num_passed = sum(verdict.passed for verdict in verdicts)
        to_write = self._unbegun.get(task or 0) if num_passed < len(of_task) else None
        fails = to_write is None and any(_is_failure(verdict) for verdict in verdicts)
        is_to_do = not fails and num_passed < len(of_task)
        if (fails and not self._has_failed) or (is_to_do and not self._has_failed and not self._has_to_do):
            self._print_heading(task)
            for test, verdict in of_task:
                if to_write is None:
                    self._print_test(test, verdict)
                else:
                    self._print_line(test, *(_mark(verdict) if verdict.passed else TO_DO))
            self._print_indented(to_write or "", "dim", first="still to do: ")
        else:
            is_to_do |= any(stub_task(verdict.error, verdict.message) == task for verdict in verdicts)
            mark, style = TO_DO if is_to_do else ("✗", "red") if fails else ("✓", "green")
            is_done = num_passed == len(of_task)
            count = _number(num_passed, "test") if is_done else f"{num_passed} of {len(of_task)} tests"
            self._console.print(Text.assemble("  ", (f"{mark} Task {task}", style),
                                              f" {self._titles.get(task or 0, '')}  {count}"))
            self._has_left_out |= not is_done
        self._has_failed |= fails
        self._has_to_do |= is_to_do

    def _print_heading(self, task: int | None) -> None:
        self._console.print(f"  [bold]Task {task}[/] {self._titles.get(task or 0, '')}")

    def _print_line(self, test: GradedTest, mark: str, style: str, note: str = "") -> None:
        self._console.print(Text.assemble("    ", (f"{mark} {test.sentence}", style), f"  {points(test.points or 0)}",
                                          (note, "dim")))

    def _print_test(self, test: GradedTest, verdict: Verdict) -> None:
        is_repeated = not verdict.passed and verdict.message in self._said
        self._print_line(test, *_mark(verdict), self._as_before(verdict.message) if is_repeated else "")
        if not verdict.passed and not is_repeated:
            self._said[verdict.message] = test.sentence
            self._last_said = verdict.message
            to_do = is_stub(verdict.error, verdict.message)
            self._print_indented(verdict.message, "dim" if to_do else "", first="still to do: " if to_do else "")
        self._print_indented(verdict.printed, "dim", each="printed: ")

    def _as_before(self, message: str) -> str:
        """What stands in the place of a message that was told already: which one, if it is not the last above."""
        return "  (same)" if message == self._last_said else f"  (as: {self._said[message]})"

    def end(self, row: LabProgress) -> None:
        self._end_task()
        lab = self._lab
        if row.state is State.NOT_STARTED:
            if lab.starter.is_file() and is_bare(lab):
                self._console.print("  Not started: starter.py is bare. Its head has the invariants.\n")
                return
            reason = "is as shipped" if lab.starter.is_file() else "is missing"
            self._console.print(f"  Not started: starter.py {reason}. Begin with {lab.relative(lab.readme)}.\n")
            return
        broken = row.broken
        if broken is not None:
            self._print_indented(broken.message, "red")
            self._print_indented(broken.printed, "dim", each="printed: ")
            self._console.print()
            return
        self._console.print(f"\n  {row.num_passed} of {len(row.tests)} tests, {row.points} of {row.max_points} points  "
                            f"{bar(row.points, row.max_points)}")
        if row.state is State.PASSED:
            run = " See it decode: course run" if lab.parts else " Your score: course board" if lab.score else ""
            self._console.print(f"  [green]Passed.[/] Compare with `course solution {lab.number}`.{run}\n")
            return
        if row.detour:
            self._console.print(Text(f"  {row.detour}"))
        every = f"   Every test: course test {lab.number} --all" if self._has_left_out else ""
        self._console.print(f"  Next: task {row.next_task}. A nudge: course hint {lab.number}{every}\n")

    def end_of_task(self) -> bool:
        """End a run of one task's tests. Whether they pass."""
        self._end_task()
        verdicts = self._shown.values()
        broken = next((verdict for verdict in verdicts if verdict.concerns_the_whole_file), None)
        if broken is not None:
            self._print_indented(broken.message, "red")
        num_passed = sum(verdict.passed for verdict in verdicts)
        self._console.print(f"\n  {num_passed} of {len(self._tests)} tests of this task. "
                            f"The whole lab: course test {self._lab.number}\n")
        return num_passed == len(self._tests)

    def end_early(self) -> None:
        """Ctrl-C: say how far it got."""
        self._end_task()
        verdicts = self._shown.values()
        self._console.print(f"\n  Stopped after {len(verdicts)} of {len(self._tests)} tests; "
                            f"{sum(verdict.passed for verdict in verdicts)} of these pass.\n")

    def _print_indented(self, text: str, style: str, first: str = "", each: str = "") -> None:
        if text:
            lines = (first + text).splitlines()
            self._console.print(Text("\n".join(f"        {each}{line}" for line in lines), style=style))


def _is_failure(verdict: Verdict) -> bool:
    return not verdict.passed and verdict.error != NOT_RUN and not is_stub(verdict.error, verdict.message)


def _mark(verdict: Verdict) -> tuple[str, str]:
    if verdict.passed:
        return "✓", "green"
    if verdict.error == NOT_RUN:
        return "–", "dim"
    return TO_DO if is_stub(verdict.error, verdict.message) else ("✗", "red")


def _number(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def points(number: int) -> str:
    return _number(number, "point")


def state_text(row: LabProgress) -> str:
    return f"in progress {row.num_passed}/{len(row.tests)}" if row.state is State.IN_PROGRESS else row.state.value


def bar(points: int, max_points: int) -> str:
    filled = BAR_WIDTH * points // max(max_points, 1)
    return "█" * filled + "░" * (BAR_WIDTH - filled)

"""What the ``course`` command prints about a lab's tests: a line each, as soon as its verdict arrives."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from course.failures import NOT_RUN, is_stub
from course.graded import GradedTest
from course.hints import task_titles
from course.labs import Lab
from course.progress import LabProgress, State
from course.verdicts import Verdict

BAR_WIDTH = 20


class VerdictLines:
    """The lines of one test run. ``show`` each test as its verdict arrives, in the order of the tasks; then ``end``."""

    def __init__(self, console: Console, lab: Lab, tests: list[GradedTest]) -> None:
        self._console = console
        self._lab = lab
        self._tests = {test.name: test for test in tests}
        self._titles = task_titles(lab.hints.read_text(encoding="utf-8")) if lab.hints.is_file() else {}
        self._shown: dict[str, Verdict] = {}
        self._task: int | None = None
        self._said: dict[str, str] = {}
        self._last_said = ""
        console.print(f"[bold]Lab {lab.number}  {lab.title}[/]   {lab.relative(lab.starter)}")

    def show(self, name: str, verdict: Verdict) -> None:
        self._shown[name] = verdict
        if verdict.concerns_the_whole_file:  # it is told once, at the end
            return
        test = self._tests[name]
        if test.task != self._task:
            self._task = test.task
            self._console.print(f"  [bold]Task {test.task}[/] {self._titles.get(test.task or 0, '')}")
        is_repeated = not verdict.passed and verdict.message in self._said
        mark, style = _mark(verdict)
        self._console.print(Text.assemble("    ", (f"{mark} {test.sentence}", style), f"  {points(test.points or 0)}",
                                          (self._as_before(verdict.message) if is_repeated else "", "dim")))
        if not verdict.passed and not is_repeated:
            self._said[verdict.message] = test.sentence
            self._last_said = verdict.message
        if not verdict.passed and not is_repeated:
            to_do = is_stub(verdict.error, verdict.message)
            self._print_indented(verdict.message, "dim" if to_do else "", first="still to do: " if to_do else "")
        self._print_indented(verdict.printed, "dim", each="printed: ")

    def _as_before(self, message: str) -> str:
        """What stands in the place of a message that was told already: which one, if it is not the last above."""
        return "  (same)" if message == self._last_said else f"  (as: {self._said[message]})"

    def end(self, row: LabProgress) -> None:
        lab = self._lab
        if row.state is State.NOT_STARTED:
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
            run = " See it decode: course run" if lab.parts else ""
            self._console.print(f"  [green]Passed.[/] Compare with `course solution {lab.number}`.{run}\n")
        else:
            if row.detour:
                self._console.print(Text(f"  {row.detour}"))
            self._console.print(f"  Next: task {row.next_task}. A nudge: course hint {lab.number}\n")

    def end_early(self) -> None:
        """Ctrl-C: say how far it got."""
        verdicts = self._shown.values()
        self._console.print(f"\n  Stopped after {len(verdicts)} of {len(self._tests)} tests; "
                            f"{sum(verdict.passed for verdict in verdicts)} of these pass.\n")

    def _print_indented(self, text: str, style: str, first: str = "", each: str = "") -> None:
        if text:
            lines = (first + text).splitlines()
            self._console.print(Text("\n".join(f"        {each}{line}" for line in lines), style=style))


def _mark(verdict: Verdict) -> tuple[str, str]:
    if verdict.passed:
        return "✓", "green"
    if verdict.error == NOT_RUN:
        return "–", "dim"
    return ("·", "dim") if is_stub(verdict.error, verdict.message) else ("✗", "red")


def points(number: int) -> str:
    return f"{number} point{'' if number == 1 else 's'}"


def state_text(row: LabProgress) -> str:
    return f"in progress {row.num_passed}/{len(row.tests)}" if row.state is State.IN_PROGRESS else row.state.value


def bar(points: int, max_points: int) -> str:
    filled = BAR_WIDTH * points // max(max_points, 1)
    return "█" * filled + "░" * (BAR_WIDTH - filled)

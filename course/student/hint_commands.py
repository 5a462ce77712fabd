"""Help for a student: hints, answers, the solution, and a fresh start."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from course.core.terminal_text import print_wrapped
from course.lab.answers import parse_answers, questions_of
from course.lab.bare_starter import bare_starter, is_as_shipped
from course.lab.hints import LEVELS, parse_hints, task_titles
from course.lab.lab import Lab, LabError
from course.lab.starters import clean_solution, shipped_starter
from course.student.progress import Progress, State
from course.student.symbols import state_text


class Help:
    """The help commands, each for one lab. They return the exit status of the process."""

    def __init__(self, progress: Progress, console: Console) -> None:
        self.progress, self.console = progress, console

    def hint(self, lab: Lab, level: int, task: int | None) -> int:
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
                self.console.print(f"Lab {lab} passes; there is nothing left to do. (--task N shows a hint anyway.)")
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

    def solution(self, lab: Lab, spoil: bool) -> int:
        row = self.progress.of(lab)
        if not spoil and row.state is not State.PASSED:
            raise LabError(f"Lab {lab} is {state_text(row)}; its solution is shown once it passes, or with --spoil. "
                           f"Try a hint first: course hint {lab.number} --level 3")
        print(clean_solution(lab.solution.read_text(encoding="utf-8")), end="")
        return 0

    def answer(self, lab: Lab, question: str | None) -> int:
        questions = {each.name: each.text for each in questions_of(lab.readme.read_text(encoding="utf-8"))}
        if not lab.answers.is_file() or not questions:
            raise LabError(f"Lab {lab} has no questions with answers.")
        if question is None:
            self.console.print(f"[bold]Lab {lab.number}[/]: think first, then ask.\n")
            for each, text in questions.items():
                print_wrapped(self.console, text)
                self.console.print(f"  [dim]course answer {lab.number} {each}[/]\n")
            return 0
        if question not in questions:
            raise LabError(f"Lab {lab} has no question {question!r}; its questions are {', '.join(questions)}.")
        print_wrapped(self.console, questions[question], style="bold")
        self.console.print()
        self._print_markdown(parse_answers(lab.answers.read_text(encoding="utf-8"))[question])
        return 0

    def reset(self, lab: Lab, is_bare: bool = False) -> int:
        shipped = bare_starter(lab) if is_bare else shipped_starter(lab)
        how = "bare" if is_bare else "as shipped"
        if lab.starter.is_file() and lab.starter.read_text(encoding="utf-8", errors="replace") == shipped:
            self.console.print(f"{lab.relative(lab.starter)} is {how} already; nothing to reset.")
            return 0
        if lab.starter.is_file() and not is_as_shipped(lab):
            name = f"{lab.number}-{time.strftime('%Y-%m-%d-%H%M%S')}.py"
            backup = _free_name(lab.root / ".course" / "backups" / name)
            backup.parent.mkdir(parents=True, exist_ok=True)
            backup.write_bytes(lab.starter.read_bytes())
            self.console.print(f"Your work is kept in {lab.relative(backup)}")
        lab.starter.write_text(shipped, encoding="utf-8")
        self.console.print(f"{lab.relative(lab.starter)} is {how if is_bare else 'as shipped again'}.")
        if is_bare:
            self.console.print(f"It contains signatures, errors and invariants. The rest is up to you.\n"
                               f"  check  course test {lab.number}\n"
                               f"  for the full contracts: course reset {lab.number}")
        return 0

    def _print_markdown(self, text: str) -> None:
        if self.console.is_terminal:
            from rich.markdown import Markdown  # imported late: it takes a quarter of the import time
            self.console.print(Markdown(text), soft_wrap=False)
        else:  # in a pipe rich would cut the lines of lists and code at the width of a terminal
            self.console.print(Text(text), soft_wrap=True)


def _free_name(path: Path) -> Path:
    candidate, count = path, 1
    while candidate.exists():
        count += 1
        candidate = path.with_stem(f"{path.stem}-{count}")
    return candidate

"""The ``course`` commands for authors of labs: proof that all labs are in order, and new starters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from course.authoring.check_in_engine import Reference, check_alone, check_together
from course.authoring.check_lab import broken_links, check_lab
from course.lab.lab import Lab
from course.lab.starters import shipped_starter
from course.pytest_run.listeners import OnPoll
from course.pytest_run.parallel import num_cores, side_by_side

Check = Callable[[OnPoll], tuple[list[str], str]]


def check_labs(root: Path, labs: Sequence[Lab], all_labs: Sequence[Lab], console: Console) -> int:
    """Check each of ``labs`` alone, then its piece in the engine, and, if these are all labs, all pieces together.

    As many checks run at once as there are cores; one line is shown per check, in order. Return the number of problems.
    """
    checks: dict[str, Check] = {str(lab): partial(check_lab, lab) for lab in labs}
    joining = [lab for lab in labs if lab.parts]
    if joining:
        reference = Reference(root)
        checks["reference"] = reference.decode
        checks |= {f"{lab} in the engine": partial(check_alone, lab, all_labs, reference) for lab in joining}
        if len(labs) == len(all_labs):
            checks["all in the engine"] = partial(check_together, root, all_labs, reference)
    num_problems = 0
    for name, (problems, proved) in zip(checks, side_by_side(list(checks.values()), num_cores())):
        _show(console, name, problems, proved)
        num_problems += len(problems)
    return num_problems


def check_surfaces(labs: Sequence[Lab], console: Console) -> int:
    """Print what each lab's file may use on the grader's side, and call all of it. Return the number of problems."""
    from course.authoring.check_surface import call_everything, lines_of
    listed = [lab for lab in labs if lab.surface]
    calls = side_by_side([partial(call_everything, lab) for lab in listed], num_cores())
    num_problems = 0
    for lab, (problems, num_calls) in zip(listed, calls):
        _show(console, str(lab), problems, f"{num_calls} calls open, execute, import and reach nothing, and end")
        for line in lines_of(lab):
            console.print(Text(f"    {line}", style="dim"))
        num_problems += len(problems)
    return num_problems


def check_pages(root: Path, console: Console) -> int:
    """Check the links of the pages that belong to no lab. Return the number of problems."""
    pages = sorted(root.glob("*.md")) + sorted(root.glob("phase-*/README.md"))
    problems = [problem for page in pages for problem in broken_links(page, root)]
    _show(console, "pages", problems, f"the links of {len(pages)} pages resolve")
    return len(problems)


def sync_starters(labs: Sequence[Lab], console: Console) -> None:
    """Write every ``starter.py`` again from its ``solution.py``. A file that would not change is left alone."""
    for lab in labs:
        shipped = shipped_starter(lab)
        old = lab.starter.read_text(encoding="utf-8") if lab.starter.is_file() else None
        if old != shipped:
            lab.starter.write_text(shipped, encoding="utf-8")
        console.print(f"{lab.relative(lab.starter)}: {'up to date' if old == shipped else 'written'}")


def _show(console: Console, name: str, problems: list[str], proved: str) -> None:
    console.print(Text.assemble((f"{'✗' if problems else '✓'} {name}", "red" if problems else "green"),
                                "" if problems else f"  {proved}"))
    for problem in problems:
        console.print(Text("    " + problem.replace("\n", "\n      ")))

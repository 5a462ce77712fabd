"""The titles of labs and their tasks, and how open labs are scored, if the course is available."""

from __future__ import annotations

from dataclasses import dataclass, field

from course.lab.hints import task_titles
from course.lab.lab import LabError, discover
from course.lab.score import ScoreSettings


@dataclass(frozen=True)
class Titles:
    labs: dict[str, str] = field(default_factory=dict)
    #: Lab → task → title.
    tasks: dict[str, dict[int, str]] = field(default_factory=dict)
    #: Open lab → how it is scored.
    scores: dict[str, ScoreSettings] = field(default_factory=dict)

    def lab(self, number: str) -> str:
        title = self.labs.get(number)
        return f"Lab {number}: {title}" if title else f"Lab {number}"

    def task(self, number: str, task: int | None) -> str:
        if task is None:
            return "Other tests"
        title = self.tasks.get(number, {}).get(task)
        return f"Task {task}: {title}" if title else f"Task {task}"


def course_titles() -> Titles:
    """Read the titles from the labs' folders. Without a course, there are only numbers."""
    titles = Titles()
    try:
        for lab in discover():
            titles.labs[lab.number] = lab.title
            if lab.score is not None:
                titles.scores[lab.number] = lab.score
            if lab.hints.is_file():
                titles.tasks[lab.number] = task_titles(lab.hints.read_text(encoding="utf-8"))
    except (LabError, OSError):
        pass
    return titles

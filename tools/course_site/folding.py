"""What a student should not see before asking: hints and answers, folded on the lab's page."""

from __future__ import annotations

from course.lab.answers import INTERVIEW, parse_answers, questions_of
from course.lab.hints import parse_hints, task_titles

#: What a hint of each level contains, in the README's words for ``course hint``.
LEVELS = {1: "a nudge", 2: "the idea", 3: "nearly the code"}


def folded(summary: str, text: str, kind: str) -> str:
    """Fold ``text`` under a line that opens it. ``text`` may be Markdown, but without headings."""
    return f'<details class="{kind}">\n<summary>{summary}</summary>\n\n{text.strip()}\n\n</details>\n'


def hints_section(hints: str) -> str:
    """Convert a lab's hints.md to a section of its page: three folded levels for every task."""
    titles = task_titles(hints)
    parts = ["## Hints", "There are three hints per task. Try again after each one before you open the next."]
    for task, levels in parse_hints(hints).items():
        parts.append(f"### Task {task}: {titles[task]}")
        parts += [folded(f"Hint {level}: {LEVELS[level]}", hint, "hint") for level, hint in sorted(levels.items())]
    return "\n\n".join(parts) + "\n"


def answers_section(readme: str, answers: str) -> str:
    """Convert a lab's answers.md to a section of its page: every open question again, with a folded answer."""
    found = parse_answers(answers)
    parts = ["## Answers", "Answers to the questions that this page leaves open. Think first."]
    for question in questions_of(readme):
        name = "The interview question" if question.name == INTERVIEW else f"Stretch {question.name}"
        parts.append(f"**{name}.** {question.text}")
        parts.append(folded("Answer", found[question.name], "answer"))
    return "\n\n".join(parts) + "\n"

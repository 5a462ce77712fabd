"""answers.md: answers to the stretch items and the interview question, hidden until the student asks for them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SECTION = r"^## {name}\b[^\n]*\n(.*?)(?=^## |\Z)"
INTERVIEW = "interview"


@dataclass(frozen=True)
class Question:
    #: The name to ask by: ``1``, ``2``, … for the stretch items, ``interview``.
    name: str
    text: str


def questions_of(readme: str) -> list[Question]:
    """Return the questions that a lab's page leaves open."""
    stretch = re.search(_SECTION.format(name="Stretch"), readme, flags=re.M | re.S)
    items = re.findall(r"^- (.*?)(?=^- |^\S|\Z)", stretch[1], flags=re.M | re.S) if stretch else []
    questions = [Question(str(number), _flowing(item)) for number, item in enumerate(items, start=1)]
    interview = re.search(_SECTION.format(name="The interview question"), readme, flags=re.M | re.S)
    if interview:
        quoted = [line[1:].strip() for line in interview[1].splitlines() if line.startswith(">")]
        questions.append(Question(INTERVIEW, " ".join(quoted)))
    return questions


def is_question(name: str) -> bool:
    """Check whether ``name`` can name a question: ``2`` or ``interview``, but not ``2.1``."""
    return re.fullmatch(rf"\d+|{INTERVIEW}", name) is not None


def parse_answers(text: str) -> dict[str, str]:
    """Return question name → answer. The headings are ``## Stretch 1`` and ``## Interview``."""
    pieces = re.split(r"^## (?:Stretch (\d+)|(Interview))\b[^\n]*\n", text, flags=re.M)
    return {(number or INTERVIEW): answer.strip()
            for number, answer in zip(pieces[1::3], pieces[3::3])}


def _flowing(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()

"""Guesses for an instructor: which lab a text probably belongs to, and which student a name probably means.

Students' texts are searched by lines, up to a limit, and neither parsed nor run. A starter and its solution are similar
as texts, and so are labs that extend the same class. So the names that a text declares count first, then its lines.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property, lru_cache

from course.grading.intake.roster import Student
from course.lab.bare_starter import bare_starter
from course.lab.lab import Lab
from course.lab.starters import clean_solution, declarations, shipped_starter

#: Text beyond this length is not read.
MAX_CHARACTERS = 200_000
#: Shorter lines occur in every program.
MIN_LINE = 16
#: The share of a starter's names, or of its lines, that a text must contain to be considered this lab's.
MIN_NAMES, MIN_LINES = 0.5, 0.4
#: By how much the best guess must beat the next, in names and lines together; each contributes up to 1.
MARGIN = 0.25
#: How similar two names must be, and by how much the best must beat the next.
MIN_ALIKE, MARGIN_ALIKE = 0.8, 0.03
_DECLARATION = re.compile(r"^([ \t]*)(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.MULTILINE)
_MAX_SCOPES = 3


@dataclass(frozen=True)
class Guess:
    """The labs to which a text may belong: none, one, or one of several."""

    labs: tuple[Lab, ...] = ()
    #: The reason, as a sentence.
    why: str = "It fits no lab."

    @property
    def lab(self) -> Lab | None:
        return self.labs[0] if len(self.labs) == 1 else None


class Starter:
    """The starter of a lab, as it was given out."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._text = shipped_starter(lab)
        self.names = frozenset(name for name in declarations(self._text) if not name.endswith(".__init__"))
        self.lines = lines_of(self._text)

    @cached_property
    def _given_out(self) -> frozenset[str]:
        return frozenset(text.strip() for text in (self._text, bare_starter(self.lab)))

    @cached_property
    def _solved(self) -> frozenset[str]:
        solution = self.lab.solution.read_text(encoding="utf-8")
        return frozenset(text.strip() for text in (solution, clean_solution(solution)))

    def is_as_given_out(self, text: str) -> bool:
        return text.strip() in self._given_out

    def is_the_solution(self, text: str) -> bool:
        return text.strip() in self._solved


@lru_cache(maxsize=64)
def starter_of(lab: Lab) -> Starter:
    """Return the lab's starter, which is created only once per lab because it is compared with many texts."""
    return Starter(lab)


class Starters:
    """The starters of all labs, each read when it is first needed."""

    def __init__(self, labs: Sequence[Lab]) -> None:
        self.labs = labs

    def of(self, lab: Lab) -> Starter:
        return starter_of(lab)

    def guess(self, content: bytes) -> Guess:
        """Guess which lab a text belongs to."""
        text = readable(content)
        names, lines = names_in(text), lines_of(text)
        fits = []
        for lab in self.labs:
            starter = self.of(lab)
            of_names = len(names & starter.names) / len(starter.names) if starter.names else 0.0
            of_lines = len(lines & starter.lines) / len(starter.lines) if starter.lines else 0.0
            if of_names >= MIN_NAMES or of_lines >= MIN_LINES:
                fits.append((of_names + of_lines, len(names & starter.names), lab))
        if not fits:
            return Guess()
        best, num_names, lab = max(fits, key=lambda fit: fit[0])
        near = tuple(other for score, _, other in fits if best - score < MARGIN)
        if len(near) > 1:
            return Guess(near, f"It fits the labs {', '.join(one.number for one in near)}.")
        wanted = len(self.of(lab).names)
        return Guess((lab,), f"It looks like lab {lab.number}: it declares {num_names} of the {wanted} public names in "
                             "that lab's starter.")

    def fits(self, content: bytes, lab: Lab) -> bool:
        """Return whether a text declares any name of the lab's starter."""
        return bool(names_in(readable(content)) & self.of(lab).names)


def readable(content: bytes) -> str:
    text = content[:4 * MAX_CHARACTERS].decode("utf-8", errors="replace")[:MAX_CHARACTERS]
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def names_in(text: str) -> frozenset[str]:
    """Return the declared classes and functions, as ``BlockPool.touch``: found line by line, by their indentation."""
    scopes: list[tuple[int, str]] = []
    names = set()
    for match in _DECLARATION.finditer(text):
        width = len(match[1].expandtabs())
        while scopes and scopes[-1][0] >= width:
            scopes.pop()
        scopes.append((width, match[2]))
        if len(scopes) <= _MAX_SCOPES:
            names.add(".".join(name for _, name in scopes))
    return frozenset(names)


def lines_of(text: str) -> frozenset[str]:
    return frozenset(line for line in map(str.strip, text.split("\n")) if len(line) >= MIN_LINE)


def likely_student(name: str, students: Iterable[Student], without: Collection[str]) -> str:
    """Return the only student whose id, name or address is in ``name`` or resembles it, or "". Among equal
    candidates, a student in ``without``, who handed in nothing else, is preferred."""
    words = _words(name)
    wanted = "".join(words)
    scores = []
    for student in students:
        score = max((_alike(key, words, wanted) for key in _keys(student)), default=0.0)
        if score >= MIN_ALIKE:
            scores.append((score + (2 * MARGIN_ALIKE if student.id in without else 0.0), student.id))
    scores.sort(reverse=True)
    is_clear = len(scores) == 1 or (len(scores) > 1 and scores[0][0] - scores[1][0] >= MARGIN_ALIKE)
    return scores[0][1] if is_clear else ""


def _keys(student: Student) -> Iterable[str]:
    of_name = _words(student.name)
    turned = ["".join(of_name[turn:] + of_name[:turn]) for turn in range(min(len(of_name), 3))]
    return filter(None, ["".join(_words(student.id)), "".join(_words(student.email.partition("@")[0])), *turned])


def _alike(key: str, words: Sequence[str], wanted: str) -> float:
    if len(key) > 2 and key in words:
        return 1.0
    matcher = SequenceMatcher(None, key, wanted, autojunk=False)
    is_near = matcher.real_quick_ratio() >= MIN_ALIKE and matcher.quick_ratio() >= MIN_ALIKE
    return matcher.ratio() if is_near else 0.0


def _words(text: str) -> list[str]:
    """Split text into words, in lower case and without accents."""
    plain = "".join(letter for letter in unicodedata.normalize("NFKD", text[:200]) if not unicodedata.combining(letter))
    return re.findall(r"[^\W_]+", plain.casefold())

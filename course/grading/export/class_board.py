"""The board of a class for an open lab, as a table to publish: as text, as Markdown or as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course.grading.export import markdown
from course.grading.export.escape import csv_table, one_line
from course.grading.export.page import Heading, Page, Paragraph, Table
from course.lab.score import ScoreSettings

TITLE = "The scores of the class"


@dataclass(frozen=True)
class Row:
    """A line of the board. Known solutions, such as the reference, have no rank."""

    rank: int | None
    who: str
    score: float


@dataclass(frozen=True)
class ClassBoard:
    """The board of one lab."""

    lab: str
    title: str
    settings: ScoreSettings
    rows: tuple[Row, ...]
    #: The number of students without a score.
    num_without: int

    @property
    def heading(self) -> str:
        return f"Lab {self.lab}: {self.title}"

    @property
    def remark(self) -> str:
        num_listed = sum(row.rank is not None for row in self.rows)
        return (f"{_students(num_listed)} with a score, {self.num_without} without. "
                f"Scale: {self.settings.meaning}.")


def make_board(lab: str, title: str, settings: ScoreSettings, scores: Sequence[tuple[str, float]],
               landmarks: Mapping[str, float], num_without: int) -> ClassBoard:
    """Rank the students' scores, and put the known solutions between them. Scores that read the same share a rank."""
    shown = [(one_line(who), round(score, settings.decimals)) for who, score in scores]
    rows = [Row(1 + sum(other > score for _, other in shown), who, score) for who, score in shown]
    rows += [Row(None, f"({one_line(name)})", round(score, settings.decimals)) for name, score in landmarks.items()]
    rows.sort(key=lambda row: (-row.score, row.rank is None, row.who))
    return ClassBoard(lab, title, settings, tuple(rows), num_without)


def as_text(boards: Sequence[ClassBoard]) -> str:
    return "\n".join(_text(board) for board in boards)


def _text(board: ClassBoard) -> str:
    scores = [board.settings.text(row.score) for row in board.rows]
    width = max(map(len, ["score", *scores]))
    lines = [board.heading, "", f"rank  {'score':>{width}}"]
    lines += [f"{'' if row.rank is None else row.rank:>4}  {score:>{width}}  {row.who}"
              for row, score in zip(board.rows, scores)]
    return "\n".join([*lines, "", board.remark, ""])


def as_markdown(boards: Sequence[ClassBoard]) -> str:
    page = Page(TITLE)
    for board in boards:
        rows = tuple((("" if row.rank is None else str(row.rank),), (row.who,), (board.settings.text(row.score),))
                     for row in board.rows)
        page.add(Heading(2, (board.heading,)), Table(("rank", "who", "score"), rows, frozenset({0, 2})),
                 Paragraph((board.remark,)))
    return markdown.render(page)


def as_csv(boards: Sequence[ClassBoard]) -> str:
    rows = [(board.lab, row.rank, row.who, row.score) for board in boards for row in board.rows]
    return csv_table([("lab", "rank", "who", "score"), *rows])


#: The ending of a file → how a board is written into it.
FORMATS = {".txt": as_text, ".md": as_markdown, ".csv": as_csv}


def _students(count: int) -> str:
    return f"{count} student{'' if count == 1 else 's'}"

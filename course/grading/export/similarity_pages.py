"""Similar bodies side by side, for an instructor to judge: ``similarity.md`` and ``similarity.html``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from course.grading.export import html, markdown, output_files
from course.grading.export.escape import clean, one_line
from course.grading.export.page import Beside, Block, Heading, Items, Page, Paragraph, Table, Verbatim
from course.grading.export.titles import Titles, course_titles
from course.grading.similarity.compare import Pair, Similarity

WHAT_IT_IS = ("Similarity is never scored, and it is no proof: students who learn together write similar code, and "
              "some bodies have only one good solution. The check compares the bodies that students write. It ignores "
              "local names, comments and formatting, and runs of eight tokens that most of the class have. The "
              "percentage is the part of the shorter body that is also in the other one.")


def write_similarity(out: Path, found: Sequence[Similarity]) -> None:
    page = similarity_page(found, course_titles())
    output_files.write(out / "similarity.md", markdown.render(page))
    output_files.write(out / "similarity.html", html.render(page, is_wide=True))


def similarity_page(found: Sequence[Similarity], titles: Titles) -> Page:
    page = Page("Similarity")
    page.add(Paragraph((WHAT_IT_IS,), "note"))
    for similarity in found:
        page.add(*_lab(similarity, titles))
    return page


def _lab(found: Similarity, titles: Titles) -> list[Block]:
    files = f"{found.num_compared} file{'' if found.num_compared == 1 else 's'} compared"
    groups = f" Left out: {found.num_in_groups} pair{'' if found.num_in_groups == 1 else 's'} within a group." \
        if found.num_in_groups else ""
    blocks: list[Block] = [Heading(2, (titles.lab(found.lab),))]
    if not found.pairs:
        blocks.append(Paragraph((f"{files}, with each other and with the reference: no two are very "
                                 f"similar.{groups}",)))
    else:
        num_more = found.num_alike - len(found.pairs)
        more = f" Only the most similar pairs are shown; {num_more} more are similar." if num_more else ""
        rows = tuple(((f"{100 * pair.ratio:.0f} %",), (one_line(pair.first),), (one_line(pair.second),)) for pair
                     in found.pairs)
        blocks += [Paragraph((f"{files}.{groups}{more}",)),
                   Table(("similarity", "one file", "other file"), rows, frozenset({0}))]
    for title, reasons in (("Bodies left out", found.left_out), ("Files not compared", found.not_compared)):
        if reasons:
            blocks += [Heading(3, (title,)), Items(tuple((f"{one_line(name)}: {one_line(reason)}",)
                                                         for name, reason in reasons.items()))]
    for pair in found.pairs:
        blocks += _pair(pair)
    return blocks


def _pair(pair: Pair) -> list[Block]:
    first, second = one_line(pair.first), one_line(pair.second)
    blocks: list[Block] = [Heading(3, (f"{first} and {second}: {100 * pair.ratio:.0f} %",))]
    for body in pair.bodies:
        blocks.append(Beside(Verbatim(clean(body.first_text), f"{first}: {body.name}, {100 * body.ratio:.0f} %"),
                             Verbatim(clean(body.second_text), f"{second}: {body.name}")))
    if not pair.bodies:
        blocks.append(Paragraph(("Parts are similar, but no whole body is.",)))
    return blocks

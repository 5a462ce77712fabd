"""The arguments of ``course grade``. No part of the grader is loaded for ``--help``."""

from __future__ import annotations

import argparse
from pathlib import Path

from course.core.failure_messages import DEFAULT_TIME_LIMIT_S

#: The values of ``--sandbox``.
SANDBOXES = ("auto", "require", "none")
EPILOG = """\
what may lie in SUBMISSIONS:
  ann/starter.py                      a folder a student, if one --lab is graded
  ann/2.1.py  ann/2.1/starter.py      files by the lab's number or name
  ann/phase-02-…/labs/…/starter.py    a whole course
  ann.zip  ann.tar.gz                 an archive of any of these
  ann_2.1.py  ann.py                  a single file
  smithjane_12345_67890_starter.py    as downloaded from Moodle, Canvas,
                                      Blackboard, Gradescope
SUBMISSIONS may also be one archive that holds all of them.

what lies in DIR afterwards:
  grades.csv, tables for platforms, a page a student, a report on the class
  unclear.json                        what is not graded because of its name
  results/ANN/2.1.json                each result
  results/ANN/history/                those that were replaced
  submitted/ANN/2.1.py                what was graded
  overrides.csv                       yours: student, lab, points, reason

The same command again grades only what is new, was changed, or gave no score.
If it is killed, at any moment, run it again: it resumes. DIR may serve several
labs, one call after the other. A DIR that is neither empty nor made by this
command is refused.

what is not clear stops nobody else:
A name that cannot be an id, a student who is not on the roster or handed in
twice, a file that is called otherwise but looks like a lab's: all are listed at
once, with the likely lab and student and a command that settles it. Nothing is
graded on a guess.

several machines: give each a part, --shard 1/3 … 3/3, and a DIR of its own or
one that they share. Bring all into one DIR (rsync -a dir1/ dir2/ dir3/ DIR/),
and call it there without --shard: nothing is graded twice.

exit status:
  0  all is graded
  1  something must be graded again or decided, or could not be written
  2  a mistake in the call, or nothing that can be graded; nothing was graded
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("submissions", type=Path, metavar="SUBMISSIONS", help="the folder or archive, see below")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results go, see below")
    parser.add_argument("--lab", action="append", default=[], metavar="2.1",
                        help="grade this lab; may be given several times; default: every lab of the course")
    whose = parser.add_argument_group("whose is what")
    whose.add_argument("--roster", type=Path, metavar="CSV", help="the class: columns id, name, and perhaps email and "
                       "section. Who handed in nothing has a row, too")
    whose.add_argument("--allow-unknown", action="store_true", help="keep submissions of students not on the roster")
    whose.add_argument("--pattern", metavar="REGEX", help="which part of a name is the student: (?P<student>…), and "
                       "perhaps (?P<file>…) and (?P<attempt>…)")
    whose.add_argument("--latest", action="store_true", help="of several tries whose names are numbered, take the last")
    which = parser.add_argument_group("which of them")
    which.add_argument("--only", action="append", default=[], metavar="STUDENT", help="may be given several times")
    which.add_argument("--regrade", action="append", default=[], metavar="STUDENT[:LAB]",
                       help="grade again what has a result; the old one is kept. May be given several times")
    which.add_argument("--shard", metavar="I/N", help="the I-th of N parts, see below")
    how = parser.add_argument_group("how")
    how.add_argument("--jobs", type=_positive, metavar="N", help="how many at a time; default: one for each core")
    how.add_argument("--sandbox", choices=SANDBOXES, default="auto", help="auto: the best that this machine has, which "
                     "may be none; require: stop if it has none; none: rather not")
    how.add_argument("--time-limit", type=_seconds, default=DEFAULT_TIME_LIMIT_S, metavar="SECONDS",
                     help="how long one test may compute, in CPU time; default: %(default)g, some labs have a multiple")
    how.add_argument("--hidden", type=Path, metavar="DIR", help="further tests, as 2.1/test_hidden.py; of these a "
                     "student sees the name only")
    how.add_argument("--overrides", type=Path, metavar="CSV", help="points that you give yourself, with the reason; "
                     "default: overrides.csv in DIR, if it is there")


def run(arguments: argparse.Namespace) -> int:
    """Grade according to the arguments."""
    from rich.console import Console

    from course.grading.class_run.command import ClassGrader, GradeOptions
    from course.grading.limits import Settings
    from course.lab.lab import find_root

    settings = Settings(arguments.sandbox, arguments.time_limit, arguments.hidden)
    labs = [name for names in arguments.lab for name in names.split(",") if name]
    wish = GradeOptions(arguments.submissions, arguments.out, settings, labs, arguments.only, arguments.regrade,
                arguments.roster, arguments.overrides, arguments.pattern, arguments.allow_unknown, arguments.latest,
                arguments.jobs, arguments.shard)
    return ClassGrader(wish, find_root(), Console(highlight=False, soft_wrap=True)).run()


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds, more than 0")
    return seconds

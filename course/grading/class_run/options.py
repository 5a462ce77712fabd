"""The arguments of ``course grade``. No part of the grader is loaded for ``--help``."""

from __future__ import annotations

import argparse
from pathlib import Path

from course.core.failure_messages import DEFAULT_TIME_LIMIT_S

#: The values of ``--sandbox``.
SANDBOXES = ("auto", "require", "none")
#: The values of ``--platform``.
PLATFORMS = ("folder", "moodle", "canvas", "gradescope")
EPILOG = """\
what SUBMISSIONS may contain:
  ann/2.1.py                          a folder per student, files named by lab
  ann/…/lab-01-…/starter.py           a lab's folder, or a whole course
  ann/starter.py                      with a single --lab
  ann.zip  ann.tar.gz                 an archive of any of these
With --platform it is an unpacked download from Moodle, Canvas or Gradescope.

what DIR contains afterwards:
  grades.csv, tables for platforms, a page per student, a report on the class
  unclear.json                        what was handed in and is not graded
  results/ANN/2.1.json                each result
  results/ANN/history/                results that were replaced
  submitted/ANN/2.1.py                the file that was graded
  results/ANN/attempts/  submitted/ANN/attempts/    the other attempts
  overrides.csv                       your own changes: student, lab, points, reason
  comments.csv                        your comments: student, lab, comment
  gradebook.toml                      your rules: points, deadlines, extensions, …

If you run the same command again, it grades only files that are new, have
changed, or got no score. It also resumes a run that was killed. You can grade
several labs into the same DIR, one after the other. DIR must be empty, or made
by this command.

what is not graded:
Nothing is guessed. A student who is not on the roster or handed in twice, and
every file that is not named like a lab's, is left out and listed with its path;
all other files are graded. The exit status is 1 until you rename or remove it,
or set the points in overrides.csv.

several attempts:
All are graded and kept, one per download. The tables show the newest.

what counts:
gradebook.toml gives points to tests and tasks, and sets deadlines, penalties,
extensions, extra credit, excused labs, attempts and groups. If you change it,
the next call computes all marks again and grades no file again. --preview shows
first whose marks would change, and writes nothing.

DIR remembers the roster and the gradebook of the last call, and overrides and
comments that an option named. A call that finds one of them neither in DIR nor
on the command line stops with exit status 2. To leave it out on purpose, give
none: --gradebook none.

several machines:
Give each machine a part, --shard 1/3 … 3/3. They may share one DIR. Otherwise
copy their results into one (rsync -a dir1/ dir2/ dir3/ DIR/). Then run the
command there without --shard: nothing is graded twice.

exit status:
  0  everything is graded
  1  something was left out, must be graded again, or could not be written
  2  nothing was graded: the command line is wrong, or no file can be graded
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("submissions", type=Path, metavar="SUBMISSIONS", help="the folder of what was handed in; "
                        "see below")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results; see below")
    parser.add_argument("--lab", action="append", default=[], metavar="2.1",
                        help="grade this lab; may be given several times; default: every lab of the course")
    whose = parser.add_argument_group("students")
    whose.add_argument("--roster", type=Path, metavar="CSV", help="the class list: columns id and name, perhaps "
                       "email, moodle and canvas; a student who handed in nothing also gets a row")
    whose.add_argument("--platform", choices=PLATFORMS, default=PLATFORMS[0], help="where SUBMISSIONS was downloaded, "
                       "which decides how names are read; default: a folder or an archive per student")
    whose.add_argument("--times", type=Path, action="append", default=[], metavar="CSV", help="when the submissions "
                       "were handed in: columns student, submitted and perhaps lab, or Moodle's grading worksheet; may "
                       "be given several times")
    which = parser.add_argument_group("what to grade")
    which.add_argument("--only", action="append", default=[], metavar="STUDENT",
                       help="grade only this student; may be given several times")
    which.add_argument("--regrade", action="append", default=[], metavar="STUDENT[:LAB]",
                       help="grade this student, or one lab of this student, again; the old result is kept; may be "
                            "given several times")
    which.add_argument("--shard", metavar="I/N", help="grade only the I-th of N parts of the class; see below")
    how = parser.add_argument_group("how")
    how.add_argument("--jobs", type=_positive, metavar="N", help="number of parallel jobs; default: one per core")
    how.add_argument("--sandbox", choices=SANDBOXES, default="auto", help="auto: the best sandbox that works on this "
                     "machine, or none; require: stop if none works; none: run without a sandbox")
    how.add_argument("--time-limit", type=_seconds, default=DEFAULT_TIME_LIMIT_S, metavar="SECONDS",
                     help="CPU time limit per test; default: %(default)g; some labs allow a multiple")
    how.add_argument("--hidden", type=Path, metavar="DIR", help="folder of additional tests, such as "
                     "2.1/test_hidden.py; students see only the names of these tests")
    how.add_argument("--similarity", action="store_true", help="afterwards, compare the submissions with each other "
                     "and with the solution, and write similarity.csv; needs pip install copydetect")
    counts = parser.add_argument_group("what counts")
    counts.add_argument("--overrides", type=Path, metavar="CSV", help="points that you set yourself, with the reason; "
                        "default: overrides.csv in DIR, if it exists")
    counts.add_argument("--gradebook", type=Path, metavar="TOML", help="your rules: points, deadlines, extensions; "
                        "default: gradebook.toml in DIR, if it exists")
    counts.add_argument("--comments", type=Path, metavar="CSV", help="your comments for students; default: "
                        "comments.csv in DIR, if it exists")
    counts.add_argument("--preview", action="store_true", help="show whose marks your rules, overrides and comments "
                        "would change since the last call; grade nothing and write nothing")


def run(arguments: argparse.Namespace) -> int:
    """Grade according to the arguments."""
    from rich.console import Console

    from course.grading.class_run.command import ClassGrader, GradeOptions
    from course.grading.limits import Settings
    from course.lab.lab import find_root

    settings = Settings(arguments.sandbox, arguments.time_limit, arguments.hidden)
    labs = [name for names in arguments.lab for name in names.split(",") if name]
    wish = GradeOptions(
        arguments.submissions, arguments.out, settings, labs, arguments.only, arguments.regrade, arguments.roster,
        arguments.overrides, arguments.platform, arguments.jobs, arguments.shard, arguments.times, arguments.comments,
        arguments.gradebook, arguments.preview, arguments.similarity)
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

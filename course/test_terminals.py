"""The ``course`` command in terminals of several kinds: narrow, low, or none at all."""

import io
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console
from rich.text import Text

from course.commands import Course
from course.core.failure_messages import shorten
from course.core.result import Verdict
from course.core.terminal_text import hanging, indented, num_rows, print_side_by_side, short_path, shortened
from course.lab.graded_tests import graded_tests
from course.lab.lab import LabError
from course.own_engine.requirements import check_machine, check_model
from course.pytest_run.test_run_lab import write_starter
from course.student.fit_screen import ShownTest, all_lines, cut
from course.student.report import VerdictLines
from course.student.run_command import RunOptions
from course.test_cli import ScriptedSaves, half_done
from mini_vllm.cli.messages import READER_GONE

pytestmark = pytest.mark.usefixtures("forked")


def console_of(width, height=24, is_terminal=True):
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=is_terminal, color_system=None,
                   highlight=False, soft_wrap=True)


def printed(console):
    """Return the text on the screen, without the sequences that move the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


# ---- narrow


@pytest.mark.parametrize("width, has_bar, title", [
    (120, True, "A rather long title of a lab"), (80, True, "A rather long title of a lab"),
    (60, False, "A rather long title of a lab"), (40, False, "A rather…"), (30, False, ""),
])
def test_status_keeps_number_state_and_points_at_every_width(project, lab1, lab2, width, has_bar, title):
    (lab1.folder / "lab.json").write_text('{"title": "A rather long title of a lab", "engine": null}')
    half_done(lab2)
    console = console_of(width)
    Course(project, console).status()
    lines = printed(console).splitlines()
    first, second = (next(line for line in lines if line.startswith(number)) for number in ("1.1", "1.2"))
    assert re.search(r"1\.1 .*not started +0/6", first) and re.search(r"1\.2 .*in progress 2/3 +3/6", second)
    assert ("░" in first) == has_bar and first[5:].startswith(title), first
    assert all(len(line) <= width for line in lines[1:]), lines


def test_a_title_is_cut_at_its_end():
    assert shortened("The KV cache", 12) == "The KV cache" and shortened("The KV cache", 8) == "The KV…"


def test_words_are_kept_whole_on_a_terminal_and_lines_in_a_pipe():
    text = "one two three four five six seven eight nine ten"
    lines = [line.plain for line in indented(console_of(32), text, indent=8)]
    assert all(line.startswith("        ") and len(line) <= 32 for line in lines) and len(lines) == 2
    assert " ".join(line.strip() for line in lines) == text
    assert [line.plain for line in indented(console_of(32, is_terminal=False), text, indent=8)] == [" " * 8 + text]


@pytest.mark.parametrize("width, is_terminal, expected", [(20, True, "ab   c\n"), (5, True, "ab\n  c\n"),
                                                          (5, False, "ab   c\n")])
def test_what_has_no_room_beside_stands_below(width, is_terminal, expected):
    console = console_of(width, is_terminal=is_terminal)
    print_side_by_side(console, ["[bold]ab[/]", "", "c"])
    assert printed(console) == expected


def test_next_breaks_no_command_at_60_columns(project):
    console = console_of(60)
    Course(project, console).next()
    assert "  check  course test 1.1   (or: course watch)\n" in printed(console)
    assert all(len(line) <= 60 for line in printed(console).splitlines())


# ---- low


def shown(*tests):
    """Make tests with the given numbers of detail lines; a test with 0 passes."""
    return [ShownTest(Text(f"test {i}"), [Text(f"told {i}.{j}") for j in range(num_told)], passed=num_told == 0)
            for i, num_told in enumerate(tests)]


@pytest.mark.parametrize("height, expected", [
    (20, ["test 0", "test 1", "told 1.0", "told 1.1", "told 1.2", "test 2", "test 3", "told 3.0", "told 3.1"]),
    (8, ["test 0", "test 1", "told 1.0", "told 1.1", "told 1.2", "test 2", "test 3", "    the rest"]),
    (7, ["test 1", "told 1.0", "told 1.1", "told 1.2", "test 3", "    the rest"]),
    (5, ["test 1", "told 1.0", "told 1.1", "told 1.2", "    the rest"]),
    (2, ["test 1", "told 1.0", "told 1.1", "told 1.2", "    the rest"]),
])
def test_what_fails_first_is_the_last_to_be_cut(height, expected):
    assert [line.plain for line in cut(shown(0, 3, 0, 2), height, 80, "the rest")] == expected


def test_a_long_message_loses_its_end():
    lines = [line.plain for line in cut(shown(40), 10, 80, "the rest")]
    assert lines == ["test 0", *(f"told 0.{j}" for j in range(8)), "    the rest"]


def test_a_line_that_the_terminal_folds_counts_as_several():
    assert num_rows([Text("x" * 81), Text(""), Text("a\nb")], 80) == 5 and len(all_lines(shown(2))) == 3


def test_the_task_at_hand_stands_last(course, lab1, terminal):
    write_starter(lab1, add="return 0")
    course.test(["1.1"])
    text = terminal.getvalue()
    places = [text.index(part) for part in ("✗ Task 2 doubles", "  Task 1 sums\n", "add(3, 0) gave 0", "Next: task 1")]
    assert places == sorted(places)


def test_of_two_tasks_in_full_the_next_one_stands_last(course, lab1, terminal):
    write_starter(lab1, add='raise NotImplementedError("Task 1: add")', double="return 0")
    course.test(["1.1"])
    text = terminal.getvalue()
    assert text.index("✗ double doubles") < text.index("  Task 1 sums\n") < text.index("still to do: Task 1: add")
    assert text.index("still to do: Task 1: add") < text.index("Next: task 1.")


@pytest.mark.parametrize("width", [80, 60])
def test_watch_shows_a_long_failure_within_the_screen(project, lab1, width):
    write_starter(lab1, add=f"print('word ' * 20)\n    raise ValueError({'wrong again ' * 100!r})")
    console = console_of(width)
    course = Course(project, console)
    assert course.watch("1.1", saves_of=lambda labs: ScriptedSaves(labs, edits=[])) == 0
    lines = printed(console)[:-1].split("\n")  # the last newline belongs to Ctrl-C
    rows = [line[i:i + width] for line in lines for i in range(0, len(line) or 1, width)]
    screen = "\n".join(rows[-24:])
    for part in ("  Task 1 sums\n", "✗ add adds  2 points\n", "ValueError: wrong again", "course test 1.1 --task 1",
                 "0 of 3 tests", "Next: task 1. A nudge: course hint 1.1", "Watching."):
        assert part in screen, f"{part!r} is not on the screen:\n{screen}"


def test_watch_clears_a_terminal_and_no_pipe(project, lab1):
    half_done(lab1)
    for is_terminal in (True, False):
        console = console_of(80, is_terminal=is_terminal)
        Course(project, console).watch("1.1", saves_of=lambda labs: ScriptedSaves(labs, edits=[]))
        assert console.file.getvalue().startswith("\x1b[2J\x1b[H") == is_terminal
        assert ("\x1b" in console.file.getvalue()) == is_terminal


def test_ctrl_c_shows_the_task_that_was_kept(course, lab1, terminal):
    write_starter(lab1)
    lines = VerdictLines(course.console, lab1, graded_tests(lab1))
    for name in ("test_task_1_add_adds", "test_task_1_add_counts_by_default"):
        lines.show(name, Verdict(False, "AssertionError", "no"))
    lines.end_early()
    assert "  Task 1 sums\n    ✗ add adds  2 points\n        no\n" in terminal.getvalue()


# ---- no terminal


@pytest.mark.parametrize("arguments", [["status"], ["test", "1.1"], ["next"], ["--help"]], ids=" ".join)
def test_a_command_whose_reader_has_gone_says_nothing(elsewhere, lab1, arguments):
    half_done(lab1)
    read, write = os.pipe()
    os.close(read)
    run = subprocess.run([sys.executable, "-m", "course.cli", *arguments], cwd=elsewhere, stdout=write,
                         stderr=subprocess.PIPE)
    os.close(write)
    assert (run.returncode, run.stderr) == (READER_GONE, b"")


# ---- what is not the student's fault


def test_a_model_that_is_not_there_is_nobodys_fault(course):
    with pytest.raises(LabError, match="there is no model 'tiny-tale'; did you mean 'tiny-tales'\\?"):
        course.run(RunOptions(model="tiny-tale"))
    check_model("tiny-tales")


@pytest.mark.parametrize("error", [ImportError("MLX cannot be imported"), ValueError("MINI_VLLM_BLAS is 'x'")])
def test_a_machine_without_mlx_or_with_a_bad_blas_is_told(course, monkeypatch, error):
    def importing(name):
        assert name == "mini_vllm.backend"
        raise error

    check_machine()
    monkeypatch.setattr("course.own_engine.requirements.importlib.import_module", importing)
    for command in (course.demo, course.bench, lambda: course.run(RunOptions())):
        with pytest.raises(LabError, match=str(error)):
            command()


def test_a_line_too_long_is_folded_between_words_under_its_text():
    line = Text("    ✗ a removed block has no links and can come back  2 points  (same)")
    rows = hanging(console_of(40), line, 6).plain.split("\n")
    assert all(len(row) <= 40 for row in rows) and all(row.startswith("      ") for row in rows[1:]) and len(rows) > 1
    assert " ".join(" ".join(rows).split()) == " ".join(line.plain.split())
    assert hanging(console_of(40, is_terminal=False), line, 6) is line and hanging(console_of(90), line, 6) is line


@pytest.mark.parametrize("path, width, shown", [("a/b/lab/starter.py", 40, "a/b/lab/starter.py"),
                                                ("a/b/lab/starter.py", 15, "…/lab/starter.py"),
                                                ("a/starter.py", 5, "a/starter.py")])
def test_of_a_long_path_the_end_is_shown(path, width, shown):
    assert short_path(path, width) == shown


def test_of_a_long_list_the_middle_is_left_out():
    assert shorten(f"the links lead to {list(range(400))}: so") == "the links lead to [0, 1, 2, …, 398, 399]: so"
    assert shorten(f"{list(range(12))} {(-5,) * 40}") == f"{list(range(12))} (-5, -5, -5, …, -5, -5)"


def test_of_a_flood_only_the_beginning_is_searched_for_lists_and_all_of_it_is_counted():
    numbers = str(list(range(400)))
    flood = numbers + "x" * 999_000 + numbers
    assert shorten(flood, limit=len(flood)) == "[0, 1, 2, …, 398, 399]" + "x" * 999_000 + numbers
    assert shorten(flood, limit=22) == f"[0, 1, 2, …, 398, 399]\n… and {999_000 + len(numbers):,} more characters"

"""``course demo`` and ``course bench`` use the student's pieces or the reference's, and say whose."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from course.cli import make_parser
from course.commands import Course
from course.lab.lab import LabError, discover
from course.student.demo_commands import Showpieces
from mini_vllm.benchmark import allocator
from mini_vllm.demo.blocks import show_blocks


def console():
    return Console(file=io.StringIO(), width=200, highlight=False, soft_wrap=True)


def shown(terminal):
    return terminal.file.getvalue()


@pytest.fixture(scope="module")
def wanted():
    terminal = console()
    show_blocks(terminal)
    return shown(terminal)


def showpieces(*numbers, **files):
    """Make the commands as if these labs passed, with their solutions as the student's files."""
    return Showpieces(discover(), console(), lambda lab: lab.number in numbers,
                      lambda lab: files.get(f"lab_{lab.number.replace('.', '_')}", lab.solution))


@pytest.mark.parametrize("numbers, manager, pool", [
    ((), "the reference’s  until lab 2.2 or 3.2", "the reference’s  until lab 2.1 or 3.1"),
    (("2.1",), "the reference’s", "yours, lab 2.1"),
    (("2.2",), "yours, lab 2.2", "the reference’s"),
    (("2.1", "2.2"), "yours, lab 2.2", "yours, lab 2.1"),
    (("2.1", "3.2"), "yours, lab 3.2  on the reference’s 2.2", "yours, lab 2.1"),
    (("2.1", "2.2", "3.1", "3.2", "3.3"), "yours, lab 3.2  on your 2.2", "yours, lab 3.1  on your 2.1"),
])
def test_the_demo_shows_the_same_whoever_serves_and_says_who(wanted, numbers, manager, pool):
    show = showpieces(*numbers)
    assert show.demo_blocks() == 0
    title, first, second, demo = shown(show.console).split("\n", 3)
    assert title == "Shown here" and demo.strip() == wanted.strip()
    for line, slot, whose in ((first, "kv_cache_manager", manager), (second, "block_pool", pool)):
        assert line.split(None, 1)[0] == slot and " ".join(whose.split()) in " ".join(line.split())


def test_the_demo_says_which_blocks_come_home_and_which_can_be_found(wanted):
    told = [line for line in wanted.splitlines() if " is done: " in line]
    assert told == [
        "ben is done: block 4 is freed; it is not cached, because it is not full; blocks 1, 2 still have an owner",
        "ada is done: blocks 5, 3, 2, 1 are freed, the last one first; blocks 3, 2, 1 are full and stay cached",
        "cleo is done: blocks 5, 4, 8, 7, 6 are freed, the last one first; blocks 4, 8, 7, 6 are full and stay cached"]


def test_a_piece_that_fails_in_the_demo_is_told_with_its_line(tmp_path: Path):
    lab = next(lab for lab in discover() if lab.number == "2.2")
    broken = tmp_path / "broken.py"
    text = lab.solution.read_text()
    broken.write_text(text.replace("self.block_pool.free_blocks(", "self.block_pool.no_such_method("))
    with pytest.raises(LabError, match=r"With your parts this fails: AttributeError: .*no_such_method.* "
                                       r"\(line \d+ of your lab 2\.2, in free\)\. To find the faulty part: course run"):
        showpieces("2.2", lab_2_2=broken).demo_blocks()


def tiny(monkeypatch):
    """Shrink the benchmark: its numbers mean nothing, but it runs the same code as the large one."""
    real = allocator.print_allocator
    monkeypatch.setattr(allocator, "print_allocator",
                        lambda pool_class: real(pool_class, sizes=(300, 3000), rounds=1))


@pytest.mark.parametrize("numbers, whose", [((), "the reference’s"), (("2.1",), "yours, lab 2.1"),
                                            (("2.1", "3.1"), "yours, lab 3.1")])
def test_the_benchmark_measures_whose_pool_it_says(monkeypatch, capsys, numbers, whose):
    tiny(monkeypatch)
    measured, time_round = [], allocator.time_round
    monkeypatch.setattr(allocator, "time_round", lambda pool, rng: measured.append(pool) or time_round(pool, rng))
    show = showpieces(*numbers)
    assert show.bench_allocator() == 0
    lines = capsys.readouterr().out.splitlines()
    assert whose in shown(show.console)
    assert lines[0].split("  ")[0] == "operations per second" and "3,000 blocks" in lines[0]
    assert [line[:20].strip() for line in lines[1:5]] == ["allocate", "free", "hit", "middle removal"]
    assert lines[5].startswith("In short: with 3,000 blocks, an operation of the block pool takes ")
    files = [Path(sys.modules[type(pool).__module__].__file__).name for pool in measured]
    assert files == ["solution.py" if numbers else "block_pool.py"] * 2
    assert [(pool.num_blocks, pool.get_num_free_blocks()) for pool in measured] == [(301, 300), (3001, 3000)]


def test_the_commands_take_what_there_is():
    assert make_parser().parse_args(["demo"]).what == "blocks"
    bench = make_parser().parse_args(["bench", "allocator"])
    assert (bench.command, bench.what) == ("bench", "allocator")
    with pytest.raises(SystemExit):
        make_parser().parse_args(["demo", "tale"])


def test_without_a_lab_that_passes_the_demo_is_the_reference_s(project, wanted):
    course = Course(project, console())
    assert course.demo() == 0
    assert shown(course.console).strip().endswith(wanted.strip()) and "yours" not in shown(course.console)

"""The arguments of the ``course`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

try:
    import rich  # noqa: F401
except ModuleNotFoundError:
    from mini_vllm.checks import install_line
    sys.exit(f"course: rich is missing: {install_line('course')}")

from course.commands import Course
from course.core.child_process import ending_on_signals
from course.grading.class_run.options import add_options
from course.grading.class_run.options import run as grade
from course.install.init_update import lay_down, update
from course.lab.hints import LEVELS
from course.lab.lab import LabError, find_root
from course.student.demo_commands import BENCHES, DEMOS
from course.student.run_command import DEFAULT_PROMPT, RunOptions
from mini_vllm.checks import nearest
from mini_vllm.cli.arguments import parse_arguments
from mini_vllm.cli.messages import run_command

COMMANDS = ("status", "next", "test", "watch", "hint", "run", "serve", "demo", "bench", "board", "reset", "solution",
            "answer", "init", "update", "grade", "check", "sync")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="course", description="The lab course: see where you are, test your work, run it in the engine.")
    commands = parser.add_subparsers(dest="command", metavar="command")
    lab_help = "a lab by number (2.1), name or folder; default: your current lab"

    def command(name: str, help: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help, description=help)
        made.set_defaults(parser=made)
        return made

    command("status", "show your progress in each lab").add_argument(
        "--json", action="store_true", help="print JSON for other programs; self-reported, so do not grade by it")
    command("next", "say what to do next")
    test = command("test", "test your starter.py; show your current task in full and the others in one line each")
    test.add_argument("labs", nargs="*", metavar="lab", help=f"{lab_help}; “all” tests every lab")
    test.add_argument("--task", type=int, help="run only the tests of this task")
    test.add_argument("--all", action="store_true", dest="is_full", help="show every test")
    command("watch", "test again whenever you save").add_argument("lab", nargs="?", help=lab_help)
    hint = command("hint", "show a hint for your current task")
    hint.add_argument("lab", nargs="?", help=lab_help)
    hint.add_argument("--level", type=int, choices=LEVELS, default=1, help="1: a nudge (default); 2: the idea; "
                      "3: nearly the code")
    hint.add_argument("--task", type=int, help="show a hint for this task instead of your current one")
    run = command("run", "decode with your own code in the engine, and compare with the reference")
    run.add_argument("prompt", nargs="?", default=DEFAULT_PROMPT, help="default: %(default)s")
    run.add_argument("--model", default="tiny-tales", help="default: %(default)s")
    which = run.add_mutually_exclusive_group()
    which.add_argument("--lab", action="append", default=[], metavar="2.1,4.2",
                       help="use only your code for these labs, whether they pass or not")
    which.add_argument("--strict", action="store_true", help="require that every part is yours, then run the capstone")
    run.add_argument("--trace", type=Path, metavar="FILE", help="record every step in FILE: as a picture if it "
                     "ends in .svg or .png, otherwise as a trace that `mini-vllm trace FILE` draws")
    serve = command("serve", "serve with your own code, and show it at work on a live page")
    serve.add_argument("--model", default="tiny-tales", help="default: %(default)s")
    serve.add_argument("--port", type=int, default=8000, help="default: %(default)s")
    serve.add_argument("--draft", action="store_true", help="guess tokens with your drafter of lab 6.1")
    serve.add_argument("--replicas", type=int, default=0, metavar="N",
                       help="start N servers, and let your router of lab 6.3 choose one for each request")
    demo = command("demo", "serve three requests with your KV cache manager and your block pool")
    demo.add_argument("what", nargs="?", choices=DEMOS, default=DEMOS[0], help="default: %(default)s")
    bench = command("bench", "measure the operations of your block pool, in a small and in a large pool")
    bench.add_argument("what", nargs="?", choices=BENCHES, default=BENCHES[0], help="default: %(default)s")
    reset = command("reset", "restore the shipped starter.py, and keep a backup of yours")
    reset.add_argument("lab", nargs="?", help=lab_help)
    reset.add_argument("--bare", action="store_true", help="shorten the docstrings to purpose, result and "
                       "errors, and list the invariants")
    solution = command("solution", "show the solution of a lab that you have passed")
    solution.add_argument("lab", nargs="?", help=lab_help)
    solution.add_argument("--spoil", action="store_true", help="show the solution even if the lab does not pass yet")
    answer = command("answer", "show answers to a lab's stretch items and its interview question")
    answer.add_argument("lab", nargs="?", help=lab_help)
    answer.add_argument("question", nargs="?", help="1, 2, … for a stretch item, or interview; default: list "
                        "the questions")
    board = command("board", "show your scores in an open lab, with those of known solutions")
    board.add_argument("lab", nargs="?", help="a lab that has a score; default: the one of the current folder, else "
                       "your best score in each")
    merge = board.add_argument_group("for instructors")
    merge.add_argument("--merge", nargs="+", type=Path, metavar="DIR", help="instead, make one table of a class's "
                       "scores, from graded submissions: the folders that `course grade --out DIR` wrote")
    merge.add_argument("--output", "--out", dest="out", type=Path, metavar="FILE", help="write the table to a .txt, "
                       ".md or .csv file; default: print it")
    merge.add_argument("--names", action="store_true", help="list names; default: aliases. A student's feedback shows "
                       "the student's alias")
    merge.add_argument("--hidden", type=Path, metavar="DIR", help="the folder of hidden tests, if the class was graded "
                       "with one")
    init = command("init", "create the course in a new folder")
    init.add_argument("folder", type=Path, help="the folder to create")
    command("update", "update tests and texts to the installed version; your work is unchanged")
    add_options(command("grade", "for instructors: grade the submissions of a class, each file in a sandbox"))
    check = command("check", "for authors: check that every lab is consistent")
    check.add_argument("labs", nargs="*", metavar="lab", help="the labs to check; default: all")
    check.add_argument("--surface", action="store_true", help="instead of the usual checks, print the grader's names "
                       "that each lab's file may use, and call all of them with hostile arguments")
    command("sync", "for authors: generate starter.py from solution.py").add_argument("labs", nargs="*", metavar="lab")
    return parser


def _check_command(argv: list[str]) -> None:
    """Raise LabError for a command that does not exist, with the nearest one that does."""
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        near = nearest(argv[0], COMMANDS)
        guess = f" Did you mean `course {near}`?" if near else ""
        raise LabError(f"There is no command {argv[0]!r}.{guess} The commands are {', '.join(COMMANDS)}.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit status. Errors that the user can fix are shown without a traceback."""
    return run_command(partial(_main, list(sys.argv[1:] if argv is None else argv)))


def _main(argv: list[str]) -> int:
    try:
        _check_command(argv)
        with ending_on_signals():
            return _run(parse_arguments(make_parser(), argv))
    except LabError as error:
        print(error, file=sys.stderr)
    except (OSError, ModuleNotFoundError) as error:
        print(f"course: {_what_is_wrong(error)}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 2


def _what_is_wrong(error: OSError | ModuleNotFoundError) -> str:
    """Describe an error: a file by its name, a missing package by how to install it. Raise it if it is our own bug."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    package = (getattr(error, "name", None) or "").split(".")[0]
    if package in ("", "course", "mini_vllm"):
        raise error
    return f"{package} is missing: pip install {package}"


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "init":
        return lay_down(arguments.folder)
    if arguments.command == "update":
        return update(find_root())
    if arguments.command == "grade":
        return grade(arguments)
    course = Course()
    match arguments.command:
        case None | "next":
            return course.next()
        case "status":
            return course.status(arguments.json)
        case "test":
            return course.test(arguments.labs, arguments.task, arguments.is_full)
        case "watch":
            return course.watch(arguments.lab)
        case "hint":
            return course.hint(arguments.lab, arguments.level, arguments.task)
        case "run":
            names = [name for names in arguments.lab for name in names.split(",") if name]
            return course.run(RunOptions(arguments.prompt, arguments.model, names, arguments.strict, arguments.trace))
        case "serve":
            return course.serve(arguments.model, arguments.port, arguments.draft, arguments.replicas)
        case "demo":
            return course.demo()
        case "bench":
            return course.bench()
        case "reset":
            return course.reset(arguments.lab, arguments.bare)
        case "answer":
            return course.answer(arguments.lab, arguments.question)
        case "board":
            return _board(course, arguments)
        case "solution":
            return course.solution(arguments.lab, arguments.spoil)
        case "check":
            return course.check(arguments.labs, arguments.surface)
        case _:
            return course.sync(arguments.labs)


def _board(course: Course, arguments: argparse.Namespace) -> int:
    if arguments.merge:
        from course.grading.class_run.merge_boards import MergeOptions  # students do not need the grader
        return course.merge_boards(arguments.lab, MergeOptions(arguments.merge, arguments.out, arguments.names,
                                                               arguments.hidden))
    for option, value in (("--output", arguments.out), ("--names", arguments.names), ("--hidden", arguments.hidden)):
        if value:
            raise LabError(f"{option} needs --merge DIR, the folders of a graded class.")
    return course.board(arguments.lab)


if __name__ == "__main__":
    sys.exit(main())

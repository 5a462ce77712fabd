"""The arguments of the ``course`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from course.commands import Course
from course.grading.class_run.options import add_options
from course.grading.class_run.options import run as grade
from course.install.init_update import lay_down, update
from course.lab.hints import LEVELS
from course.lab.lab import LabError, find_root
from course.student.demo_commands import BENCHES, DEMOS
from course.student.run_command import DEFAULT_PROMPT, RunOptions
from mini_vllm.arguments import parse_arguments
from mini_vllm.checks import nearest
from mini_vllm.terminal import run_command

COMMANDS = ("status", "next", "test", "watch", "hint", "run", "serve", "demo", "bench", "board", "reset", "solution",
            "answer", "init", "update", "grade", "check", "sync")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="course", description="The lab course: where you are and how your work does.")
    commands = parser.add_subparsers(dest="command", metavar="command")
    lab_help = "a lab by number (2.1), name or folder; default: the one you are at"

    def command(name: str, help: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help, description=help)
        made.set_defaults(parser=made)
        return made

    command("status", "how far you are in each lab").add_argument(
        "--json", action="store_true", help="for machines; self-reported, so not for grading")
    command("next", "what to do now")
    test = command("test", "test your starter.py: the task to work on in full, the others in a line each")
    test.add_argument("labs", nargs="*", metavar="lab", help=f"{lab_help}; or: all")
    test.add_argument("--task", type=int, help="only the tests of this task")
    test.add_argument("--all", action="store_true", dest="is_full", help="show every test")
    command("watch", "test again whenever you save").add_argument("lab", nargs="?", help=lab_help)
    hint = command("hint", "a hint for the task you are at")
    hint.add_argument("lab", nargs="?", help=lab_help)
    hint.add_argument("--level", type=int, choices=LEVELS, default=1, help="1 a nudge, 2 the idea, 3 nearly the code")
    hint.add_argument("--task", type=int, help="another task than the one you are at")
    run = command("run", "decode with your own pieces in the engine, and compare with the reference")
    run.add_argument("prompt", nargs="?", default=DEFAULT_PROMPT, help="default: %(default)s")
    run.add_argument("--model", default="tiny-tales", help="default: %(default)s")
    which = run.add_mutually_exclusive_group()
    which.add_argument("--lab", action="append", default=[], metavar="2.1,4.2",
                       help="just the pieces of these labs, whether they pass or not")
    which.add_argument("--strict", action="store_true", help="every part must be yours; then the capstone")
    run.add_argument("--trace", type=Path, metavar="FILE", help="record every step: as a picture if FILE ends "
                     "in .svg or .png, else for `mini-vllm trace FILE`")
    serve = command("serve", "your own pieces behind a server, and a page that shows them at work")
    serve.add_argument("--model", default="tiny-tales", help="default: %(default)s")
    serve.add_argument("--port", type=int, default=8000, help="default: %(default)s")
    demo = command("demo", "three requests, served by your KV cache manager on your block pool")
    demo.add_argument("what", nargs="?", choices=DEMOS, default=DEMOS[0], help="default: %(default)s")
    bench = command("bench", "what an operation of your block pool costs, in a small and in a large pool")
    bench.add_argument("what", nargs="?", choices=BENCHES, default=BENCHES[0], help="default: %(default)s")
    bench.add_argument("--cold", action="store_true", help="leave the blocks out of the CPU's caches")
    reset = command("reset", "put the shipped starter.py back, keeping a backup of yours")
    reset.add_argument("lab", nargs="?", help=lab_help)
    reset.add_argument("--bare", action="store_true", help="signatures and invariants only, without the recipe")
    solution = command("solution", "the solution of a lab that you have passed")
    solution.add_argument("lab", nargs="?", help=lab_help)
    solution.add_argument("--spoil", action="store_true", help="show it before you pass")
    answer = command("answer", "answers to a lab's stretch items and its interview question")
    answer.add_argument("lab", nargs="?", help=lab_help)
    answer.add_argument("question", nargs="?", help="1, 2, … for the stretch items, or interview; default: list them")
    board = command("board", "your scores in the open lab, beside the naive policy, the reference and the optimum")
    board.add_argument("lab", nargs="?", help="a lab that has a score; default: the first")
    init = command("init", "lay the course down in a new folder")
    init.add_argument("folder", type=Path)
    command("update", "bring the installed version's tests and texts; your work stays")
    add_options(command("grade", "for instructors: grade what a class has handed in, each file in a sandbox"))
    check = command("check", "for authors: prove that every lab is in order")
    check.add_argument("labs", nargs="*", metavar="lab")
    check.add_argument("--surface", action="store_true", help="instead: print what each lab's file may use of the "
                       "grader's, and call all of it, with hostile arguments, too")
    command("sync", "for authors: make starter.py anew from solution.py").add_argument("labs", nargs="*", metavar="lab")
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
            return course.serve(arguments.model, arguments.port)
        case "demo":
            return course.demo()
        case "bench":
            return course.bench(arguments.cold)
        case "reset":
            return course.reset(arguments.lab, arguments.bare)
        case "answer":
            return course.answer(arguments.lab, arguments.question)
        case "board":
            return course.board(arguments.lab)
        case "solution":
            return course.solution(arguments.lab, arguments.spoil)
        case "check":
            return course.check(arguments.labs, arguments.surface)
        case _:
            return course.sync(arguments.labs)


if __name__ == "__main__":
    sys.exit(main())

"""The long proof that grading agrees with the labs' tests: what fails in-process also fails through the proxy.

    python -m course.authoring.check_in_sandbox [LAB ...] [--sandbox LEVEL]

While the files of a lab run in a sandbox, the solution must pass every test, the starter must fail each test at a named
task, files in which nothing is written must fail every test, and every mutant must fail the test that is known to catch
it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from course.authoring import empty_files
from course.authoring.check_lab import Contents, check_verdicts, read_lab
from course.core.failure_messages import DEFAULT_TIME_LIMIT_S
from course.grading.sandbox import Level
from course.lab.lab import Lab, LabError, discover, find_lab
from course.lab.mutants import Mutant
from course.pytest_run.listeners import Verdicts
from course.pytest_run.pytest_process import Child

#: Each process tries this many mutants, so that all cores are busy.
MUTANTS_A_PROCESS = 12
#: Factor on the wait for a test process: the grader ends a loop itself, but only after a longer time on the wall clock.
PATIENCE = 3
#: The end of the name of a second try.
AGAIN = "-again"
#: A test that ended like this says nothing about the mutant.
NOT_JUDGED = ("CanaryPassed", "ProtocolError")


class SandboxCheck:
    """The processes that check one lab; each starts as soon as a core is free."""

    def __init__(self, lab: Lab, level: str, pool: ThreadPoolExecutor, folder: Path) -> None:
        self._level, self._folder = level, folder
        contents, self.problems = read_lab(lab)
        self._contents = contents
        self._futures: list[Future[Verdicts]] = []
        if contents is None:
            return
        everything = [test.name for test in contents.tests]
        self._futures = [pool.submit(self._run, name, [name], everything, {}) for name in ("solution", "starter")]
        self._futures += [pool.submit(self._run, path.stem, [str(path)], everything, {})
                          for path in empty_files.write_files(contents.solution, folder)]
        for first in range(0, len(contents.mutants), MUTANTS_A_PROCESS):
            some = contents.mutants[first:first + MUTANTS_A_PROCESS]
            paths = [str(mutant.write(contents.solution, folder)) for mutant in some]
            only = {mutant.name: mutant.killed_by for mutant in some}
            self._futures.append(pool.submit(self._run, f"mutants-{first}", paths, sorted(set(only.values())), only))

    def _run(self, name: str, impls: list[str], tests: list[str], only: dict[str, str]) -> Verdicts:
        assert self._contents is not None
        folder = self._folder / name
        folder.mkdir()
        child = Child(self._contents.lab, impls, tests, DEFAULT_TIME_LIMIT_S, folder, only=only,
                      sandbox_level=self._level)
        child.test_limit_s *= PATIENCE
        why_killed = child.wait()
        if why_killed or not child.verdicts:
            raise LabError(why_killed or f"nothing was run:\n{child.output()}")
        missing = [impl for impl in impls if Path(impl).stem not in child.verdicts]
        if not missing:
            return child.verdicts
        if name.endswith(AGAIN):
            raise LabError(f"{Path(missing[0]).stem} was not run, twice:\n{child.output()}")
        return child.verdicts | self._run(name + AGAIN, missing, tests, only)  # a busy machine may lose a process

    def result(self) -> tuple[list[str], str]:
        """Wait for all processes, and return the problems and a line that says what was proved."""
        if self._contents is None:
            return self.problems, ""
        verdicts: Verdicts = {}
        try:
            for future in self._futures:
                verdicts |= future.result()
        except LabError as error:
            return [str(error)], ""
        contents, harmless = _split(self._contents)
        problems = check_verdicts(contents, verdicts) + _not_judged(contents, verdicts)
        problems += [f"mutant {mutant.name}, which relies on the tests' process, fails {mutant.killed_by} without it: "
                     f"{verdicts[mutant.name][mutant.killed_by].message}"
                     for mutant in harmless if not verdicts[mutant.name][mutant.killed_by].passed]
        none_of_these = f", {len(harmless)} can do nothing" if harmless else ""
        return problems, (f"{len(contents.tests)} tests pass on the solution, {contents.earn_nothing}, "
                          f"{len(contents.mutants)} mutants die{none_of_these}")


def _split(contents: Contents) -> tuple[Contents, list[Mutant]]:
    """Return the contents with only the mutants that must fail, and the mutants that are harmless in a sandbox."""
    deadly = [mutant for mutant in contents.mutants if not mutant.only_in_process]
    return (dataclasses.replace(contents, mutants=deadly),
            [mutant for mutant in contents.mutants if mutant.only_in_process])


def _not_judged(contents: Contents, verdicts: Verdicts) -> list[str]:
    return [f"mutant {mutant.name}: {mutant.killed_by} ended by {verdict.error}: {verdict.message}"
            for mutant in contents.mutants
            if (verdict := verdicts[mutant.name][mutant.killed_by]).error in NOT_JUDGED]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m course.authoring.check_in_sandbox",
                                     description=__doc__.split("\n")[0])
    parser.add_argument("labs", nargs="*", metavar="LAB", help="the labs to check, by number or name (default: all)")
    parser.add_argument("--sandbox", default="none", choices=[level.value for level in Level], metavar="LEVEL",
                        help="the sandbox in which the files run (default: %(default)s, the fastest)")
    options = parser.parse_args(arguments)
    labs = discover()
    try:
        chosen = [find_lab(name, labs) for name in options.labs] or labs
    except LabError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        checks = {lab: SandboxCheck(lab, options.sandbox, pool, _folder(Path(folder), lab)) for lab in chosen}
        return max([_report(lab, check) for lab, check in checks.items()], default=0)


def _folder(parent: Path, lab: Lab) -> Path:
    folder = parent / lab.number
    folder.mkdir()
    return folder


def _report(lab: Lab, check: SandboxCheck) -> int:
    problems, proved = check.result()
    print(f"lab {lab.number}: {'not in order' if problems else proved}", *problems, sep="\n  ", flush=True)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())

"""Run an engine of a student's pieces in a separate process, and find the piece to blame if it fails."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from course.core.child_process import ChildProcess
from course.lab.lab import Lab
from course.lab.parts import Pieces, bases_of
from course.own_engine.spec import STACK_SIGNAL, Spec, Try
from course.pytest_run.json_lines import ReportLines
from course.pytest_run.listeners import OnPoll

#: A process that reports nothing for this long hangs: no step of a small workload takes a second.
SILENCE_S = 20.0
#: The first report arrives after the imports and after a model is loaded.
STARTUP_S = 120.0

#: How much is read of the stack that the process prints on request: the innermost frame is printed first.
MAX_STACK_CHARACTERS = 100_000

#: The measurement runs the last of the workloads, or a similar one.
MEASUREMENT = "the measurement"
#: Workloads in which a scheduler that only waits stalls.
NEED_PREEMPTION = ("preempts", "capstone")

Event = dict[str, Any]
OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class Problem:
    """How a run failed."""

    #: refused, raised, invariant, differs, never ends, lost, hangs, died
    kind: str
    message: str
    #: The part of the run that failed: "the tale", or a workload.
    what: str
    step: int = 0
    #: The line of a student's file, if one is known.
    place: str = ""
    slot: str = ""

    def sentence(self) -> str:
        where = f" in step {self.step} of “{self.what}”" if self.step else f" in “{self.what}”"
        at = f" ({self.place})" if self.place else ""
        match self.kind:
            case "refused":
                return f"it was rejected: {self.message}"
            case "differs":
                return f"the tokens of “{self.what}” are not the reference's: {self.message}"
            case "invariant":
                return f"it broke an invariant{where}: {self.message}{at}"
            case "hangs":
                return f"it hangs{where}{at}: {self.message}"
        return f"it failed{where}: {self.message}{at}"


@dataclass
class EngineRunResult:
    """The outcome of a run."""

    #: Workload whose tokens equal the reference's → number of tokens.
    equal: dict[str, int] = field(default_factory=dict)
    #: Tokens per second, the student's and the reference's.
    speed: tuple[float, float] | None = None
    #: Tokens of the workload with drafts, its steps with drafts, and its steps without.
    drafts: tuple[int, int, int] | None = None
    #: The outputs of the workload with dates.
    dates: list[str] = field(default_factory=list)
    problem: Problem | None = None
    #: How many sets of pieces were tried, including the one that failed.
    num_tries: int = 0


@dataclass(frozen=True)
class Blame:
    """The labs whose pieces make a run fail, alone or only together."""

    labs: list[Lab]
    problem: Problem
    #: Whether one piece fails alone, with the reference's for all others.
    is_alone: bool
    #: Whether the run failed again at all, alone or together.
    has_failed_again: bool = True


def run_pieces(root: Path, pieces: Pieces, spec: Spec, on_event: OnEvent = lambda event: None,
               silence_s: float = SILENCE_S, on_poll: OnPoll = lambda: None,
               environment: Mapping[str, str] | None = None) -> EngineRunResult:
    """Run what ``spec`` asks for with these pieces. Never raise an error for anything that they do.

    ``on_poll`` is called many times per second; if it raises, the run ends. ``environment`` is added to the variables
    of this process.
    """
    spec = replace(spec, tries=[_try(pieces.files, pieces.labs)])
    return _run(root, spec, on_event, silence_s, on_poll, environment or {})


def _run(root: Path, spec: Spec, on_event: OnEvent, silence_s: float, on_poll: OnPoll, environment: Mapping[str, str]
         ) -> EngineRunResult:
    with tempfile.TemporaryDirectory() as folder:
        process = _Process(replace(spec, root=str(root)), Path(folder), on_event, silence_s, environment)
        return process.wait(on_poll)


def _try(files: Mapping[str, Path], labs: Sequence[Lab]) -> Try:
    return Try({number: str(path) for number, path in files.items()}, [lab.number for lab in labs])


def find_blame(root: Path, pieces: Pieces, spec: Spec, problem: Problem, labs: Sequence[Lab],
               silence_s: float = SILENCE_S) -> Blame:
    """Add the pieces step by step until the run fails again, and return which ones are to blame.

    Each piece is tried alone, on the reference's bases; then each on the student's own bases; then one more piece is
    added at a time.
    """
    spec = _again(spec, problem)
    is_tight = any(name in NEED_PREEMPTION for name in spec.workloads)
    own = [lab for lab in labs if pieces.files.get(lab.number) not in (None, lab.solution)]
    alone = [[lab] for lab in own if not (lab.waits and is_tight)]
    chains = [[*reversed([below for below in bases_of(lab, labs) if below in own]), lab] for lab in own if lab.base]
    groups = [*alone, *chains, *(own[:count] for count in range(2, len(own) + 1))]
    tries = []
    for group in groups:
        files = {below.number: below.solution for lab in group for below in bases_of(lab, labs)}
        files |= {lab.number: pieces.files[lab.number] for lab in group}
        last = {slot: lab for lab in group for slot in lab.parts}
        tries.append(_try(files, list(dict.fromkeys(last.values()))))
    outcome = _run(root, replace(spec, tries=tries), lambda event: None, silence_s, lambda: None, {})
    if outcome.problem is None:
        return Blame(own, problem, is_alone=False, has_failed_again=False)
    return Blame(groups[outcome.num_tries - 1], outcome.problem, is_alone=outcome.num_tries <= len(alone))


def _again(spec: Spec, problem: Problem) -> Spec:
    """Return a spec that runs only what failed."""
    if problem.what in spec.workloads:
        return replace(spec, prompt=None, trace=None, workloads=(problem.what,), measures_speed=False)
    if problem.what == "the tale":
        return replace(spec, trace=None, workloads=(), measures_speed=False)
    last = spec.workloads[-1:] if problem.what == MEASUREMENT else spec.workloads
    return replace(spec, prompt=None, trace=None, workloads=last, measures_speed=False)


class _Process:
    def __init__(self, spec: Spec, folder: Path, on_event: OnEvent, silence_s: float,
                 environment: Mapping[str, str]) -> None:
        self._on_event, self._silence_s = on_event, silence_s
        self._report = ReportLines(folder / "report.jsonl")
        spec_file = folder / "spec.json"
        spec_file.write_text(json.dumps(asdict(spec)), encoding="utf-8")
        self._files = spec.lab_of_file()
        self._what, self._step, self._has_ended = "loading", 0, False
        self._outcome = EngineRunResult()
        self._child = ChildProcess(
            [sys.executable, "-m", "course.own_engine.process", str(spec_file), str(self._report.path)],
            Path(spec.root), {**os.environ, "PYTHONUNBUFFERED": "1", **environment}, folder / "output.txt")

    def wait(self, on_poll: OnPoll) -> EngineRunResult:
        heard_s, limit_s = time.monotonic(), STARTUP_S

        def look() -> str | None:
            nonlocal heard_s, limit_s
            if self._read():
                heard_s, limit_s = time.monotonic(), self._silence_s
            if time.monotonic() - heard_s > limit_s:
                self._outcome.problem = Problem("hangs", f"nothing happened for {limit_s:g} s", self._what, self._step,
                                                self._stack())
                return "it hangs"
            on_poll()
            return None

        self._child.watch(look)
        self._read()
        if self._outcome.problem is None and not self._has_ended:
            last = self._child.printed(300).strip().replace("\n", " | ")
            self._outcome.problem = Problem("died", f"its process ended with status {self._child.status}"
                                            + (f"; it printed: {last}" if last else ""), self._what, self._step)
        return self._outcome

    def _read(self) -> bool:
        events = list(self._report.new())
        for event in filter(None, events):
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a piece wrote this line
                self._take(event)
        return bool(events)

    def _take(self, event: Event) -> None:
        match event["event"]:
            case "try":
                self._outcome.num_tries = event["index"] + 1
            case "begin":
                self._what, self._step = event["what"], 0
            case "step":
                self._step = event["step"]
            case "equal":
                self._outcome.equal[event["what"]] = event["num_tokens"]
            case "drafts":
                self._outcome.drafts = event["num_tokens"], event["num_steps"], event["num_plain_steps"]
            case "dates":
                self._outcome.dates = [str(text) for text in event["texts"]]
            case "speed":
                self._outcome.speed = event["mine"], event["reference"]
            case "problem":
                self._outcome.problem = Problem(event["kind"], event["message"], self._what, event["step"],
                                                event["place"], event.get("slot", ""))
            case "end":
                self._has_ended = True
        self._on_event(event)

    def _stack(self) -> str:
        """Return the line of a student's file that the process is executing."""
        try:
            self._child.process.send_signal(STACK_SIGNAL)
            time.sleep(0.5)
        except (ProcessLookupError, OSError):
            return ""
        stack = self._child.printed(MAX_STACK_CHARACTERS)
        for file, line, function in re.findall(r'File "(.+?)", line (\d+) in (\S+)', stack):
            if file in self._files:
                return f"{Path(file).name} of lab {self._files[file]}, line {line}, in {function}"
        return ""



"""``course run``: the student's own pieces in the engine, their output, and a comparison with the reference."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from course.core.terminal_text import print_wrapped
from course.lab.lab import Lab, LabError, find_lab
from course.lab.parts import FURTHER_SLOTS, Pieces, choose, just, needed_for_all
from course.own_engine.requirements import check_machine, check_model
from course.own_engine.run import NEED_PREEMPTION, SILENCE_S, Blame, EngineRunResult, Event, find_blame, run_pieces
from course.own_engine.spec import CAPSTONE, DRAFTS, WORKLOADS, Spec, further_workloads
from course.student.progress import Progress, State
from course.student.symbols import state_text

DEFAULT_PROMPT = "Once upon a time"
SILENCE_OF_LARGE_MODELS_S = 180.0
#: The fraction of the reference's speed that an engine of the student's pieces should reach.
ENOUGH_SPEED = 0.5
#: A narrower terminal shows whose code each piece is (yours or the reference's), but not the note about it.
MIN_WIDTH_OF_NOTES = 50


@dataclass(frozen=True)
class RunOptions:
    """The arguments of the command."""

    prompt: str = DEFAULT_PROMPT
    model: str = "tiny-tales"
    #: Use only the pieces of these labs, by number.
    lab_names: Sequence[str] = ()
    is_strict: bool = False
    trace: Path | None = None


def choose_pieces(labs: Sequence[Lab], progress: Progress, wish: RunOptions | None = None) -> Pieces:
    """Choose the pieces to run.

    Raise LabError for labs that do not exist and, in strict mode, for labs that do not pass.
    """
    wish = wish or RunOptions()

    def passes(lab: Lab) -> bool:
        return progress.of(lab).state is State.PASSED

    if wish.lab_names:
        wanted = [find_lab(name, list(labs)) for name in wish.lab_names]
        for lab in wanted:
            if progress.of(lab).state is State.NOT_STARTED:
                raise LabError(f"Lab {lab} is not started: there is no code of yours to run.")
        return just(labs, wanted, passes, lambda lab: lab.starter)
    if wish.is_strict:
        missing = [lab for lab in needed_for_all(labs) if not passes(lab)]
        if missing:
            raise LabError("Not every part is yours yet. Still to pass:\n" + "\n".join(
                f"  {lab.number}  {lab.title}: {state_text(progress.of(lab))}" for lab in missing))
    return choose(labs, passes, lambda lab: lab.starter)


class RunCommand:
    """One ``course run``, shown on a console."""

    def __init__(self, root: Path, labs: Sequence[Lab], progress: Progress, console: Console) -> None:
        self.root, self.labs, self.progress, self.console = root, labs, progress, console
        self._is_telling = False
        #: Printed after the tale.
        self._advice = ""
        #: Shown during computations that print nothing.
        self._status = console.status("")

    def run(self, wish: RunOptions) -> int:
        check_machine()
        shown = [lab for lab in (find_lab(name, list(self.labs)) for name in wish.lab_names) if lab.see]
        if shown:
            _check_unused(shown[0], wish)
            return self._see(shown[0], alone=len(wish.lab_names) == 1)
        check_model(wish.model)
        _check_target(wish.trace)
        self._test_what_changed()
        pieces = choose_pieces(self.labs, self.progress, wish)
        show_whose(pieces, self.console)
        for lab in pieces.labs:
            if (row := self.progress.of(lab)).state is not State.PASSED:
                self.console.print(f"Lab {lab.number} is {state_text(row)}; it is used because you asked for it.")
        if not pieces.labs:
            self.console.print("\nNo part is yours yet. Lab 1.0 and the labs from 2.1 on are used once they pass.")
        self.console.print()
        outcome = self._run(pieces, wish, _without_standstill(self.spec(wish, pieces), pieces))
        if outcome.problem is None:
            self._show_success(pieces, outcome, wish)
            return 0
        self._show_problem(pieces, outcome, wish)
        return 1

    def _see(self, lab: Lab, alone: bool) -> int:
        """Run the program that shows a lab outside the engine. Its output appears as it is computed."""
        if not alone:
            raise LabError(f"Lab {lab} is not part of the engine: course run --lab {lab.number} shows it alone.")
        row = self.progress.of(lab)
        if row.state is State.NOT_STARTED:
            raise LabError(f"Lab {lab} is not started: there is no code of yours to run.")
        if row.state is not State.PASSED:
            self.console.print(f"Lab {lab.number} is {state_text(row)}.\n")
        status = subprocess.run([sys.executable, str(lab.see), str(lab.starter)], cwd=self.root, check=False).returncode
        if status:
            self.console.print(f"\nIt did not finish. The lab's tests: course test {lab.number}")
        return 1 if status else 0

    def _test_what_changed(self) -> None:
        """Test the labs whose files were changed since their last test, so that all verdicts are current."""
        for lab in self.labs:
            if lab.parts and self.progress.remembered(lab).is_outdated:
                with self.console.status(f"Testing lab {lab}, which has changed …"):
                    self.progress.of(lab)

    def spec(self, wish: RunOptions, pieces: Pieces) -> Spec:
        """Return the spec of the run. It includes workloads and the measurement only for tiny-tales and own pieces.

        Otherwise the engine only tells a tale.
        """
        is_small = wish.model == "tiny-tales" and bool(pieces.labs)
        further = further_workloads([slot for lab in pieces.labs for slot in lab.parts])
        return Spec(model=wish.model, prompt=wish.prompt,
                    trace=None if wish.trace is None else str(wish.trace.resolve()),
                    workloads=(*WORKLOADS, *further, *[CAPSTONE] * wish.is_strict) if is_small else (),
                    measures_speed=is_small)

    def _run(self, pieces: Pieces, wish: RunOptions, spec: Spec) -> EngineRunResult:
        self.console.print(Text(wish.prompt, style="bold"), end="")
        self._is_telling = True
        try:
            return run_pieces(self.root, pieces, spec, self._show_event,
                              SILENCE_S if wish.model == "tiny-tales" else SILENCE_OF_LARGE_MODELS_S)
        finally:
            self._status.stop()
            self._end_tale()
            if self._advice:
                print(self._advice, file=sys.stderr, flush=True)

    def _show_event(self, event: Event) -> None:
        match event["event"]:
            case "text":
                self.console.print(Text(event["text"]), end="", soft_wrap=True)
            case "advice":
                self._advice = event["text"]
            case "begin" if event["what"] not in ("the tale", "loading"):
                self._end_tale()
                self._status.start()
                self._status.update(f"Comparing with the reference: {event['what']} …")
            case "equal":
                self._end_tale()
                told = f"{event['what']:<9} {event['num_tokens']:>4} tokens"
                self.console.print(Text.assemble(("  ✓ ", "green"), told))

    def _end_tale(self) -> None:
        if self._is_telling:
            self.console.print("\n")
        self._is_telling = False

    def _show_success(self, pieces: Pieces, outcome: EngineRunResult, wish: RunOptions) -> None:
        num_tokens = sum(outcome.equal.values())
        self.console.print(Text.assemble(("✓ ", "green"), f"{num_tokens} tokens, equal to the reference's: "
                                         f"{', '.join(outcome.equal)}."))
        for lab in pieces.labs:
            if lab.waits and outcome.speed is not None:
                self.console.print(f"  “preempts” was left out: when memory runs out, your {', '.join(lab.parts)} "
                                   f"of lab {lab.number} only waits.")
        if outcome.drafts is not None:
            num_drafted, num_steps, num_plain = outcome.drafts
            print_wrapped(self.console, f"Drafts: {num_steps / num_drafted:.2f} steps per token, "
                          f"{num_plain / num_drafted:.2f} without ({num_drafted} tokens of “{DRAFTS}”, one request at "
                          "a time).", indent=2)
        if outcome.dates:
            print_wrapped(self.console, f"Dates: {', '.join(outcome.dates)}.", indent=2)
        if outcome.speed is not None:
            mine, reference = outcome.speed
            what = "the capstone's 32 requests" if wish.is_strict else "8 requests at once"
            print_wrapped(self.console, f"Speed: {mine:.0f} tokens/s, the reference {reference:.0f}: "
                          f"{mine / reference:.2f}× ({what}, best of 3 alternating rounds; unreliable on a busy "
                          "machine).", indent=2)
        if wish.is_strict and outcome.speed is not None:
            verdict = "done" if outcome.speed[0] >= ENOUGH_SPEED * outcome.speed[1] else "not yet"
            self.console.print(f"  The capstone requires at least {ENOUGH_SPEED}×: {verdict}.")
        if wish.trace is not None:
            is_drawn = wish.trace.suffix.lower() in (".svg", ".png")
            how = "" if is_drawn else f"; to see it: mini-vllm trace {shlex.quote(str(wish.trace))}"
            self.console.print(Text(f"  Every step is in {wish.trace}{how}"), soft_wrap=True)
        if wish.is_strict:
            self.console.print()
            print_wrapped(self.console, "Every part of this engine is your own: it is your vLLM. What you have built "
                          "is described in phase-05-mlx-engine/capstone/README.md.")
            return
        latest = max(pieces.labs, key=self.labs.index, default=None)
        if latest is not None and latest.now:
            self.console.print()
            print_wrapped(self.console, latest.now)

    def _show_problem(self, pieces: Pieces, outcome: EngineRunResult, wish: RunOptions) -> None:
        problem = outcome.problem
        assert problem is not None
        self.console.print(Text.assemble(("✗ ", "red"), f"Something is wrong: {problem.sentence()}."))
        if not pieces.labs:
            self.console.print("  All parts are the reference's: this is a fault of the course or of this machine.")
            return
        own = [lab for lab in self.labs if pieces.files.get(lab.number) == lab.starter]
        if len(own) == 1:  # no other piece can be to blame
            self._show_culprit(own[0], wish)
            return
        with self.console.status("Trying your parts one at a time …"):
            blame = find_blame(self.root, pieces, self.spec(wish, pieces), problem, self.labs)
        self._show_blame(blame, wish)

    def _show_blame(self, blame: Blame, wish: RunOptions) -> None:
        if not blame.has_failed_again:
            self.console.print(Text(f"  It failed once: {blame.problem.sentence()}. It did not fail again, neither "
                                    "with each part alone nor with all. Does a part depend on time or chance?"))
            return
        if len(blame.labs) == 1:
            self._show_culprit(blame.labs[0], wish, ": with the reference's code for all other parts, "
                               f"{blame.problem.sentence()}")
            return
        numbers = ", ".join(lab.number for lab in blame.labs)
        self.console.print(Text(f"  Each part works alone. Together, the parts of labs {numbers} do not: "
                                f"{blame.problem.sentence()}."))

    def _show_culprit(self, lab: Lab, wish: RunOptions, how: str = "") -> None:
        self.console.print(Text(f"  The fault is in your {', '.join(lab.parts)} of lab {lab.number}, {lab.title}"
                                f"{how}."))
        alone = "" if list(wish.lab_names) == [lab.number] else f" Only this part: course run --lab {lab.number}"
        self.console.print(f"  Its tests: course test {lab.number}.{alone}")


def _check_unused(lab: Lab, wish: RunOptions) -> None:
    """Raise LabError for an option that the program of a lab outside the engine would not get."""
    usual = RunOptions()
    given = {"the prompt": wish.prompt != usual.prompt, "--model": wish.model != usual.model,
             "--trace": wish.trace != usual.trace}
    if unused := [name for name, is_given in given.items() if is_given]:
        see = lab.relative(lab.see) if lab.see else ""
        raise LabError(f"Lab {lab} is not part of the engine, so it does not use {' and '.join(unused)}. Its own "
                       f"options: python {see} --help")


def _check_target(trace: Path | None) -> None:
    """Raise LabError if no trace can be written there."""
    if trace is not None:
        from mini_vllm.pictures.recorded import check_run_target  # imported late: it is slow and rarely needed
        try:
            check_run_target(trace)
        except ValueError as error:
            raise LabError(str(error)) from None


def _without_standstill(spec: Spec, pieces: Pieces) -> Spec:
    """Drop the workloads that need preemption if a piece can only wait.

    Such a scheduler stalls when a request would have to be preempted. That is no bug, so the workloads are skipped.
    """
    if not any(lab.waits for lab in pieces.labs):
        return spec
    return replace(spec, workloads=tuple(name for name in spec.workloads if name not in NEED_PREEMPTION))


def show_whose(pieces: Pieces, console: Console, title: str = "Your engine") -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for seat in pieces.seats:
        if seat.lab is None and seat.slot in FURTHER_SLOTS:
            continue  # most students are not there yet
        whose = "the reference’s" if seat.lab is None else f"yours, lab {seat.lab.number}"
        notes = [Text(seat.note, "dim")] if console.width >= MIN_WIDTH_OF_NOTES else []
        table.add_row(Text(seat.slot), Text(whose, style="" if seat.lab is None else "green"), *notes)
    console.print(f"[bold]{title}[/]")
    console.print(table)

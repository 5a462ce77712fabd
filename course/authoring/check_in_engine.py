"""Proof that every lab's piece fits: the engine decodes the same with one solution at a time and with all of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course.core.child_process import ONE_THREAD
from course.lab.lab import Lab
from course.lab.parts import Pieces, Seat, bases_of, choose
from course.own_engine.run import EngineRunResult, run_pieces
from course.own_engine.spec import CAPSTONE, FURTHER_WORKLOADS, WORKLOADS, Spec, Tokens, further_workloads
from course.pytest_run.listeners import OnPoll

ALL_WORKLOADS = (*WORKLOADS, *FURTHER_WORKLOADS.values(), CAPSTONE)
#: The workload in which a scheduler that waits comes to a stop, and the engine's message in that case.
TOO_SMALL, STALLED = "preempts", "nothing could be planned"


class Reference:
    """The reference's tokens in each workload, computed once for all labs."""

    def __init__(self, root: Path, workloads: tuple[str, ...] = ALL_WORKLOADS) -> None:
        self._root, self._workloads = root, workloads
        self._tokens: dict[str, Tokens] = {}
        self._is_there = threading.Event()

    def decode(self, on_poll: OnPoll = lambda: None) -> tuple[list[str], str]:
        """Decode all workloads, and return the problems and a summary, like any check.

        Other threads that ask for ``tokens`` wait until this is done.
        """
        def on_event(event: dict[str, Any]) -> None:
            if event["event"] == "tokens":
                self._tokens[event["what"]] = event["tokens"]

        spec = Spec(workloads=self._workloads, records_tokens=True)
        try:
            outcome = run_pieces(self._root, Pieces([]), spec, on_event, on_poll=on_poll, environment=ONE_THREAD)
        finally:
            self._is_there.set()
        if outcome.problem is not None:
            return [f"the reference itself: {outcome.problem.sentence()}"], ""
        return [], f"what it decodes in {len(self._tokens)} workloads, for comparison"

    @property
    def tokens(self) -> dict[str, Tokens]:
        self._is_there.wait()
        return dict(self._tokens)


def check_alone(lab: Lab, labs: Sequence[Lab], reference: Reference, on_poll: OnPoll = lambda: None
                ) -> tuple[list[str], str]:
    """Check a lab's solution in the engine, with the reference's pieces everywhere else.

    Return the problems, and what was proved.
    """
    files = {each.number: each.solution for each in (lab, *bases_of(lab, labs))}
    pieces = Pieces([Seat(slot, lab) for slot in lab.parts], files)
    workloads = tuple(name for name in (*WORKLOADS, *further_workloads(lab.parts))
                      if not (lab.waits and name == TOO_SMALL))
    outcome = _run(lab.root, pieces, workloads, reference, on_poll)
    problems, proved = _result(outcome, f"{', '.join(lab.parts)} of lab {lab.number}, alone in the engine")
    if lab.waits and not problems:
        outcome = _run(lab.root, pieces, (TOO_SMALL,), reference, on_poll)
        if outcome.problem is None or STALLED not in outcome.problem.message:
            ended = outcome.problem.sentence() if outcome.problem else "all tokens"
            problems.append(f"the piece of lab {lab.number} lets requests wait forever, so the workload “{TOO_SMALL}” "
                            f"should end with “{STALLED} …”, but it ended with: {ended}")
        proved += f"; with too small a pool, {STALLED}"
    return problems, proved


def check_together(root: Path, labs: Sequence[Lab], reference: Reference, on_poll: OnPoll = lambda: None
                   ) -> tuple[list[str], str]:
    """Check an engine in which every part is a solution, like ``check_alone`` and with the capstone."""
    pieces = choose(labs, lambda lab: True, lambda lab: lab.solution)
    outcome = _run(root, pieces, ALL_WORKLOADS, reference, on_poll)
    numbers = ", ".join(lab.number for lab in pieces.labs)
    return _result(outcome, f"labs {numbers}, together in the engine")


def _run(root: Path, pieces: Pieces, workloads: tuple[str, ...], reference: Reference, on_poll: OnPoll
         ) -> EngineRunResult:
    return run_pieces(root, pieces, Spec(workloads=workloads, reference=reference.tokens), on_poll=on_poll,
                      environment=ONE_THREAD)


def _result(outcome: EngineRunResult, what: str) -> tuple[list[str], str]:
    if outcome.problem is not None:
        return [f"{what}: {outcome.problem.sentence()}"], ""
    return [], f"{what}: {sum(outcome.equal.values())} tokens in {len(outcome.equal)} workloads, all the reference's"

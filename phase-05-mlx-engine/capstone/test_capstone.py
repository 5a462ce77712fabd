"""The capstone: an engine in which every part is one's own serves 32 requests as the reference does.

    pytest phase-05-mlx-engine/capstone                    of the solutions; of the starters, too, once all are edited
    pytest phase-05-mlx-engine/capstone --impl starter     of the starters
    pytest phase-05-mlx-engine/capstone --impl ~/vllm      of the starters in another folder like this project

The engine runs in a process of its own, so that a piece which hangs or crashes costs one test.
"""

from pathlib import Path

import pytest

from course.lab.lab import discover
from course.own_engine.run import find_blame, run_pieces
from course.own_engine.spec import CAPSTONE, WORKLOADS, Spec

ROOT = Path(__file__).resolve().parents[2]
LABS = discover(ROOT)


def run(pieces, *workloads):
    spec = Spec(workloads=workloads)
    outcome = run_pieces(ROOT, pieces, spec)
    if outcome.problem is not None:
        blame = find_blame(ROOT, pieces, spec, outcome.problem, LABS)
        labs = ", ".join(str(lab) for lab in blame.labs)
        who = f"It is the piece of lab {labs}" if blame.is_alone else f"Only together do the pieces of labs {labs} fail"
        pytest.fail(f"{outcome.problem.sentence()}.\n{who}: {blame.problem.sentence()}", pytrace=False)
    return outcome


def test_every_part_is_ones_own(pieces):
    assert [seat.slot for seat in pieces.seats if seat.lab is None] == [], "every slot of the engine has a piece"


def test_every_workload_gives_the_references_tokens(pieces):
    assert list(run(pieces, *WORKLOADS).equal) == list(WORKLOADS)


def test_32_requests_with_shared_prefixes_priorities_and_aborts(pieces):
    assert run(pieces, CAPSTONE).equal[CAPSTONE] > 700, "23 requests to their end, 9 to their third token"

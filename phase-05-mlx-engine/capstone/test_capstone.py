"""The capstone: an engine made only of the student's parts serves 32 requests as the reference does.

    pytest phase-05-mlx-engine/capstone                    test the solutions, and the starters once all are edited
    pytest phase-05-mlx-engine/capstone --impl starter     test the starters
    pytest phase-05-mlx-engine/capstone --impl ~/vllm      test the starters in another checkout of this project

The engine runs in a separate process, so that a piece that hangs or crashes fails only one test.
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
        who = (f"The piece of lab {labs} fails" if blame.is_alone
               else f"The pieces of labs {labs} fail only when they are combined")
        pytest.fail(f"{outcome.problem.sentence()}.\n{who}: {blame.problem.sentence()}", pytrace=False)
    return outcome


def test_every_part_is_ones_own(pieces):
    assert [seat.slot for seat in pieces.seats if seat.lab is None] == [], "every part must come from a lab"


def test_every_workload_gives_the_references_tokens(pieces):
    assert list(run(pieces, *WORKLOADS).equal) == list(WORKLOADS)


def test_32_requests_with_shared_prefixes_priorities_and_aborts(pieces):
    num_equal = run(pieces, CAPSTONE).equal[CAPSTONE]
    assert num_equal > 700, (
        f"{num_equal} tokens equal the reference's, expected more than 700: 23 requests run to the end, and 9 are "
        "aborted after their third token")

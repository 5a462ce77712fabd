"""A process that can only write to the pipe cannot invent verdicts: bytes that the tests did not sign never count."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.grading.protocol.verdict_lines import KEY_BYTES, SignedLines, VerdictReader

KEY = bytes(range(KEY_BYTES))
NAMES = ["test_a", "test_b", "test_b", "test_c"]


def lines_of(events, key=KEY):
    reading, writing = os.pipe()
    signed = SignedLines(writing, key)
    for event in events:
        signed.write(event)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        return file.read().splitlines()


def run_of(passed):
    """Return the events that an honest run reports."""
    events = [{"event": "plan", "tests": NAMES}]
    for index, is_passed in enumerate(passed):
        events += [{"event": "start", "index": index}, {"event": "end", "index": index, "passed": is_passed}]
    return [*events, {"event": "finish"}]


def accepted(reader, lines):
    return [event for line in lines if (event := reader.take(line)) is not None]


def test_an_honest_run_is_taken_whole():
    reader = VerdictReader(KEY, NAMES)
    events = accepted(reader, lines_of(run_of([True, False, True, False])))
    assert [(event["test"], event["passed"]) for event in events if event["event"] == "end"] == [
        ("test_a", True), ("test_b", False), ("test_b", True), ("test_c", False)]
    assert reader.is_finished and reader.has_begun and reader.num_refused == 0


LINES = lines_of(run_of([False] * 4))
WITH_PASSES = lines_of(run_of([True] * 4), key=bytes(KEY_BYTES))


@given(st.lists(st.one_of(
    st.binary(max_size=80), st.sampled_from(LINES), st.sampled_from(WITH_PASSES),
    st.sampled_from(LINES).map(lambda line: line.replace(b"false", b"true")),
    st.tuples(st.sampled_from(LINES), st.integers(0, 200), st.binary(max_size=4)).map(
        lambda parts: parts[0][:parts[1]] + parts[2] + parts[0][parts[1]:])), max_size=30), st.integers(0, 9))
def test_whatever_else_is_written_no_test_passes_that_did_not(written, place):
    """Write garbage, replays, lines signed with other keys and changed lines into a run in which every test failed."""
    reader = VerdictReader(KEY, NAMES)
    events = accepted(reader, [*LINES[:place], *written, *LINES[place:]])
    assert not any(event.get("passed") for event in events)
    ends = [event["index"] for event in events if event["event"] == "end"]
    assert ends == sorted(set(ends)), "each test has one verdict, in order"


def test_a_line_of_garbage_costs_nothing_and_is_counted():
    reader = VerdictReader(KEY, NAMES)
    events = accepted(reader, [b"", b'{"event": "finish"}', *LINES, LINES[-1]])
    assert reader.is_finished and len(events) == len(LINES) and reader.num_refused == 3


@pytest.mark.parametrize("events", [
    [{"event": "start", "index": 0}],
    [{"event": "plan", "tests": ["test_of_another_lab"]}],
    [{"event": "plan", "tests": NAMES}, {"event": "end", "index": 0, "passed": True}],
    [{"event": "plan", "tests": NAMES}, {"event": "start", "index": 1}],
    [{"event": "plan", "tests": NAMES}, {"event": "finish"}],
    [{"event": "plan", "tests": NAMES}, {"event": "start", "index": 0}, {"event": "start", "index": 1}],
    [{"event": "plan", "tests": NAMES}, {"event": "plan", "tests": NAMES[:1]}],
    [*run_of([True] * 4), {"event": "start", "index": 0}],
], ids=lambda events: "-".join(event["event"] for event in events[:3]))
def test_what_is_signed_but_out_of_order_does_not_count_either(events):
    reader = VerdictReader(KEY, NAMES)
    lines = lines_of(events)
    assert len(accepted(reader, lines)) == len(lines) - 1 and reader.num_refused == 1


def test_a_signature_is_of_one_place_only():
    """Check that a line from another run with the same key does not fit another number."""
    other = lines_of([{"event": "plan", "tests": NAMES}, {"event": "start", "index": 0},
                      {"event": "end", "index": 0, "passed": True}])
    reader = VerdictReader(KEY, NAMES)
    accepted(reader, LINES[:1])
    assert reader.take(other[2]) is None and json.loads(other[2].split(b" ", 2)[2])["passed"]

"""A hostile file achieves nothing, and each of its attempts would succeed if nothing prevented it."""

import os
import sys

import pytest

from course.grading.sandbox import Level, describe

READING = ("read_outside", "read_passwd", "read_the_tests", "list_outside", "import_from_site_packages")
SEEING = ("read_processes", "read_the_graders_memory")
WRITING = ("write_outside", "make_outside", "make_folder_outside", "rename_outside", "remove_outside", "link_outside",
           "truncate_outside", "write_in_the_room", "write_in_the_current_folder", "write_in_tmp",
           "write_to_shared_memory")
#: Landlock does not cover these.
CHANGING = ("change_mode_outside", "change_time_outside", "lock_outside")
NETWORK = ("connect",)
OTHER_NETWORK = ("connect_by_path", "send_a_datagram")
PROCESSES = ("fork", "spawn", "run")
SIGNALS = ("signal_the_grader", "signal_everybody_in_the_group")
OTHERS = ("make_the_socket_signal_the_grader", "limit_the_grader", "slow_the_grader", "trace_the_grader")
#: Memory of such a file counts neither as address space nor as that of the process.
ITSELF = ("outlive_the_keeper", "share_memory_that_stays", "signal_the_keeper", "make_a_file_in_memory")
LIMITED = ("use_too_much_memory", "raise_the_limits", "open_too_many", "print_a_flood")
ALWAYS = ("import_what_was_not_asked_for", *LIMITED)
FILTERED = (*WRITING, *CHANGING, *NETWORK, *OTHER_NETWORK, *PROCESSES, *SIGNALS, *OTHERS, *ITSELF, "enter_namespaces")
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the filter of system calls is Linux's")


def succeeded(report, names):
    return [name for name in names if report.outcomes[name] == "done"]


@ON_LINUX
def test_with_the_filter_nothing_succeeds(attack, level):
    """Check that no attempt succeeds at a level that isolates. A plain process can still read, as documented."""
    report = attack(level, True)
    done = [name for name, outcome in report.outcomes.items() if outcome == "done"]
    assert set(done) <= ({*READING, *SEEING} if level is Level.PLAIN else set()), f"these succeeded: {done}"
    refused = {report.outcomes[name] for name in FILTERED}
    assert refused <= {"PermissionError", "FileNotFoundError", "ProcessLookupError"}, report.outcomes


def test_without_the_filter_the_levels_own_walls_stand(attack, level):
    report = attack(level, False)
    walls = {Level.PLAIN: (), Level.LANDLOCK: (*READING, *SEEING, *WRITING, *NETWORK, "signal_the_grader"),
             Level.SEATBELT: (*READING, *WRITING, *NETWORK, *PROCESSES, *SIGNALS)}
    everything_outside = (*READING, *WRITING, *CHANGING, *NETWORK, *OTHER_NETWORK, *SIGNALS, *OTHERS)
    assert succeeded(report, (*walls.get(level, everything_outside), *ALWAYS)) == []


@ON_LINUX
def test_with_nothing_in_their_way_the_attempts_succeed(attack):
    """Check the tests themselves: an attempt that fails anyway would prove nothing."""
    report = attack(Level.PLAIN, False)
    expected = {*READING, *SEEING, *FILTERED} - {"enter_namespaces"}  # a machine may forbid these to every user
    assert set(report.outcomes) == {*expected, *ALWAYS, "enter_namespaces"}, "each attempt has its place in a list"
    if os.geteuid() == 0:  # the file has given up root's privileges, and the grader has not
        expected -= {"read_the_graders_memory", "slow_the_grader", "trace_the_grader"}
    failed = {name: report.outcomes[name] for name in expected if report.outcomes[name] != "done"}
    assert failed == {}


def test_limits_hold_at_each_level(attack, level):
    outcomes = attack(level, True).outcomes
    limits = {name: outcomes[name] for name in LIMITED}
    if sys.platform == "darwin":
        del limits["use_too_much_memory"]
    assert limits == {name: outcome for name, outcome in (
        ("use_too_much_memory", "MemoryError"), ("raise_the_limits", "ValueError"), ("open_too_many", "OSError"),
        ("print_a_flood", "OSError")) if name in limits}


def test_a_flood_of_words_is_cut(attack, level):
    printed = attack(level, True).printed
    assert "flood flood" in printed and len(printed) <= 8_000


def test_the_file_sees_an_empty_place(attack, level):
    seen = attack(level, True).seen
    assert seen["descriptors"] == [0, 1, 2], "beside its socket"
    assert seen["files"] == [] and seen["input"] == "" and seen["flags"] == [1, 1, 1]
    assert seen["environment"].pop("HOME") == seen["folder"]
    assert set(seen["environment"]) <= {"LC_ALL", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
                                        "VECLIB_MAXIMUM_THREADS", "MLX_DISABLE_COMPILE", "PWD",
                                        "__CF_USER_TEXT_ENCODING"}
    assert not [path for path in seen["path"][:-1] if path.endswith("-packages")], "the last was put there by the file"


@ON_LINUX
def test_what_is_said_of_a_level_is_so(attack, level, monkeypatch):
    has_network, sentences = describe(level)
    assert has_network is False and sentences
    assert ("can read whatever you can read" in sentences[0]) == (level is Level.PLAIN)
    monkeypatch.setattr("course.grading.sandbox.inside.seccomp.is_available", lambda: False)
    has_network, sentences = describe(level)
    assert has_network == bool(succeeded(attack(level, False), (*NETWORK, *OTHER_NETWORK)))
    assert "filter system calls" in sentences[-1] or level is Level.PLAIN

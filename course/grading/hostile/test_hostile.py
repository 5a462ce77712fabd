"""Every hostile file scores what it honestly earns, and the next honest one scores what it did before.

A normal run grades a selection. HOSTILE=all (``make hostile``) grades every attack at every level that the machine
offers.
"""

import contextlib
import dataclasses
import json
import os

import pytest

from course.core.result import Outcome
from course.grading.grade_file import grade
from course.grading.grade_file.run_tests import TestsRun
from course.grading.hostile.attack import Attack, Earns
from course.grading.hostile.bases import TESTS, TESTS_INSIDE, half_of
from course.grading.hostile.small_course import small_course
from course.grading.hostile.suite import ATTACKS
from course.grading.limits import Settings
from course.grading.sandbox import Level
from course.grading.sandbox.levels import why_not
from course.test_forked import STAND_IN

ALL = os.environ.get("HOSTILE") == "all"
TIGHT = [level for level in (Level.BUBBLEWRAP, Level.NAMESPACES, Level.LANDLOCK) if why_not(level) is None]
TIME_LIMIT_S = 2.0
#: The score of lab 3.5 needs ten traces.
TIME_LIMITS_S = {"3.5": 10.0}
SECRET = "the-graders-secret"
BY_NAME = {attack.name: attack for attack in ATTACKS}


class Course:
    """The small course, and what was graded in it."""

    def __init__(self, folder):
        (folder / "small").mkdir()
        self.folder = folder
        tests = {lab: (*names, *TESTS_INSIDE.get(lab, ())) for lab, names in TESTS.items()}
        self.labs = small_course(folder / "small", TESTS)
        (folder / "inside").mkdir()
        self.labs_inside = small_course(folder / "inside", {lab: tests[lab] for lab in TESTS_INSIDE})
        self.num_graded = 0
        self.bases = {}

    def grade(self, lab, text, level, beside=()):
        """Grade a text in a new folder, together with the other files in ``beside``."""
        self.num_graded += 1
        path = self.folder / f"{os.getpid()}-{self.num_graded}" / "starter.py"
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
        for name, content in dict(beside).items():
            (path.parent / name).parent.mkdir(exist_ok=True)
            (path.parent / name).write_text(content, encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grade, "_level", lambda wanted: level)
            patch.setenv("GRADER_SECRET", SECRET)
            return grade.grade_file(lab, path, Settings(time_limit_s=TIME_LIMITS_S.get(lab.number, TIME_LIMIT_S)))

    def lab(self, attack):
        return (self.labs_inside if attack.is_inside else self.labs)[attack.lab]

    def attack(self, attack, level):
        lab = self.lab(attack)
        return self.grade(lab, f"{half_of(lab)}\n{attack.code}", level, attack.beside)

    def base(self, lab, level):
        """Return what the honest half file earns; it is graded once."""
        if (lab, level) not in self.bases:
            with pytest.MonkeyPatch.context() as patch:  # a quicker process is enough, because this file is honest
                patch.setattr("course.core.child_process.subprocess", STAND_IN)
                self.bases[lab, level] = self.grade(lab, half_of(lab), level)
        return self.bases[lab, level]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return Course(tmp_path_factory.mktemp("hostile"))


def passed(result):
    return {test.name for test in result.tests if test.passed}


def check(attack, result, base):
    """Raise AssertionError if the attack has gained anything, or lost points that it should have kept."""
    gained, lost = passed(result) - passed(base), passed(base) - passed(result)
    if attack.earns is Earns.BASE_BUT_INSIDE:
        inside = {test.name for test in result.tests if test.is_inside}
        gained, lost = gained - inside, lost - inside
    assert not gained, f"{attack.name}, which {attack.tries}, gained {sorted(gained)}"
    assert result.kept_score in (base.kept_score, None), f"{attack.name} changed its score to {result.kept_score}"
    assert result.score is None, "the base fails a test, so that its score does not count"
    assert result.max_points == base.max_points, "every test stands in the result, also those that did not run"
    told = json.dumps(result.to_json())
    assert SECRET not in told and "REACHED" not in told, f"{attack.name} tells what only the grader knows"
    if attack.earns is not Earns.AT_MOST_BASE:
        why = {test.name: test.message for test in result.tests if test.name in lost}
        assert not lost, f"{attack.name}, which {attack.tries}, cost its honest part: {why}"
        assert result.kept_score == base.kept_score, f"{attack.name} lost the score of its honest part"
        assert result.outcome is Outcome.GRADED, (result.reason, result.flags)
    assert attack.flag in "".join(result.flags), f"{attack.name} was not flagged: {result.flags}"


CASES = [pytest.param(attack, level, id=f"{attack.name}-{level.value}") for attack in ATTACKS
         for level in [*TIGHT, *([] if attack.is_outside else [Level.PLAIN])]]


@pytest.mark.parametrize("attack, level", CASES if ALL else [])
def test_a_hostile_file_scores_what_it_earns_and_the_next_is_unharmed(course, attack, level):
    base = course.base(course.lab(attack), level)
    check(attack, course.attack(attack, level), base)
    after = course.grade(course.lab(attack), half_of(course.lab(attack)), level)
    assert passed(after) == passed(base), f"after {attack.name} an honest file scores {after.points}, not {base.points}"


# ---- the selection


def together(attacks):
    """Combine attacks that do not interfere with each other into one file."""
    attacks = list(attacks)
    return dataclasses.replace(attacks[0], name="+".join(each.name for each in attacks),
                               code="\n".join(each.code for each in attacks), earns=Earns.BASE, is_outside=False)


FORGERIES = together(BY_NAME[name] for name in (
    "verdict_lines", "printed_summary", "patches_pytest", "keyboard_interrupt", "swaps_tests", "exploding_text",
    "exceptions_of_pytest", "empties_sys_modules"))
OUTSIDE = together(BY_NAME[name] for name in (
    "tells_the_environment", "reads_the_solution", "imports_the_engine", "imports_what_is_served", "kills_the_parent",
    "leaves_a_daemon", "reads_the_graders_memory", "calls_home"))


def test_honest_files_score_what_they_are_worth(course):
    level = TIGHT[0] if TIGHT else Level.PLAIN
    lab = course.labs["2.1"]
    perfect = course.grade(lab, lab.solution.read_text(encoding="utf-8"), level)
    assert (perfect.points, perfect.max_points, perfect.flags) == (19, 19, ())
    assert course.base(lab, level).points == 9


@pytest.mark.parametrize("level", [*TIGHT[:1], Level.PLAIN], ids=lambda level: level.value)
def test_forgeries_in_the_file_gain_nothing(course, level):
    check(FORGERIES, course.attack(FORGERIES, level), course.base(course.labs["2.1"], level))


def test_a_score_cannot_be_falsified(course):
    level, lab = TIGHT[0] if TIGHT else Level.PLAIN, course.labs["3.5"]
    base = course.base(lab, level)
    assert (base.points, base.score, round(base.kept_score or 0, 1)) == (5, None, 64.9)
    both = together([BY_NAME["prints_a_score"], BY_NAME["patches_the_score"]])
    for attack in (both, BY_NAME["blocks_equal_to_everything"]):
        check(attack, course.attack(attack, level), base)


@pytest.mark.skipif(not TIGHT, reason="this machine offers no sandbox")
def test_what_reaches_out_of_its_process_gains_nothing_and_harms_nobody(course):
    base = course.base(course.labs["2.1"], TIGHT[0])
    check(OUTSIDE, course.attack(OUTSIDE, TIGHT[0]), base)
    after = course.grade(course.labs["2.1"], half_of(course.labs["2.1"]), TIGHT[0])
    assert passed(after) == passed(base)


@pytest.mark.parametrize("name", ["colliding_keys", "computes_in_the_grader", "endless_when_written"])
def test_bytes_that_no_honest_file_sends_cost_their_sender_only(course, name):
    level = TIGHT[0] if TIGHT else Level.PLAIN
    check(BY_NAME[name], course.attack(BY_NAME[name], level), course.base(course.labs["2.1"], level))


# ---- the suite itself


def test_a_grader_that_believes_a_file_of_the_students_is_found_out(course, monkeypatch):
    """Break the grader on purpose: it takes verdicts from what the student's file prints. The check must notice."""
    honest = TestsRun._take

    def gullible(self, event, ended):
        honest(self, event, ended)
        for line in event["printed"].splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                honest(self, {**event, **json.loads(line)}, ended)
                name = json.loads(line)["test"]
                ended.verdicts[name] = dataclasses.replace(ended.verdicts[name], passed=True)

    base = course.base(course.labs["2.1"], Level.PLAIN)
    monkeypatch.setattr(TestsRun, "_take", gullible)
    result = course.attack(BY_NAME["verdict_lines"], Level.PLAIN)
    with pytest.raises(AssertionError, match="gained"):
        check(BY_NAME["verdict_lines"], result, base)


def test_each_attack_says_what_it_tries_and_has_a_name_of_its_own():
    assert len(BY_NAME) == len(ATTACKS) >= 70
    assert all(attack.tries and (attack.code or attack.beside) for attack in ATTACKS)
    assert all(isinstance(attack, Attack) and attack.lab in TESTS for attack in ATTACKS)

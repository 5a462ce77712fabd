"""Tests of what all contests share, on one whose traces and results are numbers."""

import sys
from types import SimpleNamespace

import pytest

from course.lab.contest import Contest, Line
from course.lab.lab import discover, find_lab
from course.lab.load_module import load_file


class Foul(Exception):
    pass


class Trace(SimpleNamespace):
    def __hash__(self):
        return hash(self.name)


def make(name, seed=None):
    """Make a trace on which naive has 2, the reference 3, and the bound is 12."""
    return Trace(name=name if seed is None else f"{name} of seed {seed}", is_known=seed is None)


def contest(**more):
    def play(trace, policy):
        return policy(trace)

    return Contest("toy", "Policy", ["a", "b"], make, play=play, foul=Foul, naive=lambda trace: 2,
                   reference=lambda trace: 3, bound=lambda trace: 12, title="toys, %", scale=lambda trace: 10,
                   unit="{:.0f} toys", **more)


def module(policy):
    return SimpleNamespace(Policy=policy)


def line(yours, naive=2, reference=3, bound=12):
    return Line(make("a"), naive, reference, bound, yours)


def test_the_total_is_the_part_of_the_gap_that_is_closed():
    toys = contest()
    assert toys.total([line(7)]) == 50.0 and toys.total([line(-3)]) == -50.0
    assert toys.total([line(4, 4, 4, 4)]) == 100.0, "if naive and bound are equal, the gap counts as closed"
    assert toys.total([line(5, 4, 4, 4)]) == 0.0
    assert toys.total([line(7), line(12)]) == 75.0
    assert toys.total([line(3.0, naive=4.0, bound=2.0)]) == 50.0, "a result that is to be small"
    assert toys.landmarks([line(7), line(None)]) == {"naive": 0.0, "reference": pytest.approx(10.0), "bound": 100.0}
    with pytest.raises(ValueError, match="the line of 'a' has no result of Policy"):
        toys.total([line(7), line(None)])


def test_the_command_prints_a_table_and_tells_a_terminal_that_it_takes_a_while(monkeypatch, capsys, tmp_path):
    file = tmp_path / "starter.py"
    file.write_text("Policy = lambda trace: 7 if trace.is_known else 4.5\n")
    toys = contest(columns={"half": lambda result: result / 2})
    toys.main([])
    assert capsys.readouterr() == ("toys, %        naive  reference    bound   yours  half\n"
                                   "a               20.0       30.0    120.0       –   1.5\n"
                                   "b               20.0       30.0    120.0       –   1.5\n"
                                   "total            0.0       10.0    100.0       –\n", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    toys.main([str(file), "--seed", "7"])
    printed, said = capsys.readouterr()
    assert said == f"Scoring {file} …\n"
    assert printed.splitlines()[1:] == ["a of seed 7     20.0       30.0    120.0    45.0   2.2",
                                        "b of seed 7     20.0       30.0    120.0    45.0   2.2",
                                        "total            0.0       10.0    100.0    25.0"]


def test_a_step_is_a_part_of_the_gap_on_published_and_on_unseen_traces():
    toys = contest(margin=0.25)
    toys.check_step(module(lambda trace: 7.5 if trace.is_known else 5.25), ["a"], 0.5, "Half of the gap")
    for policy, part, words in (
            (lambda trace: 7.4, 0.5, "trace 'a': Policy has 7 toys; the reference has 3 toys, the bound is 12 toys, "
                                     "and 48.9% of the gap is closed. Half of the gap is needed"),
            (lambda trace: 3, 0, "0.0% of the gap is closed"),
            (lambda trace: 12 if trace.is_known else 5.2, 0.5, "24.4% of the gap is closed. 25% is needed there. On "
                                                               "the published traces 100% is closed: what is tuned"),
            (lambda trace: 12 if trace.is_known else 3, 0.1, "More than 0 % is needed there")):
        with pytest.raises(AssertionError) as error:
            toys.check_step(module(policy), ["a"], part, "Half of the gap")
        assert words in str(error.value)
    contest(is_from_reference=False).check_step(module(lambda trace: 7), ["a", "b"], 0.5, "Half of the gap")


def test_what_is_tuned_to_the_published_traces_has_no_score():
    assert contest(max_drop=20).checked_total(module(lambda trace: 7 if trace.is_known else 5)) == 50.0
    with pytest.raises(AssertionError, match=r"closes 50.0 % .* on the published traces, and 20.0 % on others"):
        contest(max_drop=20).checked_total(module(lambda trace: 7 if trace.is_known else 4))


@pytest.mark.parametrize("error", [None, Foul("not so"), ZeroDivisionError("zero"), KeyboardInterrupt("stop")])
def test_a_module_plays_a_trace_once_even_with_a_new_class_each_time_or_an_error(error):
    plays = []

    class Module:
        @property
        def Policy(self):
            def policy(trace):
                plays.append(trace.name)
                if error:
                    raise error
                return 7

            return policy

    toys, lab = contest(), Module()
    for _ in range(2):
        if error is None:
            assert toys.played(lab, "a").yours == toys.played(lab, "a", 1000).yours == 7
            continue
        with pytest.raises((AssertionError, type(error)), match=f"{error}|not played to its end"):
            toys.played(lab, "a")
    assert plays == (["a", "a of seed 1000"] if error is None else ["a"])
    assert contest().played(module(lambda trace: 7), "a").yours == 7


def test_each_module_plays_for_itself():
    toys = contest()
    assert [toys.played(module(lambda trace, n=n: n), "a").yours for n in range(20)] == list(range(20))


@pytest.mark.parametrize("number", ["3.5", "4.4", "6.3"])
def test_unseen_traces_of_a_lab_have_seeds_of_64_bits_that_are_drawn_when_it_is_graded(number, monkeypatch):
    """Check that traces of neighbouring 64-bit seeds differ from each other and from the published ones."""
    lab = find_lab(number, discover())
    toys = load_file(lab.tests).CONTEST
    drawn = iter([(1 << 64) - 1, 5])
    monkeypatch.setenv("COURSE_GRADER", "1")
    monkeypatch.setattr("secrets.token_hex", lambda num_bytes: f"{next(drawn):0{2 * num_bytes}x}")
    seeds = []
    for _ in range(2):
        toys.__dict__.pop("unseen_seeds", None)
        seeds += toys.unseen_seeds
    monkeypatch.undo()
    toys.__dict__.pop("unseen_seeds")
    assert len(set(seeds)) == len(seeds) == 2 * toys.num_unseen and seeds[0] == 999 + (1 << 64) and seeds[-1] < 2000
    assert toys.unseen_seeds[0] == 1000
    for name in toys.names:
        made = [toys.make(name, seed) for seed in (None, *seeds)]
        contents = {repr({key: value for key, value in vars(each).items() if key != "name"}) for each in made}
        assert len(contents) == len(made) == len({each.name for each in made})

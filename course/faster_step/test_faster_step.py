"""The comparison of CPU times: its rounds, its clock, what it rejects, and what the ideas compute."""

import dataclasses
import json
import random
import sys

import numpy as np
import pytest

from course.faster_step import race as racing
from course.faster_step import score
from course.faster_step.driver import make_driver
from course.faster_step.ideas import IDEAS
from course.faster_step.race import ATOL, Side, WrongTokens, check_answers, race
from course.faster_step.reference import ReferenceRunner
from course.faster_step.rounds import BLOCK_SIZE, NUM_BLOCKS, PHASES, make_round
from course.testing import measure
from mini_vllm.models.random_model import random_weights

SMALL = dict(model_type="llama", vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5,
             rope_theta=10000.0, tie_word_embeddings=False)


# ---- rounds


@pytest.mark.parametrize("seed", range(5))
def test_every_step_of_a_round_fits_together(seed):
    written = {}  # slot → (request's table, position)
    done = {}
    for step in make_round(random.Random(seed), 50):
        nums = [len(token_ids) for token_ids, *_ in step]
        assert nums == sorted(nums, key=lambda num: num > 1), "requests that compute one token come first"
        for token_ids, table, context_len, _ in step:
            assert all(0 <= token < 50 for token in token_ids) and context_len <= len(table) * BLOCK_SIZE
            start = context_len - len(token_ids)
            before = done.get(table, max((n for other, n in done.items() if other == table[:len(other)]), default=0))
            assert start == before, "a request computes the tokens after those that are computed"
            done[table] = context_len
            for position in range(start, context_len):
                slot = table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
                assert slot not in written and 0 < table[position // BLOCK_SIZE] < NUM_BLOCKS
                written[slot] = table, position


def test_rounds_have_the_batches_that_the_page_names():
    steps = make_round(random.Random(1), 50)
    decodes = [len(step) for step in steps if all(len(token_ids) == 1 for token_ids, *_ in step)]
    assert decodes == [size for size, count in PHASES for _ in range(count)] and len(steps) == 23
    assert make_round(random.Random(1), 50) == steps != make_round(random.Random(2), 50)


# ---- the clock


class Process:
    """A process with a clock that goes only when something computes in it.

    While the runner computes a step, a thread of the process ``other`` computes for ``others_s``.
    """

    def __init__(self, step_s, *, other=None, others_s=0.0, log=None, name=""):
        self.now_s, self.step_s, self.log, self.name = 100.0, step_s, log, name
        self.other, self.others_s = other or self, others_s

    def best(self, step):
        self.now_s += self.step_s
        self.other.now_s += self.others_s
        if self.log is not None and (not self.log or self.log[-1] != self.name):
            self.log.append(self.name)
        return [(3, 1.5, 1.0)] * sum(needs for *_, needs in step)

    def cpu_s(self):
        return self.now_s

    def side(self, is_alone=True):
        return Side(self.best, self.cpu_s, is_alone)


def test_a_ratio_is_the_references_time_divided_by_the_sides():
    ratios = race([Process(0.25).side(), Process(0.5).side(), Process(0.125).side()], 3, random.Random(0), 50)
    assert ratios == [[1.0] * 3, [0.5] * 3, [2.0] * 3]


def test_sides_take_turns_and_the_first_round_is_not_counted():
    log = []
    sides = [Process(1.0, log=log, name="a").side(), Process(1.0, log=log, name="b").side()]
    assert len(race(sides, 2, random.Random(0), 50)[1]) == 2
    assert log == ["a", "b"] * 3
    assert [len(side.used_s) for side in sides] == [3, 3]


def test_a_slow_side_computes_fewer_rounds_but_at_least_one():
    """Let a side take 46 s per round."""
    for budget_s, num_rounds in ((1.0, 1), (45.0, 1), (46.0, 2), (100.0, 3), (1000.0, 5)):
        sides = [Process(1.0).side(), Process(2.0).side()]
        assert race(sides, 5, random.Random(0), 50, budget_s)[1] == [0.5] * num_rounds


def test_in_a_process_of_its_own_all_cpu_time_counts():
    """Let a thread of the second process compute while it is the reference's turn."""
    process = Process(0.5)
    ratios = race([Process(1.0, other=process, others_s=0.5).side(), process.side()], 2, random.Random(0), 50)
    assert ratios[1] == [1.0, 1.0], "half a second per step in its turn, and half a second per step in the other's"


def test_in_a_shared_process_only_the_turn_counts():
    process = Process(1.0)
    side = process.side(is_alone=False)
    process.now_s += 1000.0
    side.play(make_round(random.Random(0), 50))
    assert side.used_s == [23.0]


# ---- what is rejected


EXPECTED = [[(7, 2.0, 0.5), (9, 3.0, ATOL / 2)]]
STEPS = [(((1,), (1,), 1, True), ((2,), (2,), 1, True))]


def test_the_references_answers_are_accepted():
    check_answers(EXPECTED, EXPECTED, STEPS)
    check_answers([[(7, 2.0 + ATOL / 2, 9.0), (9, 3.0, 0.0)]], EXPECTED, STEPS)
    check_answers([[(7, 2.0, 0.5), (4, 3.0, 0.0)]], EXPECTED, STEPS)  # two tokens that are equally good


@pytest.mark.parametrize("answers, words", [
    ([[(8, 2.0, 0.5), (9, 3.0, 0.1)]], "row 0 has its largest logit at token 8, the reference at token 7"),
    ([[(7, 2.0 + 2 * ATOL, 0.5), (9, 3.0, 0.1)]], "the largest logit of row 0"),
    ([[(7, float("nan"), 0.5), (9, 3.0, 0.1)]], "the largest logit of row 0 is nan"),
    ([[(7, 2.0, 0.5)]], "gave 1 rows of logits, expected 2"),
    ([[7, 9]], "not a list of tokens and logits"),
    ([[(7, np.float64(2.0), 0.5), (9, 3.0, 0.1)]], "not a list of tokens and logits"),
    ([[(True, 2.0, 0.5), (9, 3.0, 0.1)]], "not a list of tokens and logits")], ids=str)
def test_other_answers_are_rejected(answers, words):
    with pytest.raises(WrongTokens, match="with 2 requests and 2 tokens") as caught:
        check_answers(answers, EXPECTED, STEPS)
    assert words in str(caught.value)


def test_a_wrong_answer_ends_the_comparison():
    process = Process(1.0)
    process.best = lambda step: [(4, 1.5, 1.0)] * sum(needs for *_, needs in step)
    with pytest.raises(WrongTokens):
        race([Process(1.0).side(), process.side()], 1, random.Random(0), 50)


def test_an_answer_cannot_be_filled_in_later():
    """Return the same list for every step, and the right numbers in it only at the end of the round."""
    class Late(Process):
        def best(self, step):
            self.shared = getattr(self, "shared", [])
            self.shared[:] = super().best(step) if len(step) == 16 else []
            return self.shared

    with pytest.raises(WrongTokens, match="step 0 of the comparison, .* gave 0 rows"):
        race([Process(1.0).side(), Late(1.0).side()], 1, random.Random(0), 50)


@pytest.mark.parametrize("answer", [(), "rows", None, iter([])])
def test_an_answer_must_be_a_list(answer):
    process = Process(1.0)
    process.best = lambda step: answer
    with pytest.raises(WrongTokens, match="expected a list"):
        process.side().play(make_round(random.Random(0), 50))


# ---- real runners


def driver(runner_class):
    return make_driver(runner_class, SMALL, tuple(random_weights(SMALL, 0).items()), NUM_BLOCKS, BLOCK_SIZE)


def test_the_config_crosses_as_text_because_the_other_side_could_change_a_dictionary(monkeypatch):
    configs = []

    class Elsewhere:
        def measure(self, name, runner_class, config, *rest):
            configs.append(config)
            return measure.HERE.measure(name, runner_class, config, *rest)

    monkeypatch.setattr(measure, "where", Elsewhere())
    driver(ReferenceRunner)
    make_driver(ReferenceRunner, json.dumps(SMALL), tuple(random_weights(SMALL, 0).items()), NUM_BLOCKS, BLOCK_SIZE)
    assert configs == [json.dumps(SMALL)] * 2


def test_each_idea_computes_the_references_tokens():
    steps = make_round(random.Random(3), 50)
    reference = driver(ReferenceRunner)
    expected = [reference.best(step) for step in steps]
    for name, runner_class in IDEAS.items():
        changed = driver(runner_class)
        check_answers([changed.best(step) for step in steps], expected, steps)
        assert name in score.table([score.Line(name, 1.0, (1.0,))])


class Forgetful(ReferenceRunner):
    """Computes at most the last 50 tokens of a chunk."""

    def step(self, requests, copies=()):
        short = [dataclasses.replace(request, token_ids=request.token_ids[-50:]) for request in requests]
        return super().step(short, copies)


def test_the_lab_compares_tokens_and_returns_the_ratio(monkeypatch):
    weights = tuple(random_weights(SMALL, 0).items())
    monkeypatch.setattr(racing, "tiny_tales", lambda: (SMALL, weights))
    assert racing.ratio_of(ReferenceRunner) > 0
    monkeypatch.setattr(measure.HERE, "is_one_process", lambda: False)
    assert racing.ratio_of(ReferenceRunner) is None, "no score where a file could let other processes compute"
    with pytest.raises(WrongTokens):
        racing.ratio_of(Forgetful)


def test_the_comparison_uses_the_model_that_ships():
    config, weights = racing.tiny_tales()
    assert racing.vocab_size_of(config) == 4096 and dict(weights)["model.embed_tokens.weight"].shape == (4096, 256)


# ---- the score


LINES = [score.Line("reference", 0.6, (1.0, 1.0, 1.0)), score.Line("engine", 0.35, (1.7, 1.8, 1.6)),
         score.Line("yours", 0.4, (1.4, 1.6, 1.5))]


def test_the_score_is_the_median_ratio():
    assert score.total(LINES) == 1.5 and score.landmarks(LINES) == {"reference": 1.0, "engine": 1.7}
    assert score.table(LINES).splitlines()[-1].split() == ["yours", "400", "ms", "1.50", "1.40", "1.60"]
    with pytest.raises(ValueError, match="no runner of a student"):
        score.total(LINES[:2])


@pytest.mark.parametrize("rounds", ["0", "-1", "1001"])
def test_the_command_rejects_impossible_numbers_of_rounds(rounds, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["score", "--rounds", rounds])
    with pytest.raises(SystemExit):
        score.main()
    assert f"--rounds is {rounds}, must be from 1 to 1000" in capsys.readouterr().err

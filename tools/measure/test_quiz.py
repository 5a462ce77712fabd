"""The quiz: its questions, when an answer is right, and the table that the command prints."""

import json
import sys
from collections import Counter

import pytest

from measure import quiz
from measure.__main__ import main, make_parser
from measure.quiz_score import QUESTIONS_FILE, Question, Scorer, as_words, is_looping, read_questions, split_clauses
from mini_vllm.conftest import make_talker
from mini_vllm.llm import LLM
from mini_vllm.request import SamplingParams

FRANCE = Question("capitals", "What is the capital of France?", ("Paris",))
SUM = Question("sums", "What is 7 plus 5?", ("12",))
DAY = Question("measures", "How many hours are there in a day?", ("24",))
MONTHS = Question("calendar", "How many months are there in a year?", ("12",))


@pytest.fixture(scope="module")
def scorer():
    return Scorer()


# ---- the scorer


@pytest.mark.parametrize("question, text", [
    (FRANCE, "Paris"),
    (FRANCE, "The capital of France is **Paris**."),
    (FRANCE, "PARIS!"),
    (FRANCE, "La capitale est Pâris"),
    (FRANCE, "Paris, France"),
    (FRANCE, "No, it is Paris."),
    (FRANCE, "It is not London, but Paris."),
    (FRANCE, "It isn't London. It's Paris."),
    (FRANCE, "It is not Lyon but Paris"),
    (FRANCE, "Paris. Other capitals are Rome, Berlin and Madrid."),
    (SUM, "7 + 5 = 12"),
    (SUM, "Twelve."),
    (SUM, "The sum of 7 and 5 is twelve"),
    (SUM, "7 and 5 make 12"),
    (SUM, "7 and 3 is 10, and 2 more is 12"),
    (DAY, "twenty-four"),
    (DAY, "Twenty four hours"),
    (DAY, "24hours"),
    (Question("", "", ("1000",)), "1,000 grams"),
    (Question("", "", ("one thousand",)), "one thousand"),
    (Question("", "", ("365",)), "365.\nThat is a lot."),
    (Question("", "", ("three hundred and sixty-five",)), "three hundred sixty five"),
    (MONTHS, "12 months, January, February and so on"),
])
def test_right(scorer, question, text):
    assert scorer.is_right(question, text)


@pytest.mark.parametrize("question, text", [
    (FRANCE, ""),
    (FRANCE, "London"),
    (FRANCE, "Parisian"),
    (FRANCE, "a comparison"),
    (FRANCE, "not Paris"),
    (FRANCE, "It isn’t Paris."),
    (FRANCE, "Paris is not the capital of France."),
    (FRANCE, "It has never been the city of Paris"),
    (FRANCE, "Paris, Rome, Berlin, Madrid"),
    (FRANCE, "Rome, Berlin or Paris"),
    (FRANCE, "It is Paris or Rome."),
    (FRANCE, "Rome\nParis\nBerlin"),
    (FRANCE, "- Rome\n- Paris\n- Berlin"),
    (Question("sky", "What shines at night?", ("Moon",)), "The Sun, the Moon"),
    (SUM, "112"),
    (SUM, "12.5"),
    (SUM, "1,200"),
    (SUM, "10, 12, 14"),
    (SUM, "seven, eight, twelve"),
    (Question("sums", "What is 13 plus 7?", ("20",)), "twenty-four"),
    (Question("words", "Which letter?", ("D",)), "I'd say so"),
])
def test_wrong(scorer, question, text):
    assert not scorer.is_right(question, text)


def test_clauses_end_at_marks_and_at_and_or_and_but():
    assert [clause.words for clause in split_clauses("One, two and three; but\n(not 4.5)!")] == [
        ("1",), ("2",), ("3",), ("not", "4.5")]


# ---- the questions


def test_there_are_80_questions_all_different():
    def pairs(found):  # a duplicate name in an object would be lost
        assert len(dict(found)) == len(found)
        return dict(found)

    json.loads(QUESTIONS_FILE.read_text(encoding="utf-8"), object_pairs_hook=pairs)
    questions = read_questions()
    assert len(questions) == len({as_words(question.text) for question in questions}) == 80
    assert min(Counter(question.kind for question in questions).values()) >= 6


@pytest.mark.parametrize("question", read_questions(), ids=lambda question: question.text)
def test_a_question_accepts_its_answers_and_does_not_hold_one(scorer, question):
    assert question.answers and all(scorer.is_right(question, answer) for answer in question.answers)
    assert all(scorer.is_right(question, f"The answer is {answer.upper()}.") for answer in question.answers)
    assert not scorer.is_right(question, question.text), "to repeat the question is not to answer it"
    asked = f" {' '.join(as_words(question.text))} "
    assert not any(f" {' '.join(as_words(answer))} " in asked for answer in question.answers)


def test_fewer_questions_are_spread_over_the_kinds():
    kinds = [question.kind for question in read_questions(23)]
    assert len(kinds) == 23 and set(Counter(kinds).values()) == {2, 3} and len(set(kinds)) == 11
    assert sorted(read_questions(80), key=str) == sorted(read_questions(), key=str)


# ---- the command


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["benchmark", "quiz", *words])
    return main()


@pytest.fixture
def asked(monkeypatch):
    """Record the parameters and chats of every call of ``LLM.chat``."""
    calls, real = [], LLM.chat

    def chat(self, messages, sampling_params=None, *args, **kwargs):
        calls.append((sampling_params, messages))
        return real(self, messages, sampling_params, *args, **kwargs)

    monkeypatch.setattr(LLM, "chat", chat)
    return calls


def test_every_setting_is_asked_with_five_seeds_and_has_its_row(shallow, tmp_path, monkeypatch, capsys, asked):
    monkeypatch.setattr(quiz, "MAX_TOKENS", 3)
    monkeypatch.setattr(quiz, "FIRST_QUESTION_SEEDS", range(2))
    talker = make_talker(shallow, tmp_path)
    (talker / "generation_config.json").write_text('{"temperature": 0.5, "top_k": 9}')
    assert run(monkeypatch, "--model", str(talker), "--questions", "4") == 0
    params = [setting for setting, chats in asked if len(chats) == 4]
    drawn = [dict(temperature=0.5, top_k=9), dict(temperature=0.2, top_p=0.9), dict(temperature=0.8)]
    expected = [SamplingParams(**each, max_tokens=3, seed=seed) for each in drawn for seed in range(5)]
    assert [each for each in params if each.temperature] == expected
    assert [each for each in params if not each.temperature] == [SamplingParams(temperature=0.0, max_tokens=3, seed=0)]
    chats = [[{"role": "user", "content": each.text}] for each in read_questions(4)]
    assert all(given in (chats, chats[:1]) for _, given in asked)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("talker: 4 easy questions, answers of at most 3 tokens")
    assert lines[1] == "the model's defaults: temperature 0.5, top-k 9"
    assert lines[3].split() == "right of 4, by seed 0 1 2 3 4 right looping".split()
    assert [line[:30].rstrip() for line in lines[4:8]] == [quiz.DEFAULTS, quiz.GREEDY, quiz.ADVISED, quiz.BEFORE]
    assert max(map(len, lines[1:8])) < 80


def test_the_table_counts_right_and_looping_answers_and_the_first_question(shallow, tmp_path, monkeypatch, capsys):
    def chat(self, chats, params):
        """Answer six questions correctly at temperature 0.2 and four otherwise, one fewer with seed 2.

        At temperature 0 the other answers loop.
        """
        answers = {question.text: question.answers[0] for question in read_questions()}
        num_known = (6 if params.temperature == 0.2 else 4) - (params.seed == 2)
        unknown = "I have no idea. " * 3 if params.temperature == 0 else "No idea."
        return [Output(answers[chat[0]["content"]] if index < num_known else unknown)
                for index, chat in enumerate(chats)]

    class Output:
        error = None

        def __init__(self, text):
            self.text = text

    monkeypatch.setattr(LLM, "chat", chat)
    talker = str(make_talker(shallow, tmp_path))
    assert run(monkeypatch, "--model", talker, "--questions", "6", "--show") == 0
    text = capsys.readouterr().out
    rows = {line[:30].rstrip(): line[30:].split() for line in text.splitlines() if line.endswith(" %")}
    assert rows == {quiz.DEFAULTS: ["4", "4", "3", "4", "4", "63.3", "%", "0.0", "%"],
                    quiz.GREEDY: ["4", "4", "4", "4", "4", "66.7", "%", "33.3", "%"],
                    quiz.ADVISED: ["6", "6", "5", "6", "6", "96.7", "%", "0.0", "%"],
                    quiz.BEFORE: ["4", "4", "3", "4", "4", "63.3", "%", "0.0", "%"]}
    assert "greedy 66.7 % right, 33.3 % looping, “What is the capital of France?” right for 20 of 20 seeds" in text
    assert text.count("right  What is the capital of France?\n       Paris\n") == 20
    assert text.splitlines()[-1].startswith("In short: ")


def test_settings_that_come_to_the_same_are_asked_once(shallow, tmp_path, monkeypatch, capsys, asked):
    monkeypatch.setattr(quiz, "MAX_TOKENS", 2)
    monkeypatch.setattr(quiz, "FIRST_QUESTION_SEEDS", range(1))
    talker = make_talker(shallow, tmp_path)
    (talker / "generation_config.json").write_text('{"temperature": 0.2, "top_p": 0.9}')
    assert run(monkeypatch, "--model", str(talker), "--questions", "2") == 0
    assert len([chats for _, chats in asked if len(chats) == 2]) == 11, "two drawn settings by five seeds, and greedy"


@pytest.mark.parametrize("text, expected", [
    ("The balcony of the balcony of the balcony of the", True), ("no no no no no no", True), ("no no no no no", False),
    ("It is Paris. It is Paris.", False), ("A rose is a rose is a rose.", False), ("", False),
    (" ".join(f"word{number}" for number in range(24)) + " " * 3, False),
    ((" ".join(f"word{number}" for number in range(24)) + " ") * 3, True),
    ((" ".join(f"word{number}" for number in range(25)) + " ") * 3, False)])
def test_an_answer_loops_if_it_ends_in_one_phrase_three_times(text, expected):
    assert is_looping(text) is expected


@pytest.mark.parametrize("words, complaint", [
    (["--questions", "0"], "--questions is 0, must be from 1 to 80"),
    (["--questions", "81"], "--questions is 81, must be from 1 to 80"),
    (["--model", "tiny-tales"], "tiny-tales has no chat template, so it cannot be asked; try --model smollm2"),
    (["--model", "nowhere"], "there is no model 'nowhere'"),
])
def test_what_cannot_be_is_told_in_one_line(monkeypatch, capsys, words, complaint):
    assert run(monkeypatch, *words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"python tools/measure: {complaint}") and captured.err.count("\n") == 1
    assert not captured.out


def test_a_question_that_is_not_served_ends_the_quiz(shallow, tmp_path):
    llm = LLM(make_talker(shallow, tmp_path), max_model_len=8)
    with pytest.raises(ValueError, match="What is the capital of France. .*8"):
        quiz.Quiz(llm, read_questions(1)).answers(SamplingParams())


def test_help_names_the_quiz():
    assert "python tools/measure quiz " in make_parser().format_help()

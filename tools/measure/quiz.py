"""How many of 80 easy questions a chat model answers correctly, by sampling method; each question with seeds 0 to 4.

    the model's defaults        ``LLM.get_default_sampling_params()``, which the command line also uses
    greedy                      the most likely token every time; one answer, whatever the seed
    temperature 0.2, top-p 0.9  the advice of the makers of SmolLM2
    temperature 0.8             what the command line once used for every model

Each question is a separate chat, worded exactly as in ``quiz.json``. Equivalent settings are asked only once: the same
seed gives the same answers. ``quiz_score`` defines when an answer is right, and when it loops. The first question is
asked with twenty seeds: it is what a newcomer asks.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import fields, replace

from measure.quiz_score import Question, Scorer, is_looping, read_questions
from mini_vllm.llm import LLM
from mini_vllm.request import SamplingParams

SEEDS = (0, 1, 2, 3, 4)
FIRST_QUESTION_SEEDS = range(20)
#: Long enough for a loop to show.
MAX_TOKENS = 96
DEFAULTS, GREEDY, ADVISED, BEFORE = "the model's defaults", "greedy", "temperature 0.2, top-p 0.9", "temperature 0.8"


class Quiz:
    """Asks one model the questions, and caches the answers for every setting."""

    def __init__(self, llm: LLM, questions: Sequence[Question]) -> None:
        self.llm, self.questions = llm, questions
        self._scorer = Scorer()
        self._answers: dict[str, list[str]] = {}

    def answers(self, params: SamplingParams) -> list[str]:
        """Return the answers to all questions, served together. The same parameters return the cached answers."""
        params = replace(params, seed=0) if params.temperature == 0 else params  # greedy: the seed does not matter
        key = repr(params)
        if key not in self._answers:
            chats = [[{"role": "user", "content": question.text}] for question in self.questions]
            outputs = self.llm.chat(chats, params)
            for question, output in zip(self.questions, outputs):
                if output.error:
                    raise ValueError(f"{question.text} {output.error}")
            self._answers[key] = [output.text for output in outputs]
        return self._answers[key]

    def are_right(self, params: SamplingParams) -> list[bool]:
        return [self._scorer.is_right(*pair) for pair in zip(self.questions, self.answers(params))]

    def num_looping(self, params: SamplingParams) -> int:
        return sum(map(is_looping, self.answers(params)))


def settings_of(llm: LLM) -> dict[str, SamplingParams]:
    return {DEFAULTS: llm.get_default_sampling_params(), GREEDY: SamplingParams(temperature=0.0),
            ADVISED: SamplingParams(temperature=0.2, top_p=0.9), BEFORE: SamplingParams(temperature=0.8)}


def print_quiz(model: str, num_questions: int | None, show: bool, seeds: Sequence[int] = SEEDS,
               max_tokens: int | None = None, first_seeds: Sequence[int] | None = None) -> None:
    """Print a row per setting as soon as it is measured; with ``show``, print all answers first.

    ``max_tokens`` limits each answer.
    """
    max_tokens = MAX_TOKENS if max_tokens is None else max_tokens
    first_seeds = FIRST_QUESTION_SEEDS if first_seeds is None else first_seeds
    questions = read_questions(num_questions)
    llm = LLM(model)
    if llm.tokenizer.chat_template is None:
        raise ValueError(f"{model} has no chat template, so it cannot be asked; try --model smollm2")
    quiz, settings = Quiz(llm, questions), settings_of(llm)
    print(f"{model}: {len(questions)} easy questions, answers of at most {max_tokens} tokens")
    print(f"{DEFAULTS}: {describe(settings[DEFAULTS])}\n")
    all_runs = {name: [replace(setting, max_tokens=max_tokens, seed=seed) for seed in seeds]
                for name, setting in settings.items()}
    if show:
        for name, runs in all_runs.items():
            _print_answers(quiz, name, runs)
    print(f"{f'right of {len(questions)}, by seed':<30}" + "".join(f"{seed:>5}" for seed in seeds)
          + f"{'right':>9}{'looping':>9}", flush=True)
    shares = {name: _print_row(quiz, name, runs) for name, runs in all_runs.items()}
    first, question = Quiz(llm, questions[:1]), questions[0].text
    num_right = {name: sum(sum(first.are_right(replace(setting, max_tokens=max_tokens, seed=seed)))
                           for seed in first_seeds) for name, setting in settings.items()}
    told = [f"{name} {right:.1f} % right, {looping:.1f} % looping, “{question}” right for {num_right[name]} of "
            f"{len(first_seeds)} seeds" for name, (right, looping) in shares.items()]
    print(f"\nIn short: {model}, {len(questions)} easy questions: {'; '.join(told)}")


def _print_row(quiz: Quiz, name: str, runs: Sequence[SamplingParams]) -> tuple[float, float]:
    """Print a row. Return the percentages of right and of looping answers."""
    num_right = [sum(quiz.are_right(run)) for run in runs]
    num_answers = len(quiz.questions) * len(runs)
    shares = 100 * sum(num_right) / num_answers, 100 * sum(map(quiz.num_looping, runs)) / num_answers
    print(f"{name:<30}" + "".join(f"{number:>5}" for number in num_right) + f"{shares[0]:>7.1f} %{shares[1]:>7.1f} %",
          flush=True)
    return shares


def _print_answers(quiz: Quiz, name: str, runs: Sequence[SamplingParams]) -> None:
    for run in runs:
        print(f"{name}, seed {run.seed}")
        for question, answer, is_right in zip(quiz.questions, quiz.answers(run), quiz.are_right(run)):
            print(f"{'right' if is_right else 'WRONG'}  {question.text}")
            print(textwrap.fill(" ".join(answer.split()), 79, initial_indent=" " * 7, subsequent_indent=" " * 7))
        print(flush=True)


def describe(params: SamplingParams) -> str:
    """Describe how ``params`` differ from plain sampling: ``temperature 0.2, top-p 0.9``."""
    plain = SamplingParams()
    differ = [f"{field.name.replace('_', '-')} {value}" for field in fields(params)
              if (value := getattr(params, field.name)) != getattr(plain, field.name)]
    return ", ".join(differ) or "temperature 1.0"

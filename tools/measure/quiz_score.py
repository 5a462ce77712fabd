"""The questions of the quiz, and the rules for a right answer.

An accepted answer must be in the text as whole words. Case and accents do not matter, nor whether a number is in digits
or in words. It may be anywhere in the text, but it does not count

    in a clause that says no     "not Paris", "Paris is not the capital"; in "not Rome, but Paris" it does
    in a list of answers         "Rome, Paris or Berlin": an adjacent item is just the answer to another question

An answer loops if it ends in the same phrase three times in a row, or in the same word six times.
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

QUESTIONS_FILE = Path(__file__).with_name("quiz.json")

_UNITS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
          "seventeen eighteen nineteen").split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
NUMBERS = {**{word: number for number, word in enumerate(_UNITS)},
           **{word: 10 * number for number, word in enumerate(_TENS, 2)}}
PIECE = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+(?:'[^\W\d_]+)*|[.,;:!?/()\n–—]")
#: The breaks that end a clause. LIST_BREAKS are those between the items of a list.
LIST_BREAKS = frozenset({",", "/", "\n", "and", "or"})
BREAKS = LIST_BREAKS | frozenset({*".;:!?()–—", "but"})
NEGATIONS = frozenset({"not", "no", "never", "cannot", "neither", "nor", "none"})
ARTICLES = frozenset({"a", "an", "the"})

Words = tuple[str, ...]
#: The longest phrase, in words, whose repetition at the end is a loop; how often it must occur; how often a single word
#: must.
MAX_PHRASE_WORDS, NUM_REPEATS, NUM_SINGLE_REPEATS = 24, 3, 6


@dataclass(frozen=True)
class Question:
    kind: str
    text: str
    answers: tuple[str, ...]


def read_questions(num_questions: int | None = None) -> list[Question]:
    """Return all questions, or the first ``num_questions`` when one of each kind is taken in turn."""
    kinds = json.loads(QUESTIONS_FILE.read_text(encoding="utf-8"))
    by_kind = [[Question(kind, text, tuple(answers)) for text, answers in questions.items()]
               for kind, questions in kinds.items()]
    if num_questions is None:
        return list(itertools.chain(*by_kind))
    in_turn = [each for row in itertools.zip_longest(*by_kind) for each in row if each is not None]
    if not 1 <= num_questions <= len(in_turn):
        raise ValueError(f"--questions is {num_questions}, must be from 1 to {len(in_turn)}")
    return in_turn[:num_questions]


@dataclass(frozen=True)
class Clause:
    words: Words
    #: Whether the text before it, and after it, may be another item of a list.
    follows_item: bool
    precedes_item: bool

    @property
    def is_negated(self) -> bool:
        return any(word in NEGATIONS or word.endswith("n't") for word in self.words)

    def holds(self, words: Words) -> bool:
        return any(self.words[start:start + len(words)] == words for start in range(len(self.words)))

    def is_only(self, words: Words) -> bool:
        return tuple(word for word in self.words if word not in ARTICLES) == words


def is_looping(text: str) -> bool:
    """Check whether ``text`` ends in a phrase that occurs three times in a row; a single word, six times."""
    words = text.split()
    for length in range(1, MAX_PHRASE_WORDS + 1):
        times = NUM_SINGLE_REPEATS if length == 1 else NUM_REPEATS
        if len(words) >= times * length and words[-times * length:] == words[-length:] * times:
            return True
    return False


class Scorer:
    """Scores answers. It knows the accepted answers of all questions, to recognise a list of answers."""

    def __init__(self) -> None:
        self._all_answers = {as_words(answer) for question in read_questions() for answer in question.answers}

    def is_right(self, question: Question, text: str) -> bool:
        clauses, asked = split_clauses(text), Clause(as_words(question.text), False, False)
        accepted = [as_words(answer) for answer in question.answers]
        others = [words for words in self._all_answers if words not in accepted and not asked.holds(words)]
        for index, clause in enumerate(clauses):
            beside = clauses[max(index - 1, 0):index] * clause.follows_item
            beside += clauses[index + 1:index + 2] * clause.precedes_item
            for words in accepted:
                if clause.holds(words) and not clause.is_negated and not any(
                        each.is_only(other) for each in beside for other in others if _are_alike(other, words)):
                    return True
        return False


def _are_alike(first: Words, second: Words) -> bool:
    """Check whether both are numbers, or neither is."""
    return first[0].isdigit() == second[0].isdigit()


def as_words(text: str) -> Words:
    return tuple(piece for piece in _pieces(text) if piece not in BREAKS)


def split_clauses(text: str) -> list[Clause]:
    clauses: list[tuple[list[str], set[str]]] = [([], set())]  # words, and the breaks after them
    for piece in _pieces(text):
        words, breaks = clauses[-1]
        if piece in BREAKS:
            breaks.add(piece)
        elif breaks:
            clauses.append(([piece], set()))
        else:
            words.append(piece)
    before = itertools.chain([set[str]()], (breaks for _, breaks in clauses))
    return [Clause(tuple(words), bool(LIST_BREAKS & breaks_before), bool(LIST_BREAKS & breaks_after))
            for breaks_before, (words, breaks_after) in zip(before, clauses)]


def _pieces(text: str) -> Iterator[str]:
    """Yield words and breaks: in lower case, without accents, numbers in digits."""
    plain = "".join(char for char in unicodedata.normalize("NFKD", text.casefold().replace("’", "'"))
                    if not unicodedata.combining(char))
    pieces = PIECE.findall(plain.replace("hundred and ", "hundred "))
    while pieces:
        piece = pieces.pop(0)
        if piece not in NUMBERS:
            yield piece.replace(",", "") if piece[0].isdigit() else piece
            continue
        number = NUMBERS[piece]
        if piece in _TENS and pieces and 0 < NUMBERS.get(pieces[0], 0) < 10:
            number += NUMBERS[pieces.pop(0)]
        yield str(number)

"""The drafter without a model: what it matches, how far it guesses, and what it remembers."""

import random

import pytest

from mini_vllm.request import Request
from mini_vllm.speculation.drafts import NgramDrafter


def guess(tokens, max_tokens=4, num_matching=2):
    return NgramDrafter(num_matching).propose(Request("r", tokens), max_tokens)


@pytest.mark.parametrize("tokens, expected", [
    ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5, 1]),      # what followed "1 2"
    ([1, 2, 3, 1, 2, 4, 1, 2], [4, 1, 2, 4]),   # the last occurrence counts; the guess goes on in itself
    ([7, 1, 2, 3, 8, 1, 2, 9, 7, 1, 2], [3, 8, 1, 2]),  # the longer match counts, although "1 2" occurred again later
    ([1, 2, 3], []), ([1], []), ([1, 1], []),   # no match
    ([5, 5, 5], [5, 5, 5, 5]),                  # a text that repeats itself
    ([1, 2, 1, 2], [1, 2, 1, 2]),
])
def test_the_guess_is_what_followed_the_last_match(tokens, expected):
    assert guess(tokens) == expected


def test_a_guess_has_at_most_max_tokens_and_needs_num_matching_equal_tokens():
    assert guess([1, 2, 3, 4, 1, 2], max_tokens=1) == [3] and guess([1, 2, 3, 4, 1, 2], max_tokens=0) == []
    assert guess([1, 2, 3, 9, 2], num_matching=1) == [3, 9, 2, 3] and guess([1, 2, 3, 9, 2], num_matching=2) == []
    assert guess([1, 2, 3, 4, 9, 2, 3], num_matching=3) == []


def simple_guess(tokens, max_tokens):
    """Guess by scanning the text: follow a match while it continues, and otherwise take the last occurrence."""
    match = None
    for end in range(1, len(tokens) + 1):
        if match is not None and tokens[match] == tokens[end - 1]:
            match += 1
            continue
        places = [i for i in range(2, end) if end >= 2 and tokens[i - 2:i] == tokens[end - 2:end]]
        match = places[-1] if places else None
    found = list(tokens)
    for position in range(match, match + max_tokens) if match is not None else ():
        found.append(found[position])
    return found[len(tokens):]


def test_tokens_that_arrive_one_by_one_or_together_give_the_guess_of_a_scan():
    rng = random.Random(3)
    for case in range(60):
        drafter, request = NgramDrafter(), Request("r", [rng.randrange(3) for _ in range(rng.randint(1, 12))])
        for _ in range(20):
            new = [rng.randrange(3) for _ in range(rng.randint(1, 4))]
            for token in new:
                request.append_output_token(token)
            if rng.random() < 0.5:
                drafter.advance(request, new)
            assert drafter.propose(request, 5) == simple_guess(request.all_token_ids, 5), (case, request.all_token_ids)


def test_requests_do_not_see_each_other_and_a_forgotten_one_begins_again():
    drafter = NgramDrafter()
    a, b = Request("a", [1, 2, 3, 1, 2]), Request("b", [1, 2])
    assert drafter.propose(a, 1) == [3] and drafter.propose(b, 1) == []
    drafter.forget(a)
    drafter.forget(a)
    assert drafter.propose(Request("a", [4, 5, 6, 4, 5]), 1) == [6]


class Counted(list):
    """Counts how many of its items are read."""

    num_read = 0

    def __getitem__(self, index):
        Counted.num_read += len(range(*index.indices(len(self)))) if isinstance(index, slice) else 1
        return super().__getitem__(index)


def test_a_token_costs_the_same_in_a_long_text():
    request = Request("r", [i % 50 for i in range(4000)])
    request.all_token_ids = Counted(request.all_token_ids)
    drafter = NgramDrafter()
    drafter.propose(request, 4)
    Counted.num_read = 0
    for token in range(100):
        request.append_output_token(token)
        drafter.advance(request, [token])
        drafter.propose(request, 4)
    assert Counted.num_read <= 100 * 12, "the text is scanned again"

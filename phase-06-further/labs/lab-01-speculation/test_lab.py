"""Lab 6.1, speculative decoding. Each test checks one rule, and its failure message names that rule.

The tests of a task need only that task and the tasks before it. The last tests of task 5 decode whole texts with a
made-up model: its logits are a function of the tokens so far, and its noise is a function of the request's key and the
position. So the right output is known without a draft. A simulated memory stores in each slot the whole text up to its
token, and every slot is read back.

Work is counted, not timed: the tests count how many tokens of a text are read, and the lines of Python of a call.
"""

import itertools
import math
import random

import pytest

from course.expecting import must_answer
from course.gauges import cheapest, num_lines, num_objects
from mini_vllm.logit_rules import SamplerRow
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Request, SamplingParams

COUNT = list(range(1, 60))
WITH_AND_WITHOUT_A_TREE = pytest.mark.parametrize("tree_class", [PrefixTree, None], ids=["a tree", "no tree"])


# ---- Task 1: the drafter


def expected_match(tokens):
    """Return the match after reading all of ``tokens``. This follows the rules word for word and searches the text."""
    match = None
    for p in range(len(tokens)):
        if match is not None and tokens[match] == tokens[p]:
            match += 1
            continue
        ends = [end for end in range(1, p) if tokens[end - 1:end + 1] == tokens[p - 1:p + 1]]
        match = ends[-1] + 1 if ends else None
    return match


def expected_guess(tokens, max_tokens):
    match, text = expected_match(tokens), list(tokens)
    if match is None:
        return []
    for position in range(match, match + max_tokens):
        text.append(text[position])
    return text[len(tokens):]


def check_guess(drafter, request, max_tokens, expected, rule):
    call = f"the text is {list(request.all_token_ids)}: propose(request, {max_tokens})"
    got = must_answer(call, drafter.propose, request, max_tokens, rule=rule)
    assert got == expected, f"{call} returned {got}, expected {expected}: {rule}"


def fields_of(request):
    """Return the attributes of a request, with copies of its lists."""
    return {name: list(value) if isinstance(value, list) else value for name, value in vars(request).items()}


def check_unchanged(request, before, calls):
    changed = {name: (before.get(name), value) for name, value in fields_of(request).items()
               if name not in before or before[name] != value}
    assert not changed, (f"{calls} changed the request. Attribute → (before, after): {changed}. The request may only "
                         "be read")


def say(request, *token_ids):
    """Append these tokens to the request, and return them as a list."""
    for token_id in token_ids:
        request.append_output_token(token_id)
    return list(token_ids)


@pytest.mark.points(1)
@pytest.mark.parametrize("tokens, expected", [
    ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5]), ([9, 1, 2, 3, 4, 5, 6, 2, 3], [4, 5, 6]), ([4, 0, 7, 8, 4, 0], [7, 8, 4])])
def test_task_1_the_guess_is_what_followed_the_newest_two_tokens(lab, tokens, expected):
    check_guess(lab.NgramDrafter(), Request("r", tokens), 3, expected,
                f"the newest tokens {tokens[-2:]} occurred before, and the guess is what followed them there")


@pytest.mark.points(1)
def test_task_1_the_last_earlier_occurrence_counts(lab):
    check_guess(lab.NgramDrafter(), Request("r", [1, 2, 3, 1, 2, 4, 1, 2]), 5, [4, 1, 2, 4, 1],
                "1 2 occurred twice before. The guess begins after the last of these occurrences, at the 4; after the "
                "end of the text it goes on with the guess itself")
    check_guess(lab.NgramDrafter(), Request("r", [1, 2, 5, 6, 1, 2, 7, 8, 9, 1, 2, 8, 0, 1, 2]), 2, [8, 0],
                "1 2 occurred three times before, and the last of these occurrences was followed by 8 0")


@pytest.mark.points(2)
def test_task_1_a_match_that_keeps_being_right_is_kept(lab):
    tokens = [7, 1, 2, 3, 8, 1, 2, 9, 7, 1, 2]
    rule = ("7 1 matched at the beginning of the text, and the 2 that came next was the expected token. So the match "
            "goes on at the 3. The newer occurrence of 1 2, before the 9, does not count: a match that keeps being "
            "right is kept")
    check_guess(lab.NgramDrafter(), Request("r", tokens), 3, [3, 8, 1], rule)
    drafter, request = lab.NgramDrafter(), Request("r", tokens[:10])
    check_guess(drafter, request, 2, [2, 3], "7 1 occurred before, at the beginning of the text")
    say(request, 2)
    check_guess(drafter, request, 3, [3, 8, 1], rule + ". Here the 2 was read in a second call")


@pytest.mark.points(2)
def test_task_1_a_match_that_was_wrong_is_replaced(lab):
    drafter, request = lab.NgramDrafter(), Request("r", [1, 2, 3, 2, 5, 1, 2])
    check_guess(drafter, request, 2, [3, 2], "1 2 occurred before, at the beginning of the text")
    say(request, 5)
    check_guess(drafter, request, 2, [1, 2], "3 was expected, and 5 came. The newest tokens, 2 5, occurred before, so "
                                             "the match is now the position after them")
    say(request, 9)
    check_guess(drafter, request, 2, [], "1 was expected, and 9 came. The newest tokens, 5 9, never occurred before, "
                                         "so there is no match any more")
    say(request, 1, 2)
    check_guess(drafter, request, 2, [5, 9], "there was no match, and the newest tokens, 1 2, occurred before the 5")


@pytest.mark.points(1)
@pytest.mark.parametrize("tokens", [[1], [1, 2], [1, 1], [1, 2, 3, 4], [1, 2, 3, 2], [2, 1, 1, 2]])
def test_task_1_without_an_earlier_occurrence_nothing_is_guessed(lab, tokens):
    check_guess(lab.NgramDrafter(), Request("r", tokens), 5, [],
                "the newest two tokens did not occur before. The place where they are now is not an earlier "
                "occurrence, and one equal token is not a match")


@pytest.mark.points(1)
def test_task_1_an_earlier_occurrence_may_overlap_the_newest_tokens(lab):
    check_guess(lab.NgramDrafter(), Request("r", [5, 5, 5]), 4, [5, 5, 5, 5],
                "5 5 occurred before: its earlier occurrence ends one token before the end of the text")
    check_guess(lab.NgramDrafter(), Request("r", [3, 5, 5, 5, 3, 5, 5]), 3, [5, 3, 5],
                "3 5 matched at the beginning of the text, and the 5 that came next was the expected token")


@pytest.mark.points(1)
@pytest.mark.parametrize("tokens, expected", [
    ([7, 8, 7, 8], [7, 8, 7, 8, 7, 8, 7]), ([1, 2, 3, 1, 2], [3, 1, 2, 3, 1, 2, 3]), ([6, 6, 6], [6] * 7),
    ([4, 1, 2, 3, 9, 1, 2], [3, 9, 1, 2, 3, 9, 1])])
def test_task_1_a_guess_that_reaches_the_end_goes_on_with_itself(lab, tokens, expected):
    check_guess(lab.NgramDrafter(), Request("r", tokens), 7, expected,
                "after the last token of the text, the guess goes on with the tokens that it has guessed: a text that "
                "repeats itself is expected to repeat itself again")


@pytest.mark.points(1)
@pytest.mark.parametrize("max_tokens", [0, 1, 2, 3, 20])
def test_task_1_a_guess_has_max_tokens_tokens(lab, max_tokens):
    drafter, request = lab.NgramDrafter(), Request("r", [1, 2, 3, 4, 5, 6, 1, 2])
    expected = ([3, 4, 5, 6, 1, 2] * 4)[:max_tokens]
    rule = f"a guess has exactly max_tokens = {max_tokens} tokens if there is a match"
    check_guess(drafter, request, max_tokens, expected, rule)
    check_guess(drafter, request, 2, [3, 4], "the number of tokens that was asked for before does not matter")
    check_guess(drafter, request, max_tokens, expected, rule + ", also if it is asked for again")


@pytest.mark.points(3)
def test_task_1_random_texts_as_the_rules_define_them(lab):
    """Let texts of few different tokens grow, with one or several new tokens per call."""
    rng = random.Random(61)
    num_guesses = 0
    for case in range(40):
        drafter, vocabulary = lab.NgramDrafter(), rng.choice((2, 3, 5))
        request = Request("r", [rng.randrange(vocabulary) for _ in range(rng.randint(1, 10))])
        for _ in range(12):
            max_tokens, expected = rng.randint(0, 6), expected_guess(request.all_token_ids, 6)
            got = drafter.propose(request, max_tokens)
            assert got == expected[:max_tokens], (
                f"case {case}: the text is {' '.join(map(str, request.all_token_ids))}, which arrived in parts. "
                f"propose(request, {max_tokens}) returned {got}, expected {expected[:max_tokens]}. If the rules are "
                f"applied to one position after the other, the match at the end is "
                f"{expected_match(request.all_token_ids)}")
            num_guesses += bool(got)
            new = say(request, *(rng.randrange(vocabulary) for _ in range(rng.randint(1, 5))))
            if rng.random() < 0.5:
                drafter.advance(request, new)
    assert num_guesses > 150, f"only {num_guesses} of 480 guesses had a token, expected more than 150"


@pytest.mark.points(1)
def test_task_1_the_first_call_reads_the_prompt_and_the_answer_so_far(lab):
    request = Request("r", [1, 2, 3, 4])
    say(request, 8, 9, 1, 2)
    rule = "the text is the prompt and all tokens so far, and the first call reads all of it"
    check_guess(lab.NgramDrafter(), request, 3, [3, 4, 8], rule)
    drafter = lab.NgramDrafter()
    new = say(request, 8, 9)
    drafter.advance(request, new)
    check_guess(drafter, request, 3, [1, 2, 8], f"{rule}. Here the first call was advance(request, {new})")


@pytest.mark.points(1)
def test_task_1_a_guess_takes_new_tokens_into_account(lab):
    for is_told in (True, False):
        drafter, request = lab.NgramDrafter(), Request("r", [1, 2, 3, 4, 9])
        check_guess(drafter, request, 3, [], "4 9 never occurred before")
        how = "advance() was told of it" if is_told else "advance() was not called; propose() reads what is new"
        for token_id, expected in ((1, []), (2, [3, 4, 9]), (3, [4, 9, 1]), (7, []), (2, []), (3, [7, 2, 3])):
            say(request, token_id)
            if is_told:
                drafter.advance(request, [token_id])
            check_guess(drafter, request, 3, expected, f"{token_id} is new, and {how}")


@pytest.mark.points(2)
def test_task_1_tokens_may_be_told_several_times_before_a_guess(lab):
    drafter, request = lab.NgramDrafter(), Request("r", [1, 2, 3, 4, 5, 6])
    drafter.advance(request, [])
    for new in ([9], [1, 2], [3], [4, 5]):
        drafter.advance(request, say(request, *new))
    check_guess(drafter, request, 4, [6, 9, 1, 2],
                "advance() was told of 9, of 1 2, of 3 and of 4 5, without a guess in between. Each of these tokens "
                "is entered once, and 1 2 3 4 5 repeats the beginning of the text")
    check_guess(drafter, request, 4, [6, 9, 1, 2],
                "nothing is new, so the guess is the same. No token is entered twice")


@pytest.mark.points(2)
def test_task_1_requests_do_not_see_each_other(lab):
    drafter = lab.NgramDrafter()
    first, second = Request("first", [1, 2, 3, 1, 2]), Request("second", [8, 9, 1, 2])
    check_guess(drafter, first, 2, [3, 1], "1 2 occurred before")
    check_guess(drafter, second, 2, [], "1 2 never occurred before in this request. Another request has the text 1 2 3 "
                                        "1 2, but the texts of other requests do not matter")
    rng = random.Random(62)
    requests = [Request(f"r{i}", [rng.randrange(3) for _ in range(4)]) for i in range(3)]
    for _ in range(60):
        request = rng.choice(requests)
        say(request, rng.randrange(3))
        expected = expected_guess(request.all_token_ids, 4)
        alone = lab.NgramDrafter().propose(request, 4)
        assert alone == expected, (f"a new drafter, which knows only a request with the text {request.all_token_ids}: "
                                   f"propose(request, 4) returned {alone}, expected {expected}")
        check_guess(drafter, request, 4, expected,
                    f"the tokens of three requests arrive in turns; this is the text of {request.request_id!r}. A "
                    "drafter that knows only this request guesses it. Keep one match and one dictionary per request")


@pytest.mark.points(2)
def test_task_1_a_forgotten_id_starts_with_an_empty_text(lab):
    drafter = lab.NgramDrafter()
    old = Request("r", [1, 2, 3, 4, 1, 2])
    check_guess(drafter, old, 2, [3, 4], "1 2 occurred before")
    drafter.forget(old)
    for tokens, expected in (([5, 6, 7, 8, 1, 2], []), ([5, 6, 7, 8, 9, 9, 1, 2], []),
                             ([6, 7, 8, 0, 5, 6, 7], [8, 0])):
        request = Request("r", tokens)
        check_guess(drafter, request, 2, expected,
                    "the old request 'r' was forgotten. A new request with the same id starts with an empty text: its "
                    "whole prompt is read, and the old text does not matter")
        drafter.forget(request)


@pytest.mark.points(1)
def test_task_1_forget_concerns_one_request(lab):
    drafter, stays = lab.NgramDrafter(), Request("stays", [1, 2, 3, 4, 1, 2])
    goes = Request("goes", [1, 2, 7, 8, 1, 2])
    check_guess(drafter, goes, 2, [7, 8], "1 2 occurred before")
    check_guess(drafter, stays, 2, [3, 4], "1 2 occurred before")
    for request, who in ((Request("never seen", [1, 2]), "a request that was never seen"),
                         (goes, "a request that has ended"), (goes, "a request that was forgotten before")):
        must_answer(f"forget({who})", drafter.forget, request, rule="forget accepts any request")
        say(stays, 3)
        check_guess(drafter, stays, 2, expected_guess(stays.all_token_ids, 2),
                    f"forget({who}) must not change what is known of 'stays'")


@pytest.mark.points(1)
def test_task_1_the_request_is_only_read(lab):
    drafter, request = lab.NgramDrafter(), Request("r", [1, 2, 3, 4, 1, 2])
    say(request, 3)
    before = fields_of(request)
    check_guess(drafter, request, 6, [4, 1, 2, 3, 4, 1], "2 3 occurred before")
    drafter.advance(request, [])
    drafter.forget(request)
    check_unchanged(request, before, "propose(request, 6), advance and forget")


class CountedTokens(list):
    """A text that counts how many of its tokens are read. Its length can be read without reading a token."""

    def __init__(self, tokens):
        super().__init__(tokens)
        self.num_read = 0

    def __getitem__(self, index):
        self.num_read += len(range(*index.indices(len(self)))) if isinstance(index, slice) else 1
        return super().__getitem__(index)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __reversed__(self):
        return (self[i] for i in reversed(range(len(self))))

    def __contains__(self, token_id):
        return any(each == token_id for each in self)

    def __eq__(self, other):
        return self[:] == other

    def __ne__(self, other):
        return self[:] != other

    def __add__(self, other):
        return self[:] + list(other)

    def index(self, *arguments):
        return self[:].index(*arguments)

    def count(self, token_id):
        return self[:].count(token_id)

    def copy(self):
        return self[:]

    def __repr__(self):
        return repr(self[:])


LONG = 1000
MAX_READ_AT_FIRST = 10 * LONG  # four per token are enough
MAX_READ_AFTERWARDS = 60  # ten are enough
MAX_LINES = 300


def long_request(name="r"):
    """Return a request with a long text that repeats itself only at its end."""
    tokens = list(range(100, 100 + LONG))
    request = Request(name, [*tokens, *tokens[500:510]])
    request.all_token_ids = CountedTokens(request.all_token_ids)
    return request


@pytest.mark.points(3)
def test_task_1_a_new_token_costs_the_same_in_a_long_text(lab):
    drafter, request = lab.NgramDrafter(), long_request()
    text = request.all_token_ids
    got = drafter.propose(request, 3)
    assert got == [610, 611, 612], (f"a text of {LONG} different tokens, 100, 101, …, and then 600 to 609 again: "
                                    f"propose(request, 3) returned {got}, expected [610, 611, 612]")
    assert text.num_read <= MAX_READ_AT_FIRST, (
        f"the first call of propose, with a text of {len(text)} tokens, read {text.num_read:,} tokens, at most "
        f"{MAX_READ_AT_FIRST:,} are allowed: do not search the text for each token; look up its newest two tokens in a "
        "dictionary")
    for token_id in (610, 611, 700, 701, 702):  # as expected, as expected, wrong, a new match, as expected
        new = say(request, token_id)
        for call, do in ((f"advance(request, {new})", lambda new=new: drafter.advance(request, new)),
                         ("propose(request, 3)", lambda: drafter.propose(request, 3))):
            text.num_read = 0
            num_run = num_lines(do)
            assert text.num_read <= MAX_READ_AFTERWARDS, (
                f"{token_id} is the only new token of a text of {len(text)} tokens: {call} read {text.num_read} "
                f"tokens, at most {MAX_READ_AFTERWARDS} are allowed: a token is entered once, and a slice or a copy of "
                "the text reads all of it")
            assert num_run <= MAX_LINES, (
                f"{token_id} is the only new token of a text of {len(text)} tokens: {call} ran {num_run} lines of "
                f"Python, at most {MAX_LINES} are allowed: the cost must not depend on the length of the text")
    check_guess(drafter, request, 3, [703, 704, 705], "700 701 occurred before, and 702 was the expected token")


@pytest.mark.points(1)
def test_task_1_a_preempted_request_is_not_read_again(lab):
    drafter, request = lab.NgramDrafter(), long_request()
    check_guess(drafter, request, 3, [610, 611, 612], "600 601 … 609 occurred before, and 610 followed them there")
    request.num_preemptions, request.num_computed_tokens = 1, 0
    request.all_token_ids.num_read = 0
    new = say(request, 610)
    drafter.advance(request, new)
    got, num_read = drafter.propose(request, 2), request.all_token_ids.num_read
    assert got == [611, 612] and num_read <= MAX_READ_AFTERWARDS, (
        f"after a preemption, advance(request, {new}) and propose(request, 2) returned {got} and read {num_read} "
        f"tokens, expected [611, 612] and at most {MAX_READ_AFTERWARDS}: the text of a preempted request has not "
        "changed, and a token is entered once")


@pytest.mark.points(2)
@pytest.mark.inside("the lines of a call can be counted only in the process that runs them")
def test_task_1_no_call_goes_through_the_text(lab):
    drafter, requests = lab.NgramDrafter(), [long_request(f"r{i}") for i in range(6)]
    for request in requests:
        got = drafter.propose(request, 3)
        assert got == [610, 611, 612], (f"a text of {LONG} different tokens, 100, 101, …, and then 600 to 609 again: "
                                        f"propose(request, 3) returned {got}, expected [610, 611, 612]")
        say(request, 700, 701)
    for call, function, arguments in (
            ("advance(request, [700, 701])", drafter.advance, [(request, [700, 701]) for request in requests[:3]]),
            ("propose(request, 3)", drafter.propose, [(request, 3) for request in requests[3:]])):
        num_run, _ = cheapest(function, arguments)
        assert num_run <= MAX_LINES, (
            f"a text of {LONG + 12} tokens has two new tokens. The cheapest of {len(arguments)} calls of {call} ran "
            f"{num_run} lines of Python, at most {MAX_LINES} are allowed: search neither the text nor what you keep "
            "of it")


@pytest.mark.points(2)
@pytest.mark.inside("the objects of a drafter can be counted only in the process of the drafter")
def test_task_1_nothing_of_a_forgotten_text_is_kept(lab):
    drafter = lab.NgramDrafter()
    before = num_objects(drafter, but=(Request,))
    for number in range(20):
        start = 1000 * number
        request = Request(f"r{number}", [*range(start, start + 50), start, start + 1])
        check_guess(drafter, request, 1, [start + 2], "the newest two tokens occurred at the beginning of the text")
        drafter.advance(request, say(request, start + 2))
        drafter.forget(request)
    after = num_objects(drafter, but=(Request,))
    assert after <= before + 15, (
        f"the tokens of 20 requests, 53 each, were read and forgotten. The drafter consisted of {before} objects "
        f"before, and of {after} after, expected at most {before + 15}: forget() drops everything about a request, or "
        "a server that runs for long fills its memory")


# ---- Task 2: checking a draft


def make_row(output_token_ids, prompt_token_ids=(1, 2, 3), key=(11, 22), **params):
    return SamplerRow(SamplingParams(**params), prompt_token_ids, output_token_ids, (), key)


def outputs(rows):
    return [list(row.output_token_ids) for row in rows]


@pytest.mark.points(2)
@pytest.mark.parametrize("said, draft, expected", [
    ([5, 6], [7, 8], [[5, 6], [5, 6, 7], [5, 6, 7, 8]]), ([], [7], [[], [7]]), ([4], [9, 9, 9], [[4], [4, 9],
     [4, 9, 9], [4, 9, 9, 9]]), ((5, 6), (7, 5), [[5, 6], [5, 6, 7], [5, 6, 7, 5]])])
def test_task_2_row_i_follows_the_first_i_tokens_of_the_draft(lab, said, draft, expected):
    got = outputs(lab.Verifier().rows(make_row(said), draft))
    assert got == expected, (
        f"the output so far is {said} and the draft is {draft}: the rows have the output tokens {got}, expected "
        f"{expected}. Row 0 draws the next token of the request, and row i the token after the first i drafted tokens. "
        "The number of output tokens is the position whose noise is used")


@pytest.mark.points(1)
def test_task_2_without_a_draft_there_is_one_row(lab):
    for draft in ([], ()):
        got = outputs(lab.Verifier().rows(make_row([5, 6]), draft))
        assert got == [[5, 6]], (f"the output so far is [5, 6] and the draft is {draft}: the rows have the output "
                                 f"tokens {got}, expected [[5, 6]]: the request's own next token is always drawn")


@pytest.mark.points(1)
def test_task_2_a_draft_may_go_on_after_an_end_of_text(lab):
    end = 9
    row = SamplerRow(SamplingParams(), (1, 2, 3), [5], (end,), (11, 22))
    rows = must_answer(f"rows(row, [7, {end}, 8]), where {end} ends a text", lab.Verifier().rows, row, [7, end, 8],
                       rule="a draft of k tokens has k + 1 rows, whatever its tokens mean: the engine ends the output")
    assert outputs(rows) == [[5], [5, 7], [5, 7, end], [5, 7, end, 8]], (
        f"the rows have the output tokens {outputs(rows)}; row i follows the first i tokens of the draft, also after "
        f"the {end}")


@pytest.mark.points(1)
def test_task_2_parameters_prompt_and_key_stay(lab):
    row = SamplerRow(SamplingParams(temperature=0.7, repetition_penalty=1.3, seed=5), [1, 2, 3], [5, 6], (0, 9),
                     (123, 456), [(7, 8)])
    rows = lab.Verifier().rows(row, [7, 8])
    assert outputs(rows) == [[5, 6], [5, 6, 7], [5, 6, 7, 8]], (
        f"the output so far is [5, 6] and the draft is [7, 8]: the rows have the output tokens {outputs(rows)}, "
        "expected [[5, 6], [5, 6, 7], [5, 6, 7, 8]]")
    for index, each in enumerate(rows):
        for name in ("params", "prompt_token_ids", "key", "eos_token_ids", "bad_words"):
            got, expected = getattr(each, name), getattr(row, name)
            assert got == expected, (f"{name} of row {index} is {got}, expected {expected} as in the request's own "
                                     "row: only the output tokens differ")


@pytest.mark.points(2)
def test_task_2_rows_changes_neither_the_row_nor_the_draft(lab):
    said, draft = [5, 6], [7, 8]
    row = make_row(said)
    rows = lab.Verifier().rows(row, draft)
    assert outputs(rows) == [[5, 6], [5, 6, 7], [5, 6, 7, 8]], (
        f"the output so far is [5, 6] and the draft is [7, 8]: the rows have the output tokens {outputs(rows)}, "
        "expected [[5, 6], [5, 6, 7], [5, 6, 7, 8]]: each row has its own list")
    got = list(row.output_token_ids), said, draft, row.key
    assert got == ([5, 6], [5, 6], [7, 8], (11, 22)), (
        f"after rows(row, draft) (row.output_token_ids, the list that it was made of, the draft, row.key) is {got}, "
        "expected ([5, 6], [5, 6], [7, 8], (11, 22)): the request has not got the drafted tokens")


def check_accept(lab, draft, drawn, expected, rule):
    call = f"accept({draft}, {drawn})"
    got = must_answer(call, lab.Verifier().accept, draft, drawn, rule=rule)
    assert got == expected, f"{call} returned {got}, expected {expected}: {rule}"


@pytest.mark.points(2)
@pytest.mark.parametrize("draft, drawn, expected", [
    ([1, 2, 3], [1, 9, 3, 4], [1, 9]), ([1, 2, 3], [9, 2, 3, 4], [9]), ([1, 2, 3], [1, 2, 9, 4], [1, 2, 9]),
    ([1], [9, 2], [9]), ((8, 9, 10), (8, 7, 10, 11), [8, 7])])
def test_task_2_tokens_count_up_to_the_first_that_differs(lab, draft, drawn, expected):
    check_accept(lab, draft, drawn, expected, "the first drawn token that differs from the draft is the model's own, "
                                              "so it counts. The tokens after it follow a text that does not exist")


@pytest.mark.points(1)
@pytest.mark.parametrize("draft, drawn", [([1, 2, 3], [1, 2, 3, 4]), ([5], [5, 6]), ([7, 7], [7, 7, 7]),
                                          ([0, 0], [0, 0, 0])])
def test_task_2_a_right_draft_gives_one_token_more_than_it_has(lab, draft, drawn):
    check_accept(lab, draft, drawn, drawn, "all drafted tokens are right, so the token drawn after the last of them "
                                           "counts as well")


@pytest.mark.points(1)
@pytest.mark.parametrize("draft, drawn, expected", [
    ([1, 2, 3, 4], [1, 9, 3, 4, 5], [1, 9]), ([1, 1, 1], [2, 1, 1, 1], [2]), ([8, 9, 10], [8, 7, 10, 11], [8, 7])])
def test_task_2_an_equal_number_after_a_wrong_one_is_a_coincidence(lab, draft, drawn, expected):
    check_accept(lab, draft, drawn, expected, "a token that was drawn after a wrong token does not count, even if the "
                                              "draft has the same number there")


@pytest.mark.points(2)
@pytest.mark.parametrize("draft, drawn, expected", [
    ([1, 2, 3], [1, 2], [1, 2]), ([1, 2, 3], [1], [1]), ([1, 2, 3], [9], [9]), ([1, 2, 3], [1, 2, 3], [1, 2, 3]),
    ([1, 2, 3], [1, 9], [1, 9])])
def test_task_2_fewer_tokens_than_rows_may_be_drawn(lab, draft, drawn, expected):
    check_accept(lab, draft, drawn, expected, "drawn may end before the draft does. What was drawn counts up to and "
                                              "including the first token that differs from the draft")


@pytest.mark.points(1)
def test_task_2_tokens_are_compared_by_their_values(lab):
    draft, drawn = ([int(text) for text in texts.split()] for texts in ("1000 2000 3000", "1000 2000 3001 4"))
    check_accept(lab, draft, drawn, [1000, 2000, 3001], "two ids are the same token if they are equal; large numbers "
                                                        "that are equal may be different objects")


@pytest.mark.points(1)
def test_task_2_without_a_draft_the_drawn_token_counts(lab):
    check_accept(lab, [], [5], [5], "there is nothing to compare, and the drawn token is the request's next one")
    check_accept(lab, (), [0], [0], "there is nothing to compare, and the drawn token is the request's next one")


@pytest.mark.points(1)
def test_task_2_accept_changes_neither_list(lab):
    for draft, drawn, expected in (([1, 2, 3], [1, 9, 3, 4], [1, 9]), ([1, 2], [1, 2, 3], [1, 2, 3]), ([], [4], [4])):
        before = list(draft), list(drawn)
        check_accept(lab, draft, drawn, expected, "the drawn tokens up to and including the first that differs")
        assert (draft, drawn) == before, f"accept changed (draft, drawn) from {before} to {(draft, drawn)}"


@pytest.mark.points(1)
def test_task_2_every_short_draft_and_every_draw(lab):
    verifier = lab.Verifier()
    for length in range(4):
        for draft in itertools.product(range(2), repeat=length):
            for drawn in itertools.product(range(2), repeat=length + 1):
                wrong = [i for i in range(length) if draft[i] != drawn[i]]
                expected = list(drawn[:wrong[0] + 1] if wrong else drawn)
                got = verifier.accept(list(draft), list(drawn))
                assert got == expected, (
                    f"accept({list(draft)}, {list(drawn)}) returned {got}, expected {expected}: the drawn tokens up to "
                    "and including the first that differs from the draft, or all of them if none differs")


# ---- the made-up model: what a request says without drafts

VOCAB = 6
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.8}
PENALTIES = {"temperature": 0.8, "repetition_penalty": 1.5, "frequency_penalty": 0.5}
GREEDY_PENALTIES = {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.3}


def logits_after(text, num_seen):
    """Return the logits of a model that sees the last ``num_seen`` tokens. With 2 of them it repeats itself."""
    rng = random.Random(repr(list(text[-num_seen:])))
    return [rng.gauss(0, 2) for _ in range(VOCAB)]


def draw(row, logits):
    """Draw a token as the sampler of lab 5.2 does: penalties, temperature, and the noise of key and position."""
    said, params, logits = list(row.output_token_ids), row.params, list(logits)
    for token in {*row.prompt_token_ids, *said}:
        logits[token] *= params.repetition_penalty if logits[token] < 0 else 1 / params.repetition_penalty
    logits = [logit - params.frequency_penalty * said.count(token) for token, logit in enumerate(logits)]
    if params.temperature:
        rng = random.Random(f"{tuple(row.key)} {len(said)}")
        logits = [logit / params.temperature - math.log(-math.log(rng.uniform(1e-9, 1 - 1e-9))) for logit in logits]
    return logits.index(max(logits))


def output_without_drafts(prompt, num_tokens, num_seen, key=(11, 22), **params):
    said = []
    while len(said) < num_tokens:
        said.append(draw(make_row(list(said), prompt, key, **params), logits_after([*prompt, *said], num_seen)))
    return said


@pytest.mark.points(3)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED, PENALTIES, GREEDY_PENALTIES],
                         ids=["greedy", "sampled", "penalties", "greedy with penalties"])
def test_task_2_no_draft_changes_a_token(lab, params):
    """Check every draft of two tokens at several positions of one output, and right drafts of four tokens."""
    verifier, prompt = lab.Verifier(), [1, 2, 3, 1]
    right = output_without_drafts(prompt, 20, 1000, **params)
    for start in (0, 1, 7):
        drafts = [*itertools.product(range(VOCAB), repeat=2), tuple(right[start:start + 4]),
                  (*right[start:start + 3], (right[start + 3] + 1) % VOCAB)]
        for draft in map(list, drafts):
            said = right[:start]
            rows = verifier.rows(make_row(said, prompt, **params), draft)
            drawn = [draw(row, logits_after([*prompt, *said, *draft[:i]], 1000)) for i, row in enumerate(rows)]
            got = verifier.accept(draft, drawn)
            num_right = next((i for i, token in enumerate(draft) if token != right[start + i]), len(draft))
            expected = right[start:start + num_right + 1]
            assert got == expected, (
                f"with {params}, the request says {right[:start + 6]}… without drafts. After {start} of these tokens "
                f"the draft is {draft}, and the step draws {drawn} with the rows {outputs(rows)}. accept returned "
                f"{got}, expected {expected}: a draft must never change a token, and every right token counts. "
                "Noise and penalties depend on the output tokens of a row")


# ---- Task 3: how long a draft is worth


def record_after(lab, *judged):
    """Return a record that has judged these pairs of a guess and the tokens that came."""
    record = lab.GuessRecord()
    for guess, token_ids in judged:
        record.judge(guess, token_ids)
    return record


def counts(record):
    return record.num_right, record.num_judged


def check_counts(record, expected, call, rule):
    got = counts(record)
    assert got == pytest.approx(expected, abs=1e-9), (
        f"{call}: (num_right, num_judged) is {got}, expected {expected}: {rule}")


@pytest.mark.points(2)
@pytest.mark.parametrize("guess, token_ids, expected", [
    ([1, 2, 3], [1, 9], (1, 2)), ([1, 2, 3], [1, 2, 3], (3, 3)), ([1], [9], (0, 1)), ([1, 2, 3], [9, 8, 7], (0, 1)),
    ([1, 2, 3], [1, 2, 9], (2, 3)), ((4, 5), (4, 5), (2, 2)), ([0, 0], [0, 0], (2, 2))])
def test_task_3_right_tokens_and_the_first_wrong_one_are_judged(lab, guess, token_ids, expected):
    check_counts(record_after(lab, (guess, token_ids)), expected, f"a new record judges ({guess}, {token_ids})",
                 "num_right counts the right tokens before the first wrong one; num_judged counts them and the first "
                 "wrong one")


@pytest.mark.points(1)
@pytest.mark.parametrize("guess, token_ids, expected", [
    ([1, 2, 3], [1], (1, 1)), ([1, 2, 3], [1, 2], (2, 2)), ([1], [1, 2, 3], (1, 1)), ([1, 2], [1, 2, 9], (2, 2)),
    ([1, 2, 3], [9], (0, 1)), ([1], [9, 1], (0, 1))])
def test_task_3_only_positions_that_both_have_are_compared(lab, guess, token_ids, expected):
    check_counts(record_after(lab, (guess, token_ids)), expected, f"a new record judges ({guess}, {token_ids})",
                 "where the guess or the tokens end, nothing is judged: a guess that has no token there is neither "
                 "right nor wrong")


@pytest.mark.points(1)
@pytest.mark.parametrize("guess, token_ids, expected", [
    ([1, 2, 3, 4], [9, 2, 3, 4], (0, 1)), ([1, 2, 3, 4], [1, 9, 3, 4], (1, 2)), ([1, 2, 3], [9, 9, 9], (0, 1))])
def test_task_3_tokens_after_the_first_wrong_one_say_nothing(lab, guess, token_ids, expected):
    check_counts(record_after(lab, (guess, token_ids)), expected, f"a new record judges ({guess}, {token_ids})",
                 "tokens after the first wrong one count neither as right nor as judged: they were guessed for a text "
                 "that does not exist")


@pytest.mark.points(2)
def test_task_3_older_guesses_count_less(lab):
    record = record_after(lab, ([1, 2], [1, 2]))
    check_counts(record, (2, 2), "a new record judges ([1, 2], [1, 2])", "both tokens are right")
    record.judge([1], [9])
    check_counts(record, (1.8, 2.8), "after ([1, 2], [1, 2]) the record judges ([1], [9])",
                 "0.9 times the old numbers, plus no right token and one wrong one")
    record.judge([1, 2, 3], [1, 2, 9])
    check_counts(record, (3.62, 5.52), "after ([1, 2], [1, 2]) and ([1], [9]) the record judges ([1, 2, 3], [1, 2, 9])",
                 "0.9 times the old numbers, plus two right tokens and one wrong one. Each call of judge ages both "
                 "numbers once, however many tokens it compares")


@pytest.mark.points(1)
def test_task_3_an_empty_guess_is_not_judged(lab):
    record = record_after(lab, ([1, 2], [1, 9]))
    check_counts(record, (1, 2), "a new record judges ([1, 2], [1, 9])", "one right token and one wrong one")
    for guess, token_ids in (([], [1, 2]), ([1, 2], []), ([], [])):
        record.judge(guess, token_ids)
        check_counts(record, (1, 2), f"then it judges ({guess}, {token_ids})",
                     "if there is nothing to compare, nothing changes: older guesses do not count less either")


@pytest.mark.points(1)
def test_task_3_random_guesses_as_the_formulas_say(lab):
    rng = random.Random(63)
    record, right, judged = lab.GuessRecord(), 0.0, 0.0
    for number in range(60):
        guess, token_ids = ([rng.randrange(2) for _ in range(rng.randint(0, 4))] for _ in range(2))
        record.judge(guess, token_ids)
        pairs = list(zip(guess, token_ids))
        if pairs:
            num_right = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
            right, judged = 0.9 * right + num_right, 0.9 * judged + num_right + (num_right < len(pairs))
        check_counts(record, (right, judged), f"after {number} other guesses, the record judges ({guess}, {token_ids})",
                     "0.9 times the old numbers, plus the right tokens before the first wrong one, and 1 in num_judged "
                     "if there is a wrong one" if pairs else "without a guess or without tokens nothing changes")
    got = record.rate
    assert got == pytest.approx((right + 1) / (judged + 2)), f"the rate is {got}, expected {(right + 1) / (judged + 2)}"


#: Guess and tokens after which a new record has the rate.
RATES = {0.5: [], 0.75: [([1, 2], [1, 2])], 0.9: [([1] * 8, [1] * 8)], 1 / 3: [([1], [9])]}


def check_length(lab, rate, cost, max_tokens, expected, rule):
    record = record_after(lab, *RATES[rate])
    assert record.rate == pytest.approx(rate), (
        f"a new record that judged {RATES[rate]} has rate {record.rate}, expected {rate:.4g}")
    got = record.length(cost, max_tokens)
    assert got == expected, (f"with rate {rate:.4g}, length({cost}, {max_tokens}) returned {got}, expected {expected}: "
                             f"{rule}")


@pytest.mark.points(2)
@pytest.mark.parametrize("rate, cost, expected", [
    (0.5, 0.2, 2), (0.5, 0.3, 1), (0.5, 0.12, 3), (0.5, 0.6, 0), (0.75, 0.2, 5), (0.9, 0.2, 15), (1 / 3, 0.2, 1),
    (1 / 3, 0.1, 2), (1 / 3, 0.4, 0)])
def test_task_3_a_draft_is_as_long_as_its_tokens_are_worth(lab, rate, cost, expected):
    check_length(lab, rate, cost, 30, expected,
                 f"token {expected + 1} is accepted with probability {rate:.4g} ** {expected + 1} = "
                 f"{rate ** (expected + 1):.4g}, which is less than its cost"
                 + (f"; token {expected} with {rate ** expected:.4g}, which is more" if expected else ""))


@pytest.mark.points(1)
@pytest.mark.parametrize("rate, cost, expected", [
    (0.5, 0.5, 0), (0.5, 0.25, 1), (0.5, 0.125, 2), (0.75, 0.5625, 1), (0.75, 0.75 ** 3, 2), (0.75, 0.75 ** 5, 4)])
def test_task_3_a_token_that_is_worth_its_cost_exactly_is_left_out(lab, rate, cost, expected):
    check_length(lab, rate, cost, 30, expected, f"{rate} ** {expected + 1} is exactly {cost}: a token is worth "
                                                "computing only if its probability is more than its cost")


@pytest.mark.points(1)
@pytest.mark.parametrize("rate, cost, max_tokens, expected", [
    (0.5, 0.2, 1, 1), (0.5, 0.2, 0, 0), (0.5, 0.2, 2, 2), (0.9, 0.2, 4, 4), (0.5, 0.0, 7, 7), (0.5, 1.0, 7, 0)])
def test_task_3_a_draft_has_at_most_max_tokens(lab, rate, cost, max_tokens, expected):
    check_length(lab, rate, cost, max_tokens, expected,
                 f"the largest length, at most {max_tokens}, all of whose tokens are worth more than {cost}")


@pytest.mark.points(1)
def test_task_3_length_changes_nothing(lab):
    record = record_after(lab, ([1, 2], [1, 2]))
    got = [record.length(cost, 8) for cost in (0.2, 0.5, 0.9, 0.2)]
    assert got == [5, 2, 0, 5], (f"with rate 0.75, length(cost, 8) for the costs 0.2, 0.5, 0.9 and 0.2 returned {got}, "
                                 "expected [5, 2, 0, 5]")
    check_counts(record, (2, 2), "a record that has judged ([1, 2], [1, 2]) is asked for the length four times",
                 "asking changes nothing")


@pytest.mark.points(1)
def test_task_3_drafts_stop_while_guesses_fail_and_come_back(lab):
    record, lengths = lab.GuessRecord(), []
    for right in [False] * 8 + [True] * 8:
        lengths.append(record.length(0.2, 8))
        record.judge([1, 2, 3, 4], [1, 2, 3, 4] if right else [9])
    expected = [2, 1, 1, 1, 0, 0, 0, 0, 0, 2, 3, 4, 5, 7, 8, 8]
    assert lengths == expected, (
        f"eight guesses fail at once, then eight are right in all four tokens: length(0.2, 8) before each of them is "
        f"{lengths}, expected {expected}. The newest guesses count most, and guesses that no step has computed are "
        "judged as well")


@pytest.mark.points(1)
def test_task_3_every_request_has_its_own_record(lab):
    first, second = lab.GuessRecord(), lab.GuessRecord()
    first.judge([1, 2], [1, 2])
    second.judge([1], [9])
    got = counts(first), counts(second), first.length(0.3, 8), second.length(0.3, 8)
    assert got == ((2, 2), (0, 1), 4, 1), (
        f"the first record judged two right tokens, and the second one wrong token. Their (num_right, num_judged), and "
        f"the results of length(0.3, 8), are {got}, expected ((2, 2), (0, 1), 4, 1): the rates are "
        f"0.75 and 1/3, and 0.75 ** 4 is 0.32")


# ---- Task 4: resting


def rest(record):
    """Call is_rested until it returns True, and return the number of calls."""
    for number in range(1, 200):
        got = record.is_rested()
        assert got is True or got is False, f"is_rested() returned {got!r}, expected True or False"
        if got:
            return number
    raise AssertionError("is_rested() was called 199 times and never returned True: the longest rest takes 64 steps")


@pytest.mark.points(1)
def test_task_4_the_first_rest_takes_eight_steps(lab):
    record = lab.GuessRecord()
    got = [record.is_rested() for _ in range(8)]
    assert got == [False] * 7 + [True], (f"the first eight calls of is_rested() returned {got}, expected seven times "
                                         "False and then True: each call counts one step, and the eighth ends the rest")


@pytest.mark.points(2)
def test_task_4_each_rest_is_longer_until_the_longest(lab):
    record = lab.GuessRecord()
    got = [rest(record) for _ in range(7)]
    assert got == [8, 16, 32, 64, 64, 64, 64], (
        f"no guess was right: is_rested() returned True after {got} calls, expected [8, 16, 32, 64, 64, 64, 64]. After "
        "the last of RESTS, every rest takes 64 steps")


@pytest.mark.points(2)
@pytest.mark.parametrize("num_rests", [1, 2, 4, 6])
def test_task_4_after_a_right_token_the_next_rest_is_the_shortest(lab, num_rests):
    record = lab.GuessRecord()
    before = [rest(record) for _ in range(num_rests)]
    expected = [8, 16, 32, 64, 64, 64][:num_rests]
    assert before == expected, f"the first rests took {before} calls of is_rested(), expected {expected}"
    record.judge([5], [5])
    got = [rest(record) for _ in range(3)]
    assert got == [8, 16, 32], (
        f"after rests of {expected} steps, judge([5], [5]) saw a right token: the next rests took {got} calls, "
        "expected [8, 16, 32]: a right token makes the next rest the shortest one, and then they grow again")


@pytest.mark.points(1)
@pytest.mark.parametrize("guess, token_ids, is_right", [
    ([1], [9], False), ([1, 2], [9, 2], False), ([], [1], False), ([1], [], False), ([1, 2, 3], [1, 9], True),
    ([1], [1, 2, 3], True)])
def test_task_4_only_a_right_token_makes_rests_short_again(lab, guess, token_ids, is_right):
    record = lab.GuessRecord()
    before = [rest(record), rest(record)]
    assert before == [8, 16], f"the first two rests took {before} calls of is_rested(), expected [8, 16]"
    record.judge(guess, token_ids)
    got = rest(record)
    expected = 8 if is_right else 32
    assert got == expected, (
        f"after two rests, judge({guess}, {token_ids}) was called: the next rest took {got} calls, expected "
        f"{expected}: " + ("the first token is right, so the next rest is the shortest one" if is_right else
                           "no token before the first wrong one is right, so the rests go on growing"))


@pytest.mark.points(2)
@pytest.mark.parametrize("num_steps", [1, 3, 7, 15])
def test_task_4_a_right_token_in_a_rest_shortens_the_next_one_only(lab, num_steps):
    record = lab.GuessRecord()
    assert rest(record) == 8, "the first rest takes 8 steps"
    answers = [record.is_rested() for _ in range(num_steps)]
    record.judge([1], [1])
    answers += [record.is_rested() for _ in range(16 - num_steps)]
    assert answers == [False] * 15 + [True], (
        f"judge saw a right token after {num_steps} steps of the second rest. is_rested returned True in steps "
        f"{[step for step, answer in enumerate(answers, 1) if answer]} of it, expected only in step 16: a rest that "
        "has begun is not cut short, and does not begin again")
    number = rest(record)
    assert number == 8, (f"judge saw a right token during the last rest, and the next one takes {number} steps, "
                         "expected 8: the next rest is the shortest if there was a right token since the last began")


@pytest.mark.points(1)
def test_task_4_asking_for_a_length_is_no_step_of_a_rest(lab):
    record, other = lab.GuessRecord(), lab.GuessRecord()
    got = []
    for _ in range(16):
        record.length(0.2, 4)
        got.append(record.is_rested())
        other.is_rested()
    expected = [False] * 7 + [True] + [False] * 8
    assert got == expected, (
        f"length() and is_rested() are called in turns, and another record counts its own steps: is_rested() returned "
        f"True in the calls {[i + 1 for i, each in enumerate(got) if each]} of 16, expected only in call 8: only "
        "is_rested() counts a step, and each record counts its own")


@pytest.mark.points(2)
def test_task_4_a_costly_drafter_that_keeps_failing_is_asked_less_and_less(lab):
    """Ask as the engine does: for a draft if its tokens are worth it, and otherwise for one token after a rest."""
    record, asked, lengths = lab.GuessRecord(), [], []
    for step in range(260):
        length = record.length(0.3, 4)
        if length == 0 and record.is_rested():
            length = 1
        if length:
            asked.append(step)
            lengths.append(length)
            record.judge([1] * length, [9])
    assert lengths[:3] == [1, 1, 1], (
        f"a drafter is always wrong, and a token costs 0.3: its first three guesses have {lengths[:3]} tokens, "
        "expected [1, 1, 1]: two at the rates 0.5 and 0.33, and one after a rest")
    got = [later - earlier for earlier, later in zip(asked[1:], asked[2:])]
    assert got[:6] == [8, 16, 32, 64, 64, 64], (
        f"the guesses are always wrong, and length() gives no draft after the second of them. Then the drafter was "
        f"asked after {got[:6]} steps, expected [8, 16, 32, 64, 64, 64]")


# ---- Task 5: giving slots back


def make(lab, num_blocks=12, tree_class=None, **more):
    return lab.KVCacheManager(num_blocks=num_blocks, block_size=4, tree_class=tree_class, **more)


def ids(blocks):
    return None if blocks is None else [block.block_id for block in blocks]


def free_ids(manager):
    return ids(manager.block_pool.free_block_queue.get_all_free_blocks())


def owners(manager, *block_ids):
    return [manager.block_pool.blocks[block_id].ref_cnt for block_id in block_ids]


def lookup(manager, tokens, extra_keys=None):
    """Return what another request with these tokens finds: the blocks, and the number of tokens."""
    hits, num_cached = manager.get_computed_blocks(Request("lookup", [*tokens, 0], extra_keys=extra_keys))
    return ids(hits), num_cached


def admit(manager, request, newest):
    """Compute all tokens of a new request in one step, which draws the token ``newest``."""
    hits, num_cached = manager.get_computed_blocks(request)
    taken = manager.allocate_slots(request, request.num_tokens - num_cached, hits, num_cached)
    assert taken is not None, "the pool is too small: this is a mistake in the test, not in your code"
    request.num_computed_tokens = request.num_tokens
    request.append_output_token(newest)
    manager.finish_step()
    return request


def start_draft(manager, request, num_drafted):
    """Run a step that computes the newest token of ``request`` and a draft. Return the blocks that it took."""
    taken = manager.allocate_slots(request, 1 + num_drafted)
    assert taken is not None, "the pool is too small: this is a mistake in the test, not in your code"
    manager.finish_step()
    return taken


def accept_tokens(request, *token_ids):
    """Append the tokens that the verifier accepted. All of them but the last were drafted, and are computed."""
    for token_id in token_ids:
        request.append_output_token(token_id)
    request.num_computed_tokens = request.num_tokens - 1


def step_with_draft(manager, request, num_drafted, *accepted):
    start_draft(manager, request, num_drafted)
    accept_tokens(request, *accepted)
    manager.give_back_slots(request)


@pytest.mark.points(1)
@WITH_AND_WITHOUT_A_TREE
def test_task_5_slots_of_wrong_tokens_go_back(lab, tree_class):
    manager = make(lab, tree_class=tree_class)
    request = admit(manager, Request("r", COUNT[:10]), 11)
    before = manager.get_block_ids("r")
    start_draft(manager, request, 5)
    during = manager.get_block_ids("r")
    accept_tokens(request, 70)  # no drafted token is right
    manager.give_back_slots(request)
    got = before, during, manager.get_block_ids("r"), free_ids(manager)[-1]
    assert got == ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3], 4), (
        f"10 tokens are computed, a step computes token 11 and a draft of 5, and the whole draft is wrong: (table "
        f"before the step, during it, after give_back_slots, last free block) is {got}, expected ([1, 2, 3], "
        "[1, 2, 3, 4], [1, 2, 3], 4): 11 tokens need three blocks of 4")
    manager.check_integrity()


@pytest.mark.points(2)
@WITH_AND_WITHOUT_A_TREE
@pytest.mark.parametrize("num_right", range(8))
def test_task_5_the_table_has_the_blocks_of_the_computed_tokens(lab, tree_class, num_right):
    manager = make(lab, tree_class=tree_class)
    request = admit(manager, Request("r", COUNT[:6]), 7)
    step_with_draft(manager, request, 7, *COUNT[7:7 + num_right], 90)  # the draft is 8 to 14
    num_computed = 7 + num_right
    expected = [1, 2, 3, 4][:-(-num_computed // 4)]
    got, free = manager.get_block_ids("r"), set(free_ids(manager))
    assert got == expected, (
        f"a step with a draft of 7 made 14 slots in blocks 1, 2, 3, 4. {num_right} of the 7 were right, so "
        f"{num_computed} tokens are computed and {request.num_tokens} exist: after give_back_slots the table is {got}, "
        f"expected {expected}: the blocks of the computed tokens, and no other. The newest token has no slot yet")
    assert free == set(range(1, 12)) - set(expected), (
        f"the table is {got} after give_back_slots, and the free blocks are {sorted(free)}: every block that is not in "
        "the table is free")
    manager.check_integrity()


@pytest.mark.points(1)
@WITH_AND_WITHOUT_A_TREE
def test_task_5_the_last_block_is_freed_first(lab, tree_class):
    manager = make(lab, num_blocks=9, tree_class=tree_class)
    request = admit(manager, Request("r", COUNT[:3]), 4)
    step_with_draft(manager, request, 12, 90)  # blocks 1, 2, 3, 4
    got = manager.get_block_ids("r"), free_ids(manager)
    assert got == ([1], [5, 6, 7, 8, 4, 3, 2]), (
        f"a draft of 12 took blocks 2, 3, 4 of a pool of 9, and all of it is wrong: (table, free queue) is {got}, "
        "expected ([1], [5, 6, 7, 8, 4, 3, 2]): the last block of the table is freed first")
    step_with_draft(manager, request, 20, 91)  # blocks 1, 5, 6, 7, 8, 4, 3
    got = manager.get_block_ids("r"), free_ids(manager)
    assert got == ([1, 5], [2, 3, 4, 8, 7, 6]), (
        f"the next draft, of 20, took blocks 5, 6, 7, 8, 4, 3 in this order, and all of it is wrong: (table, free "
        f"queue) is {got}, expected ([1, 5], [2, 3, 4, 8, 7, 6]): the last block of the table is freed first, "
        "whatever its id")


@pytest.mark.points(2)
@WITH_AND_WITHOUT_A_TREE
def test_task_5_a_request_goes_on_after_its_slots_went_back(lab, tree_class):
    manager = make(lab, num_blocks=5, tree_class=tree_class)
    request = admit(manager, Request("r", COUNT[:6]), 7)
    sizes = []
    for accepted in ([8], [9, 10, 11], [12, 13]):
        step_with_draft(manager, request, 5, *accepted)
        manager.check_integrity()
        sizes.append((len(manager.get_block_ids("r")), manager.block_pool.get_num_free_blocks()))
    assert sizes == [(2, 2), (3, 1), (3, 1)], (
        f"three steps with drafts of 5 in a pool of 4 blocks; 7, 10 and then 12 tokens are computed: (blocks in the "
        f"table, free blocks) after each step is {sizes}, expected [(2, 2), (3, 1), (3, 1)]")
    other = Request("other", COUNT[40:43])
    taken = ids(manager.allocate_slots(other, 3))
    assert taken is not None and len(taken) == 1 and taken[0] not in manager.get_block_ids("r"), (
        f"another request needs one block, and the drafts have given one back: allocate_slots took {taken}")


@pytest.mark.points(2)
@WITH_AND_WITHOUT_A_TREE
def test_task_5_a_block_that_another_request_owns_stays_with_it(lab, tree_class):
    manager = make(lab, tree_class=tree_class)
    parent = admit(manager, Request("parent", COUNT[:3]), 4)
    start_draft(manager, parent, 6)  # blocks 1, 2, 3
    child = Request("child", COUNT[:4])
    manager.fork(parent, child)
    accept_tokens(parent, 90)
    manager.give_back_slots(parent)
    got = manager.get_block_ids("parent"), manager.get_block_ids("child"), owners(manager, 1, 2, 3)
    assert got == ([1], [1, 2, 3], [2, 1, 1]), (
        f"parent and child share blocks 1, 2, 3, and the parent gives its slots after 4 tokens back: (table of the "
        f"parent, table of the child, owners of blocks 1, 2, 3) is {got}, expected ([1], [1, 2, 3], [2, 1, 1]): each "
        "removed block has one owner fewer, and the table of another request does not change")
    manager.check_integrity()


@pytest.mark.points(2)
@WITH_AND_WITHOUT_A_TREE
def test_task_5_a_draft_into_a_shared_block_leaves_the_original(lab, tree_class):
    manager = make(lab, tree_class=tree_class)
    parent = admit(manager, Request("parent", COUNT[:6]), 7)  # blocks 1, 2
    child = Request("child", COUNT[:6])
    child.append_output_token(50)
    child.num_computed_tokens = 6
    manager.fork(parent, child)
    taken = ids(start_draft(manager, child, 4))
    assert taken == [3, 4], f"a draft writes into shared block 2: it took {taken}, expected [3, 4]: a copy, and a block"
    accept_tokens(child, 90)
    manager.give_back_slots(child)
    got = manager.get_block_ids("parent"), manager.get_block_ids("child"), owners(manager, 1, 2, 3, 4)
    assert got == ([1, 2], [1, 3], [2, 1, 1, 0]), (
        f"the child drafted into a copy of block 2, and the whole draft is wrong: (table of the parent, table of the "
        f"child, owners of blocks 1, 2, 3, 4) is {got}, expected ([1, 2], [1, 3], [2, 1, 1, 0]). Block 3 holds token "
        "7 of the child, so it stays; block 4 goes back")
    manager.check_integrity()


@pytest.mark.points(2)
@WITH_AND_WITHOUT_A_TREE
def test_task_5_blocks_that_accepted_tokens_fill_are_found(lab, tree_class):
    manager = make(lab, tree_class=tree_class)
    request = admit(manager, Request("r", COUNT[:6]), 7)
    start_draft(manager, request, 7)
    before = lookup(manager, COUNT[:16])
    accept_tokens(request, *COUNT[7:13])  # 8 to 12 were drafted, and 13 is new
    manager.give_back_slots(request)
    got = before, lookup(manager, COUNT[:16])
    assert got == (([1], 4), ([1, 2, 3], 12)), (
        f"6 tokens are computed, and a step computes token 7 and a draft of 7, of which five are right: another "
        f"request with the same tokens finds {got[0]} before give_back_slots and {got[1]} after it, expected ([1], 4) "
        "and ([1, 2, 3], 12). The accepted tokens fill blocks 2 and 3, and no later step writes them")


@pytest.mark.points(2)
@WITH_AND_WITHOUT_A_TREE
@pytest.mark.parametrize("num_right", range(6))
def test_task_5_a_token_that_is_not_verified_is_never_found(lab, tree_class, num_right):
    manager = make(lab, tree_class=tree_class)
    request = admit(manager, Request("r", COUNT[:6]), 7)
    start_draft(manager, request, 5)  # the draft is 8 to 12
    found = [lookup(manager, COUNT[:12])]
    accept_tokens(request, *COUNT[7:7 + num_right], 90)
    found.append(lookup(manager, COUNT[:12]))
    manager.give_back_slots(request)
    found += [lookup(manager, COUNT[:12]), lookup(manager, request.all_token_ids)]
    num_computed = 7 + num_right
    after = ([1, 2, 3][:num_computed // 4], num_computed // 4 * 4)
    expected = [([1], 4), ([1], 4), after, after]
    assert found == expected, (
        f"a step computes token 7 and the draft 8 to 12. {num_right} of these 5 are right, so {num_computed} of "
        f"{request.num_tokens} tokens are computed. Requests with the drafted text find {found[:3]} before the "
        f"verification, after it, and after give_back_slots, and one with the text of the request finds {found[3]}. "
        f"Expected {expected}: only blocks that computed tokens fill, and neither the newest token, which has no K/V, "
        "nor a half-filled block")


@pytest.mark.points(1)
@WITH_AND_WITHOUT_A_TREE
def test_task_5_the_newest_token_does_not_fill_a_block(lab, tree_class):
    manager = make(lab, tree_class=tree_class)
    request = admit(manager, Request("r", COUNT[:6]), 7)
    step_with_draft(manager, request, 3, 8)  # the draft was wrong; 8 is the model's own token
    got = manager.get_block_ids("r")
    assert got == [1, 2], f"7 tokens are computed in blocks of 4: the table is {got}, expected [1, 2]"
    got = lookup(manager, [*COUNT[:8], 50]), lookup(manager, COUNT[:12])
    assert got == (([1], 4), ([1], 4)), (
        f"7 tokens are computed, and the eighth was drawn but not computed. Its slot holds the K/V of a wrong drafted "
        f"token. Other requests with the same 8 tokens find {got}, expected ([1], 4) for both: block 2 is full of "
        "tokens only after the next step")
    step_with_draft(manager, request, 2, 9)
    got = lookup(manager, COUNT[:12])
    assert got == ([1, 2], 8), f"the next step computes token 8: another request finds {got}, expected ([1, 2], 8)"


@pytest.mark.points(2)
def test_task_5_an_adopted_tail_that_a_draft_fills_is_found_as_a_whole(lab):
    manager = make(lab, tree_class=PrefixTree)
    manager.free(admit(manager, Request("first", COUNT[:10]), 70))  # leaves blocks 1, 2, 3; block 3 holds 9 10
    request = admit(manager, Request("r", [*COUNT[:10], 50]), 51)  # adopts them, and writes 50 into block 3
    step_with_draft(manager, request, 4, 52)  # no drafted token is right
    got = manager.get_block_ids("r"), lookup(manager, [*COUNT[:10], 50, 51, 52])
    assert got == ([1, 2, 3], ([1, 2, 3], 12)), (
        f"a request adopted 9 10 in block 3, and wrote 50 and, with a wrong draft behind it, 51: (its table, what "
        f"another request with its text finds) is {got}, expected ([1, 2, 3], ([1, 2, 3], 12)): 51 fills block 3")
    got = lookup(manager, [*COUNT[:10], 60, 61])
    assert got == ([1, 2, 3], 10), (f"a request that shares the first 10 tokens finds {got}, expected ([1, 2, 3], 10): "
                                    "what was found before is found afterwards")


@pytest.mark.points(1)
@WITH_AND_WITHOUT_A_TREE
def test_task_5_the_extra_keys_are_part_of_what_is_found(lab, tree_class):
    manager = make(lab, tree_class=tree_class)
    request = admit(manager, Request("r", COUNT[:2], extra_keys=("a",)), 3)
    step_with_draft(manager, request, 7, *COUNT[3:9])
    got = [lookup(manager, COUNT[:12], salt)[1] for salt in (("a",), ("b",), None)]
    assert got == [8, 0, 0], (f"a request of tenant 'a' filled two blocks with a draft; requests with the same text of "
                              f"tenant 'a', of 'b' and without extra keys find {got} tokens, expected [8, 0, 0]")


@pytest.mark.points(1)
@WITH_AND_WITHOUT_A_TREE
def test_task_5_if_every_drafted_token_is_right_nothing_goes_back(lab, tree_class):
    manager = make(lab, tree_class=tree_class)
    request = admit(manager, Request("r", COUNT[:6]), 7)
    step_with_draft(manager, request, 5, *COUNT[7:13])
    got = manager.get_block_ids("r"), free_ids(manager), lookup(manager, COUNT[:16])
    expected = [1, 2, 3], [*range(4, 12)], ([1, 2, 3], 12)
    assert got == expected, (
        f"12 slots were made, and all of the draft is right, so 12 tokens are computed: (table, free queue, what "
        f"another request finds) is {got}, expected {expected}: no block goes back, and all three can be found")
    manager.give_back_slots(request)
    got = manager.get_block_ids("r"), free_ids(manager), lookup(manager, COUNT[:16])
    assert got == expected, f"a second call of give_back_slots changed {expected} to {got}"


@pytest.mark.points(1)
def test_task_5_without_caching_slots_go_back_and_nothing_is_found(lab):
    for tree_class in (PrefixTree, None):
        manager = make(lab, tree_class=tree_class, enable_caching=False)
        request = admit(manager, Request("r", COUNT[:6]), 7)
        step_with_draft(manager, request, 9, 8, 9)
        got = manager.get_block_ids("r"), free_ids(manager)[-1], lookup(manager, COUNT[:12])
        assert got == ([1, 2], 3, ([], 0)), (
            f"enable_caching is False. A draft of 9 took blocks 3 and 4, and one of its tokens is right: (table, last "
            f"free block, what another request finds) is {got}, expected ([1, 2], 3, ([], 0)): block 4 is freed "
            f"first, so block 3 is the last in the queue")


@pytest.mark.points(1)
@WITH_AND_WITHOUT_A_TREE
def test_task_5_give_back_slots_only_reads_the_request(lab, tree_class):
    manager = make(lab, tree_class=tree_class)
    request = admit(manager, Request("r", COUNT[:6]), 7)
    start_draft(manager, request, 6)
    accept_tokens(request, 8, 9, 10)
    before = fields_of(request)
    manager.give_back_slots(request)
    check_unchanged(request, before, "give_back_slots(request)")
    got = manager.get_block_ids("r")
    assert got == [1, 2, 3], f"9 tokens are computed in blocks of 4: the table is {got}, expected [1, 2, 3]"


@pytest.mark.points(1)
@WITH_AND_WITHOUT_A_TREE
def test_task_5_a_request_without_a_table_is_accepted(lab, tree_class):
    manager = make(lab, tree_class=tree_class)
    request = admit(manager, Request("r", COUNT[:6]), 7)
    admit(manager, Request("other", COUNT[20:23]), 24)
    step_with_draft(manager, request, 6, 8)
    got = manager.get_block_ids("r"), manager.get_block_ids("other")
    assert got == ([1, 2], [3]), f"7 and 3 tokens are computed: the tables are {got}, expected ([1, 2], [3])"
    manager.free(request)
    request.num_computed_tokens = 0
    before = free_ids(manager), manager.get_block_ids("other")
    for gone, who in ((request, "a request that was freed"), (Request("new", COUNT[:9]), "a request without slots")):
        must_answer(f"give_back_slots({who})", manager.give_back_slots, gone, rule="without a table nothing changes")
        got = free_ids(manager), manager.get_block_ids("other")
        assert got == before, f"give_back_slots({who}) changed (free queue, table of 'other') from {before} to {got}"
        assert manager.get_block_ids(gone.request_id) == [], f"{who} must not get a table"
    manager.check_integrity()


@pytest.mark.points(1)
@pytest.mark.inside("the objects of a manager can be counted only in the process of the manager")
def test_task_5_requests_without_a_table_leave_nothing_behind(lab):
    manager = make(lab)
    step_with_draft(manager, admit(manager, Request("r", COUNT[:6]), 7), 6, 8)
    got = manager.get_block_ids("r")
    assert got == [1, 2], f"7 tokens are computed: the table is {got}, expected [1, 2]"
    before = num_objects(manager, but=(Request,))
    for number in range(30):
        manager.give_back_slots(Request(f"r{number}", COUNT[:9]))
    after = num_objects(manager, but=(Request,))
    assert after <= before + 15, (
        f"give_back_slots was called for 30 requests without a table. The manager consisted of {before} objects "
        f"before, and of {after} after, expected at most {before + 15}: nothing changes, and no empty "
        "table is kept")


# ---- Task 5: whole texts with all pieces


class Told:
    """A drafter that knows the right outputs. Its guesses are right up to a random token, which is wrong."""

    def __init__(self, rights, seed):
        self.rights, self.rng = rights, random.Random(seed)

    def propose(self, request, max_tokens):
        num_said, num_right = len(request.output_token_ids), self.rng.randint(0, max_tokens)
        guess = self.rights[request.request_id][num_said:num_said + max_tokens]
        for i in range(num_right, len(guess)):
            if i == num_right or self.rng.random() < 0.5:  # the others are right by coincidence
                guess[i] = (guess[i] + self.rng.randrange(1, VOCAB)) % VOCAB
        return guess

    def advance(self, request, token_ids):
        pass

    def forget(self, request):
        pass


class Server:
    """Decodes with drafts, as the engine does: plan, write and draw, and then settle what was accepted.

    Each slot of the memory stores the whole text up to its token.
    """

    def __init__(self, lab, num_seen, num_blocks=40, tree_class=PrefixTree, cost=0.2, max_drafted=4, drafter=None):
        self.lab, self.num_seen, self.cost, self.max_drafted = lab, num_seen, cost, max_drafted
        self.manager = make(lab, num_blocks, tree_class)
        self.drafter, self.verifier = drafter or lab.NgramDrafter(), lab.Verifier()
        self.memory, self.records, self.rows, self.tables = {}, {}, {}, {}
        self.running, self.verified = [], set()
        self.num_steps = self.num_drafted = 0

    def add(self, name, prompt, num_tokens, key=(11, 22), **params):
        """Compute the prompt in a step of its own, as far as it is not cached, and draw the first token."""
        request = Request(name, prompt, SamplingParams(max_tokens=num_tokens, **params))
        hits, num_cached = self.manager.get_computed_blocks(request)
        taken = self.manager.allocate_slots(request, request.num_tokens - num_cached, hits, num_cached)
        assert taken is not None, (f"there is no room for the prompt of request {name}, although all tokens that are "
                                   "computed fit into the pool: slots of wrong drafted tokens must go back")
        request.num_computed_tokens = num_cached
        self.running.append(request)
        self.records[name] = self.lab.GuessRecord()
        self.rows[name] = SamplerRow(request.sampling_params, prompt, request.output_token_ids, (), key)
        self.run([(request, [], [], request.num_tokens)])
        return request

    def step(self):
        """Decode one token of each request, and more with drafts that fit into the blocks that are left."""
        self.num_steps += 1
        plan = []
        for request in self.running:
            assert self.manager.allocate_slots(request, 1) is not None, (
                f"no block is left for the next token of request {request.request_id}, although the computed tokens "
                "of all requests fit into the pool: the slots of wrong drafted tokens must go back after each step")
        for request in self.running:
            num_left = request.sampling_params.max_tokens - len(request.output_token_ids)
            guess = self.drafter.propose(request, min(self.max_drafted, num_left - 1))
            length = self.records[request.request_id].length(self.cost, len(guess))
            if length and self.manager.allocate_slots(request, 1 + length) is None:
                length = 0
            self.num_drafted += length
            plan.append((request, guess, guess[:length], request.num_tokens + length))
        self.run(plan)

    def run(self, plan):
        for source, copy in self.manager.block_pool.pending_copies:
            for offset in range(4):
                self.memory[copy.block_id, offset] = self.memory.get((source.block_id, offset))
        for request, _, draft, num_slots in plan:
            text, table = (*request.all_token_ids, *draft), self.manager.get_block_ids(request.request_id)
            self.tables[request.request_id] = table
            for p in range(request.num_computed_tokens, num_slots):
                self.memory[table[p // 4], p % 4] = text[:p + 1]
        draws = [self.draw(request, draft, num_slots) for request, _, draft, num_slots in plan]
        self.manager.finish_step()
        for (request, guess, draft, num_slots), drawn in zip(plan, draws):
            self.settle(request, guess, num_slots - len(draft), self.verifier.accept(draft, drawn))

    def draw(self, request, draft, num_slots):
        """Draw a token for each row, from the text that the memory holds at its position."""
        table, drawn = self.tables[request.request_id], []
        for i, row in enumerate(self.verifier.rows(self.rows[request.request_id], draft)):
            p = num_slots - len(draft) + i - 1
            text = self.memory.get((table[p // 4], p % 4))
            assert text == (*request.all_token_ids, *draft)[:p + 1], (
                f"request {request.request_id} reads {text} at position {p} through its table {table}, but its text is "
                f"{request.all_token_ids}, with the draft {draft}")
            drawn.append(draw(row, logits_after(text, self.num_seen)))
        return drawn

    def settle(self, request, guess, num_tokens, accepted):
        assert accepted, f"accept returned {accepted}: a step gives each request at least one token"
        for token_id in accepted:
            request.append_output_token(token_id)
        request.num_computed_tokens = num_tokens + len(accepted) - 1
        self.manager.give_back_slots(request)
        self.records[request.request_id].judge(guess, accepted)
        self.drafter.advance(request, list(accepted))
        self.verified.update(tuple(request.all_token_ids[:n + 1]) for n in range(request.num_computed_tokens))
        self.check(request)

    def check(self, request):
        """Read back every slot of a request, and check its table."""
        table = self.tables[request.request_id] = self.manager.get_block_ids(request.request_id)
        num_computed = request.num_computed_tokens
        assert len(table) == -(-num_computed // 4), (
            f"after a step, {num_computed} tokens of request {request.request_id} are computed, in blocks of 4. Its "
            f"table is {table}, expected {-(-num_computed // 4)} blocks: exactly those of its computed tokens")
        for p in range(num_computed):
            got = self.memory.get((table[p // 4], p % 4))
            assert got == tuple(request.all_token_ids[:p + 1]), (
                f"after a step, request {request.request_id} reads {got} at position {p} through its table {table}, "
                f"but its text is {request.all_token_ids[:p + 1]}")

    def check_cache(self):
        """Check that only verified tokens can be found, and that they are where the index says."""
        for block in self.manager.block_pool.blocks:
            tokens, key = (), block.block_hash
            while key is not None:
                tokens, key = (*key.token_ids, *tokens), key.parent
            if tokens:
                assert tokens in self.verified, (f"block {block.block_id} is found as {tokens}, a text that no request "
                                                 "has computed: a token that is not verified must never be found")
                got = self.memory.get((block.block_id, len(block.block_hash.token_ids) - 1))
                assert got == tokens, f"block {block.block_id} is found as {tokens}, but holds {got}"
        self.manager.check_integrity()

    def decode(self):
        """Run steps until every request has ended, and return the outputs."""
        outputs = {request.request_id: request.output_token_ids for request in self.running}
        while self.running:
            assert self.num_steps < 2000, "2000 steps have run, and not all requests have ended"
            self.step()
            self.check_cache()
            for request in list(self.running):
                if len(request.output_token_ids) >= request.sampling_params.max_tokens:
                    self.running.remove(request)
                    self.manager.free(request)
                    self.drafter.forget(request)
        return outputs


def check_ended(server):
    got = server.manager.block_pool.get_usage()
    assert got == 0.0, f"all requests have ended, but {got:.0%} of the pool is in use: all blocks must come home"
    server.check_cache()


def check_same(got, expected, what):
    wrong = next((i for i, token in enumerate(expected) if got[i:i + 1] != [token]), None)
    assert got == expected, (
        f"{what}: with drafts the output is {got}, without drafts {expected}. Token {wrong} is the first that differs: "
        "the tokens of a request must be the same with and without drafts")


@pytest.mark.points(4)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED, PENALTIES, GREEDY_PENALTIES],
                         ids=["greedy", "sampled", "penalties", "greedy with penalties"])
@pytest.mark.parametrize("num_seen", [2, 1000], ids=["a model that repeats itself", "a model that sees everything"])
def test_task_5_whole_texts_are_the_same_with_and_without_drafts(lab, params, num_seen):
    prompt = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2]
    server = Server(lab, num_seen)
    server.add("r", prompt, 40, **params)
    got = server.decode()["r"]
    check_same(got, output_without_drafts(prompt, 40, num_seen, **params), f"{params}, 40 tokens after {prompt}")
    check_ended(server)
    assert server.num_drafted > 0, "no step had a draft, although the prompt repeats itself"


@pytest.mark.points(2)
@pytest.mark.parametrize("params", [GREEDY, {"temperature": 0.3}], ids=["greedy", "sampled"])
def test_task_5_a_text_that_repeats_itself_takes_fewer_steps(lab, params):
    prompt = [1, 2, 3]
    server = Server(lab, 2)
    server.add("r", prompt, 60, **params)
    got = server.decode()["r"]
    check_same(got, output_without_drafts(prompt, 60, 2, **params), f"{params}, 60 tokens after {prompt}")
    assert server.num_steps <= 40, (f"60 tokens of a text that repeats itself took {server.num_steps} steps after the "
                                    "first token, expected at most 40 (59 without drafts): is every accepted token "
                                    "used, and does the record let drafts grow?")
    check_ended(server)


@pytest.mark.points(1)
def test_task_5_a_text_that_cannot_be_guessed_has_few_drafts(lab):
    prompt = [1, 2, 3]
    params = {"temperature": 5.0}
    server = Server(lab, 1000, cost=0.3)
    server.add("r", prompt, 80, **params)
    got = server.decode()["r"]
    check_same(got, output_without_drafts(prompt, 80, 1000, **params), f"{params}, 80 tokens after {prompt}")
    assert 0 < server.num_drafted <= 40, (f"80 tokens that cannot be guessed were decoded with {server.num_drafted} "
                                          "drafted tokens, expected between 1 and 40: drafts that keep failing stop")
    check_ended(server)


@pytest.mark.points(3)
@WITH_AND_WITHOUT_A_TREE
def test_task_5_any_guess_gives_the_same_text(lab, tree_class):
    """Draft made-up guesses: right for some tokens, then wrong, and then sometimes right again by coincidence."""
    for seed, params in enumerate((GREEDY, SAMPLED, PENALTIES, GREEDY_PENALTIES)):
        prompts = {"a": [1, 2, 3, 4, 5], "b": [5, 4, 3, 2, 1, 0, 0, 1, 2]}
        rights = {name: output_without_drafts(prompt, 30, 1000, **params) for name, prompt in prompts.items()}
        server = Server(lab, 1000, tree_class=tree_class, cost=0.0, max_drafted=6, drafter=Told(rights, seed))
        for name, prompt in prompts.items():
            server.add(name, prompt, 30, **params)
        for name, got in server.decode().items():
            check_same(got, rights[name], f"{params}, request {name}")
        check_ended(server)
        assert server.num_steps < 29, (f"30 tokens with drafts of up to 6 right tokens took {server.num_steps} steps "
                                       "after the first token, expected fewer than the 29 without drafts")


@pytest.mark.points(4)
def test_task_5_requests_that_share_blocks_draft_side_by_side(lab):
    """Decode requests that share their prompts. In a pool of 26 blocks, one draft does not fit."""
    shared = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]
    cases = {"a": (shared, GREEDY), "b": (shared, SAMPLED), "c": ([*shared, 0], PENALTIES), "d": (shared[:6], SAMPLED)}
    for num_blocks in (26, 60):
        server = Server(lab, 2, num_blocks, cost=0.0, max_drafted=6)
        for number, (name, (prompt, params)) in enumerate(cases.items()):
            server.add(name, prompt, 30, key=(5, number), **params)
        outputs = server.decode()
        for number, (name, (prompt, params)) in enumerate(cases.items()):
            check_same(outputs[name], output_without_drafts(prompt, 30, 2, key=(5, number), **params),
                       f"four requests share prefixes in a pool of {num_blocks}; request {name}, {params}")
        check_ended(server)
    num_before = server.manager.stats.num_hit_tokens
    server.add("again", [*shared, *outputs["a"]], 4, **GREEDY)
    got = server.manager.stats.num_hit_tokens - num_before
    assert got == 39, (f"the next turn of a chat begins with the 40 tokens of request 'a', of which 39 were computed. "
                       f"{got} of them were found, expected 39: what was verified can be found")
    server.decode()
    check_ended(server)

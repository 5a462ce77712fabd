"""When an output ends and what is shown: each rule by example, then random texts in random pieces."""

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from mini_vllm.conftest import examples
from mini_vllm.models.test_tokenizer import LLAMA_2
from mini_vllm.request import Request, SamplingParams
from mini_vllm.sequences import SequenceState, StopChecker

EOS = 2


def make_checker(**params):
    return StopChecker(SamplingParams(**{"max_tokens": 100, **params}), {EOS})


def feed(checker, *pieces, token_id=10):
    """Add one token per piece until the output ends; return the text shown after each piece."""
    shown = []
    for num_output_tokens, piece in enumerate(pieces, start=1):
        shown.append(checker.add(token_id, piece, num_output_tokens))
        if checker.finish_reason:
            break
    return shown


# ---- ids


@pytest.mark.parametrize("token_id", [EOS, 7])
def test_an_id_that_ends_the_output_releases_what_was_held(token_id):
    checker = make_checker(stop="###", stop_token_ids=[7])
    assert feed(checker, "a##") == ["a"]
    assert checker.add(token_id, "#", 2) == "##", "the token's own text does not complete the stop string"
    assert checker.finish() == ""


def test_ignore_eos_ignores_eos_alone():
    checker = make_checker(ignore_eos=True, stop_token_ids=[7])
    assert checker.add(EOS, "<eos>", 1) == "<eos>" and checker.finish_reason is None
    assert checker.add(7, "x", 2) == "" and checker.finish_reason == "stop"


# ---- min_tokens


def test_ids_do_not_end_the_output_before_min_tokens():
    checker = make_checker(min_tokens=2, stop_token_ids=[7])
    assert checker.add(EOS, "e", 1) == "e" and checker.finish_reason is None
    assert checker.add(7, "s", 2) == "" and checker.finish_reason == "stop"


# ---- length


def test_what_is_held_when_the_length_is_reached_comes_with_finish():
    checker = make_checker(max_tokens=2, stop="###")
    assert feed(checker, "a", "b##") == ["a", "b"]
    assert checker.finish() == "##" and checker.finish_reason == "length"


@pytest.mark.parametrize("token_id, text", [(EOS, ""), (7, ""), (10, "#")])
def test_a_stop_on_the_last_token_wins_over_the_length(token_id, text):
    checker = make_checker(max_tokens=2, stop="##", stop_token_ids=[7])
    checker.add(10, "a", 1)
    checker.add(token_id, text + text, 2)
    assert checker.finish_reason == "stop"


def test_nothing_comes_after_the_end():
    checker = make_checker(max_tokens=1, stop="##")
    checker.add(10, "a#", 1)
    with pytest.raises(RuntimeError, match=r"token 11 comes after the end of the output \(length\)"):
        checker.add(11, "#", 2)
    assert checker.finish() == "#"


# ---- any text, any pieces


def undecided_end(text, stop_strings):
    return max((text[start:] for start in range(len(text) + 1)
                if any(stop != text[start:] and stop.startswith(text[start:]) for stop in stop_strings)), key=len)


@settings(derandomize=True, max_examples=examples(200))
@given(st.lists(st.text("ab", max_size=4), max_size=12), st.lists(st.text("abc", min_size=1, max_size=5), min_size=1,
       max_size=3), st.integers(0, 4))
def test_shown_is_the_text_before_the_first_match_and_held_is_what_may_still_match(pieces, stop, min_tokens):
    checker, text, shown = make_checker(stop=stop, min_tokens=min_tokens), "", ""
    for num_output_tokens, piece in enumerate(pieces, start=1):
        num_before, text = len(text), text + piece
        shown += checker.add(10, piece, num_output_tokens)
        # Every stop string, in the whole text, that this token completes.
        matches = [(start, -len(s), s) for s in stop for start in range(len(text))
                   if text.startswith(s, start) and start + len(s) > num_before]
        if matches and num_output_tokens >= min_tokens:
            start, _, stop_string = min(matches)
            event("stopped")
            assert shown == text[:start]
            assert (checker.finish_reason, checker.stop_reason) == ("stop", stop_string)
            assert checker.finish() == ""
            return
        assert checker.finish_reason is None
        held = undecided_end(text, stop)
        assert shown + held == text, f"of {text!r} shown is {shown!r}, but only {held!r} may become one of {stop}"
    assert shown + checker.finish() == text


# ---- the text before a stop id


QUICK = LLAMA_2.encode("quick", add_special_tokens=False)[-1]


@pytest.mark.parametrize("stop_id, params, expected", [
    (None, {}, " a你"), (QUICK, {}, " a你"), (QUICK, {"include_stop_str_in_output": True}, " a你ick"),
    (QUICK, {"stop": "你"}, " a"), (QUICK, {"stop": "b"}, " a你"), (EOS, {}, " a你"),
    (EOS, {"skip_special_tokens": False}, " a你"), (EOS, {"include_stop_str_in_output": True}, " a你"),
    (EOS, {"include_stop_str_in_output": True, "skip_special_tokens": False}, " a你</s>")])
def test_a_character_that_is_spelled_in_bytes_is_not_lost_with_the_stop_id(stop_id, params, expected):
    """Let the token that ends the output follow such a character, whose bytes wait for the next token."""
    ids = [*LLAMA_2.encode("a你", add_special_tokens=False), *([] if stop_id is None else [stop_id])]
    params = SamplingParams(max_tokens=len(ids), stop_token_ids=[QUICK], **params)
    sequence = SequenceState(Request("r", [5], params), 0, LLAMA_2)
    for token_id in ids:
        sequence.request.append_output_token(token_id)
        reason = sequence.take_token(token_id, None)
    sequence.end(reason)
    assert sequence.output.text == expected.lstrip() and reason == ("length" if stop_id is None else "stop")

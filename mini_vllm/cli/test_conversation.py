"""The prompt of a question: all earlier turns that fit, with the tokens that the model generated."""

import pytest

from mini_vllm.cli.conversation import Context, Conversation
from mini_vllm.conftest import make_talker
from mini_vllm.models.folder import tokenizer_from_folder
from mini_vllm.request import CompletionOutput, RequestOutput, Usage


@pytest.fixture(scope="module")
def tokenizer(shallow, tmp_path_factory):
    """Load a tokenizer with one token per byte. The template writes ``system: …``, ``user: …``, ``assistant: …``."""
    return tokenizer_from_folder(make_talker(shallow, tmp_path_factory.mktemp("talker")))


def conversation(tokenizer, num_tokens=2048, system=None):
    return Conversation(tokenizer, Context(num_tokens, f"the model's {num_tokens} tokens"), system)


def output(tokenizer, text, token_ids=None):
    ids = tokenizer.encode(text, add_special_tokens=False) if token_ids is None else token_ids
    return RequestOutput("r", None, [], [CompletionOutput(0, text, ids, "stop")], True, Usage(1, len(ids)))


def say(talk, question, answer, max_tokens=512):
    """Run one turn, and return what was sent for it."""
    asked = talk.ask(question, max_tokens)
    talk.begin_turn(asked)
    talk.hear(output(talk.tokenizer, answer))
    return asked


def test_everything_said_is_sent_again(tokenizer):
    talk = conversation(tokenizer, system="Be brief.")
    assert say(talk, "one", " eins").text == "system: Be brief.\nuser: one\nassistant:"
    asked = talk.ask("two", 512)
    assert asked.text == "system: Be brief.\nuser: one\nassistant:  eins\nuser: two\nassistant:"
    assert tokenizer.decode(asked.token_ids) == asked.text and asked.num_forgotten == 0


# ---- the tokens of an answer


class Words:
    """A fake tokenizer in which a text has two encodings: "ab" is 3, or 1 and 2. 9 ends a text."""

    eos_token_ids = frozenset({9})
    pieces = {1: "a", 2: "b", 3: "ab", 4: "?", 9: "$"}

    def apply_chat_template(self, messages):
        return "".join(f"{m['content']}{'$' if m['role'] == 'assistant' else '?'}" for m in messages)

    def encode(self, text, add_special_tokens):
        ids = {piece: token_id for token_id, piece in self.pieces.items()}
        text = text.replace("ab", "\0")
        return [3 if character == "\0" else ids[character] for character in text]

    def decode(self, token_ids, skip_special_tokens):
        return "".join(self.pieces[token_id] for token_id in token_ids)


@pytest.mark.parametrize("answer_ids", [[1, 2], [1, 2, 9]], ids=["cut off", "ended"])
def test_an_answer_stays_in_the_tokens_it_was_said_in(answer_ids):
    talk = conversation(Words())
    talk.begin_turn(talk.ask("a", 512))
    talk.hear(output(talk.tokenizer, "ab", answer_ids))
    assert talk.ask("b", 512).token_ids == [1, 4, 1, 2, 9, 2, 4]


def test_tokens_that_are_not_what_the_text_says_are_read_anew():
    talk = conversation(Words())
    talk.begin_turn(talk.ask("a", 512))
    talk.hear(output(talk.tokenizer, "ab", [1, 2, 1, 2]))  # a stop text was cut off
    assert talk.ask("b", 512).token_ids == [1, 4, 3, 9, 2, 4]


def test_a_template_that_rewrites_what_was_said_is_read_anew(tokenizer):
    class Rewriting(Words):
        def apply_chat_template(self, messages):
            return "".join("b$" if m["role"] == "assistant" else f"{m['content']}?" for m in messages)

    talk = conversation(Rewriting())
    talk.begin_turn(talk.ask("a", 512))
    talk.hear(output(talk.tokenizer, "ab", [1, 2, 9]))
    assert talk.ask("b", 512).token_ids == [1, 4, 2, 9, 2, 4]


# ---- a context that is full


def test_a_large_max_tokens_costs_no_turns(tokenizer):
    talk = conversation(tokenizer, 800)
    for _ in range(6):
        asked = say(talk, "q" * 40, "a" * 40, max_tokens=4000)
        assert asked.num_forgotten == 0
    assert 500 < len(asked.token_ids) < 700


def test_when_an_eighth_is_left_the_oldest_turns_go_until_half_is_free(tokenizer):
    talk = conversation(tokenizer, 800)
    while not (asked := say(talk, f"{len(talk.turns):40}", "a" * 40)).num_forgotten:
        length = len(asked.token_ids)
    assert 600 < length <= 700
    alone = len(f"user: {'q' * 40}\nassistant:")
    assert (700 + alone) / 2 - 107 < len(asked.token_ids) <= (700 + alone) / 2
    assert talk.turns[0].question.strip() == str(asked.num_forgotten), "the oldest are gone, the others stay"
    assert talk.turns[0].answer == "a" * 40 and asked.text.startswith(f"user: {talk.turns[0].question}\nassistant: aaa")


def test_the_system_message_is_never_forgotten(tokenizer):
    talk = conversation(tokenizer, 800, system="s" * 500)
    forgotten = [say(talk, "q" * 20, "a" * 20).num_forgotten for _ in range(30)]
    assert talk.ask("q", 512).text.startswith(f"system: {'s' * 500}\nuser: ")
    assert 0 < sum(count > 0 for count in forgotten) <= 15, "beside it there is still room for turns"


def test_a_long_question_drives_out_no_more_than_it_must(tokenizer):
    talk = conversation(tokenizer, 800)
    for _ in range(4):
        say(talk, "q" * 40, "a" * 40)
    asked = talk.ask("Q" * 400, 512)
    assert 0 < asked.num_forgotten < 4 and len(asked.token_ids) <= 700


@pytest.mark.parametrize("system, words", [(None, ""), ("s" * 10, " with the system message")])
def test_a_message_that_is_too_long_by_itself_is_refused_and_nothing_changes(tokenizer, system, words):
    talk = conversation(tokenizer, 800, system)
    say(talk, "one", "eins")
    before = list(talk.turns)
    around = len(tokenizer.encode(talk.ask("", 512).text)) - len("user: one\nassistant: eins\n")
    complaint = (f"^the message is too long: it has 800 tokens{words}, which leaves no room for an answer within the "
                 "model's 800 tokens$")
    with pytest.raises(ValueError, match=complaint):
        talk.ask("q" * (800 - around), 512)
    assert talk.turns == before
    assert talk.ask("q" * (799 - around), 512).num_forgotten == 1, "one token less can be sent"

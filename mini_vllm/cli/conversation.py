"""A conversation that fits into the model's context, as the tokens of its next prompt.

    system │ question, answer │ question, answer │ … │ question ──▶ the model ──▶ answer

Every prompt is the previous one followed by the answer and the next question, so the prefix cache finds nearly all of
it. Two things would spoil that. Tokenizing the answer's text again may give other tokens than the model generated, so
the tokens are kept. And forgetting the oldest turn moves all later ones, so turns are forgotten rarely, many at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.request import RequestOutput


@dataclass
class Turn:
    question: str
    answer: str = ""


@dataclass(frozen=True)
class Context:
    """The maximum number of tokens of prompt and answer together, and the reason for that limit."""

    num_tokens: int
    #: As in "The conversation no longer fits the model's 2048 tokens".
    name: str


@dataclass(frozen=True)
class Asked:
    """A question with the turns before it, ready to be sent."""

    question: str
    text: str
    token_ids: list[int]
    #: The number of turns to forget, the oldest first.
    num_forgotten: int


class Conversation:
    """Turns of question and answer after a system message."""

    def __init__(self, tokenizer: Tokenizer, context: Context, system: str | None = None) -> None:
        self.tokenizer, self.context, self.system = tokenizer, context, system
        self.reset()

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self.turns: list[Turn] = []
        self._prompt = Asked("", "", [], 0)  # the last prompt; _answer_ids: its answer so far
        self._answer_ids: list[int] = []

    def ask(self, question: str, max_tokens: int | None) -> Asked:
        """Return the prompt for an answer of up to ``max_tokens``. Nothing changes yet: see ``begin_turn``.

        At most an eighth of the context is kept free for the answer, so a large ``max_tokens`` does not make the
        conversation forget more; a longer answer may use all of the remaining context. If there is less room than that,
        the oldest turns are forgotten until half of the room for turns (the context without system message, question
        and answer) is free, so that the next prompts are found in the cache.
        Raise ValueError if the question alone is too long, or if the template rejects it.
        """
        asked = self._read(question, 0)
        limit = self.context.num_tokens - min(max_tokens or self.context.num_tokens, self.context.num_tokens // 8)
        if self.turns and len(asked.token_ids) > limit:
            asked = self._read(question, self._num_to_forget(question, limit))
        if len(asked.token_ids) >= self.context.num_tokens:
            system = " with the system message" if self.system else ""
            raise ValueError(f"the message is too long: it has {len(asked.token_ids)} tokens{system}, which leaves no "
                             f"room for an answer within {self.context.name}")
        return asked

    def begin_turn(self, asked: Asked) -> None:
        """Record that the question was sent."""
        self.turns = [*self.turns[asked.num_forgotten:], Turn(asked.question)]
        self._prompt, self._answer_ids = asked, []

    def hear(self, output: RequestOutput) -> None:
        """Record the answer so far to the last question."""
        self.turns[-1].answer, self._answer_ids = output.text, list(output.token_ids)

    def _num_to_forget(self, question: str, limit: int) -> int:
        """Return how many turns to forget so that half of the room for turns is free: at least 1, at most all."""
        alone = len(self._read(question, len(self.turns)).token_ids)
        enough = (alone + limit) // 2
        return 1 + bisect_left(range(1, len(self.turns)), True,
                               key=lambda count: len(self._read(question, count).token_ids) <= enough)

    def _read(self, question: str, num_forgotten: int) -> Asked:
        text = self.tokenizer.apply_chat_template(self._messages([*self.turns[num_forgotten:], Turn(question)]))
        return Asked(question, text, self._encode(text), num_forgotten)

    def _messages(self, turns: Sequence[Turn]) -> list[dict[str, str]]:
        """Return the messages of all turns, except the answer of the last turn, which does not exist yet."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for turn in turns:
            messages += [{"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.answer}]
        return messages[:-1]

    def _encode(self, text: str) -> list[int]:
        """Return the tokens of ``text``. Text that the model has read or generated before keeps its tokens."""
        said = self._prompt.text + (self.turns[-1].answer if self.turns else "")
        if said and text.startswith(said):
            answer_ids = self._answer_ids
            if answer_ids and answer_ids[-1] in self.tokenizer.eos_token_ids:  # the template adds its own
                answer_ids = answer_ids[:-1]
            rest = self.tokenizer.encode(text[len(said):], add_special_tokens=False)
            token_ids = [*self._prompt.token_ids, *answer_ids, *rest]
            if self.tokenizer.decode(token_ids, skip_special_tokens=False) == text:
                return token_ids
        return self.tokenizer.encode(text, add_special_tokens=False)

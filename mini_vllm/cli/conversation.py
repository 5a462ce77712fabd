"""A conversation that fits into the model's context, as the tokens of its next prompt.

    system │ question, answer │ question, answer │ … │ question ──▶ the model ──▶ answer

Every prompt is the one before, with the answer and the next question after it, so the prefix cache finds nearly all of
it. Two things would spoil that. To read the answer's text again may cut it into other tokens than the model said it in:
so the tokens are kept. And to forget the oldest turn moves all later ones: so turns are forgotten seldom, many at once.
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
    """How many tokens prompt and answer may have together, and what sets that bound."""

    num_tokens: int
    #: As in "The conversation no longer fits the model's 2048 tokens".
    name: str


@dataclass(frozen=True)
class Asked:
    """A question with all that was said before it, ready to be sent."""

    question: str
    text: str
    token_ids: list[int]
    #: Turns that go, the oldest first.
    num_forgotten: int


class Conversation:
    """Turns of question and answer after a system message."""

    def __init__(self, tokenizer: Tokenizer, context: Context, system: str | None = None) -> None:
        self.tokenizer, self.context, self.system = tokenizer, context, system
        self.reset()

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self.turns: list[Turn] = []
        self._prompt = Asked("", "", [], 0)  # the last one, and the answer to it as far as it came
        self._answer_ids: list[int] = []

    def ask(self, question: str, max_tokens: int | None) -> Asked:
        """What to send, for an answer of up to ``max_tokens``. Nothing changes yet: see ``begin_turn``.

        An eighth of the context is room enough for an answer, so ``max_tokens`` may be large and costs no memory of
        what was said. An answer that needs more may have all that is left. Where there is less room, the oldest turns
        go, until half of what system message and question leave to turns is free: the next ones find their prompts
        cached.
        Raises ValueError if the question is too long by itself, or the template does not take it.
        """
        asked = self._read(question, 0)
        limit = self.context.num_tokens - min(max_tokens or self.context.num_tokens, self.context.num_tokens // 8)
        if self.turns and len(asked.token_ids) > limit:
            asked = self._read(question, self._num_to_forget(question, limit))
        if len(asked.token_ids) >= self.context.num_tokens:
            system = " with the system message" if self.system else ""
            raise ValueError(f"the message is too long: it has {len(asked.token_ids)} tokens{system}, and of "
                             f"{self.context.name} one must be left for the answer")
        return asked

    def begin_turn(self, asked: Asked) -> None:
        """The question was sent."""
        self.turns = [*self.turns[asked.num_forgotten:], Turn(asked.question)]
        self._prompt, self._answer_ids = asked, []

    def hear(self, output: RequestOutput) -> None:
        """The answer to the last question, as far as it has come."""
        self.turns[-1].answer, self._answer_ids = output.text, list(output.token_ids)

    def _num_to_forget(self, question: str, limit: int) -> int:
        """The fewest turns, but at least one, without which half of the room for turns is free; or all."""
        alone = len(self._read(question, len(self.turns)).token_ids)
        enough = (alone + limit) // 2
        return 1 + bisect_left(range(1, len(self.turns)), True,
                               key=lambda count: len(self._read(question, count).token_ids) <= enough)

    def _read(self, question: str, num_forgotten: int) -> Asked:
        text = self.tokenizer.apply_chat_template(self._messages([*self.turns[num_forgotten:], Turn(question)]))
        return Asked(question, text, self._encode(text), num_forgotten)

    def _messages(self, turns: Sequence[Turn]) -> list[dict[str, str]]:
        """All but the answer of the last turn, which is to come."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for turn in turns:
            messages += [{"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.answer}]
        return messages[:-1]

    def _encode(self, text: str) -> list[int]:
        """The tokens of ``text``; those that the model has read and said already are the same as they were then."""
        said = self._prompt.text + (self.turns[-1].answer if self.turns else "")
        if said and text.startswith(said):
            answer_ids = self._answer_ids
            if answer_ids and answer_ids[-1] in self.tokenizer.eos_token_ids:  # the template writes its own
                answer_ids = answer_ids[:-1]
            rest = self.tokenizer.encode(text[len(said):], add_special_tokens=False)
            token_ids = [*self._prompt.token_ids, *answer_ids, *rest]
            if self.tokenizer.decode(token_ids, skip_special_tokens=False) == text:
                return token_ids
        return self.tokenizer.encode(text, add_special_tokens=False)

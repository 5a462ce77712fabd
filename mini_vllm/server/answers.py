"""Outputs of the engine as OpenAI's API has them: whole answers, and the events of a stream.

A stream has an event for every text that grew, dozens of clients share one event loop, and the engine waits for the
same interpreter. So what is the same in every event is written once, and the rest is put in between; no model of
pydantic's is made, and no dict.
"""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from mini_vllm.request import CompletionOutput, RequestOutput, Usage
from mini_vllm.server.logprobs import chat_logprobs, text_logprobs

DONE = b"data: [DONE]\n\n"
#: The finish reasons that OpenAI does not have, as it would say them.
FINISH_REASONS = {"kv_cache_full": "length"}


class Answers(ABC):
    """The answer to one request: ``n`` choices for each of its prompts, numbered through."""

    PREFIX: str
    OBJECT: str
    CHUNK: str

    def __init__(self, model: str, n: int, *, has_cache: bool, include_usage: bool = False) -> None:
        self.id = f"{self.PREFIX}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.model, self.n, self.has_cache, self.include_usage = model, n, has_cache, include_usage
        #: Texts whose end was told, and how many characters of each had log-probabilities.
        self._ended: set[int] = set()
        self._offsets: Counter[int] = Counter()
        #: What every event begins and ends with.
        self._head = (f'data: {{"id":"{self.id}","object":"{self.CHUNK}","created":{self.created},'
                      f'"model":{quoted(model)},"choices":[{{"index":')
        self._tail = '}],"usage":null}\n\n' if include_usage else "}]}\n\n"

    # ---- whole

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, object]:
        """The answer in one piece, of the last output of every prompt."""
        choices = [{"index": self.n * index + each.index, **self._choice(each), "finish_reason": _reason(each)}
                   for index, output in enumerate(outputs) for each in output.outputs]
        return {"id": self.id, "object": self.OBJECT, "created": self.created, "model": self.model, "choices": choices,
                "usage": self._usage(output.usage for output in outputs)}

    @abstractmethod
    def _choice(self, output: CompletionOutput) -> dict[str, object]:
        """What this kind of answer says of one text."""

    def _usage(self, usages: Iterable[Usage]) -> dict[str, object]:
        sums: Counter[str] = Counter()
        for usage in usages:
            sums.update(prompt=usage.prompt_tokens, output=usage.completion_tokens,
                        cached=usage.prompt_tokens_details.cached_tokens)
        told: dict[str, object] = {"prompt_tokens": sums["prompt"], "completion_tokens": sums["output"],
                                   "total_tokens": sums["prompt"] + sums["output"]}
        return {**told, "prompt_tokens_details": {"cached_tokens": sums["cached"]}} if self.has_cache else told

    # ---- in events

    def opening(self, num_prompts: int) -> bytes:
        """What stands before the first event."""
        return b""

    def events(self, prompt_index: int, delta: RequestOutput) -> bytes:
        """One event for each text of a prompt that grew or ended. ``delta`` has only what is new."""
        text = ""
        for each in delta.outputs:
            index = self.n * prompt_index + each.index
            if each.finish_reason is None:
                if each.text or each.logprobs:
                    text += f'{self._head}{index},{self._delta(index, each)},"finish_reason":null{self._tail}'
            elif index not in self._ended:  # its siblings may go on for long
                self._ended.add(index)
                text += f'{self._head}{index},{self._delta(index, each)},"finish_reason":"{_reason(each)}"{self._tail}'
        return text.encode()

    @abstractmethod
    def _delta(self, index: int, output: CompletionOutput) -> str:
        """What this kind of event says of one text, as the inside of a JSON object."""

    def closing(self, usages: Iterable[Usage]) -> bytes:
        """What stands after the last event."""
        if not self.include_usage:
            return DONE
        last: dict[str, object] = {"id": self.id, "object": self.CHUNK, "created": self.created, "model": self.model,
                                   "choices": [], "usage": self._usage(usages)}
        return event(last) + DONE


def event(content: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(content, separators=(',', ':'))}\n\n".encode()


def _reason(output: CompletionOutput) -> str | None:
    reason = output.finish_reason
    return FINISH_REASONS.get(reason, reason) if reason is not None else None


class TextAnswers(Answers):
    """Of /v1/completions."""

    PREFIX, OBJECT, CHUNK = "cmpl", "text_completion", "text_completion"

    def _choice(self, output: CompletionOutput) -> dict[str, object]:
        return {"text": output.text, "logprobs": output.logprobs and text_logprobs(output.logprobs, 0)}

    def _delta(self, index: int, output: CompletionOutput) -> str:
        if not output.logprobs:
            return f'"text":{quoted(output.text)},"logprobs":null'
        logprobs = text_logprobs(output.logprobs, self._offsets[index])
        self._offsets[index] += sum(len(entry.text or "") for entry in output.logprobs)
        return f'"text":{quoted(output.text)},"logprobs":{json.dumps(logprobs)}'


class ChatAnswers(Answers):
    """Of /v1/chat/completions."""

    PREFIX, OBJECT, CHUNK = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def _choice(self, output: CompletionOutput) -> dict[str, object]:
        return {"message": {"role": "assistant", "content": output.text, "refusal": None},
                "logprobs": output.logprobs and chat_logprobs(output.logprobs)}

    def opening(self, num_prompts: int) -> bytes:
        role = '"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null'
        return "".join(f"{self._head}{index},{role}{self._tail}" for index in range(num_prompts * self.n)).encode()

    def _delta(self, index: int, output: CompletionOutput) -> str:
        logprobs = json.dumps(chat_logprobs(output.logprobs)) if output.logprobs else "null"
        return f'"delta":{{"content":{quoted(output.text)}}},"logprobs":{logprobs}'

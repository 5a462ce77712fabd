"""The engine's outputs in the format of OpenAI's API: whole answers, and the events of a stream.

A stream has an event for every text that grew, dozens of clients share one event loop, and the engine waits for the
same interpreter. So the parts that all events share are written once, and the rest is inserted; neither pydantic models
nor dicts are made.
"""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from mini_vllm.request import CompletionOutput, RequestOutput, Usage
from mini_vllm.server.api.logprobs import TOKENS_PER_PIECE, chat_logprobs, text_logprobs

DONE = b"data: [DONE]\n\n"
#: Finish reasons that OpenAI does not have → OpenAI's equivalent.
FINISH_REASONS = {"kv_cache_full": "length"}


class Answers(ABC):
    """The answer to one request: ``n`` choices per prompt, numbered consecutively."""

    PREFIX: str
    OBJECT: str
    CHUNK: str

    def __init__(self, model: str, n: int, *, has_cache: bool = True, include_usage: bool = False) -> None:
        self.id = f"{self.PREFIX}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.model, self.n, self.has_cache, self.include_usage = model, n, has_cache, include_usage
        #: Texts whose end was sent, and how many characters of each had log-probabilities.
        self._ended: set[int] = set()
        self._offsets: Counter[int] = Counter()
        #: The beginning and the end of every event.
        self._head = (f'data: {{"id":"{self.id}","object":"{self.CHUNK}","created":{self.created},'
                      f'"model":{quoted(model)},"choices":[{{"index":')
        self._tail = '}],"usage":null}\n\n' if include_usage else "}]}\n\n"

    # ---- whole answers

    def whole(self, outputs: Sequence[RequestOutput]) -> Iterator[str]:
        """Yield the answer, made from the last output of every prompt: one JSON object, in quickly made pieces."""
        yield (f'{{"id":"{self.id}","object":"{self.OBJECT}","created":{self.created},"model":{quoted(self.model)},'
               '"choices":[')
        separator = ""
        for index, output in enumerate(outputs):
            for each in output.outputs:
                yield f'{separator}{{"index":{self.n * index + each.index},'
                yield from self._choice(each)
                yield "}"
                separator = ","
        yield f'],"usage":{json.dumps(self._usage(output.usage for output in outputs), separators=(",", ":"))}}}'

    @abstractmethod
    def _choice(self, output: CompletionOutput) -> Iterator[str]:
        """Yield the fields of one text in this kind of answer, as the inside of a JSON object."""

    def _usage(self, usages: Iterable[Usage]) -> dict[str, object]:
        sums: Counter[str] = Counter()
        for usage in usages:
            sums.update(prompt=usage.prompt_tokens, output=usage.completion_tokens,
                        cached=usage.prompt_tokens_details.cached_tokens,
                        accepted=usage.completion_tokens_details.accepted_prediction_tokens,
                        rejected=usage.completion_tokens_details.rejected_prediction_tokens)
        told: dict[str, object] = {"prompt_tokens": sums["prompt"], "completion_tokens": sums["output"],
                                   "total_tokens": sums["prompt"] + sums["output"]}
        if self.has_cache:
            told["prompt_tokens_details"] = {"cached_tokens": sums["cached"]}
        if sums["accepted"] or sums["rejected"]:
            told["completion_tokens_details"] = {"accepted_prediction_tokens": sums["accepted"],
                                                 "rejected_prediction_tokens": sums["rejected"]}
        return told

    # ---- events

    def opening(self, num_prompts: int) -> Iterator[str]:
        """Return what is sent before the first event."""
        return iter(())

    def events(self, prompt_index: int, delta: RequestOutput) -> Iterator[str]:
        """Yield an event for each text of a prompt that grew or ended, or several if it has many log-probabilities.

        ``delta`` contains only what is new.
        """
        for each in delta.outputs:
            index, has_ended = self.n * prompt_index + each.index, each.finish_reason is not None
            if index in self._ended or not (has_ended or each.text or each.logprobs):
                continue  # its siblings may continue for long
            if has_ended:
                self._ended.add(index)
            parts = _parts(each)
            for number, part in enumerate(parts, 1):
                for fields in self._deltas(index, part, has_ended and number == len(parts)):
                    yield f"{self._head}{index},{fields}{self._tail}"

    @abstractmethod
    def _deltas(self, index: int, output: CompletionOutput, is_last: bool) -> Iterator[str]:
        """Yield for each event about a part of a text its fields, as the inside of a JSON object.

        If the part ``is_last``, the last event has the finish reason.
        """

    def closing(self, usages: Iterable[Usage]) -> bytes:
        """Return what is sent after the last event."""
        if not self.include_usage:
            return DONE
        last: dict[str, object] = {"id": self.id, "object": self.CHUNK, "created": self.created, "model": self.model,
                                   "choices": [], "usage": self._usage(usages)}
        return event(last) + DONE


def event(content: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(content, separators=(',', ':'))}\n\n".encode()


def reason_of(output: CompletionOutput) -> str | None:
    """Return OpenAI's name of the finish reason."""
    reason = output.finish_reason
    return None if reason is None else FINISH_REASONS.get(reason, reason)


def _reason(output: CompletionOutput, is_last: bool = True) -> str:
    """Return the finish reason as JSON."""
    reason = reason_of(output) if is_last else None
    return "null" if reason is None else f'"{reason}"'


def _parts(output: CompletionOutput) -> list[CompletionOutput]:
    """Split ``output`` into parts with at most ``TOKENS_PER_PIECE`` log-probabilities each.

    The first part contains the text: tokens and characters need not arrive together.
    """
    if not output.logprobs or len(output.logprobs) <= TOKENS_PER_PIECE:
        return [output]
    return [replace(output, text="" if start else output.text, logprobs=output.logprobs[start:start + TOKENS_PER_PIECE])
            for start in range(0, len(output.logprobs), TOKENS_PER_PIECE)]


class TextAnswers(Answers):
    """The answers of /v1/completions."""

    PREFIX, OBJECT, CHUNK = "cmpl", "text_completion", "text_completion"

    def _choice(self, output: CompletionOutput) -> Iterator[str]:
        yield f'"text":{quoted(output.text)},"logprobs":'
        yield from text_logprobs(output.logprobs, 0) if output.logprobs is not None else ("null",)
        yield f',"finish_reason":{_reason(output)}'

    def _deltas(self, index: int, output: CompletionOutput, is_last: bool) -> Iterator[str]:
        logprobs = "null"
        if output.logprobs:
            logprobs = "".join(text_logprobs(output.logprobs, self._offsets[index]))
            self._offsets[index] += sum(len(entry.text or "") for entry in output.logprobs)
        yield f'"text":{quoted(output.text)},"logprobs":{logprobs},"finish_reason":{_reason(output, is_last)}'


class ChatAnswers(Answers):
    """The answers of /v1/chat/completions."""

    PREFIX, OBJECT, CHUNK = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def _choice(self, output: CompletionOutput) -> Iterator[str]:
        yield f'"message":{{"role":"assistant","content":{quoted(output.text)},"refusal":null}},"logprobs":'
        yield from chat_logprobs(output.logprobs) if output.logprobs is not None else ("null",)
        yield f',"finish_reason":{_reason(output)}'

    def opening(self, num_prompts: int) -> Iterator[str]:
        role = '"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null'
        return (f"{self._head}{index},{role}{self._tail}" for index in range(num_prompts * self.n))

    def _deltas(self, index: int, output: CompletionOutput, is_last: bool) -> Iterator[str]:
        logprobs = "".join(chat_logprobs(output.logprobs)) if output.logprobs else "null"
        yield (f'"delta":{{"content":{quoted(output.text)}}},"logprobs":{logprobs},'
               f'"finish_reason":{_reason(output, is_last)}')

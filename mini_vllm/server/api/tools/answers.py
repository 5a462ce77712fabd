"""Answers to requests with tools: calls, content, or both."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from mini_vllm.request import CompletionOutput
from mini_vllm.server.api.answers import ChatAnswers, reason_of
from mini_vllm.server.api.logprobs import chat_logprobs
from mini_vllm.server.api.tools.findings import Call, Content, Event, Opened
from mini_vllm.server.api.tools.formats import CallFormat
from mini_vllm.server.api.tools.parser import CallParser

#: A whole text is parsed in pieces of this many characters: a piece is copied whenever a call begins or ends in it.
PIECE_CHARS = 4096


class ToolAnswers(ChatAnswers):
    """The answers of /v1/chat/completions if the model may call tools, or must."""

    def __init__(self, model: str, n: int, names: frozenset[str], must_call: bool, **options: Any) -> None:
        super().__init__(model, n, **options)
        self._names, self._must_call = names, must_call
        #: How the model writes calls. It is set when the model is known.
        self.form: CallFormat | None = None
        self._parsers: dict[int, CallParser] = {}

    def _parser(self) -> CallParser:
        assert self.form is not None
        return CallParser(self.form, self._names, self._must_call)

    def _choice(self, output: CompletionOutput) -> Iterator[str]:
        parser, text = self._parser(), output.text
        for start in range(0, len(text), PIECE_CHARS):
            parser.feed(text[start:start + PIECE_CHARS])
        parser.finish()
        content, calls = parser.result(is_cut=reason_of(output) == "length")
        told = "null" if content is None else quoted(content)
        yield f'"message":{{"role":"assistant","content":{told},"refusal":null'
        if calls:
            yield f',"tool_calls":[{",".join(map(_whole_call, calls))}]'
        yield '},"logprobs":'
        yield from chat_logprobs(output.logprobs) if output.logprobs is not None else ("null",)
        yield f',"finish_reason":{_reason(output, calls)}'

    def opening(self, num_prompts: int) -> Iterator[str]:
        role = '"delta":{"role":"assistant","content":null,"refusal":null},"logprobs":null,"finish_reason":null'
        return (f"{self._head}{index},{role}{self._tail}" for index in range(num_prompts * self.n))

    def _deltas(self, index: int, output: CompletionOutput, is_last: bool) -> Iterator[str]:
        """Yield an event for each piece of content and of calls. Log-probabilities are in the first of them."""
        parser = self._parsers.setdefault(index, self._parser())
        events = parser.feed(output.text) + (parser.finish() if is_last else [])
        deltas = list(map(_delta, events))
        if not deltas and (output.logprobs or is_last):
            deltas.append("{}")
        reason = _reason(output, parser.found.calls)
        for number, delta in enumerate(deltas):
            logprobs = "".join(chat_logprobs(output.logprobs)) if output.logprobs and not number else "null"
            ends = is_last and number == len(deltas) - 1
            yield f'"delta":{delta},"logprobs":{logprobs},"finish_reason":{reason if ends else "null"}'


def _reason(output: CompletionOutput, calls: Iterable[Call]) -> str:
    """Return the finish reason as JSON."""
    reason = reason_of(output)
    if reason == "stop" and any(call.is_complete for call in calls):
        reason = "tool_calls"
    return "null" if reason is None else f'"{reason}"'


def _call(name: str) -> str:
    """Return the beginning of a call with a new id, up to its arguments."""
    return f'"id":"call_{uuid.uuid4().hex}","type":"function","function":{{"name":{quoted(name)},"arguments":'


def _whole_call(call: Call) -> str:
    return f'{{{_call(call.name)}{quoted("".join(call.arguments))}}}}}'


def _delta(event: Event) -> str:
    if isinstance(event, Content):
        return f'{{"content":{quoted(event.text)}}}'
    if isinstance(event, Opened):
        return f'{{"tool_calls":[{{"index":{event.number},{_call(event.name)}""}}}}]}}'
    return f'{{"tool_calls":[{{"index":{event.number},"function":{{"arguments":{quoted(event.text)}}}}}]}}'

"""The requests of ``mini-vllm bench serve``, which arrive as in a Poisson process, and the client that sends them.

Requests and times follow from a seed. The client is as cheap as possible, because it shares the machine with the server
that it measures: it speaks HTTP/1.1 over plain sockets, and while answers arrive it only records the time of each
piece. The content is parsed afterwards.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from mini_vllm.benchmark.results import percentiles
from mini_vllm.models.tokenizer import Tokenizer

#: Prompts are composed of this many words, each a single token.
MAX_WORDS = 1000
#: A good answer: its first token within the first time, and then on average a token within the second.
MAX_FIRST_TOKEN_S, MAX_TOKEN_S = 1.0, 0.150
#: The fraction of the answers that must be good.
GOOD_SHARE = 0.9
#: An answer that takes longer counts as missing.
MAX_ANSWER_S = 300.0
#: The server writes an event at once; the framing of a chunked body never splits one.
EVENT = re.compile(rb"data: (\{[^\n]*\})\r?\n\r?\n")


@dataclass(frozen=True)
class Call:
    """One request to a server."""

    #: Seconds after the start. It is sent then, whatever happens to the others.
    at_s: float
    prompt: str
    num_prompt_tokens: int
    max_tokens: int
    #: Only our server knows this field.
    priority: str = "normal"


class Words:
    """Words that are one token each, even next to each other, so that the length of a prompt is known."""

    def __init__(self, words: Sequence[str], seed: str) -> None:
        self.words, self.rng = words, random.Random(seed)

    def text(self, num_tokens: int) -> str:
        return "".join(self.rng.choices(self.words, k=num_tokens))


def single_token_words(tokenizer: Tokenizer) -> list[str]:
    """Return words of letters with a leading space that stay one token next to others."""
    found: list[str] = []
    for token_id in range(tokenizer.vocab_size):
        text = tokenizer.decode([token_id])
        if text.startswith(" ") and text[1:].isascii() and text[1:].isalpha() and tokenizer.encode(text) == [token_id]:
            found.append(text)
        if len(found) == MAX_WORDS:
            break
    return found


@dataclass(frozen=True)
class Traffic:
    """Requests of one kind, with lengths between two inclusive bounds."""

    name: str
    about: str
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    #: The length of a prefix before every prompt. It is the same in every run, so a server can reuse it from the second
    #: request on.
    num_shared: int = 0

    def calls(self, words: Words, num_calls: int, rate: float, priority: str = "normal") -> list[Call]:
        """Return ``num_calls`` requests, at ``rate`` per second on average.

        At another rate the requests and their order are the same, only closer together or further apart.
        """
        at_s, calls, rng = 0.0, [], words.rng
        prefix = "".join(random.Random("the prefix").choices(words.words, k=self.num_shared))
        for _ in range(num_calls):
            at_s += rng.expovariate(1.0)
            num_own = rng.randint(*self.prompt_tokens)
            calls.append(Call(at_s / rate, prefix + words.text(num_own), self.num_shared + num_own,
                              rng.randint(*self.output_tokens), priority))
        return calls


TRAFFICS = {traffic.name: traffic for traffic in (
    Traffic("mixed", "prompts of 32–512 tokens, outputs of 16–128", (32, 512), (16, 128)),
    Traffic("shared", "prompts with 1024 shared tokens and 16–96 different ones, outputs of 16–64", (16, 96), (16, 64),
            num_shared=1024),
    Traffic("short", "prompts of 8–24 tokens, outputs of 4–8: only a smoke test", (8, 24), (4, 8)),
)}


@dataclass(frozen=True)
class Answer:
    """One answer; times in seconds."""

    priority: str
    #: When the call was due, by the clock of the client.
    due_s: float
    #: What was wrong; empty if the answer is complete.
    failure: str
    text: str = ""
    num_tokens: int = 0
    num_cached_tokens: int = 0
    #: The times at which text arrived.
    text_times_s: tuple[float, ...] = ()

    @property
    def first_token_s(self) -> float:
        return self.text_times_s[0] - self.due_s

    @property
    def token_s(self) -> float:
        """The mean time between tokens."""
        return (self.text_times_s[-1] - self.text_times_s[0]) / max(self.num_tokens - 1, 1)

    @property
    def is_good(self) -> bool:
        return not self.failure and self.first_token_s <= MAX_FIRST_TOKEN_S and self.token_s <= MAX_TOKEN_S


def read_answer(call: Call, due_s: float, pieces: Sequence[tuple[float, bytes]]) -> Answer:
    """Parse the pieces of an answer, each with its time. If it is incomplete or no stream, the failure says why."""
    raw = b"".join(data for _, data in pieces)
    ends = list(accumulate(len(data) for _, data in pieces))
    texts, times = [], []
    usage: dict[str, Any] = {}
    for match in EVENT.finditer(raw):
        event = json.loads(match[1])
        usage = event.get("usage") or usage
        text = "".join(choice.get("text") or "" for choice in event.get("choices", ()))
        if text:
            texts.append(text)
            times.append(pieces[bisect_left(ends, match.end())][0])
    status = raw[:raw.find(b"\r\n")].decode("latin-1") if raw else "no answer"
    is_whole = bool(times) and b"data: [DONE]" in raw[-64:]
    failure = status if " 200 " not in f"{status} " else "" if is_whole else "cut off"
    details = usage.get("prompt_tokens_details") or {}
    return Answer(call.priority, due_s, failure, "".join(texts), usage.get("completion_tokens", 0),
                  details.get("cached_tokens", 0) or 0, tuple(times))


class Client:
    """Sends calls to the server ``name``. ``model`` is the name of the model there."""

    def __init__(self, name: str, port: int, model: str) -> None:
        self.name, self.port, self.model = name, port, model

    async def send_all(self, calls: Sequence[Call], must_be_good: bool = False) -> list[Answer]:
        """Send each call when it is due, whether or not the others are answered, and wait for all answers.

        With ``must_be_good``, a call is cancelled once its answer cannot be good any more.
        """
        start_s = time.perf_counter()
        found = await asyncio.gather(*(self._send(call, start_s + call.at_s, must_be_good) for call in calls))
        return [read_answer(*each) for each in found]

    async def _send(self, call: Call, due_s: float, must_be_good: bool
                    ) -> tuple[Call, float, list[tuple[float, bytes]]]:
        await asyncio.sleep(max(due_s - time.perf_counter(), 0.0))
        limit_s = MAX_FIRST_TOKEN_S + MAX_TOKEN_S * call.max_tokens if must_be_good else MAX_ANSWER_S
        pieces = list[tuple[float, bytes]]()
        try:
            await asyncio.wait_for(self._exchange(call, pieces), limit_s)
        except (OSError, asyncio.TimeoutError):
            pass  # the answer is incomplete; that is noticed when it is parsed
        return call, due_s, pieces

    async def _exchange(self, call: Call, pieces: list[tuple[float, bytes]]) -> None:
        body = json.dumps({
            "model": self.model, "prompt": call.prompt, "max_tokens": call.max_tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, "ignore_eos": True, "priority": call.priority}).encode()
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
                f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n")
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(head.encode() + body)
            while data := await reader.read(1 << 16):
                pieces.append((time.perf_counter(), data))
        finally:
            writer.transport.abort()


@dataclass(frozen=True)
class Load:
    """The results of the calls of one run."""

    rate: float
    answers: Sequence[Answer]
    seconds: float

    @property
    def whole(self) -> list[Answer]:
        return [answer for answer in self.answers if not answer.failure]

    @property
    def good_share(self) -> float:
        return sum(answer.is_good for answer in self.answers) / len(self.answers)

    @property
    def is_good(self) -> bool:
        return self.good_share >= GOOD_SHARE

    @property
    def tokens_per_s(self) -> float:
        return sum(answer.num_tokens for answer in self.whole) / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers. Percentiles are those of the complete answers; without one they are empty."""
        failures = [answer.failure for answer in self.answers if answer.failure]
        times = {name: percentiles([getattr(answer, name) for answer in self.whole]) if self.whole else {}
                 for name in ("first_token_s", "token_s")}
        return {"rate": self.rate, "num_calls": len(self.answers), "good_share": self.good_share,
                "tokens_per_s": self.tokens_per_s, **times,
                "failures": {failure: failures.count(failure) for failure in sorted(set(failures))},
                "cached_tokens": sum(answer.num_cached_tokens for answer in self.whole)}

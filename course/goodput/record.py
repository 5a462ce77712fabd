"""Record a trace for lab 4.4: the requests that users send to the project's own engine, and the answers that they get.

    python -m course.goodput.record chats FILE.json      24 users in conversations: a turn repeats the text so far
    python -m course.goodput.record mixed FILE.json      prompts of 32 to 512 tokens, at random times

The engine decodes with ``tiny-tales``. A user reads an answer before sending the next turn, so the times of the turns
depend on how fast the engine answered. The file contains when each request arrived, the length of its prompt, the
length of its answer, and the longest answer that it allowed. A second recording differs: the times are real.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mini_vllm import EngineConfig, LLMEngine
from mini_vllm.benchmark.machine import provenance, source
from mini_vllm.benchmark.traffic import TRAFFICS, Words, single_token_words
from mini_vllm.request import RequestOutput, SamplingParams

NUM_USERS, NUM_REQUESTS, RATE = 24, 120, 5.0
#: What a user asks for: the text at which the answer stops, and its largest number of tokens.
WISHES = {"a sentence": ([".", "!", "?"], 96), "a speech": (['"', "\n"], 192), "a page": ([], 160)}
#: All users begin within this time, and think for this time on average before the next turn.
BEGIN_S, THINK_S = 4.0, 2.0
#: A conversation of more tokens ends, and its user begins another.
LONG_CHAT = 900


@dataclass
class _Turn:
    """A request that is due at a time; ``text`` is the conversation so far, including the new turn."""

    due_s: float
    text: str
    params: SamplingParams


class Recorder:
    """Sends turns to an engine when they are due, and notes each request."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"lab 4.4, a recording, {seed}")
        self._engine = LLMEngine(EngineConfig())
        self._words = Words(single_token_words(self._engine.tokenizer), f"lab 4.4, {seed}")
        self._due: list[_Turn] = []
        self._sent: dict[str, _Turn] = {}
        #: Arrival in microseconds, prompt tokens, output tokens, max_tokens.
        self._noted: list[tuple[int, int, int, int]] = []

    def chats(self, num_users: int, num_requests: int) -> list[tuple[int, int, int, int]]:
        """Record conversations. Three in ten begin with a document."""
        self._due = [self._first_turn(self._rng.uniform(0.0, BEGIN_S)) for _ in range(num_users)]
        return self._run(num_requests, is_chat=True)

    def mixed(self, rate: float, num_requests: int) -> list[tuple[int, int, int, int]]:
        """Record unrelated requests that arrive at random times, ``rate`` per second on average."""
        calls = TRAFFICS["mixed"].calls(self._words, num_requests, rate)
        self._due = [_Turn(call.at_s, call.prompt, self._params(call.max_tokens)) for call in calls]
        return self._run(num_requests, is_chat=False)

    def _params(self, max_tokens: int | None = None) -> SamplingParams:
        stop, most = WISHES[self._rng.choice(list(WISHES))]
        return SamplingParams(max_tokens=max_tokens or most, stop=stop, temperature=0.8,
                              seed=self._rng.randrange(1 << 30))

    def _first_turn(self, due_s: float) -> _Turn:
        num_words = self._rng.randint(150, 500) if self._rng.random() < 0.3 else self._rng.randint(8, 40)
        return _Turn(due_s, self._words.text(num_words), self._params())

    def _run(self, num_requests: int, is_chat: bool) -> list[tuple[int, int, int, int]]:
        start_s = time.perf_counter()
        while len(self._noted) < num_requests:
            now_s = time.perf_counter() - start_s
            due = sorted((turn for turn in self._due if turn.due_s <= now_s), key=lambda turn: turn.due_s)
            for turn in due[:num_requests - len(self._noted) - len(self._sent)]:
                self._due.remove(turn)
                self._sent[self._engine.add_request(turn.text, turn.params)] = turn
            if not self._sent:
                time.sleep(max(min(turn.due_s for turn in self._due) - now_s, 0.0))
            for output in self._engine.step():
                if output.finished:
                    self._note(output, time.perf_counter() - start_s, is_chat)
        return sorted(self._noted)

    def _note(self, output: RequestOutput, now_s: float, is_chat: bool) -> None:
        turn = self._sent.pop(output.request_id)
        num_prompt, num_output = output.usage.prompt_tokens, output.usage.completion_tokens
        self._noted.append((round(turn.due_s * 1e6), num_prompt, num_output, turn.params.max_tokens or num_output))
        if not is_chat:
            return
        next_s = now_s + self._rng.expovariate(1.0) * THINK_S
        if num_prompt + num_output > LONG_CHAT:
            self._due.append(self._first_turn(next_s))
        else:
            text = turn.text + output.text + self._words.text(self._rng.randint(5, 40))
            self._due.append(_Turn(next_s, text, self._params()))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m course.goodput.record",
                                     description="Record the requests that users send to the engine.")
    parser.add_argument("kind", choices=("chats", "mixed"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS, help=f"default: {NUM_REQUESTS}")
    parser.add_argument("--users", type=int, default=NUM_USERS, help=f"chats: default {NUM_USERS}")
    parser.add_argument("--rate", type=float, default=RATE, help=f"mixed: requests per second, default {RATE}")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    for name, value, most in (("requests", arguments.requests, 10_000), ("users", arguments.users, 1000),
                              ("rate", arguments.rate, 1000)):
        if not 0 < value <= most:
            parser.error(f"--{name} is {value}, must be above 0 and at most {most}")
    recorder = Recorder(arguments.seed)
    requests = (recorder.chats(arguments.users, arguments.requests) if arguments.kind == "chats"
                else recorder.mixed(arguments.rate, arguments.requests))
    command = ["python", "-m", "course.goodput.record", *(sys.argv[1:] if argv is None else argv)]
    write(arguments.file, command, requests)


def write(path: Path, command: Sequence[str], requests: Sequence[tuple[int, int, int, int]]) -> None:
    """Write a recording: one line per request."""
    head = json.dumps({"machine": provenance(), **source(), "command": " ".join(command), "model": "tiny-tales",
                       "columns": ["arrival_us", "num_prompt_tokens", "num_output_tokens", "max_tokens"]}, indent=2)
    rows = ",\n    ".join(json.dumps(row) for row in requests)
    path.write_text(f'{head[:-2]},\n  "requests": [\n    {rows}\n  ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()

"""The quality of an answer for its caller, and of all answers of a run."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from mini_vllm.benchmark.results import percentiles
from mini_vllm.benchmark.serving.client import Received

#: A good answer: its first token within the first time, and then on average a token within the second.
MAX_FIRST_TOKEN_S, MAX_TOKEN_S = 1.0, 0.150
#: The fraction of the answers that must be good.
GOOD_SHARE = 0.9
#: If the host of a virtual machine took more than this fraction of the CPU time during a run, a bad result of that run
#: does not count.
MAX_STOLEN = 0.1
#: The server writes an event at once; the framing of a chunked body never splits one.
EVENT = re.compile(rb"data: (\{[^\n]*\})\r?\n\r?\n")


@dataclass(frozen=True)
class Answer:
    """One answer; times in seconds."""

    priority: str
    #: When it was due, by the clock of the client.
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
    def total_s(self) -> float:
        return self.text_times_s[-1] - self.due_s

    @property
    def gaps_s(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.text_times_s, self.text_times_s[1:])]

    @property
    def is_good(self) -> bool:
        return not self.failure and self.first_token_s <= MAX_FIRST_TOKEN_S and self.token_s <= MAX_TOKEN_S


def read_answer(received: Received) -> Answer:
    """Parse the events of an answer. An answer that is incomplete or not a stream becomes a failure with the reason."""
    call, raw = received.call, b"".join(data for _, data in received.pieces)
    ends = list(accumulate(len(data) for _, data in received.pieces))
    texts, times = [], []
    usage: dict[str, Any] = {}
    for match in EVENT.finditer(raw):
        event = json.loads(match[1])
        usage = event.get("usage") or usage
        text = "".join(choice.get("text") or "" for choice in event.get("choices", ()))
        if text:
            texts.append(text)
            times.append(received.pieces[bisect_left(ends, match.end())][0])
    status = raw[:raw.find(b"\r\n")].decode("latin-1") if raw else "no answer"
    failure = ""
    if " 200 " not in f"{status} ":
        failure = status
    elif not times or b"data: [DONE]" not in raw[-64:]:
        failure = "cut off"
    details = usage.get("prompt_tokens_details") or {}
    return Answer(call.priority, received.due_s, failure, "".join(texts), usage.get("completion_tokens", 0),
                  details.get("cached_tokens", 0) or 0, tuple(times))


@dataclass(frozen=True)
class Load:
    """The results of the calls of one run."""

    rate: float
    #: The number of planned calls. There may be fewer answers, because a lost run ends early.
    num_calls: int
    answers: Sequence[Answer]
    seconds: float
    #: Cores that the client and the server kept busy.
    client_cores: float = 0.0
    server_cores: float = 0.0
    #: The longest delay between the due time of a call and its sending.
    max_late_s: float = 0.0
    #: The fraction of the machine that its host gave to others meanwhile.
    stolen_share: float = 0.0

    @property
    def whole(self) -> list[Answer]:
        return [answer for answer in self.answers if not answer.failure]

    @property
    def good_share(self) -> float:
        return sum(answer.is_good for answer in self.answers) / self.num_calls

    @property
    def is_good(self) -> bool:
        return self.good_share >= GOOD_SHARE

    @property
    def says_nothing(self) -> bool:
        """Whether the run was bad while the server did not have the whole machine. A good run always counts."""
        return not self.is_good and self.stolen_share > MAX_STOLEN

    @property
    def tokens_per_s(self) -> float:
        return sum(answer.num_tokens for answer in self.whole) / self.seconds

    def percentiles(self) -> dict[str, dict[int, float]]:
        """Return percentiles of first token, time per token and end to end, in seconds; empty without a complete
        answer."""
        whole = self.whole
        if not whole:
            return {}
        return {"first_token_s": percentiles([answer.first_token_s for answer in whole]),
                "token_s": percentiles([answer.token_s for answer in whole]),
                "total_s": percentiles([answer.total_s for answer in whole])}

    def to_dict(self) -> dict[str, object]:
        failures = [answer.failure for answer in self.answers if answer.failure]
        return {"rate": self.rate, "num_calls": self.num_calls, "num_answers": len(self.answers),
                "good_share": self.good_share, "tokens_per_s": self.tokens_per_s, **self.percentiles(),
                "failures": {failure: failures.count(failure) for failure in sorted(set(failures))},
                "cached_tokens": sum(answer.num_cached_tokens for answer in self.whole),
                "client_cores": self.client_cores, "server_cores": self.server_cores, "max_late_s": self.max_late_s,
                "stolen_share": self.stolen_share}

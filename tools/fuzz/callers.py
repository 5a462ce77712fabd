"""The callers of the async fuzzer: what each one requests, how it reads and leaves, and what it must get."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field

from fuzz.networks import MAX_POSITION_EMBEDDINGS, network
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.request import Priority, RequestOutput, SamplingParams

NETWORK = "llama"
MAX_TOKENS = 24
#: The number of tokens that some early leavers request: more than they can get in the time.
MANY_TOKENS = 400
NUM_PROMPTS = 40
#: Ways to leave a stream early.
LEAVING = ("break", "aclose", "cancel", "timeout")
#: Prompts that are rejected, by a word of the reason.
REFUSED: dict[str, list[int]] = {"empty": [], "token id": [1, 10**6], "context": [1] * MAX_POSITION_EMBEDDINGS}


@dataclass
class Caller:
    """A caller that streams one request, and what it received."""

    index: int
    #: The index of a prompt, or a key of REFUSED.
    prompt: int | str
    params: SamplingParams
    priority: Priority
    request_id: str | None
    starts_after_s: float
    #: The pause after every output.
    reads_for_s: float
    #: One of LEAVING, or None to read to the end. "break" and "aclose" leave after ``num_outputs`` outputs, the others
    #: after ``leaves_after_s``.
    leaves: str | None
    num_outputs: int
    leaves_after_s: float
    outputs: list[RequestOutput] = field(default_factory=list)
    error: BaseException | None = None
    has_left: bool = False

    @property
    def max_tokens(self) -> int:
        return self.params.max_tokens or 0

    def __str__(self) -> str:
        last = self.outputs[-1] if self.outputs else None
        came = f"{[each.token_ids for each in last.outputs]}, {last.finish_reason}, {last.error}" if last else "nothing"
        way: dict[str | None, str] = {None: "", "break": f"break after {self.num_outputs}, ",
                                      "aclose": f"aclose after {self.num_outputs}, "}
        return (f"caller {self.index}: prompt {self.prompt}, max_tokens={self.params.max_tokens}, n={self.params.n}, "
                f"id {self.request_id}, starts after {self.starts_after_s:.3f} s, reads for {self.reads_for_s:.3f} s, "
                f"{way.get(self.leaves, f'{self.leaves} after {self.leaves_after_s:.3f} s, ')}→ {came}, {self.error!r}")


def draw_caller(rng: random.Random, index: int, max_num_seqs: int) -> Caller:
    leaves = rng.choice(LEAVING) if rng.random() < 1 / 3 else None
    max_tokens = MANY_TOKENS if leaves and rng.random() < 0.5 else rng.randint(1, MAX_TOKENS)
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True,
                            n=rng.choice((1, 1, 1, 2)) if max_num_seqs > 1 else 1)
    return Caller(index, rng.choice(list(REFUSED)) if rng.random() < 0.06 else rng.randrange(NUM_PROMPTS), params,
                  rng.choice(list(Priority)), rng.choice("vwxyz") if rng.random() < 0.2 else None,
                  rng.choice((0.0, rng.uniform(0, 0.05), rng.uniform(0, 0.3))),
                  rng.choice((0.0, 0.0, 0.0, rng.uniform(0, 0.02))),
                  leaves, rng.randint(0, 6),
                  rng.choice((0.0, rng.uniform(0, 0.02), rng.uniform(0, 0.3))))


@functools.cache
def prompts() -> list[list[int]]:
    """Return families of prompts, so that there are prefixes to share."""
    rng = random.Random(0)
    trunks = [[rng.randrange(250) for _ in range(40)] for _ in range(4)]
    return [rng.choice(trunks)[:rng.randint(0, 40)] + [rng.randrange(250) for _ in range(rng.randint(1, 12))]
            for _ in range(NUM_PROMPTS)]


@functools.cache
def expected_outputs() -> list[list[int]]:
    """Return the output of a plain engine for each of the prompts, one at a time."""
    engine = LLMEngine(EngineConfig(block_size=32, num_blocks=20, max_num_seqs=1, enable_prefix_caching=False,
                                    enable_lookahead=False), loaded=network(NETWORK))
    expected = []
    for prompt in prompts():
        engine.add_request(prompt, SamplingParams(max_tokens=MAX_TOKENS, temperature=0, ignore_eos=True))
        while engine.has_unfinished_requests():
            outputs = engine.step()
        expected.append(outputs[0].token_ids)
    return expected

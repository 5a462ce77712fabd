"""The picture on the front page: six requests in a pool too small for all of them, as the engine served them.

    python tools/hero.py [FILE]        # default: docs/hero.svg

It is made by the engine and ``mini-vllm trace``'s drawing, with the model that ships, and is the same every time: no
text ends before its last token, draws have seeds, and the trace has no clock.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.pictures import Picture, draw_trace
from mini_vllm.request import SamplingParams
from mini_vllm.trace.recorder import StepTrace

HERO = Path(__file__).parents[1] / "docs/hero.svg"
#: What a README has room for on a wide screen.
WIDTH = 830
CONFIG = EngineConfig(model="tiny-tales", block_size=8, num_blocks=13, max_num_seqs=8, max_num_batched_tokens=24,
                      max_num_chunk_tokens=12, watermark=0.0, enable_lookahead=False)


@dataclass(frozen=True)
class Visitor:
    """A request, and the step before which it comes."""

    at_step: int
    prompt: str
    num_tokens: int
    n: int = 1


WOODCUTTER = "Once upon a time a poor woodcutter lived with his wife and two children near a large forest."
VISITORS = (
    Visitor(0, WOODCUTTER, 20),
    Visitor(1, "The king had three daughters", 16, n=2),
    Visitor(4, WOODCUTTER + " One day", 20),
    Visitor(7, "A wolf knocked at the door", 18),
    Visitor(16, WOODCUTTER + " The elder child", 12),
    Visitor(19, "Snow fell all night", 10),
)


def record() -> StepTrace:
    """The steps of all visits."""
    trace = StepTrace(clock=lambda: 0.0)
    engine = LLMEngine(CONFIG, trace=trace)
    to_come, step = list(VISITORS), 0
    while to_come or engine.has_unfinished_requests():
        while to_come and to_come[0].at_step <= step:
            visitor = to_come.pop(0)
            engine.add_request(visitor.prompt,
                               SamplingParams(max_tokens=visitor.num_tokens, n=visitor.n, seed=1, ignore_eos=True))
        engine.step()
        step += 1
    return trace


def draw() -> Picture:
    return draw_trace(record(), width=WIDTH, is_brief=True)


def main(arguments: list[str]) -> int:
    path = Path(arguments[0]) if arguments else HERO
    picture = draw()
    picture.save(path)
    print(f"{path}: {picture.label}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

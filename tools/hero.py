"""The picture on the front page: eight requests in a pool too small for all of them, as the engine served them.

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
WIDTH = 900
CONFIG = EngineConfig(model="tiny-tales", block_size=8, num_blocks=20, max_num_seqs=8, max_num_batched_tokens=24,
                      max_num_chunk_tokens=12, watermark=0.0, enable_lookahead=False)


@dataclass(frozen=True)
class Visitor:
    """A request, the step before which it comes, and the one before which its caller leaves, if he does."""

    at_step: int
    prompt: str
    num_tokens: int
    n: int = 1
    leaves_at: int | None = None


WOODCUTTER = "Once upon a time a poor woodcutter lived with his wife and two children near a large forest."
VISITORS = (
    Visitor(0, WOODCUTTER, 24),
    Visitor(1, "The king had three daughters", 20, n=3),
    Visitor(4, "A wolf knocked at the door", 24, leaves_at=24),
    Visitor(6, WOODCUTTER + " One day", 22),
    Visitor(9, "Snow fell all night", 20),
    Visitor(15, "Beyond the hills, where the road ends and the river begins, an old miller kept a cat, a cock and a "
                "grey donkey, and every evening they sat down at one table and told what they had seen.", 12),
    Visitor(20, WOODCUTTER + " The elder child", 14),
    Visitor(26, "A fox came to the well", 12),
)


def record() -> StepTrace:
    """The steps of all visits."""
    trace = StepTrace(clock=lambda: 0.0)
    engine = LLMEngine(CONFIG, trace=trace)
    to_come, ids, step = list(VISITORS), {}, 0
    while to_come or engine.has_unfinished_requests():
        while to_come and to_come[0].at_step <= step:
            visitor = to_come.pop(0)
            params = SamplingParams(max_tokens=visitor.num_tokens, n=visitor.n, seed=1, ignore_eos=True)
            ids[engine.add_request(visitor.prompt, params)] = visitor
        for request_id, visitor in ids.items():
            if visitor.leaves_at == step:
                engine.abort_request(request_id)
        engine.step()
        step += 1
    return trace


def draw() -> Picture:
    return draw_trace(record(), width=WIDTH)


def main(arguments: list[str]) -> int:
    path = Path(arguments[0]) if arguments else HERO
    picture = draw()
    picture.save(path)
    print(f"{path}: {picture.label}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

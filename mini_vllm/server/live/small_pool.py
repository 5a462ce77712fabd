"""A pool that fits on the screen, and two prompts that share blocks in it.

The page has a button for this pool, and ``mini-vllm demo live`` starts a server with it.
"""

from __future__ import annotations

import json
from typing import Any

from mini_vllm.request_queue import DEFAULT_AGING_RATE

#: Without the null block.
NUM_BLOCKS, BLOCK_SIZE = 96, 8
#: Fields of an EngineConfig.
SIZES: dict[str, Any] = {"num_blocks": NUM_BLOCKS + 1, "block_size": BLOCK_SIZE, "max_num_seqs": 8,
                         "max_num_batched_tokens": 64, "aging_rate": DEFAULT_AGING_RATE}
_BEGINNING = ("Once upon a time there was a king who had three sons, and the youngest of them was so kind that all the "
              "birds")
#: The first blocks of both contain the same tokens.
PROMPTS = (f"{_BEGINNING} sang for him", f"{_BEGINNING} followed him home")
#: The same for a chat model.
QUESTIONS = ("Explain to a child in one paragraph what a computer is.",
             "Explain to a child in one paragraph what a compiler is.")
#: Steps per second: slow enough to watch, and the first request has not ended when the second arrives.
SPEED = 5


def script() -> str:
    """Write a JavaScript module of these constants."""
    constants = {"SIZES": SIZES, "PROMPTS": PROMPTS, "QUESTIONS": QUESTIONS, "SPEED": SPEED}
    return "".join(f"export const {name} = {json.dumps(value)};\n" for name, value in constants.items())

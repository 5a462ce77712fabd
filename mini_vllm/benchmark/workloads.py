"""Workloads with a name and a seed: the same requests, in the same order, in every measurement. Options of benchmarks.

NumPy is imported late, because ``mini-vllm bench throughput --help`` imports this module for the names of the
workloads, and must be quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

#: Token ids are drawn below this number, or below the model's vocabulary size if that is smaller.
MAX_TOKEN_ID = 10_000
QUICK = "quick: only a smoke test; these numbers mean nothing"


class Item(NamedTuple):
    """One request. It arrives after a count of tokens, not at a time: the same moment for every server."""

    prompt: list[int]
    num_tokens: int
    #: It arrives when all requests together have produced this many tokens.
    after_tokens: int = 0


@dataclass(frozen=True)
class Workload:
    name: str
    about: str
    #: In the order of their arrival.
    items: list[Item]
    #: The fields of the EngineConfig that belong to the workload.
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def num_output_tokens(self) -> int:
        return sum(item.num_tokens for item in self.items)

    @property
    def max_len(self) -> int:
        return max(len(item.prompt) + item.num_tokens for item in self.items)


def _generator(seed: int = 0) -> np.random.Generator:
    import numpy as np
    return np.random.default_rng(seed)


def _random(count: int, prompt_tokens: tuple[int, int], output_tokens: tuple[int, int], vocab_size: int) -> list[Item]:
    """Return requests with lengths between two inclusive bounds."""
    rng = _generator()
    lengths = [(rng.integers(prompt_tokens[0], prompt_tokens[1] + 1),
                rng.integers(output_tokens[0], output_tokens[1] + 1)) for _ in range(count)]
    return [Item(rng.integers(0, vocab_size, num_prompt).tolist(), int(num_output))
            for num_prompt, num_output in lengths]


def _shared_prefix(vocab_size: int) -> list[Item]:
    rng = _generator()
    shared = rng.integers(0, vocab_size, 512).tolist()
    return [Item(shared + rng.integers(0, vocab_size, rng.integers(16, 97)).tolist(), int(rng.integers(16, 65)))
            for _ in range(32)]


def _chat(vocab_size: int) -> list[Item]:
    """Return 8 conversations of 4 turns.

    A turn sends the whole history, and begins when the previous turn has been answered in every conversation. The
    answers in a history are fixed in advance, so that every server gets the same.
    """
    rng = _generator()
    histories: list[list[int]] = [rng.integers(0, vocab_size, 64).tolist() for _ in range(8)]
    items, after = [], 0
    for _ in range(4):
        turn = []
        for history in histories:
            history += rng.integers(0, vocab_size, rng.integers(24, 97)).tolist()
            turn.append(Item(list(history), int(rng.integers(24, 65)), after))
            history += rng.integers(0, vocab_size, turn[-1].num_tokens).tolist()
        after += sum(item.num_tokens for item in turn)
        items += turn
    return items


def _long_arrival(vocab_size: int) -> list[Item]:
    """Return 16 decoding requests, and a prompt of 2000 tokens that arrives when each has about 32 tokens."""
    decoders = _random(16, (24, 40), (192, 192), vocab_size)
    return [*decoders, Item(_generator(1).integers(0, vocab_size, 2000).tolist(), 8, after_tokens=16 * 32)]


#: Name → its description, and its requests with token ids below a vocabulary's size
WORKLOADS: dict[str, tuple[str, Callable[[int], list[Item]]]] = {
    "mixed-16": ("16 requests at once, prompts of 32–512 tokens, outputs of 16–128",
                 partial(_random, 16, (32, 512), (16, 128))),
    "mixed-64": ("64 requests at once, prompts of 32–512 tokens, outputs of 16–128",
                 partial(_random, 64, (32, 512), (16, 128))),
    "decode-16": ("16 requests at once, prompts of 16–32 tokens, outputs of 128: nearly all decoding",
                  partial(_random, 16, (16, 32), (128, 128))),
    "nano-16": ("16 requests at once, prompts and outputs of 32–256 tokens",
                partial(_random, 16, (32, 256), (32, 256))),
    "nano-32": ("32 requests at once, prompts and outputs of 32–256 tokens",
                partial(_random, 32, (32, 256), (32, 256))),
    "nano-64": ("64 requests at once, prompts and outputs of 64–512 tokens",
                partial(_random, 64, (64, 512), (64, 512))),
    "nano-256": ("256 requests at once, prompts and outputs of 100–1024 tokens",
                 partial(_random, 256, (100, 1024), (100, 1024))),
    "shared-prefix": ("32 requests at once, prompts with 512 shared tokens and 16–96 different ones, outputs of 16–64",
                      _shared_prefix),
    "chat": ("8 conversations of 4 turns; each turn sends the whole history again", _chat),
    "tiny-pool": ("48 requests at once, prompts of 32–128 tokens, outputs of 64–128, in a pool of 80 blocks",
                  partial(_random, 48, (32, 128), (64, 128))),
    "long-arrival": ("16 requests decode 192 tokens each; meanwhile a prompt of 2000 tokens arrives", _long_arrival),
    "alone": ("1 request, a prompt of 32 tokens, an output of 256: what a chat feels like",
              partial(_random, 1, (32, 32), (256, 256))),
}
SETTINGS: dict[str, dict[str, Any]] = {"tiny-pool": {"num_blocks": 81}}


def make_workload(name: str, vocab_size: int, max_model_len: int) -> Workload:
    """Create a workload. Raise ValueError for an unknown name, or requests longer than the model's context."""
    if name not in WORKLOADS:
        raise ValueError(f"there is no workload {name!r}, only {', '.join(WORKLOADS)}")
    about, make = WORKLOADS[name]
    workload = Workload(name, about, make(min(vocab_size, MAX_TOKEN_ID)), dict(SETTINGS.get(name, {})))
    if workload.max_len > max_model_len:
        raise ValueError(f"workload {name!r} has a request of {workload.max_len} tokens, the model's context is "
                         f"{max_model_len}")
    return workload


# ---- options


def add_result_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the results to a file, as JSON")


def add_quick_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="only a smoke test: the shortest possible run, without "
                        "mlx-lm unless --arm names it")


def add_arm_option(parser: argparse.ArgumentParser, *arms: str, others: Sequence[str] = ()) -> None:
    parser.add_argument("--arm", action="append", choices=(*arms, *others),
                        help=f"what to measure; may be given several times (default: {', '.join(arms)})")


def chosen_arms(arguments: argparse.Namespace, *arms: str) -> list[str]:
    """Return the arms that the user named. The default is all arms, or only ours with ``--quick``."""
    return list(dict.fromkeys(arguments.arm or (["ours"] if arguments.quick else arms)))


def wants_peer(arguments: argparse.Namespace) -> bool:
    """Check whether mlx-lm is measured next to our engine. Raise ValueError if our engine is not measured."""
    arms = chosen_arms(arguments, "ours", "mlx-lm")
    if "ours" not in arms:
        raise ValueError("--arm mlx-lm needs --arm ours: this benchmark only compares the two")
    return "mlx-lm" in arms

"""``mini-vllm bench speculation``: the same requests with and without drafts, in turns, by kind of text and batch size.

Prompts are computed before the clock starts: drafts are about decoding. Both sides may look ahead. Their tokens are
compared; apart from near-ties in half precision they must be the same.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mini_vllm.arguments import wants_peer
from mini_vllm.backend import blas, is_cpu, mx
from mini_vllm.benchmark.machine_noise import NoiseWatch
from mini_vllm.benchmark.peers import has_peer, load_peer
from mini_vllm.benchmark.result_file import Results, announce
from mini_vllm.benchmark.results import Table, format_ratios
from mini_vllm.benchmark.workloads import Drawing
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import NGRAM, EngineConfig
from mini_vllm.models.loader import LoadedModel, load

TEXT = ("The harbour of Lindow was built in 1834 by a company of merchants from the inland towns. It has two stone "
        "piers, a small lighthouse and a crane that was turned by hand until 1902. Fishing boats leave before dawn and "
        "return in the afternoon. In winter the ice closes the inner basin for about three weeks, and the boats are "
        "pulled ashore.")
#: Kind of text → the task for a model that can chat, and the text that any other model continues.
KINDS = {
    "quoting": (f"Repeat this text word for word, and nothing else:\n\n{TEXT}", f"{TEXT}\n\n{TEXT[:60]}"),
    "editing": (f"Repeat this text, but write 1850 instead of 1834:\n\n{TEXT}",
                f"{TEXT}\n\n{TEXT[:60].replace('1834', '1850')}"),
    "summarising": (f"Summarise this text in three sentences:\n\n{TEXT}", f"{TEXT}\n\nIn short, "),
    "free": ("Write a story about a fisherman and his cat.", "Once upon a time a fisherman had a cat. One morning "),
}
#: Rounds of both sides.
NUM_ROUNDS = 5
TABLE = Table(("text        ", "{}"), ("k", "{}"), ("batch", "{}"), ("steps per token", "{:.2f}"),
              ("accepted", "{:.0%}"), ("mlx-lm takes", "{:.2f}x"), ("times as fast", "{}"))


@dataclass
class Cell:
    """One kind of text, number of drafted tokens and batch size."""

    kind: str
    num_speculative_tokens: int
    batch_size: int
    num_tokens: int
    #: Seconds of decoding per round, without and with drafts.
    plain_s: list[float] = field(default_factory=list)
    drafted_s: list[float] = field(default_factory=list)
    #: Seconds of mlx-lm's speculative generation with the same draft model.
    peer_s: list[float] = field(default_factory=list)
    num_steps: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    #: Outputs, counted over all rounds, in which the tokens differ.
    num_different: int = 0

    @property
    def ratios(self) -> list[float]:
        """How many times as fast decoding is with drafts, round by round."""
        return [plain / drafted for plain, drafted in zip(self.plain_s, self.drafted_s)]

    @property
    def steps_per_token(self) -> float:
        return self.num_steps * self.batch_size / self.num_tokens

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "has_equal_tokens": not self.num_different, "ratio": statistics.median(self.ratios),
                "steps_per_token": self.steps_per_token}

    def __str__(self) -> str:
        accepted = self.num_accepted / self.num_drafted if self.num_drafted else None
        peer = statistics.median(self.peer_s) / statistics.median(self.drafted_s) if self.peer_s else None
        different = f"  {self.num_different} outputs have other tokens" if self.num_different else ""
        return TABLE.row(self.kind, self.num_speculative_tokens, self.batch_size, self.steps_per_token, accepted, peer,
                         format_ratios(self.ratios)) + different


def run_speculation_benchmark(arguments: argparse.Namespace) -> int:
    """Run the command. Invalid options are reported before a model is loaded."""
    is_quick = arguments.quick
    rounds = (1 if is_quick else NUM_ROUNDS) if arguments.rounds is None else arguments.rounds
    batches = arguments.batch or ([1] if is_quick else [1, 8])
    numbers = arguments.num_speculative_tokens or ([4] if is_quick else [2, 4, 7])
    for name, values in (("--rounds", [rounds]), ("--batch", batches), ("--num-speculative-tokens", numbers),
                         ("--tokens", [arguments.tokens])):
        if min(values) < 1:
            raise ValueError(f"{name} is {min(values)}, must be at least 1")
    drawing = Drawing.from_arguments(arguments)
    # mlx-lm can only draft with models
    wants_to_compare = arguments.draft != NGRAM and wants_peer(arguments) and has_peer()
    with Results(arguments).opened() as saved:
        loaded = load(arguments.model)
        announce(arguments, f"{loaded.name}, BLAS: {blas.name}; {drawing}; drafts: {arguments.draft}", "", TABLE.title)
        peer = _mlx_lm(loaded, load(arguments.draft), drawing) if wants_to_compare else None
        watch, cells = NoiseWatch(), list[Cell]()
        for kind in arguments.kind or (["quoting"] if is_quick else list(KINDS)):
            for batch_size in batches:
                for number in numbers:
                    with watch.over():
                        cells.append(_measure(arguments, loaded, drawing, kind, batch_size, number, rounds, peer))
                    print(cells[-1], flush=True)
        noise = watch.noise()
        print(noise.warning(), end="")
        saved.save({"model": loaded.name, "draft": str(arguments.draft), "drawing": str(drawing),
                    "cells": [cell.to_dict() for cell in cells], "noise": noise.to_dict()})
    return 0


def _measure(arguments: argparse.Namespace, loaded: LoadedModel, drawing: Drawing, kind: str, batch_size: int,
             number: int, rounds: int, peer: Callable[[Sequence[int], int, int], float] | None) -> Cell:
    prompt, num_tokens = prompt_of(loaded, kind), 8 if arguments.quick else arguments.tokens
    cell = Cell(kind, number, batch_size, batch_size * (num_tokens - 1))
    draft = {"num_speculative_tokens": number, "draft": arguments.draft}

    def side(settings: dict[str, Any]) -> Side:
        return Side(loaded, prompt, batch_size, num_tokens, drawing, settings)

    if not is_cpu():  # compile the kernels of both sides before the first round
        for settings in ({}, draft):
            side(settings).decode()
    for _ in range(rounds):
        plain, drafted = side({}), side(draft)
        cell.plain_s.append(plain.decode())
        cell.drafted_s.append(drafted.decode())
        cell.num_different += sum(one != drafted.token_ids[name] for name, one in plain.token_ids.items())
        metrics = drafted.engine.metrics()
        cell.num_steps, cell.num_drafted = drafted.num_steps, metrics.num_drafted_tokens
        cell.num_accepted = metrics.num_accepted_tokens
        if peer is not None and batch_size == 1:
            cell.peer_s.append(peer(prompt, num_tokens, number))
    return cell


def prompt_of(loaded: LoadedModel, kind: str) -> list[int]:
    """Return the prompt of a kind of text, as a chat if the model can chat."""
    task, text = KINDS[kind]
    if loaded.tokenizer.chat_template is not None:
        return loaded.tokenizer.encode_chat([{"role": "user", "content": task}])
    return loaded.tokenizer.encode(text)


class Side:
    """One engine with its requests, their prompts computed."""

    def __init__(self, loaded: LoadedModel, prompt: Sequence[int], batch_size: int, num_tokens: int, drawing: Drawing,
                 settings: dict[str, Any]) -> None:
        self.engine = LLMEngine(EngineConfig(model=loaded.name, max_num_seqs=batch_size, **settings), loaded=loaded)
        self.token_ids: dict[str, list[int]] = {}
        for index in range(batch_size):
            self.engine.add_request(list(prompt), drawing.params(num_tokens, seed=index), str(index))
        while len(self.token_ids) < batch_size:
            self._step()
        mx.synchronize()

    def decode(self) -> float:
        """Generate all tokens but the first, and return the seconds."""
        num_before, start_s = self.engine.num_steps, time.perf_counter()
        while self.engine.has_unfinished_requests():
            self._step()
        self.num_steps = self.engine.num_steps - num_before
        return time.perf_counter() - start_s

    def _step(self) -> None:
        for output in self.engine.step():
            if output.error:
                raise RuntimeError(f"request {output.request_id}: {output.error}")
            self.token_ids[output.request_id] = output.token_ids


def _mlx_lm(loaded: LoadedModel, draft: LoadedModel, drawing: Drawing) -> Callable[[Sequence[int], int, int], float]:
    """Return a function that generates with mlx-lm's drafts. It returns the seconds of all tokens but the first."""
    from mlx_lm.generate import speculative_generate_step
    (model, _), (draft_model, _) = load_peer(loaded), load_peer(draft)

    def decode(prompt: Sequence[int], num_tokens: int, num_draft_tokens: int) -> float:
        tokens = speculative_generate_step(mx.array(list(prompt)), model, draft_model, max_tokens=num_tokens,
                                           num_draft_tokens=num_draft_tokens, sampler=drawing.peer_sampler())
        next(tokens)
        start_s = time.perf_counter()
        for _ in tokens:
            pass
        return time.perf_counter() - start_s

    return decode

"""``mini-vllm bench speculation``: the same requests with and without drafts, in turns, by kind of text and batch size.

Prompts are computed before the clock starts: drafts are about decoding. Both sides may look ahead. Their tokens are
compared; apart from near-ties in half precision they must be the same.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mini_vllm.backend import blas, is_cpu, mx
from mini_vllm.benchmark.machine_noise import NoiseWatch
from mini_vllm.benchmark.peers import has_peer, load_peer
from mini_vllm.benchmark.result_file import Results, announce
from mini_vllm.benchmark.results import Table, format_ratios
from mini_vllm.benchmark.workloads import Drawing, wants_peer
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


def format_cell(cell: Mapping[str, Any]) -> str:
    """Format the results for one kind of text, number of drafted tokens and batch size."""
    accepted = cell["num_accepted"] / cell["num_drafted"] if cell["num_drafted"] else None
    peer = statistics.median(cell["peer_s"]) / statistics.median(cell["drafted_s"]) if cell["peer_s"] else None
    different = f"  {cell['num_different']} outputs have other tokens" if cell["num_different"] else ""
    return TABLE.row(cell["kind"], cell["num_speculative_tokens"], cell["batch_size"], cell["steps_per_token"],
                     accepted, peer, format_ratios(_ratios(cell))) + different


def _ratios(cell: Mapping[str, Any]) -> list[float]:
    """Return how many times as fast decoding is with drafts, round by round."""
    return [plain / drafted for plain, drafted in zip(cell["plain_s"], cell["drafted_s"])]


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
    with Results(arguments) as saved:
        loaded = load(arguments.model)
        announce(arguments, f"{loaded.name}, BLAS: {blas.name}; {drawing}; drafts: {arguments.draft}", "", TABLE.title)
        peer = _mlx_lm(loaded, load(arguments.draft), drawing) if wants_to_compare else None
        watch, cells = NoiseWatch(), list[dict[str, Any]]()
        for kind in arguments.kind or (["quoting"] if is_quick else list(KINDS)):
            for batch_size in batches:
                for number in numbers:
                    with watch.over():
                        cells.append(_measure(arguments, loaded, drawing, kind, batch_size, number, rounds, peer))
                    print(format_cell(cells[-1]), flush=True)
        noise = watch.noise()
        print(noise.warning(), end="")
        saved.save({"model": loaded.name, "draft": str(arguments.draft), "drawing": str(drawing),
                    "cells": cells, "noise": noise.to_dict()})
    return 0


def _measure(arguments: argparse.Namespace, loaded: LoadedModel, drawing: Drawing, kind: str, batch_size: int,
             number: int, rounds: int, peer: Callable[[Sequence[int], int, int], float] | None) -> dict[str, Any]:
    """Measure both sides in turns. Times are seconds of decoding, one per round."""
    prompt, num_tokens = prompt_of(loaded, kind), 8 if arguments.quick else arguments.tokens
    draft = {"num_speculative_tokens": number, "draft": arguments.draft}

    def side(settings: dict[str, Any]) -> Side:
        return Side(loaded, prompt, batch_size, num_tokens, drawing, settings)

    if not is_cpu():  # compile the kernels of both sides before the first round
        for settings in ({}, draft):
            side(settings).decode()
    plain_s, drafted_s, peer_s, num_different = list[float](), list[float](), list[float](), 0
    for _ in range(rounds):
        plain, drafted = side({}), side(draft)
        plain_s.append(plain.decode())
        drafted_s.append(drafted.decode())
        num_different += sum(one != drafted.token_ids[name] for name, one in plain.token_ids.items())
        if peer is not None and batch_size == 1:
            peer_s.append(peer(prompt, num_tokens, number))
    metrics, num_decoded = drafted.engine.metrics(), batch_size * (num_tokens - 1)
    cell = {"kind": kind, "num_speculative_tokens": number, "batch_size": batch_size, "num_tokens": num_decoded,
            "plain_s": plain_s, "drafted_s": drafted_s, "peer_s": peer_s, "num_steps": drafted.num_steps,
            "num_drafted": metrics.num_drafted_tokens, "num_accepted": metrics.num_accepted_tokens,
            "num_different": num_different, "has_equal_tokens": not num_different,
            "steps_per_token": drafted.num_steps * batch_size / num_decoded}
    return {**cell, "ratio": statistics.median(_ratios(cell))}


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

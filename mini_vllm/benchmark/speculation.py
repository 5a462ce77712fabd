"""``mini-vllm bench speculation``: the same requests with and without drafts, in turns, by kind of text and batch size.

Prompts are computed before the clock starts: drafts are about decoding. Both sides may look ahead. Their tokens are
compared; apart from ties by rounding they must be the same.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from mini_vllm.arguments import QUICK, wants_peer
from mini_vllm.backend import blas, mx
from mini_vllm.benchmark.drawing import Drawing
from mini_vllm.benchmark.machine_noise import NoiseWatch, look_around, print_if_any
from mini_vllm.benchmark.mlx_lm_peer import has_peer, load_peer
from mini_vllm.benchmark.result_file import Results
from mini_vllm.benchmark.tables import format_ratios
from mini_vllm.benchmark.ties import gap_at_first_difference
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import NGRAM, EngineConfig
from mini_vllm.fast import tuning
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.native.advice import tell_slow_blas

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
    #: For each request and round in which the tokens differ: by how much one token won at the first difference.
    gaps: list[float] = field(default_factory=list)

    @property
    def has_equal_tokens(self) -> bool:
        return not self.gaps

    @property
    def ratios(self) -> list[float]:
        """How many times as fast decoding is with drafts, round by round."""
        return [plain / drafted for plain, drafted in zip(self.plain_s, self.drafted_s)]

    @property
    def steps_per_token(self) -> float:
        return self.num_steps * self.batch_size / self.num_tokens

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "has_equal_tokens": self.has_equal_tokens, "ratio": statistics.median(self.ratios),
                "steps_per_token": self.steps_per_token}

    def __str__(self) -> str:
        accepted = f"{self.num_accepted / self.num_drafted:.0%}" if self.num_drafted else "–"
        peer = f"  {statistics.median(self.peer_s) / statistics.median(self.drafted_s):6.2f}x" if self.peer_s else ""
        return (f"{self.kind:<12} {self.num_speculative_tokens:>3} {self.batch_size:>6}  {self.steps_per_token:>14.2f} "
                f"{accepted:>9}  {format_ratios(self.ratios):>7}{peer}"
                f"{'' if self.has_equal_tokens else f'  tokens differ, at gaps of at most {max(self.gaps):.2g}'}")


def run_speculation_benchmark(arguments: argparse.Namespace) -> int:
    """Run the command. Invalid options are reported before a model is loaded."""
    rounds = NUM_ROUNDS if arguments.rounds is None else arguments.rounds
    for name, values in (("--rounds", [rounds]), ("--batch", arguments.batch or [1]),
                         ("--num-speculative-tokens", arguments.num_speculative_tokens or [1]),
                         ("--tokens", [arguments.tokens])):
        if min(values) < 1:
            raise ValueError(f"{name} is {min(values)}, must be at least 1")
    drawing = Drawing.from_arguments(arguments)
    with Results(arguments) as saved:
        if arguments.quick:
            print(QUICK)
        loaded = load(arguments.model)
        print(f"{loaded.name}, BLAS: {blas.name}; {drawing}; drafts: {arguments.draft}", flush=True)
        tell_slow_blas()
        print_if_any(look_around().warning_before(), sys.stderr)
        watch, cells = NoiseWatch(), list[Cell]()
        print(f"\n{'text':<12} {'k':>3} {'batch':>6}  steps per token  accepted  times as fast (all rounds)"
              f"{'   mlx-lm takes' if _has_peer(arguments) else ''}")
        for cell in _measure(arguments, loaded, drawing, watch):
            cells.append(cell)
            print(cell, flush=True)
        noise = watch.noise()
        print_if_any(noise.warning(), sys.stdout)
        saved.save({"model": loaded.name, "draft": str(arguments.draft), "drawing": str(drawing),
                    "cells": [cell.to_dict() for cell in cells], "noise": noise.to_dict()})
    return 0


def check_draft(loaded: LoadedModel, draft: Mapping[str, object]) -> None:
    """Raise ValueError, before anything is measured, if ``draft`` names no model with the vocabulary of ``loaded``."""
    LLMEngine(EngineConfig(num_blocks=2, **draft), loaded=loaded)  # type: ignore[arg-type]


def _has_peer(arguments: argparse.Namespace) -> bool:
    """Check whether mlx-lm can do the same: it drafts with models only."""
    return arguments.draft != NGRAM and wants_peer(arguments) and has_peer()


def _measure(arguments: argparse.Namespace, loaded: LoadedModel, drawing: Drawing, watch: NoiseWatch) -> Iterator[Cell]:
    kinds = arguments.kind or (["quoting"] if arguments.quick else list(KINDS))
    rounds = arguments.rounds or (1 if arguments.quick else NUM_ROUNDS)
    num_tokens = 8 if arguments.quick else arguments.tokens
    peer = Peer(loaded, load(arguments.draft), drawing) if _has_peer(arguments) else None
    for kind in kinds:
        for batch_size in arguments.batch or ([1] if arguments.quick else [1, 8]):
            for number in arguments.num_speculative_tokens or ([4] if arguments.quick else [2, 4, 7]):
                cell = Cell(kind, number, batch_size, batch_size * (num_tokens - 1))
                prompt = prompt_of(loaded, kind)
                if tuning.has_gpu():  # compile the kernels of both sides before the first round
                    for settings in ({}, {"num_speculative_tokens": number, "draft": arguments.draft}):
                        Side(loaded, prompt, batch_size, num_tokens, drawing, settings).decode()
                for _ in range(rounds):
                    plain = Side(loaded, prompt, batch_size, num_tokens, drawing, {})
                    drafted = Side(loaded, prompt, batch_size, num_tokens, drawing,
                                   {"num_speculative_tokens": number, "draft": arguments.draft})
                    with watch.over("without drafts"):
                        cell.plain_s.append(plain.decode())
                    with watch.over("with drafts"):
                        cell.drafted_s.append(drafted.decode())
                    for index, (one, other) in enumerate(zip(plain.in_order, drafted.in_order)):
                        if one != other:
                            params = drawing.params(num_tokens, seed=index)
                            cell.gaps.append(gap_at_first_difference(loaded, prompt, params, one, other))
                    counts = drafted.engine.speculation
                    cell.num_steps, cell.num_drafted = drafted.num_steps, counts.num_drafted_tokens
                    cell.num_accepted = counts.num_accepted_tokens
                    if peer is not None and batch_size == 1:
                        with watch.over("mlx-lm"):
                            cell.peer_s.append(peer.decode(prompt, num_tokens, number))
                yield cell


def prompt_of(loaded: LoadedModel, kind: str) -> list[int]:
    """Return the prompt of a kind of text, as a chat if the model can chat."""
    task, text = KINDS[kind]
    if loaded.tokenizer.chat_template is not None:
        return loaded.tokenizer.encode_chat([{"role": "user", "content": task}])
    return loaded.tokenizer.encode(text)


class Side:
    """One engine with its requests, their prompts computed."""

    def __init__(self, loaded: LoadedModel, prompt: Sequence[int], batch_size: int, num_tokens: int, drawing: Drawing,
                 settings: dict[str, object]) -> None:
        config = EngineConfig(model=loaded.name, max_num_seqs=max(batch_size, 1), **settings)  # type: ignore[arg-type]
        self.engine = LLMEngine(config, loaded=loaded)
        self.token_ids: dict[str, list[int]] = {}
        for index in range(batch_size):
            self.engine.add_request(list(prompt), drawing.params(num_tokens, seed=index), str(index))
        while len(self.token_ids) < batch_size:
            self._step()
        mx.synchronize()

    @property
    def in_order(self) -> list[list[int]]:
        """The tokens of each request, in the order in which they were added."""
        return [self.token_ids[str(index)] for index in range(len(self.token_ids))]

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


class Peer:
    """mlx-lm's speculative generation with the same two models."""

    def __init__(self, loaded: LoadedModel, draft: LoadedModel, drawing: Drawing) -> None:
        (self._model, _), (self._draft, _) = load_peer(loaded), load_peer(draft)
        self._drawing = drawing

    def decode(self, prompt: Sequence[int], num_tokens: int, num_draft_tokens: int) -> float:
        """Generate all tokens but the first, and return the seconds."""
        from mlx_lm.generate import speculative_generate_step
        tokens = speculative_generate_step(mx.array(list(prompt)), self._model, self._draft, max_tokens=num_tokens,
                                           num_draft_tokens=num_draft_tokens, sampler=self._drawing.peer_sampler())
        next(tokens)
        start_s = time.perf_counter()
        for _ in tokens:
            pass
        return time.perf_counter() - start_s

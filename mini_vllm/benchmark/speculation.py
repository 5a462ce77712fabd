"""``mini-vllm bench speculation``: the same requests with and without drafts, in turns, by kind of text and batch size.

Only decoding is timed: from the moment at which every request has its first token. Both sides may look ahead. Their
tokens are compared; apart from near-ties in half precision they must be the same.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from typing import Any

from mini_vllm.backend import blas, is_cpu
from mini_vllm.benchmark.peer_script import Watch
from mini_vllm.benchmark.results import Results, Table, announce, format_ratios
from mini_vllm.benchmark.throughput import run_engine
from mini_vllm.benchmark.workloads import Item, Workload
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.request import SamplingParams

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
NUM_ROUNDS = 5
TABLE = Table(("text        ", "{}"), ("k", "{}"), ("batch", "{}"), ("steps per token", "{:.2f}"),
              ("accepted", "{:.0%}"), ("times as fast", "{}"))


def run_speculation_benchmark(arguments: argparse.Namespace) -> int:
    """Run the command. Invalid options are reported before a model is loaded."""
    is_quick = arguments.quick
    rounds = (1 if is_quick else NUM_ROUNDS) if arguments.rounds is None else arguments.rounds
    batches = arguments.batch or ([1] if is_quick else [1, 8])
    numbers = arguments.num_speculative_tokens or ([4] if is_quick else [2, 4, 7])
    for name, values, least in (("--rounds", [rounds], 1), ("--batch", batches, 1), ("--tokens", [arguments.tokens], 2),
                                ("--num-speculative-tokens", numbers, 1)):
        if min(values) < least:
            raise ValueError(f"{name} is {min(values)}, must be at least {least}")
    SamplingParams(temperature=arguments.temperature)
    with Results(arguments) as saved:
        loaded, cells = load(arguments.model), list[dict[str, Any]]()
        announce(arguments, f"{loaded.name}, BLAS: {blas.name}; temperature {arguments.temperature:g}; drafts: "
                 f"{arguments.draft}", "", TABLE.title)
        for kind in arguments.kind or (["quoting"] if is_quick else list(KINDS)):
            for batch_size in batches:
                item = Item(prompt_of(loaded, kind), 8 if is_quick else arguments.tokens)
                workload = Workload(kind, "", [item] * batch_size, {"max_num_seqs": batch_size})
                for number in numbers:
                    draft = {"num_speculative_tokens": number, "draft": arguments.draft}
                    cells.append(_measure(loaded, workload, arguments.temperature, draft, rounds))
                    print(format_cell(cells[-1]), flush=True)
        print(saved.noise().warning(), end="")
        saved.save({"model": loaded.name, "draft": str(arguments.draft), "temperature": arguments.temperature,
                    "cells": cells})
    return 0


def _measure(loaded: LoadedModel, workload: Workload, temperature: float, draft: dict[str, Any], rounds: int
             ) -> dict[str, Any]:
    """Measure both sides in turns. Times are seconds of decoding, one per round."""
    if not is_cpu():  # compile the kernels of both sides before the first round
        for settings in ({}, draft):
            run_engine(loaded, workload, temperature=temperature, **settings)
    plain_s, drafted_s, num_different = list[float](), list[float](), 0
    for _ in range(rounds):
        plain, _ = run_engine(loaded, workload, temperature=temperature)
        drafted, metrics = run_engine(loaded, workload, temperature=temperature, **draft)
        plain_s.append(_decoding_s(plain))
        drafted_s.append(_decoding_s(drafted))
        num_different += sum(one != other for one, other in zip(plain.token_ids, drafted.token_ids))
    num_decoded = workload.num_output_tokens - len(workload.items)
    num_steps = max(len(set(times_s)) - 1 for times_s in drafted.token_times_s)  # a step's tokens have one time
    cell = {"kind": workload.name, "num_speculative_tokens": draft["num_speculative_tokens"],
            "batch_size": len(workload.items), "num_tokens": num_decoded, "plain_s": plain_s, "drafted_s": drafted_s,
            "num_steps": num_steps, "num_drafted": metrics.num_drafted_tokens,
            "num_accepted": metrics.num_accepted_tokens, "num_different": num_different,
            "has_equal_tokens": not num_different, "steps_per_token": num_steps * len(workload.items) / num_decoded}
    return {**cell, "ratio": statistics.median(_ratios(cell))}


def _decoding_s(watch: Watch) -> float:
    """Return the time from the last request's first token to the last token."""
    return max(times_s[-1] for times_s in watch.token_times_s) - max(times_s[0] for times_s in watch.token_times_s)


def _ratios(cell: Mapping[str, Any]) -> list[float]:
    """Return how many times as fast decoding is with drafts, round by round."""
    return [plain / drafted for plain, drafted in zip(cell["plain_s"], cell["drafted_s"])]


def format_cell(cell: Mapping[str, Any]) -> str:
    """Format the results for one kind of text, number of drafted tokens and batch size."""
    accepted = cell["num_accepted"] / cell["num_drafted"] if cell["num_drafted"] else None
    different = f"  {cell['num_different']} outputs have other tokens" if cell["num_different"] else ""
    return TABLE.row(cell["kind"], cell["num_speculative_tokens"], cell["batch_size"], cell["steps_per_token"],
                     accepted, format_ratios(_ratios(cell))) + different


def prompt_of(loaded: LoadedModel, kind: str) -> list[int]:
    """Return the prompt of a kind of text, as a chat if the model can chat."""
    task, text = KINDS[kind]
    if loaded.tokenizer.chat_template is not None:
        return loaded.tokenizer.encode_chat([{"role": "user", "content": task}])
    return loaded.tokenizer.encode(text)

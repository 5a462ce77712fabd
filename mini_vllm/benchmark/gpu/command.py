"""``mini-vllm bench gpu``: correctness, the time of a step and of a workload, next to mlx-lm and the memory bound."""

from __future__ import annotations

import argparse
import gc
import sys
from dataclasses import replace
from typing import Any

from mini_vllm.backend import is_cpu, mx, nn
from mini_vllm.benchmark.gpu import steps
from mini_vllm.benchmark.gpu.agreement import BITS, agree, quantise
from mini_vllm.benchmark.machine import describe_machine
from mini_vllm.benchmark.peers import has_peer, load_peer, serve_mlx_lm, without_peer
from mini_vllm.benchmark.results import BATCHED, BenchmarkResult, Results, Table, announce
from mini_vllm.benchmark.throughput import serve
from mini_vllm.benchmark.workloads import Workload, make_workload, wants_peer
from mini_vllm.checks import real_number
from mini_vllm.fast.attention import FastAttention
from mini_vllm.gpu.select_runner import runner_class, why_not_here
from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE
from mini_vllm.model_runner import ModelRunner
from mini_vllm.models.loader import LoadedModel
from mini_vllm.models.random_model import load_random

QUICK_SHAPE = "qwen3-27m"
#: Memory bandwidth of a GPU in bytes per second, by its maker's data sheet.
BANDWIDTHS = {"NVIDIA H200": 4.8e12, "NVIDIA H100 80GB HBM3": 3.35e12, "NVIDIA A100-SXM4-80GB": 2.04e12}
#: How nano-vllm, which defines the workload nano-256, draws its tokens.
TEMPERATURE = 0.6
STEPS = Table(("requests", "{}"), ("ours, ms", "{:.2f}"), ("  mlx-lm", "{:.2f}"), (" ratio", "{:.2f}x"),
              (" floor", "{:.2f}"), ("of memory", "{:.0%}"))
WORKLOADS = Table(("tokens/s", "{}"), ("  ours", "{:.0f}"), ("mlx-lm", "{:.0f}"), (" ratio", "{:.2f}x"),
                  ("gap, ms", "{:.1f}"), (" worst", "{:.1f}"), ("  over", "{:.1f}x"))


def run_gpu_benchmark(arguments: argparse.Namespace) -> int:
    """Run the command. Invalid options are reported before a model is created."""
    if is_cpu() and not arguments.quick:
        raise ValueError("this benchmark needs a GPU, but MLX computes on a CPU here; --quick runs a smoke test with a "
                         "small model, and mini-vllm bench throughput measures a CPU")
    if arguments.bandwidth is not None:
        real_number("--bandwidth", arguments.bandwidth, above=0)
    wants_mlx_lm = wants_peer(arguments)
    if wants_mlx_lm and not has_peer():
        print(without_peer(), file=sys.stderr)
        wants_mlx_lm = False
    with Results(arguments) as results:
        shape = QUICK_SHAPE if arguments.quick else arguments.model
        loaded = load_random(shape, dtype=mx.float32 if is_cpu() else mx.bfloat16)
        announce(arguments, f"random weights in the shape of {shape}", *describe_machine(),
                 f"kernels: {_describe_kernels(loaded)}")
        _measure(arguments, loaded, load_peer(loaded) if wants_mlx_lm else None, results, {"shape": shape})
    return 0


def _measure(arguments: argparse.Namespace, loaded: LoadedModel, peer: nn.Module | None, results: Results,
             saved: dict[str, Any]) -> None:
    """Measure what is wanted, and save after each part: a run takes many minutes, and may be stopped."""
    wanted = arguments.only or ("steps", "packed", "workloads")
    contexts = (32, 64) if arguments.quick else (steps.CONTEXT, steps.LONG_CONTEXT)
    few, many = ((1, 2), (1, 2)) if arguments.quick else ((1, 64), (1, 16, 64, 256))
    if "steps" in wanted:
        if peer is not None:
            saved["agreement"] = _agreement("tokens", loaded, peer, arguments)
        saved["steps"] = []
        for context in contexts:
            numbers = many if context < steps.LONG_CONTEXT else many[:3]
            saved["steps"] += _steps("A decode step, greedy.", loaded, peer, arguments, context, numbers)
            results.save(saved)
    if "packed" in wanted and peer is not None:
        packed, packed_peer = quantise(loaded)
        title = f"A decode step with {BITS}-bit weights, greedy."
        saved["quantised"] = {"steps": _steps(title, packed, packed_peer, arguments, contexts[0], few),
                              "agreement": _agreement("tokens with packed weights", packed, packed_peer, arguments)}
        results.save(saved)
        del packed, packed_peer
        gc.collect()
    if "workloads" in wanted:
        print(f"\nWhole workloads, temperature {TEMPERATURE:g}, all requests at once.\n{WORKLOADS.title}", flush=True)
        saved["workloads"] = []
        for name in ["nano-16"] if arguments.quick else arguments.workload or ["nano-64", "nano-256"]:
            workload = make_workload(name, loaded.config.vocab_size, loaded.config.max_position_embeddings)
            ours, theirs = measure(loaded, peer, sized(shortened(workload) if arguments.quick else workload))
            saved["workloads"].append(_workload_row(ours, theirs))
            results.save(saved)


def _describe_kernels(loaded: LoadedModel) -> str:
    """Say whether the kernels are used. ``runner_class`` checks them before it chooses a class."""
    why_not = why_not_here()
    if why_not:
        return f"not used: {why_not}"
    chosen = runner_class(ModelRunner, FastAttention, loaded.model, DEFAULT_BLOCK_SIZE)
    return ("not used: they do not agree with the simple attention" if chosen is ModelRunner
            else "they agree with the simple attention")


def _agreement(title: str, loaded: LoadedModel, peer: nn.Module, arguments: argparse.Namespace) -> dict[str, object]:
    found = agree(loaded, peer, *((3, 4) if arguments.quick else ()))
    print(f"\n{title}: {found}", flush=True)
    return found.to_dict()


def _steps(title: str, loaded: LoadedModel, peer: nn.Module | None, arguments: argparse.Namespace, context: int,
           numbers: tuple[int, ...]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    print(f"\n{title} Contexts of {context} tokens.\n{STEPS.title}", flush=True)
    bandwidth = (arguments.bandwidth * 1e9 if arguments.bandwidth else None if is_cpu() else
                 BANDWIDTHS.get(str(mx.device_info().get("device_name"))))
    for number in numbers:
        ours_ms, peer_ms = steps.time_both(loaded, peer, number, context,
                                           steps.QUICK_STEPS if arguments.quick else steps.NUM_STEPS)
        gc.collect()
        mx.clear_cache()
        floor_ms = steps.bytes_per_step(loaded, number, context) / bandwidth * 1000 if bandwidth else None
        for name, found_ms in (("ours", ours_ms), ("mlx-lm's", peer_ms)):
            steps.check_floor(f"a step of {number} requests at contexts of {context}, {name}", found_ms, floor_ms)
        ratio = None if peer_ms is None else peer_ms / ours_ms
        print(STEPS.row(number, ours_ms, peer_ms, ratio, floor_ms, floor_ms and floor_ms / ours_ms), flush=True)
        rows.append({"num_requests": number, "context": context, "ours_ms": ours_ms, "peer_ms": peer_ms,
                     "floor_ms": floor_ms, "ratio": ratio})
    return rows


# ---- whole workloads


def sized(workload: Workload) -> Workload:
    """Return the workload with a seat for every request, and a pool that holds them all."""
    num_blocks = sum(-(-(len(item.prompt) + item.num_tokens + 1) // DEFAULT_BLOCK_SIZE) for item in workload.items)
    return replace(workload, settings={"num_blocks": int(num_blocks * 1.02) + 2, "max_num_seqs": len(workload.items)})


def shortened(workload: Workload) -> Workload:
    """Return as little of the workload as a smoke test needs."""
    return replace(workload, items=[item._replace(prompt=item.prompt[:40], num_tokens=4)
                                    for item in workload.items[:4]])


def measure(loaded: LoadedModel, peer: nn.Module | None, workload: Workload
            ) -> tuple[BenchmarkResult, BenchmarkResult | None]:
    """Measure our engine and mlx-lm, each after a warm-up: shapes are compiled when they first occur.

    Both run as in a server: the garbage collector visits neither imported objects nor the engine of a warm-up.
    """
    for _ in range(2):
        gc.freeze()
        ours, _ = serve(loaded, workload, BATCHED, TEMPERATURE)
        mx.clear_cache()
    theirs = None
    if peer is not None:
        warm_up = replace(workload, items=[item._replace(num_tokens=2) for item in workload.items])
        for each in (warm_up, workload):
            gc.freeze()
            theirs, _ = serve_mlx_lm(peer, each, TEMPERATURE, batch_size=len(workload.items))
            mx.clear_cache()
    return ours, theirs


def _workload_row(ours: BenchmarkResult, theirs: BenchmarkResult | None) -> dict[str, object]:
    """Print a row with the time between two tokens of a request: median, worst, and their ratio. Return it."""
    median_s, worst_s = ours.between_tokens_s[50], ours.between_tokens_s[100]
    peers = None if theirs is None else theirs.output_tokens_per_s
    ratio = ours.output_tokens_per_s / peers if peers else None
    print(WORKLOADS.row(ours.workload, ours.output_tokens_per_s, peers, ratio, median_s * 1000, worst_s * 1000,
                        worst_s / median_s), flush=True)
    return {"ours": ours.to_dict(), "peer": None if theirs is None else theirs.to_dict(), "ratio": ratio,
            "worst_gap": worst_s / median_s}

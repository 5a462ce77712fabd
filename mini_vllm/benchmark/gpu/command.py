"""``mini-vllm bench gpu``: correctness, the time of a step and of a workload, next to mlx-lm and the memory bound."""

from __future__ import annotations

import argparse
import gc
import sys
from collections import UserDict

from mini_vllm.arguments import QUICK, wants_peer
from mini_vllm.backend import mx, nn
from mini_vllm.benchmark.gpu import agreement, quantised, report, steps, workloads
from mini_vllm.benchmark.machine import describe_machine
from mini_vllm.benchmark.mlx_lm_peer import has_peer, load_peer, without_peer
from mini_vllm.benchmark.result_file import Results
from mini_vllm.checks import real_number
from mini_vllm.fast import tuning
from mini_vllm.fast.attention import FastAttention
from mini_vllm.gpu.select_runner import runner_class, why_not_here
from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE
from mini_vllm.model_runner import ModelRunner
from mini_vllm.models.loader import LoadedModel
from mini_vllm.models.random_model import load_random
from mini_vllm.terminal import fold

QUICK_SHAPE = "qwen3-27m"
#: Memory bandwidth of a GPU in bytes per second, by its maker's data sheet.
BANDWIDTHS = {"NVIDIA H200": 4.8e12, "NVIDIA H100 80GB HBM3": 3.35e12, "NVIDIA A100-SXM4-80GB": 2.04e12}


def run_gpu_benchmark(arguments: argparse.Namespace) -> int:
    """Run the command. Invalid options are reported before a model is created."""
    if not tuning.has_gpu() and not arguments.quick:
        raise ValueError("this benchmark needs a GPU, but MLX computes on a CPU here; --quick runs a smoke test with a "
                         "small model, and mini-vllm bench throughput measures a CPU")
    if arguments.bandwidth is not None:
        real_number("--bandwidth", arguments.bandwidth, above=0)
    wants_peer(arguments)
    with Results(arguments) as results:
        _measure(arguments, results)
    return 0


def _measure(arguments: argparse.Namespace, results: Results) -> None:
    if arguments.quick:
        print(QUICK)
    shape = QUICK_SHAPE if arguments.quick else arguments.model
    loaded = load_random(shape, dtype=mx.bfloat16 if tuning.has_gpu() else mx.float32)
    print(fold("\n".join([f"random weights in the shape of {shape}", *describe_machine()])), flush=True)
    print(fold(f"kernels: {_describe_kernels(loaded)}"), flush=True)
    peer = _peer(loaded, arguments)
    saved = _Saved(results, {"shape": shape})
    wanted = arguments.only or ("steps", "packed", "workloads")
    if "steps" in wanted:
        if peer is not None:
            saved["agreement"] = _agreement("tokens", loaded, peer, arguments)
        saved["steps"] = [row for context in _contexts(arguments)
                          for row in _steps("A decode step, greedy.", loaded, peer, arguments, context)]
    if "packed" in wanted and peer is not None:
        packed, packed_peer = quantised.quantise(loaded)
        title = f"A decode step with {quantised.BITS}-bit weights, greedy."
        saved["quantised"] = {"steps": _steps(title, packed, packed_peer, arguments, _contexts(arguments)[0], few=True),
                              "agreement": _agreement("tokens with packed weights", packed, packed_peer, arguments)}
        del packed, packed_peer
        gc.collect()
    if "workloads" in wanted:
        print(f"\nWhole workloads, {workloads.DRAWING}, all requests at once.\n{report.WORKLOADS}", flush=True)
        rows: list[dict[str, object]] = []
        for name in ["nano-16"] if arguments.quick else arguments.workload or ["nano-64", "nano-256"]:
            pair = workloads.measure(name, loaded, peer, arguments.quick)
            print(report.format_workload(pair), flush=True)
            saved["workloads"] = rows = [*rows, report.workload_dict(pair)]


class _Saved(UserDict[str, object]):
    """The results so far, saved after each addition: a run takes many minutes, and may be stopped."""

    def __init__(self, results: Results, data: dict[str, object]) -> None:
        self._results = results
        super().__init__(data)

    def __setitem__(self, key: str, value: object) -> None:
        super().__setitem__(key, value)
        self._results.save(self.data)


def _describe_kernels(loaded: LoadedModel) -> str:
    """Say whether the kernels are used. ``runner_class`` checks them before it chooses a class."""
    why_not = why_not_here()
    if why_not:
        return f"not used: {why_not}"
    chosen = runner_class(ModelRunner, FastAttention, loaded.model, DEFAULT_BLOCK_SIZE)
    return ("not used: they do not agree with the simple attention" if chosen is ModelRunner
            else "they agree with the simple attention")


def _peer(loaded: LoadedModel, arguments: argparse.Namespace) -> nn.Module | None:
    if not wants_peer(arguments):
        return None
    if not has_peer():
        print(without_peer(), file=sys.stderr)
        return None
    return load_peer(loaded)[0]


def _agreement(title: str, loaded: LoadedModel, peer: nn.Module, arguments: argparse.Namespace) -> dict[str, object]:
    found = agreement.agree(loaded, peer, *((3, 4) if arguments.quick else ()))
    print(f"\n{title}: {report.format_agreement(found)}", flush=True)
    return report.agreement_dict(found)


def _contexts(arguments: argparse.Namespace) -> tuple[int, ...]:
    return (32, 64) if arguments.quick else (steps.CONTEXT, steps.LONG_CONTEXT)


def _steps(title: str, loaded: LoadedModel, peer: nn.Module | None, arguments: argparse.Namespace, context: int,
           few: bool = False) -> list[dict[str, object]]:
    many = (1, 16, 64, 256) if context == steps.CONTEXT else (1, 16, 64)
    numbers = (1, 2) if arguments.quick else (1, 64) if few else many
    num_steps = steps.QUICK_STEPS if arguments.quick else steps.NUM_STEPS
    rows = []
    print(f"\n{title} Contexts of {context} tokens.\n{report.STEPS}", flush=True)
    bandwidth = arguments.bandwidth * 1e9 if arguments.bandwidth else _bandwidth()
    for number in numbers:
        ours_ms, peer_ms = steps.time_both(loaded, peer, number, context, num_steps)
        gc.collect()
        mx.clear_cache()
        floor_ms = steps.bytes_per_step(loaded, number, context) / bandwidth * 1000 if bandwidth else None
        rows.append(steps.StepTimes(number, context, ours_ms, peer_ms, floor_ms))
        print(report.format_step(rows[-1]), flush=True)
    return [report.step_dict(row) for row in rows]


def _bandwidth() -> float | None:
    if not tuning.has_gpu():
        return None
    return BANDWIDTHS.get(str(mx.device_info().get("device_name")))

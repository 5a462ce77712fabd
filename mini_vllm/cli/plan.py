"""``mini-vllm plan``: the options, and what is printed. Nothing here needs MLX until the model's shape is read."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from mini_vllm.arguments import add_model_options
from mini_vllm.checks import nearest, real_number
from mini_vllm.plan.machines import HERE, PRESETS, Machine
from mini_vllm.terminal import WIDEST, fold

if TYPE_CHECKING:
    from mini_vllm.plan.shape import ModelShape

#: Option of a shape → its help. All of them are needed.
SHAPE_OPTIONS = {"layers": "number of layers", "width": "size of the hidden state", "mlp_width": "inner size of an MLP",
                 "heads": "query heads", "kv_heads": "KV heads", "head_size": "size of a head",
                 "vocabulary": "size of the vocabulary"}
#: Option → the machine's field, the factor to its unit, and the help.
MACHINE_OPTIONS = {"memory": ("memory", 1e9, "GB", "memory for weights, keys and values"),
                   "bandwidth": ("bandwidth", 1e9, "GB/S", "memory bandwidth"),
                   "kv_bandwidth": ("kv_bandwidth", 1e9, "GB/S", "rate at which attention reads keys and values"),
                   "tflops": ("flops", 1e12, "TFLOP/S", "speed of matrix products"),
                   "layer_ms": ("layer_s", 1e-3, "MS", "time to start a layer's operations"),
                   "request_ms": ("request_s", 1e-3, "MS", "time per running request and step, for planning, sampling "
                                                           "and text")}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser, "tiny-tales", "tiny-tales, smollm2, qwen3-0.6b, qwen3-8b, llama-3.2-1b, "
                      "llama-3.1-8b, llama-3.1-70b, qwen3-27m, or a folder with a config.json; no weights are needed")
    parser.set_defaults(default_model=None)  # a shape given by its numbers has no name
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    demand = parser.add_argument_group("the workload")
    rate = demand.add_mutually_exclusive_group()
    rate.add_argument("--requests-per-day", type=float, metavar="N", help="such as 1e6 (default: 1e6)")
    rate.add_argument("--requests-per-second", type=float, metavar="R")
    demand.add_argument("--peak", type=float, default=2.0, metavar="X", help="busiest time, in times the average "
                        "(default: %(default)s)")
    demand.add_argument("--prompt", type=int, default=512, metavar="N", help="tokens per prompt (default: %(default)s)")
    demand.add_argument("--output", type=int, default=128, metavar="N", help="tokens per output (default: %(default)s)")
    demand.add_argument("--cached", type=float, default=0.0, metavar="PART", help="part of the prompts' tokens that is "
                        "found in the cache, from 0 to below 1 (default: %(default)s)")
    machine = parser.add_argument_group("the machine")
    machine.add_argument("--machine", default=HERE, metavar="NAME", help=f"{', '.join(PRESETS)}, or {HERE}: measure "
                         "this one, which takes about ten seconds (default: %(default)s)")
    for option, (_, _, unit, about) in MACHINE_OPTIONS.items():
        machine.add_argument(_option(option), type=float, metavar=unit, help=f"{about}, instead of the machine's")
    replica = parser.add_argument_group("a replica")
    replica.add_argument("--max-num-seqs", type=int, default=64, metavar="N", help="how many requests run at once "
                         "(default: %(default)s)")
    replica.add_argument("--memory-share", type=float, default=0.9, metavar="PART", help="part of the memory for "
                         "weights, keys and values (default: %(default)s)")
    replica.add_argument("--utilisation", type=float, default=0.7, metavar="PART", help="part of the capacity to plan "
                         "with (default: %(default)s)")
    replica.add_argument("--weight-bits", type=float, metavar="N", help="bits per weight; 4.5 for 4 bits in groups of "
                         "64 (default: 32 on a CPU, 16 on a GPU)")
    replica.add_argument("--kv-bits", type=float, metavar="N", help="bits per number of a key or value (default: the "
                         "same)")
    shape = parser.add_argument_group("a shape, instead of a MODEL")
    for option, about in SHAPE_OPTIONS.items():
        shape.add_argument(_option(option), type=int, metavar="N", help=about)
    shape.add_argument("--untied", action="store_true", help="the output matrix is not the embedding")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def run_plan(arguments: argparse.Namespace) -> int:
    """Print the plan. Raise ValueError, before anything is measured, for a value that cannot be used."""
    from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE
    from mini_vllm.plan.estimate import SECONDS_PER_DAY, Demand, Limits, Plan
    rate = arguments.requests_per_second
    if rate is None:
        per_day = 1e6 if arguments.requests_per_day is None else arguments.requests_per_day
        rate = real_number("requests per day", per_day, above=0, at_most=1e14) / SECONDS_PER_DAY
    demand = Demand(rate, arguments.prompt, arguments.output, arguments.cached, arguments.peak)
    limits = Limits(arguments.max_num_seqs, DEFAULT_BLOCK_SIZE, arguments.memory_share, arguments.utilisation,
                    arguments.weight_bits, arguments.kv_bits)
    shape = chosen_shape(arguments)
    shape.check_length(demand.length)
    plan = Plan(shape, chosen_machine(arguments), demand, limits)
    if arguments.json:
        print(json.dumps(as_json(plan), indent=2, ensure_ascii=False))
    else:
        print_plan(plan)
    return 0


def chosen_shape(arguments: argparse.Namespace) -> ModelShape:
    """Return the shape of the named model or of the options. Raise ValueError for both, or for half a shape."""
    from mini_vllm.plan.shape import ModelShape, find_shape
    given = {name: getattr(arguments, name) for name in SHAPE_OPTIONS}
    missing = [_option(name) for name, value in given.items() if value is None]
    if len(missing) == len(given):
        if arguments.untied:
            raise ValueError(f"--untied needs a shape: {', '.join(missing)}")
        return find_shape("tiny-tales" if arguments.model is None else arguments.model)
    if arguments.model is not None:
        raise ValueError(f"both a model, {arguments.model}, and a shape are given: give only one")
    if missing:
        raise ValueError(f"the shape is not complete: {', '.join(missing)} missing")
    return ModelShape("the given shape", **given, is_tied=not arguments.untied)


def chosen_machine(arguments: argparse.Namespace) -> Machine:
    """Return the named or measured machine, with the numbers that options replace."""
    name = arguments.machine
    if name != HERE and name not in PRESETS:
        near = nearest(name, [HERE, *PRESETS])
        guess = f"did you mean {near}?" if near else f"it may be {HERE}, {', '.join(PRESETS)}"
        raise ValueError(f"there is no machine {name!r}; {guess}")
    given = {option: getattr(arguments, option) for option in MACHINE_OPTIONS
             if getattr(arguments, option) is not None}
    for option, value in given.items():
        if option.endswith("_ms"):
            real_number(_option(option), value, 0, 1e6)
        else:
            real_number(_option(option), value, above=0, at_most=1e9)
    if name == HERE:
        from mini_vllm.benchmark.machine_noise import told_if_loud
        from mini_vllm.plan.this_machine import measure_here
        with told_if_loud(sys.stderr):
            machine = measure_here()
    else:
        machine = PRESETS[name]
    if not given:
        return machine
    changes: dict[str, Any] = {MACHINE_OPTIONS[option][0]: value * MACHINE_OPTIONS[option][1]
                               for option, value in given.items()}
    source = f"{machine.source}; given: {', '.join(map(_option, given))}"
    return replace(machine, source=source, **changes)


def as_json(plan: Any) -> Mapping[str, object]:
    """Return everything that the lines say: the inputs, and each result with its unit and formula."""
    from mini_vllm.plan.explain import lines_of
    results = {line.key: {"value": line.value, "unit": line.unit, "formula": line.formula, "note": line.note}
               for _, lines in lines_of(plan) for line in lines}
    return {"model": asdict(plan.shape), "machine": asdict(plan.machine), "demand": asdict(plan.demand),
            "limits": asdict(plan.limits), "results": results}


def print_plan(plan: Any) -> None:
    """Print each result with its formula; a long formula continues on lines of its own."""
    from mini_vllm.plan.explain import lines_of, si
    machine = plan.machine
    print(fold(f"{plan.shape.name} on {machine.name}: {si(machine.memory, 'B')}, {si(machine.bandwidth, 'B/s')} (K/V "
               f"{si(machine.kv_bandwidth, 'B/s')}), {si(machine.flops, 'FLOP/s')}\n{machine.source}", WIDEST))
    for title, lines in lines_of(plan):
        print(f"\n{title}")
        for line in lines:
            print(f"  {line.title:<22}{line.result:>20}\n" + textwrap.fill(
                line.told, WIDEST, initial_indent="    = ", subsequent_indent="      "))

"""``mini-vllm bench serve``: our server and mlx-lm's under the same requests, and high priority under overload."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import asdict

from mini_vllm.arguments import QUICK, draft_settings, wants_peer
from mini_vllm.benchmark.machine import describe_machine
from mini_vllm.benchmark.machine_noise import look_around, print_if_any
from mini_vllm.benchmark.mlx_lm_peer import has_peer, without_peer
from mini_vllm.benchmark.result_file import Results
from mini_vllm.benchmark.results import BATCHED, PEER
from mini_vllm.benchmark.serving import overload, report
from mini_vllm.benchmark.serving.answers import Load
from mini_vllm.benchmark.serving.arms import Arms, num_different
from mini_vllm.benchmark.serving.servers import Server, our_server, peer_server
from mini_vllm.benchmark.serving.traffic import TRAFFICS, Traffic, single_token_words
from mini_vllm.benchmark.speculation import check_draft
from mini_vllm.engine_config import EngineConfig
from mini_vllm.extras import check_installed
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.native.advice import tell_slow_blas
from mini_vllm.terminal import fold

#: The default rates of the tables; the searches begin at the first.
DEFAULT_RATES = [4.0, 8.0]
QUICK_CALLS = 6


def run_serve_benchmark(arguments: argparse.Namespace) -> int:
    """Run the command. Invalid options are reported before a server is started."""
    check_installed("serve", "the server")
    rates, parts = _check(arguments)
    with Results(arguments) as results:
        results.save(_measure(arguments, rates, parts))
    return 0


def _measure(arguments: argparse.Namespace, rates: list[float], parts: list[str]) -> dict[str, object]:
    names = arguments.traffic or (["short"] if arguments.quick else ["mixed", "shared"])
    loaded = load(arguments.model)
    if arguments.quick:
        print(QUICK)
    print(fold("\n".join([f"{loaded.name}; greedy", *describe_machine()])), flush=True)
    tell_slow_blas()
    print_if_any(look_around().warning_before(), sys.stderr)
    saved: dict[str, object] = {}
    with ExitStack() as running:
        servers = _start(arguments, loaded, running)
        arms = Arms(servers, single_token_words(loaded.tokenizer), num_calls=_num_calls(arguments))
        for name in names:
            saved[name] = _measure_traffic(arms, TRAFFICS[name], rates, parts)
        if "priority" in parts:
            saved["priority"] = _measure_priority(arms, servers[0], arguments.quick)
    return {"model": loaded.name, **saved, **draft_settings(arguments)}


def _check(arguments: argparse.Namespace) -> tuple[list[float], list[str]]:
    rates = arguments.rate or DEFAULT_RATES
    for rate in rates:
        if not 0 < rate <= 10_000:
            raise ValueError(f"--rate is {rate:g}, must be above 0 and at most 10000 requests per second")
    if arguments.requests is not None and arguments.requests < 1:
        raise ValueError(f"--requests is {arguments.requests}, must be at least 1")
    wants_peer(arguments)
    EngineConfig(**draft_settings(arguments))
    parts = arguments.part or (["rates", "priority"] if arguments.quick else ["rates", "goodput", "priority"])
    if arguments.quick and not arguments.rate:
        rates = [20.0]
    return rates, parts


def _num_calls(arguments: argparse.Namespace) -> int | None:
    requests: int | None = arguments.requests
    return QUICK_CALLS if requests is None and arguments.quick else requests


def _start(arguments: argparse.Namespace, loaded: LoadedModel, running: ExitStack) -> list[Server]:
    """Start our server, with drafts if they are wanted, and mlx-lm's if it is wanted and installed."""
    draft = draft_settings(arguments)
    options = [word for name, value in draft.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    if draft:
        check_draft(loaded, draft)
        print(fold(f"{BATCHED}: {' '.join(options)}"), flush=True)
    servers = [running.enter_context(our_server(str(arguments.model), options))]
    if wants_peer(arguments) and not has_peer():
        print(without_peer(), file=sys.stderr)
    elif wants_peer(arguments):
        servers.append(running.enter_context(peer_server(loaded)))
        print(fold(f"{PEER}: {' '.join(servers[1].options)}"), flush=True)
    return servers


def _measure_traffic(arms: Arms, traffic: Traffic, rates: list[float], parts: list[str]) -> dict[str, object]:
    saved: dict[str, object] = {}
    if not {"rates", "goodput"} & set(parts):
        return saved
    print(f"\n{fold(f'{traffic.name}: {traffic.about}')}", flush=True)
    arms.warm_up(traffic)
    if "rates" in parts:
        saved["rates"] = [_measure_rate(arms, traffic, rate) for rate in rates]
    if "goodput" in parts:
        saved["goodput"] = _measure_goodput(arms, traffic, rates[0])
    return saved


def _measure_rate(arms: Arms, traffic: Traffic, rate: float) -> dict[str, object]:
    loads = arms.at_rate(traffic, rate)
    num_calls = next(iter(loads.values())).num_calls
    print(f"\n{num_calls} requests at {rate:g} per second")
    print(report.format_loads(loads), flush=True)
    if len(loads) > 1:
        print(f"{num_different(loads)} of {num_calls} answers differ.", flush=True)
    return {name: load.to_dict() for name, load in loads.items()}


def _measure_goodput(arms: Arms, traffic: Traffic, first_rate: float) -> dict[str, object]:
    print(f"\n{fold(report.GOODPUT)}", flush=True)

    def tell(name: str, load: Load) -> None:
        print(report.format_try(name, load), flush=True)

    goodputs = arms.goodputs(traffic, first_rate, tell)
    noise = arms.noise()
    print(fold(report.format_goodputs(goodputs, noise)), flush=True)
    return {"goodput": {name: asdict(found) for name, found in goodputs.items()}, "ratios": report.ratios(goodputs),
            "noise": noise.to_dict()}


def _measure_priority(arms: Arms, server: Server, is_quick: bool) -> list[dict[str, object]]:
    print(f"\n{fold('High priority under overload.')}", flush=True)
    sizes = overload.QUICK if is_quick else overload.Sizes()
    found = overload.measure_overload(arms, server, sizes)
    for each in found:
        print(f"\n{fold(report.format_overload(each))}", flush=True)
    return [each.to_dict() for each in found]

"""``mini-vllm serve``: models over HTTP, until the user stops the server."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mini_vllm.checks import check_installed, whole_number
from mini_vllm.cli.arguments import given_fields
from mini_vllm.cli.messages import short_name, tell
from mini_vllm.cli.parts_file import load_parts
from mini_vllm.engine_config import EngineConfig
from mini_vllm.native.advice import tell_slow_blas
from mini_vllm.speculation import draft_settings

if TYPE_CHECKING:
    from mini_vllm.server.settings import ServerSettings


def run_serve(arguments: argparse.Namespace) -> int:
    """Serve until told to stop, and return when the running requests have been answered."""
    check_installed("serve", "the server")
    from mini_vllm.server.serving import serve
    from mini_vllm.server.settings import ServerSettings
    config = EngineConfig(**{**given_fields(arguments, EngineConfig), **draft_settings(arguments)},
                          preempt_for_priority=True)
    models = tuple(dict.fromkeys([*arguments.models, *(arguments.more_models or [])])) or ("tiny-tales",)
    is_front = arguments.replicas or arguments.worker
    settings = ServerSettings(
        models=models, host=arguments.host, port=arguments.port,
        allowed_hosts=tuple(arguments.allow_host or ()), keys_file=arguments.keys, max_waiting=arguments.max_waiting,
        key_share=arguments.key_share,
        memory=arguments.memory, drain_s=arguments.drain, strict_fields=arguments.strict_fields, engine=config,
        parts=load_parts(arguments.parts) if arguments.parts and not is_front else None)

    def say_where(address: str) -> None:
        tell_slow_blas()
        names = ", ".join(map(short_name, settings.models))
        tell(f"Serving {names} at {address}/v1, each loaded on first use.\n"
             f"Open {address}/ to see the engine at work. Ctrl-C stops.")

    if not is_front and arguments.router != "own":
        raise ValueError(f"--router {arguments.router} needs --replicas or --worker")
    if arguments.router == "own" and arguments.router_path is not None:
        raise ValueError(f"--router-path is {str(arguments.router_path)!r}, and --router is own; say which router "
                         "this is: --router sglang or --router vllm")
    if is_front:
        return _run_front(arguments, settings)
    serve(settings, say_where)
    return 0


def _run_front(arguments: argparse.Namespace, settings: ServerSettings) -> int:
    """Serve through replicas, until told to stop."""
    from mini_vllm.server.replicas.production import find_router
    from mini_vllm.server.replicas.serving import MAX_REPLICAS, serve_replicas
    num_replicas = whole_number("--replicas", arguments.replicas, 0, MAX_REPLICAS)
    check_memory(settings, num_replicas)
    workers = tuple(arguments.worker or ())
    router = None if arguments.router == "own" else find_router(arguments.router, arguments.router_path)
    behind = "" if router is None else f" behind {router[0]}"

    def say_where(address: str) -> None:
        tell_slow_blas()
        names = ", ".join(map(short_name, settings.models))
        tell(f"Serving {names} at {address}/v1, with {num_replicas} replicas on this machine and {len(workers)} other "
             f"workers{behind}. Ctrl-C stops.")

    make_parts = partial(load_parts, arguments.parts) if arguments.parts else None
    serve_replicas(settings, num_replicas, workers, make_parts, say_where, router)
    return 0


def check_memory(settings: ServerSettings, num_replicas: int) -> None:
    """Raise ValueError if this machine has too little memory for all models in every replica.

    A KV cache given as a number of blocks is not counted: its size is known once the model is loaded.
    """
    from mini_vllm.benchmark.machine import memory_bytes
    from mini_vllm.server.models.loaded_model import estimated_bytes
    total, available = memory_bytes()
    available = total if available is None else available
    needed = num_replicas * sum(estimated_bytes(replace(settings.engine, model=model)) for model in settings.models)
    if settings.max_memory_bytes is not None:
        needed = min(needed, settings.max_memory_bytes)
    if needed > available:
        raise ValueError(f"--replicas is {num_replicas}: weights and KV caches take {needed / 1e9:.1f} GB, and "
                         f"{available / 1e9:.1f} GB of memory are available; use fewer replicas, a smaller --kv-memory "
                         "or --memory")

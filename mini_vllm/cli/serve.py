"""``mini-vllm serve``: models over HTTP, until the user stops the server."""

from __future__ import annotations

import argparse

from mini_vllm.cli.loading import short_name
from mini_vllm.cli.notes import tell
from mini_vllm.engine_config import EngineConfig
from mini_vllm.extras import check_installed
from mini_vllm.fast.advice import tell_slow_blas
from mini_vllm.parts.parts_file import load_parts


def run_serve(arguments: argparse.Namespace) -> int:
    """Serve until told to stop, and return when the running requests have been answered."""
    check_installed("serve", "the server")
    from mini_vllm.server.serving import serve
    from mini_vllm.server.settings import ServerSettings
    config = EngineConfig(kv_memory=arguments.kv_memory, num_blocks=arguments.num_blocks,
                          max_num_seqs=arguments.max_num_seqs, preempt_for_priority=True,
                          enable_prefix_caching=not arguments.no_prefix_caching)
    models = tuple(dict.fromkeys([*arguments.models, *(arguments.model or [])])) or ("tiny-tales",)
    settings = ServerSettings(
        models=models, host=arguments.host, port=arguments.port,
        allowed_hosts=tuple(arguments.allow_host or ()), keys_file=arguments.keys, max_waiting=arguments.max_waiting,
        key_share=arguments.key_share,
        memory=arguments.memory, drain_s=arguments.drain, engine=config,
        parts=load_parts(arguments.parts) if arguments.parts else None)

    def say_where(address: str) -> None:
        tell_slow_blas()
        names = ", ".join(map(short_name, settings.models))
        tell(f"Serving {names} at {address}/v1, each loaded on first use.\n"
             f"Open {address}/ to see the engine at work. Ctrl-C stops.")

    serve(settings, say_where)
    return 0

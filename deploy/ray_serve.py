"""The server under Ray Serve: every replica is a whole server, and Ray's proxy spreads the requests over them.

    python deploy/ray_serve.py --replicas 2    # until Ctrl-C; starts Ray on this machine
    serve run --app-dir deploy --working-dir deploy ray_serve:build model=smollm2 replicas=4    # on a running cluster

It needs ``pip install -e ".[serve]" "ray[serve]>=2.60"``. Ray's proxy takes the less busy of two random replicas. It
knows nothing of prefixes; the front of ``mini-vllm serve --replicas`` does.
"""

import argparse
import math
import os
import signal
import threading
from pathlib import Path

# Ray reads these when it is imported. On a busy machine, its first process may need more than the default of 10 s.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")

import ray
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve.schema import LoggingConfig
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mini_vllm.cli.messages import short_name
from mini_vllm.engine_config import EngineConfig
from mini_vllm.server.app import make_app
from mini_vllm.server.models.model_registry import ModelShelf
from mini_vllm.server.replicas.proxy import REPLICA_HEADER
from mini_vllm.server.settings import DEFAULT_DRAIN_S, ServerSettings

APP = "mini-vllm"
#: Requests that Ray sends to a replica at once. The server has its own limits and answers 429; Ray's default is 5.
MAX_ONGOING_REQUESTS = 1000


class Options(BaseModel):
    """What ``serve run`` accepts as ``name=value``. Without keys, the proxy must listen on a loopback address."""

    model_config = ConfigDict(extra="forbid")

    model: str = "tiny-tales"
    replicas: int = 2
    cpus: float = 1
    host: str = "127.0.0.1"
    #: The name under which clients call, besides ``host`` and plain addresses.
    allow_host: str | None = None
    keys: Path | None = None


class NamesReplica:
    """ASGI middleware that names the replica in every answer, as the front of ``mini-vllm serve --replicas`` does."""

    def __init__(self, app: ASGIApp, name: str) -> None:
        self.app, self.name = app, name.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (REPLICA_HEADER, self.name)]
            await send(message)

        await self.app(scope, receive, named)


@serve.deployment(max_ongoing_requests=MAX_ONGOING_REQUESTS, graceful_shutdown_timeout_s=DEFAULT_DRAIN_S,
                  health_check_period_s=5, health_check_timeout_s=30,
                  logging_config=LoggingConfig(enable_access_log=False))
@serve.ingress()
class Server:
    """One replica. It is ready once its model is loaded."""

    async def __init__(self, settings: ServerSettings) -> None:
        self._shelf = ModelShelf(settings)
        self._made = make_app(settings, self._shelf)
        self._made.add_middleware(NamesReplica, name=serve.get_replica_context().replica_id.unique_id)
        for model in self._shelf.names():
            async with self._shelf.lease(model):
                pass

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._made

    async def check_health(self) -> None:
        """Ask every engine. Ray replaces the replica if this fails, or takes too long, three times in a row."""
        for served in self._shelf.loaded():
            await served.engine.metrics()


def build(options: Options) -> serve.Application:
    """Return the application. Raise ValueError or OSError if it cannot be served.

    Ray reads the annotation of ``options``, so it must be the class: this file does not postpone annotations.
    """
    settings = ServerSettings(models=(options.model,), host=options.host, keys_file=options.keys,
                              allowed_hosts=() if options.allow_host is None else (options.allow_host,),
                              engine=EngineConfig(preempt_for_priority=True))
    return Server.options(num_replicas=options.replicas, ray_actor_options={"num_cpus": options.cpus}).bind(settings)


def main() -> None:
    """Serve until SIGTERM or Ctrl-C. Running requests may finish."""
    parser = argparse.ArgumentParser(description="Serve a model under Ray Serve.")
    parser.add_argument("model", nargs="?", default="tiny-tales", metavar="MODEL")
    parser.add_argument("--replicas", type=int, default=2, metavar="N", help="number of servers (default: %(default)s)")
    parser.add_argument("--cpus", type=float, default=1, metavar="N", help="cores per server (default: %(default)g)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; others than a loopback address need "
                        "--keys (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="(default: %(default)s)")
    parser.add_argument("--allow-host", metavar="NAME", help="as in mini-vllm serve")
    parser.add_argument("--keys", type=Path, metavar="FILE", help="as in mini-vllm serve")
    arguments = vars(parser.parse_args())
    port = arguments.pop("port")
    app = build(Options(**arguments))
    # Always a Ray of its own: without "local", Ray would join one that already runs here.
    ray.init("local", num_cpus=max(os.cpu_count() or 1, math.ceil(arguments["replicas"] * arguments["cpus"])),
             include_dashboard=False, log_to_driver=False)
    told_to_stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told_to_stop.set())
    serve.start(http_options={"host": arguments["host"], "port": port})
    serve.run(app, name=APP)
    print(f"Serving {short_name(arguments['model'])} at http://{arguments['host']}:{port}/v1, with "
          f"{arguments['replicas']} replicas. Ctrl-C stops.", flush=True)
    told_to_stop.wait()
    serve.delete(APP)  # waits for running requests; shutdown() alone would end the proxy first, and break their answers
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()

"""A production router instead of ours, as a process of its own: sglang-router or vllm-router.

    client ──▶ front (keys, rates) ──▶ sglang-router ──▶ replica-0, replica-1, …
                     └─────── health, metrics ──────────▶

The front has the router as its only member, and still watches the replicas itself.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from mini_vllm.checks import install_line
from mini_vllm.server.replicas import lifeline
from mini_vllm.server.replicas.exchange import Address, Connections, ReplicaError
from mini_vllm.server.replicas.fleet import Fleet, Replica
from mini_vllm.server.replicas.processes import START_S, STOP_S, SupervisedProcess

#: ``--router`` → the executable, and the words of its command before the options.
ROUTERS = {"sglang": ("sglang-router", ("launch",)), "vllm": ("vllm-router", ())}
#: A replica that dies is out after one check, a second later. The retries of a request take about two seconds, so they
#: outlast that. No circuit breaker: it would also take a replica out whose queue is full.
OPTIONS = ("--policy", "cache_aware", "--worker-startup-check-interval", "1", "--health-check-interval-secs", "1",
           "--health-failure-threshold", "1", "--health-success-threshold", "1", "--disable-circuit-breaker",
           "--retry-max-retries", "8", "--retry-max-backoff-ms", "500", "--log-level", "error")
#: A router answers this with 200 when at least one replica is well.
READY = b"/readiness"
#: How often to ask a router that starts whether it is ready.
POLL_S = 0.05


def find_router(kind: str, path: Path | None = None) -> list[str]:
    """Return the command that starts a router. Raise ValueError with what to install if it is not there."""
    name, words = ROUTERS[kind]
    own_folder = str(Path(sys.executable).parent)
    found = (shutil.which(name, path=own_folder) or shutil.which(name)) if path is None else shutil.which(str(path))
    if found is None and path is not None:
        raise ValueError(f"--router-path is {str(path)!r}, must be an executable file")
    if found is None:
        raise ValueError(f"--router {kind} needs {name}, which is neither in {own_folder} nor on the PATH: "
                         f"{install_line('cluster')}; or give its --router-path")
    return [found, *words]


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that no process uses now."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in listeners]


class RouterFleet(Fleet):
    """A fleet whose only member is a router. An answer that breaks off may be a replica's fault: the checks decide."""

    health_path = READY

    def failed(self, replica: Replica, why: ReplicaError) -> None:
        replica.suspect.set()


class RouterProcess(SupervisedProcess):
    """A production router over the servers at ``addresses``. Each start takes new ports."""

    def __init__(self, command: list[str], addresses: Iterable[Address], options: Iterable[str] = OPTIONS) -> None:
        super().__init__(Path(command[0]).name)
        self._command, self._options, self._urls = command, tuple(options), [str(each) for each in addresses]

    async def start(self) -> Address:
        """Start the router, and return its address once it is ready. Raise ValueError if it does not get that far."""
        port, metrics_port = free_ports(2)
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", lifeline.__file__, *self._command, "--host", "127.0.0.1", "--port", str(port),
            "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port), *self._options,
            "--worker-urls", *self._urls, stdin=asyncio.subprocess.PIPE, start_new_session=True)
        address = Address("127.0.0.1", port)
        waits = [asyncio.create_task(_until_ready(address)), asyncio.create_task(process.wait())]
        await asyncio.wait(waits, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        is_ready, has_ended = (each.done() for each in waits)
        for each in waits:
            each.cancel()
        if is_ready:
            return address
        await self.stop()
        raise ValueError(f"{self.name} ended with status {process.returncode} before it was ready; its messages are "
                         "above" if has_ended else f"{self.name} was not ready within {START_S:g} s; is a replica up?")

    async def ended(self) -> int:
        """Wait until the router ends, and return its exit status."""
        status = await super().ended()
        self._kill()  # if only the process that holds the lifeline was killed, the router still runs
        return status

    async def stop(self) -> None:
        """Stop the router: let go of its lifeline. Kill it if that takes too long."""
        if self._process is None or self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), lifeline.TERMINATE_S + STOP_S)
        self._kill()
        await self._process.wait()

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS: PermissionError if all of the group have ended
            os.killpg(self.pid, signal.SIGKILL)


async def _until_ready(address: Address) -> None:
    connections = Connections(address)
    while True:
        with suppress(ReplicaError):
            async with connections.ask("GET", READY) as answer:
                if answer.status == 200:
                    return
        await asyncio.sleep(POLL_S)

"""Replicas on this machine: processes that share its cores, and are started again when they die."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from mini_vllm.engine_config import EngineParts
from mini_vllm.server.replicas.exchange import Address
from mini_vllm.server.replicas.fleet import Fleet
from mini_vllm.server.settings import ServerSettings

log = logging.getLogger("mini_vllm.server")

#: How long a process may take to listen, and how long to wait before one that died is started again.
START_S, RESTART_S = 120.0, 1.0
#: How much longer than its requests a process may take to stop.
STOP_S = 5.0
#: The libraries that multiply matrices read these when they start their threads.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class SupervisedProcess(ABC):
    """A process that is started again when it dies."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._process: asyncio.subprocess.Process | None = None

    @abstractmethod
    async def start(self) -> Address:
        """Start the process, and return its address once it serves. Raise ValueError if it does not get that far."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop the process, if it runs."""

    async def ended(self) -> int:
        """Wait until the process ends, and return its exit status."""
        assert self._process is not None
        return await self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


class ReplicaProcess(SupervisedProcess):
    """One process that serves."""

    def __init__(self, name: str, settings: ServerSettings, make_parts: Callable[[], EngineParts] | None,
                 num_threads: int) -> None:
        """``make_parts`` makes the engine's parts in the process; ``pickle`` must find it there by its name."""
        super().__init__(name)
        self.drain_s = settings.drain_s
        self._orders = pickle.dumps((settings, make_parts))
        #: A user who has set a number of threads keeps it.
        self._environment = {**dict.fromkeys(THREADS, str(num_threads)), **os.environ}

    async def start(self) -> Address:
        # Its own session: Ctrl-C in a terminal reaches the front only, which stops the replicas after their requests.
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mini_vllm.server.replicas.worker", stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, env=self._environment, start_new_session=True)
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(self._orders)
            line = await asyncio.wait_for(process.stdout.readline(), START_S)
            return Address.parse(line.decode().strip())
        except (OSError, ValueError):  # it has ended, without an address
            await self.stop()
            raise ValueError(f"{self.name} did not start; its messages are above") from None
        except asyncio.TimeoutError:
            await self.stop()
            raise ValueError(f"{self.name} did not start within {START_S:g} s") from None

    async def stop(self) -> None:
        """Stop the process as SIGTERM does. Kill it if that takes too long."""
        if self._process is None or self._process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), self.drain_s + STOP_S)
        except asyncio.TimeoutError:
            self._process.kill()
            await self._process.wait()


async def start_all(processes: Sequence[SupervisedProcess]) -> dict[str, Address]:
    """Start all processes and return their addresses. If one cannot be started, stop all, and raise its ValueError."""
    found = await asyncio.gather(*(each.start() for each in processes), return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            await asyncio.gather(*(process.stop() for process in processes))
            raise each
    return {process.name: each for process, each in zip(processes, found) if isinstance(each, Address)}


@asynccontextmanager
async def kept_alive(processes: Sequence[SupervisedProcess], fleet: Fleet) -> AsyncIterator[None]:
    """Start each process again when it dies, until the context is left. Then stop all of them."""
    keepers = [asyncio.create_task(_keep(process, fleet)) for process in processes]
    try:
        yield
    finally:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        await asyncio.gather(*(process.stop() for process in processes))


async def _keep(process: SupervisedProcess, fleet: Fleet) -> None:
    replica = fleet.replicas[process.name]
    while True:
        status = await process.ended()
        fleet.leave(replica, f"its process ended with status {status}", cut_off=True)
        await asyncio.sleep(RESTART_S)
        with suppress(ValueError):  # its messages are in the log; the next turn tries again
            fleet.move(replica, await process.start())

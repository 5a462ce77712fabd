"""Two ``mini-vllm serve`` processes and a router in front of them: ours in a front, or sglang-router or vllm-router."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.request import Request, SamplingParams
from mini_vllm.routing.base import Router
from mini_vllm.server.replicas.exchange import Address, Connections
from mini_vllm.server.replicas.fleet import Fleet
from mini_vllm.server.replicas.front import make_front
from mini_vllm.server.replicas.processes import ReplicaProcess, start_all
from mini_vllm.server.replicas.production import OPTIONS, RouterFleet, RouterProcess, find_router
from mini_vllm.server.replicas.serving import make_processes
from mini_vllm.server.serving import DrainingServer, address_of, listen
from mini_vllm.server.settings import ServerSettings
from mini_vllm.simulation import VOCAB_SIZE

JSON_TYPE = (b"content-type", b"application/json")
PATH = b"/v1/completions"


@dataclass(frozen=True)
class Workload:
    """Requests that share prefixes, and the replicas that serve them."""

    num_replicas: int = 2
    num_prefixes: int = 8
    requests_per_prefix: int = 10
    block_size: int = 32
    #: Tokens: of a prefix, of the rest of each prompt, and of each output.
    num_shared: int = 256
    num_own: int = 32
    num_new: int = 16
    #: How many of these requests a replica has blocks for.
    num_seats: int = 6

    @property
    def blocks_per_replica(self) -> int:
        return self.num_seats * -(-(self.num_shared + self.num_own + self.num_new) // self.block_size)

    @property
    def bound(self) -> float:
        """The share of cached tokens if each prefix is computed once in all, and nothing else is shared."""
        reused = 1 - 1 / self.requests_per_prefix
        return reused * (self.num_shared // self.block_size * self.block_size) / (self.num_shared + self.num_own)

    def requests(self, seed: int) -> Iterator[Request]:
        """Yield the requests in a random order."""
        rng = np.random.default_rng(seed)
        prefixes = rng.integers(1, VOCAB_SIZE, (self.num_prefixes, self.num_shared)).tolist()
        order = rng.permutation(np.repeat(np.arange(self.num_prefixes), self.requests_per_prefix)).tolist()
        for number, prefix in enumerate(order):
            prompt = prefixes[prefix] + rng.integers(1, VOCAB_SIZE, self.num_own).tolist()
            yield Request(f"r{number}", prompt, SamplingParams(max_tokens=self.num_new))


SMOKE_TEST = Workload(num_prefixes=4, requests_per_prefix=4, num_shared=64, num_own=32, num_new=4, num_seats=3)


@dataclass(frozen=True)
class Production:
    """A production router, alone or behind our front as with ``serve --router``."""

    kind: str
    path: Path
    policy: str = "cache_aware"
    is_behind_front: bool = False

    def process(self, addresses: Mapping[str, Address]) -> RouterProcess:
        return RouterProcess(find_router(self.kind, self.path), addresses.values(), (*OPTIONS, "--policy", self.policy))


def settings_of(model: str, work: Workload) -> ServerSettings:
    return ServerSettings(models=(model,), port=0, engine=EngineConfig(
        num_blocks=work.blocks_per_replica + 1, block_size=work.block_size))


@asynccontextmanager
async def replicas_of(settings: ServerSettings, work: Workload
                      ) -> AsyncIterator[tuple[list[ReplicaProcess], dict[str, Address]]]:
    """Start the replicas, and yield the processes and their addresses. They keep their ports."""
    processes = make_processes(settings, work.num_replicas, None, keeps_ports=True)
    try:
        yield processes, await start_all(processes)
    finally:
        await asyncio.gather(*(process.stop() for process in processes))


@asynccontextmanager
async def routed(settings: ServerSettings, addresses: Mapping[str, Address], router: Router | Production
                 ) -> AsyncIterator[Connections]:
    """Start a router in front of the replicas, and yield its connections."""
    process = router.process(addresses) if isinstance(router, Production) else None
    try:
        started = {} if process is None else await start_all([process])
        if isinstance(router, Production) and not router.is_behind_front:
            yield Connections(*started.values())
            return
        fleet = Fleet(addresses, router) if isinstance(router, Router) else RouterFleet(started)
        listener = listen(settings)
        replicas = None if process is None else Fleet(addresses)
        front = DrainingServer(make_front(settings, fleet, nullcontext, replicas), settings)
        serving = asyncio.create_task(front.serve(sockets=[listener]))
        try:
            yield Connections(Address.parse(address_of(listener)))
        finally:
            front.should_exit = True
            await serving
    finally:
        if process is not None:
            await process.stop()


async def num_answered(address: Address) -> int:
    """Return the number of requests that a replica has answered, according to its metrics."""
    async with Connections(address).ask("GET", b"/metrics") as answer:
        page = (await answer.body()).decode()
    return sum(int(sample.value) for family in text_string_to_metric_families(page) for sample in family.samples
               if sample.name == "mini_vllm_requests_total" and sample.labels["outcome"] == "answered")


def words_of(tokenizer: Tokenizer) -> list[str]:
    """Return texts of which each is one token, in any order: a space and letters.

    sglang-router accepts no token ids. A text of these words has as many tokens as words.
    """
    texts = [tokenizer.decode([token_id]) for token_id in range(tokenizer.vocab_size)]
    return [text for text in texts if text[:1] == " " and text[1:].isalpha() and text.isascii()]


def body_of(model: str, request: Request, words: Sequence[str], shift: int, **fields: object) -> bytes:
    """Return the body of a request. The words are shifted, so that runs do not find each other's prefixes."""
    prompt = "".join(words[(token_id + shift) % len(words)] for token_id in request.prompt_token_ids)
    return json.dumps({"model": model, "prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}).encode()

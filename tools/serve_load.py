"""Load a server with many clients at once, a third of which leave at random.

    make serve-load                      10 rounds of 100 clients
    make serve-load LOAD="--rounds 2"    short

The server is a separate process, as ``mini-vllm serve`` starts it, with a small random model. After each round all
blocks must be free, and every client that stayed must have its own text. Memory after the last round is compared with
memory after round 3, when everything has been used once. A round that is busier than all before it also raises memory,
but only once; a leak raises it in every round. So if memory has grown, up to as many rounds again follow. One of them
must end with about the memory of some rounds earlier.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from serve_hostile import Server, server

from mini_vllm.server.models.model_registry import IDLE_S

NUM_PROMPTS, MAX_TOKENS = 10, 40
#: The fraction by which memory may grow between the compared rounds.
MAX_GROWTH = 0.02


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=100)
    arguments = parser.parse_args(argv)
    with server() as target:
        return asyncio.run(_rounds(target, arguments.rounds, arguments.clients))


async def _rounds(target: Server, num_rounds: int, num_clients: int) -> int:
    host, port = target.host, target.port
    wanted = [await _stream(host, port, index) for index in range(NUM_PROMPTS)]
    memory: dict[int, float] = {}
    for number in range(1, 2 * num_rounds + 1):
        rng, start_s = random.Random(number), time.perf_counter()
        leaving = set(rng.sample(range(num_clients), num_clients // 3))
        texts = await asyncio.gather(*(
            _stream(host, port, index % NUM_PROMPTS, rng.randrange(MAX_TOKENS) if index in leaving else None,
                    rng.choice(["high", "normal", "low"])) for index in range(num_clients)))
        wrong = [index for index in range(num_clients)
                 if index not in leaving and texts[index] != wanted[index % NUM_PROMPTS]]
        num_held = _num_held(host, port)
        await asyncio.sleep(IDLE_S + 0.5)
        memory[number] = _memory_mb(target.process.pid)
        print(f"round {number}: {num_clients - len(leaving)} of {num_clients} stayed, {len(wrong)} got another text, "
              f"{num_held} blocks held, {memory[number]:.1f} MB, {time.perf_counter() - start_s:.1f} s")
        if wrong or num_held:
            return 1
        if number >= num_rounds:
            earlier = 3 if number == num_rounds else number - max(num_rounds - 3, 2)
            if num_rounds <= 3 or not memory[earlier]:
                return 0
            growth = memory[number] / memory[earlier] - 1
            print(f"memory after round {number} is {growth:+.1%} of that after round {earlier} (bound: "
                  f"{MAX_GROWTH:.0%})")
            if growth <= MAX_GROWTH:
                return 0
    return 1


async def _stream(host: str, port: int, prompt: int, leave_after: int | None = None, priority: str = "normal"
                  ) -> str | None:
    """Return the text of one streamed answer.

    With ``leave_after``, cut the connection after that many events and return None.
    """
    body = json.dumps({"model": "small", "prompt": f"client {prompt} says", "max_tokens": MAX_TOKENS, "temperature": 0,
                       "ignore_eos": True, "stream": True, "priority": priority}).encode()
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        text, num_events = "", 0
        while leave_after is None or num_events < leave_after:
            line = await reader.readline()
            if line.startswith(b"data: [DONE]"):
                return text
            if not line:
                raise RuntimeError(f"the stream of prompt {prompt} ended early: {text!r}")
            if line.startswith(b"data: "):
                num_events += 1
                text += json.loads(line[6:])["choices"][0]["text"]
        return None
    finally:
        writer.transport.abort()


def _num_held(host: str, port: int) -> int:
    """Return the number of blocks in use shortly after the last client has left.

    Ask several times: the server notices a disconnect only in its event loop.
    """
    for _ in range(50):
        with urllib.request.urlopen(f"http://{host}:{port}/metrics") as response:
            text = response.read().decode()
        held = sum(float(number) for number in re.findall(r'mini_vllm_blocks{.*state="(?:used|shared)"} (\S+)', text))
        if not held:
            return 0
    return int(held)


def _memory_mb(pid: int) -> float:
    """Return the resident memory in MB; 0 if it cannot be read."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) / 1000 if found else 0.0


if __name__ == "__main__":
    sys.exit(main())

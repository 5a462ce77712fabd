"""What one key notices while another one attacks the server: its times with the attack over its times without it.

    python tools/serve_neighbours.py                    every attack
    python tools/serve_neighbours.py places --rounds 5  one of them

The honest key has eight clients. Each sends a prompt of about 100 tokens, waits for its 32 tokens, and begins again; a
request that is refused is sent again after the second that the server asks for, and its time includes the wait. The
attacking key has the same priority. Calm and attacked rounds take turns with one server. Attacks:

**places**: five clients that ask for 64 texts of 64 tokens each, more than a share, and ask again at once.
**share**: ten clients that ask for 32 texts of 64 tokens each, the share of the seats.
**choices**, **schemas**, **templates**: eight clients whose requests are costly to prepare, and end in 400 or are long.
**expressions**: eight clients, each request with another expression that has many states.
**grammar**: a client with 32 texts of an ambiguous grammar, another one each time.
**bodies**: eight clients with 2,000 prompts of 100 token ids, which end in 400.
**models**: eight clients with prompts of 2 MB for a model that does not exist, through the router of two replicas.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from serve_hostile import CHATS, KEYS, TEXTS, Server, post, server

NUM_CLIENTS, NUM_TOKENS = 8, 32
STORY = "Once upon a time there was a king who had three daughters and a very small castle by the sea. "
AMBIGUOUS = 'start: a\na: "" | W | a a | a a a\nW: /[a-z ]/\n// '

#: The path and the body of a request, by the number of the client and of its request.
Attack = Callable[[int, int], tuple[str, dict[str, object]]]


def text(**fields: object) -> tuple[str, dict[str, object]]:
    return TEXTS, {"model": "small", "prompt": "a", "max_tokens": 1, **fields}


def matching(kind: str, asked: object, **fields: object) -> tuple[str, dict[str, object]]:
    return text(structured_outputs={kind: asked}, max_tokens=200, temperature=1, **fields)


#: The number of clients, their requests, and the server's options.
ATTACKS: dict[str, tuple[int, Attack, tuple[str, ...]]] = {
    "places": (5, lambda client, turn: text(n=64, temperature=1, max_tokens=64, ignore_eos=True), ()),
    "share": (10, lambda client, turn: text(n=32, temperature=1, max_tokens=64, ignore_eos=True), ()),
    "choices": (8, lambda client, turn: matching("choice", [f"{client}-{i}-" + "x" * 40 for i in range(2000)]), ()),
    "schemas": (8, lambda client, turn: matching("json", {
        "type": "object", "properties": {f"p{client}-{i}": {"type": "nothing"} for i in range(1500)}}), ()),
    "templates": (8, lambda client, turn: (CHATS, {"model": "small", "max_tokens": 1, "messages": [
        {"role": "user", "content": f"{client} " * 2000}] * 50}), ()),
    "expressions": (8, lambda client, turn: matching("regex", f"(x?){{2000}}x{{{client + 8 * turn}}}"), ()),
    "grammar": (1, lambda client, turn: matching("grammar", f"{AMBIGUOUS}{turn}", n=32), ()),
    "bodies": (8, lambda client, turn: text(prompt=[[5] * 100] * 2000), ()),
    "models": (8, lambda client, turn: (TEXTS, {"model": "none", "prompt": f"{client} " + "x" * 2_000_000}),
               ("--replicas", "2")),
}


def attack(name: str, address: tuple[str, int], key: str, statuses: dict[int, int]) -> None:
    """Send the requests of this attack, each client one after another, until the process is ended."""
    num_clients, request, _ = ATTACKS[name]

    def client(number: int) -> None:
        connection = http.client.HTTPConnection(*address)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        for turn in itertools.count():
            path, body = request(number, turn)
            try:
                connection.request("POST", path, json.dumps(body).encode(), headers)
                answer = connection.getresponse()
                answer.read()
                statuses[answer.status] = statuses.get(answer.status, 0) + 1
            except (OSError, http.client.HTTPException):
                connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(num_clients)]
    for each in threads:
        each.start()


def honest_times_s(target: Server, seconds: float) -> list[float]:
    """Return how long each request of the honest key took, for this many seconds."""
    times_s: list[float] = []
    end_s = time.perf_counter() + seconds

    def client(number: int) -> None:
        turn = 0
        while (start_s := time.perf_counter()) < end_s:
            turn += 1
            _, body = text(prompt=f"{number}, {turn}. {STORY}", max_tokens=NUM_TOKENS, ignore_eos=True)
            while (status := post(target, TEXTS, json.dumps(body).encode(), KEYS["anna"])[0]) != 200:
                if status != 429 or time.perf_counter() > end_s + seconds:
                    break
                time.sleep(1)
            times_s.append(time.perf_counter() - start_s if status == 200 else float("inf"))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(NUM_CLIENTS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return times_s


def measure(name: str, num_rounds: int, seconds: float) -> None:
    calm_s: list[float] = []
    attacked_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder, multiprocessing.Manager() as manager:
        file, statuses = Path(folder) / "keys.toml", manager.dict()
        file.write_text("\n".join(f'[keys.{key}]\nkey = "{secret}"' for key, secret in KEYS.items()))
        with server("--keys", str(file), *ATTACKS[name][2]) as target:
            honest_times_s(target, 2)
            for _ in range(num_rounds):
                calm_s += honest_times_s(target, seconds)
                attacker = multiprocessing.Process(target=attack, daemon=True, args=(
                    name, (target.host, target.port), KEYS["bert"], statuses))
                attacker.start()
                time.sleep(2)
                attacked_s += honest_times_s(target, seconds)
                attacker.terminate()
                attacker.join()
                time.sleep(1)
        answers = ", ".join(f"{count:,} × {status}" for status, count in sorted(statuses.items())) or "none"
    median_s, worst_s = statistics.median(attacked_s), max(attacked_s)
    calm_median_s, calm_worst_s = statistics.median(calm_s), max(calm_s)
    print(f"{name:10} median {calm_median_s:.3f} s, attacked {median_s:.3f}: {median_s / calm_median_s:.2f} times; "
          f"worst {calm_worst_s:.3f} s, attacked {worst_s:.3f}: {worst_s / calm_worst_s:.2f} times "
          f"({len(calm_s)} and {len(attacked_s)} requests); the attacker got {answers}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attack", nargs="*", choices=[*ATTACKS, []], help="default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each round (default: %(default)s)")
    arguments = parser.parse_args(argv)
    for name in arguments.attack or ATTACKS:
        measure(name, arguments.rounds, arguments.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())

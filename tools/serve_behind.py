"""Send requests through a router to two servers, and compare the answers with those of a server asked directly.

    python tools/serve_behind.py path/to/vllm-router
    python tools/serve_behind.py path/to/sglang-router launch

``make routers`` installs both and runs this. The router is started with ``--worker-urls`` and the addresses of two
servers. The router must use both servers: each has to receive some of the requests. The exit status is 1 if an answer
differs from the direct one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serve_hostile import CHATS, TEXTS, server

#: How long a router may take until it answers: it looks for its servers first.
START_S = 60.0
#: How often each request is sent, so that a round-robin router reaches both servers with each kind.
NUM_TURNS = 4


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def ask(port: int, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """Return the status of the answer and the generated text, joined from the pieces of a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    if answer.status != 200:
        return answer.status, content
    if not body.get("stream"):
        choice = json.loads(content)["choices"][0]
        return answer.status, choice["text"] if path == TEXTS else choice["message"]["content"]
    events = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: ")]
    if events[-1] != "[DONE]":
        return answer.status, f"the stream does not end with [DONE]: {events[-1]}"
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    pieces = [choice["text"] if path == TEXTS else choice["delta"].get("content") for choice in choices]
    return answer.status, "".join(piece or "" for piece in pieces)


def num_requests(port: int) -> float:
    """Return the number of requests that the server has answered, according to its metrics."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return sum(float(line.split()[-1]) for line in lines
               if line.startswith("mini_vllm_requests_total") and '"answered"' in line)


def wait_for(process: subprocess.Popen[str], port: int, log: Path) -> None:
    """Wait until a router answers requests."""
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and process.poll() is None:
        try:
            if ask(port, TEXTS, {"model": "small", "prompt": "a", "max_tokens": 1})[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    sys.exit(f"the router did not answer within {START_S:.0f} s:\n{log.read_text()[-4000:]}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("router", nargs="+", help="the command that starts the router")
    router = parser.parse_args(argv).router
    questions: list[tuple[str, str, dict[str, Any]]] = []
    kinds = ((TEXTS, {"prompt": "once upon"}), (CHATS, {"messages": [{"role": "user", "content": "hi"}]}))
    for path, question in kinds:
        for stream in (False, True):
            name = f"{path}, {'streamed' if stream else 'in one piece'}"
            questions.append((name, path, {"model": "small", "max_tokens": 12, "temperature": 0, "seed": 1,
                                           "ignore_eos": True, "stream": stream, **question}))
    num_failed = 0
    with server() as one, server() as other, tempfile.TemporaryDirectory() as folder:
        first, second = one.port, other.port
        port, log = free_port(), Path(folder) / "log"
        urls = [f"http://127.0.0.1:{each}" for each in (first, second)]
        command = [*router, "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port()),
                   "--policy", "round_robin", "--worker-urls", *urls]
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, text=True)
            try:
                wait_for(process, port, log)
                for name, path, body in questions:
                    expected = ask(first, path, body)
                    before = [num_requests(each) for each in (first, second)]
                    answers = [ask(port, path, body) for _ in range(NUM_TURNS)]
                    shares = [int(num_requests(each) - was) for each, was in zip((first, second), before, strict=True)]
                    is_bad = expected[0] != 200 or any(answer != expected for answer in answers) or 0 in shares
                    num_failed += is_bad
                    print(f"{'FAILED ' if is_bad else ''}{name}: {NUM_TURNS} answers equal to a server's own, "
                          f"{shares[0]} from the first server and {shares[1]} from the second", flush=True)
                    if is_bad:
                        print(f"  expected {expected}\n  got {answers}")
            finally:
                process.terminate()
                process.wait()
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())

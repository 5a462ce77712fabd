"""Attack a real server process, and measure what its other callers notice.

    make serve-hostile                        every part
    python tools/serve_hostile.py bodies      one part
    python tools/serve_hostile.py --quick     less of each

**connections**: 300 half-sent heads of requests, held open against a server that may open 256 files. /health must
answer within 2 s, and the log may get 9 lines.

**files**: 200 damaged GGUF files and 200 damaged safetensors files, each loaded in a process of its own. None may be
ended by a signal.

**bodies**: requests up to the default size limit whose contents are costly to read. While the server handles each, GET
/health is sent every 20 ms. The worst of those answers may come at most 250 ms later than with an empty body.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from damaged_files import LOAD_ALL, damaged
from serve_load import SHAPE

from mini_vllm.backend import mx
from mini_vllm.models.random_model import write_random_checkpoint
from mini_vllm.server.body import MAX_CONTAINERS, MAX_QUOTES, MAX_VALUES
from mini_vllm.server.settings import DEFAULT_MAX_BODY_BYTES

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
TEXTS, CHATS = "/v1/completions", "/v1/chat/completions"
PROBE_EVERY_S = 0.02
#: How much later than with an empty body /health may answer.
MAX_DELAY_S = 0.25
#: A body has failed if it did so this many times in a row: other programs may have used the cores meanwhile.
NUM_TRIES = 3


#: Half-sent heads, how soon /health must answer meanwhile, and how many lines the log may not reach.
NUM_IDLE, MAX_HEALTH_S, MAX_LOG_LINES = 300, 2.0, 10
#: What the last server has written after its address.
said: list[str] = []


@contextmanager
def server(max_files: int | None = None) -> Iterator[tuple[str, int]]:
    """Start `mini-vllm serve` with a small random model that can chat, called ``small``. Yield its address."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "small"
        write_random_checkpoint(model, SHAPE)
        settings = {"eos_token": "<|endoftext|>", "chat_template": TEMPLATE}
        (model / "tokenizer_config.json").write_text(json.dumps(settings))
        command = [sys.executable, "-m", "mini_vllm.cli", "serve", str(model), "--port", "0", "--num-blocks", "300"]
        if max_files is not None:
            command = ["bash", "-c", f'ulimit -n {max_files}; exec "$@"', "bash", *command]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        found = re.search(r"http://([\d.]+):(\d+)", process.stderr.readline())
        assert found is not None, process.stderr.read()
        process.stderr.readline()  # where the page is
        said.clear()
        reader = threading.Thread(target=lambda: said.extend(process.stderr or ()))
        reader.start()
        try:
            yield found[1], int(found[2])
        finally:
            process.terminate()
            process.wait()
            reader.join()


def repeated(item: str, frame: str, separator: str = ",", most: int = DEFAULT_MAX_BODY_BYTES) -> bytes:
    """Return ``frame`` with copies of ``item`` for its ``…``: as many as fit into a body, and at most ``most``."""
    room = DEFAULT_MAX_BODY_BYTES - len(frame.encode()) - 8
    count = min(most, room // (len(item.encode()) + len(separator)))
    return frame.replace("…", separator.join([item] * count)).encode()


def within_bounds(frame: str) -> dict[str, bytes]:
    """Return ``frame`` with the longest lists for its ``…`` that are parsed at all, by what they hold."""
    items = {"numbers": ("1", MAX_VALUES), "minus ones": ("-1", MAX_VALUES), "texts": ('""', MAX_QUOTES // 2),
             "objects": ("{}", MAX_CONTAINERS)}
    return {kind: repeated(item, frame, most=most - 20) for kind, (item, most) in items.items()}


def bodies() -> dict[str, tuple[str, bytes]]:
    """Return the costly bodies, by name, each with the path it is sent to."""
    text, chat = '{"model": "small", "prompt": "a", "max_tokens": 1, "F": …}', '{"model": "small", "messages": …}'
    lists = {name: text.replace("F", name).replace("…", "[…]") for name in (
        "stop", "stop_token_ids", "allowed_token_ids", "bad_words", "echo", "colour")}
    fields = ",".join(f'"f{number:x}": 1' for number in range(150_000))
    biases = ",".join(f'"{number}": 1' for number in range(150_000))
    prompts = '{"model": "small", "max_tokens": 1, "prompt": […]}'
    message = '{"role": "user", "content": "…"}'
    long_message = message.replace("…", "a" * 2000)
    adapted = {f"{field}: {kind}": (path, body) for field, path, frame in (
        ("messages", CHATS, chat.replace("…", "[…]")), ("prompt", TEXTS, prompts),
        *((field, TEXTS, frame) for field, frame in lists.items())) for kind, body in within_bounds(frame).items()}
    names = [f'"{number:x}":1' for number in range(MAX_QUOTES // 2 - 20)]
    for field, pair in (("logit_bias", '"1":1'), ("metadata", '"a":""')):
        frame = text.replace('"F": …', f'"{field}": {{…}}')
        adapted[f"{field}: one key"] = TEXTS, repeated(pair, frame, most=MAX_QUOTES // 4 - 20)
        adapted[f"{field}: many keys"] = TEXTS, frame.replace("…", ",".join(names)).encode()
    adapted["fields: many"] = TEXTS, f'{{"model": "small", "prompt": "a", {",".join(names)}}}'.encode()
    return adapted | {
        "empty messages": (CHATS, repeated("{}", chat.replace("…", "[…]"))),
        "messages without a text": (CHATS, repeated('{"role": "user", "content": ""}', chat.replace("…", "[…]"))),
        "1,000 long messages": (CHATS, chat.replace("…", f"[{','.join([long_message] * 1000)}]").encode()),
        "one long message": (CHATS, repeated("word ", chat.replace("…", f"[{message}]"), "")),
        "parts of a message": (CHATS, repeated('{"type": "text", "text": "a"}',
                                               chat.replace("…", '[{"role": "user", "content": […]}]'))),
        "fields of a message": (CHATS, chat.replace("…", f'[{{"role": "user", "content": "a", {fields}}}]').encode()),
        "negative stop ids": (TEXTS, repeated("-1", lists["stop_token_ids"])),
        "stop ids": (TEXTS, repeated("1", lists["stop_token_ids"])),
        "allowed ids": (TEXTS, repeated("-1", lists["allowed_token_ids"])),
        "empty bad words": (TEXTS, repeated('""', lists["bad_words"])),
        "bad words": (TEXTS, repeated('"a b"', lists["bad_words"])),
        "stops": (TEXTS, repeated('"a"', lists["stop"])),
        "a list for a flag": (TEXTS, repeated("{}", lists["echo"])),
        "an unknown list": (TEXTS, repeated("[]", lists["colour"])),
        "unknown fields": (TEXTS, f'{{"model": "small", "prompt": "a", {fields}}}'.encode()),
        "biases": (TEXTS, text.replace('"F": …', f'"logit_bias": {{{biases}}}').encode()),
        "token ids": (TEXTS, repeated("1", prompts)),
        "token ids that are none": (TEXTS, repeated("-1", prompts)),
        "prompts": (TEXTS, repeated('"a"', prompts)),
        "prompts of one token": (TEXTS, repeated("[1]", prompts)),
        "a long prompt": (TEXTS, repeated("word ", '{"model": "small", "prompt": "…"}', "")),
        "a prompt of one letter": (TEXTS, repeated("a", '{"model": "small", "prompt": "…"}', "")),
        "a prompt of escapes": (TEXTS, repeated("\\u00e9", '{"model": "small", "prompt": "…"}', "")),
        "a prompt of JSON": (TEXTS, repeated('{\\"a\\": [1, 2]}', '{"model": "small", "prompt": "…"}')),
        "nested lists": (TEXTS, repeated("[[]]", prompts)),
        "brackets": (TEXTS, b"[" * DEFAULT_MAX_BODY_BYTES),
        "long numbers": (TEXTS, repeated("9" * 4000, prompts)),
        "floats": (TEXTS, repeated("1e5", prompts)),
        "no JSON": (TEXTS, b"\xff" * DEFAULT_MAX_BODY_BYTES),
        "metadata": (TEXTS, text.replace('"F": …', f'"metadata": {{{biases}}}').encode()),
    }


class Prober:
    """Asks for /health every 20 ms, in a thread, and keeps how long each answer took."""

    def __init__(self, host: str, port: int) -> None:
        self._address, self._ends, self._lock = (host, port), threading.Event(), threading.Lock()
        self._worst_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(*self._address, timeout=60)
        while not self._ends.wait(PROBE_EVERY_S):
            start_s = time.perf_counter()
            connection.request("GET", "/health")
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            with self._lock:
                self._worst_s = max(self._worst_s, time.perf_counter() - start_s)

    def worst_s(self) -> float:
        """Return the longest answer since the last call."""
        time.sleep(3 * PROBE_EVERY_S)  # the probe that was under way is counted
        with self._lock:
            worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s

    def end(self) -> None:
        self._ends.set()
        self._thread.join()


def post(host: str, port: int, path: str, body: bytes) -> tuple[int, str]:
    """Send ``body``. Return the status of the answer, and its message if it is an error."""
    connection = http.client.HTTPConnection(host, port, timeout=120)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = json.loads(answer.read())
        return answer.status, content["error"]["message"] if "error" in content else ""
    finally:
        connection.close()


def attack_with_bodies(is_quick: bool) -> int:
    """Print what each body costs others. Return the number of those that cost too much."""
    num_failed = 0
    with server() as (host, port):
        post(host, port, TEXTS, b'{"model": "small", "prompt": "a", "max_tokens": 1}')  # it is loaded from here on
        prober = Prober(host, port)
        prober.worst_s()
        for _ in range(20):
            post(host, port, TEXTS, b"{}")
        empty_s = prober.worst_s()
        print(f"empty body: /health within {1e3 * empty_s:.0f} ms; others may take {1e3 * MAX_DELAY_S:.0f} ms more")
        for name, (path, body) in list(bodies().items())[::3 if is_quick else 1]:
            assert len(body) <= DEFAULT_MAX_BODY_BYTES, f"{name}: {len(body)} bytes"
            for _ in range(NUM_TRIES):
                prober.worst_s()
                start_s = time.perf_counter()
                status, message = post(host, port, path, body)
                took_s, worst_s = time.perf_counter() - start_s, prober.worst_s()
                is_bad = worst_s > empty_s + MAX_DELAY_S or status >= 500
                if not is_bad:
                    break
            num_failed += is_bad
            print(f"{'FAILED ' if is_bad else ''}{name} ({len(body) / 1e6:.1f} MB): status {status} after "
                  f"{1e3 * took_s:.0f} ms, /health within {1e3 * worst_s:.0f} ms. {message[:90]}", flush=True)
        prober.end()
    return num_failed


def attack_with_connections(is_quick: bool) -> int:
    """Hold half-sent heads open where few files may be. Return 1 if /health takes too long or the log is flooded."""
    with server(max_files=256) as (host, port):
        post(host, port, TEXTS, b'{"model": "small", "prompt": "a", "max_tokens": 1}')
        idle = []
        for _ in range(NUM_IDLE):
            try:
                idle.append(socket.create_connection((host, port), timeout=5))
                idle[-1].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: local")
            except OSError:
                pass  # it was closed to make room
        worst_s, end_s = 0.0, time.monotonic() + (5 if is_quick else 30)
        while time.monotonic() < end_s:
            start_s = time.perf_counter()
            connection = http.client.HTTPConnection(host, port, timeout=60)
            connection.request("GET", "/health")
            assert connection.getresponse().status == 200
            connection.close()
            worst_s = max(worst_s, time.perf_counter() - start_s)
            time.sleep(PROBE_EVERY_S)
        for each in idle:
            each.close()
    num_lines = len(said)
    is_bad = worst_s > MAX_HEALTH_S or num_lines >= MAX_LOG_LINES
    print(f"{'FAILED ' if is_bad else ''}{NUM_IDLE} half-sent heads, 256 open files at most: /health within "
          f"{1e3 * worst_s:.0f} ms, {num_lines} lines in the log", flush=True)
    return int(is_bad)


def attack_with_files(is_quick: bool) -> int:
    """Load damaged GGUF and safetensors files, each in a process of its own. Return how many a signal ended."""
    rng, num_files = random.Random(0), 20 if is_quick else 200
    with tempfile.TemporaryDirectory() as scratch:
        sound, broken = Path(scratch) / "sound", Path(scratch) / "broken"
        write_random_checkpoint(sound, SHAPE)
        mx.save_gguf(f"{scratch}/sound.gguf", {f"blk.{i}.attn_q.weight": mx.ones((64, 64)) for i in range(8)},
                     {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a", "b", "c"] * 50})
        gguf, weights = Path(scratch, "sound.gguf").read_bytes(), (sound / "model.safetensors").read_bytes()
        broken.mkdir()
        for number in range(num_files):
            (broken / f"{number}.gguf").write_bytes(damaged(gguf, rng))
            shutil.copytree(sound, broken / f"folder-{number}")
            (broken / f"folder-{number}" / "model.safetensors").write_bytes(damaged(weights, rng))
        done = subprocess.run([sys.executable, "-c", LOAD_ALL, str(broken)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ended = done.stdout.splitlines()
    print(f"{'FAILED ' if ended else ''}{num_files} damaged GGUF files and {num_files} damaged safetensors files: "
          f"{len(ended)} processes ended by a signal {' '.join(ended[:5])}", flush=True)
    return len(ended)


PARTS = {"bodies": attack_with_bodies, "connections": attack_with_connections, "files": attack_with_files}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="less of each")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {unknown.pop()!r}; there are: {', '.join(PARTS)}")
    num_failed = sum(PARTS[part](arguments.quick) for part in arguments.parts or PARTS)
    print(f"{num_failed} attacks succeeded" if num_failed else "no attack succeeded")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())

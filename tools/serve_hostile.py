"""Attack a real server process, and measure how much its other callers are affected.

    make serve-hostile                        every part
    python tools/serve_hostile.py bodies      one part
    python tools/serve_hostile.py --quick     less of each

**bodies**: requests up to the default size limit whose contents are costly to parse. While the server handles each
body, GET /health is sent every 20 ms. The slowest of these answers may take at most 250 ms longer than with an empty
body.

**answers**: non-streamed answers with as many log-probabilities as are allowed, and with more, which must be rejected.
/health must answer within 1 s.

**templates**: chats whose template counts to ten thousand million. /health must answer within 2 s, and SIGTERM and
SIGINT must end the server in the meantime.

**keys**: one key that is limited to 5 requests per minute sends 72 prompts; a second key fills every place while a
third one sends requests.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mini_vllm.models.random_model import write_random_checkpoint
from mini_vllm.server.access.body_limit import MAX_CONTAINERS, MAX_QUOTES, MAX_VALUES
from mini_vllm.server.settings import DEFAULT_MAX_BODY_BYTES

SHAPE = dict(model_type="llama", vocab_size=300, hidden_size=64, intermediate_size=112, num_hidden_layers=2,
             num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=512, rms_norm_eps=1e-5,
             rope_theta=10000.0, tie_word_embeddings=False)
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
TEXTS, CHATS = "/v1/completions", "/v1/chat/completions"
SHORT = b'{"model": "small", "prompt": "a", "max_tokens": 1}'
PROBE_EVERY_S = 0.02
#: How long to wait for an answer.
ANSWER_S = 30.0
#: How much later /health may answer than with an empty body.
MAX_DELAY_S = 0.25
#: A body fails only if it is too slow this many times in a row: other programs may have been using the cores.
NUM_TRIES = 3
#: The time limit for /health while a template is rendered.
MAX_HEALTH_S = 2.0
#: The time within which /health must answer while a non-streamed answer is written.
MAX_ANSWER_DELAY_S = 1.0
#: A template that runs for hours if the first message asks for it.
ENDLESS = ("{% if messages[0].content == 'count' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
           "{% endfor %}{% endif %}" + TEMPLATE)
#: How long the server may take to exit while templates run.
MAX_END_S = 10.0
#: Three callers whose keys have the same priority.
KEYS = {name: f"{name}-has-a-long-key-of-its-own" for name in ("anna", "bert", "carl")}


class Server:
    """A `mini-vllm serve` process with a small random model that can chat, called ``small``."""

    def __init__(self, folder: Path, options: Sequence[str], template: str) -> None:
        model = folder / "small"
        write_random_checkpoint(model, SHAPE)
        settings = {"eos_token": "<|endoftext|>", "chat_template": template}
        (model / "tokenizer_config.json").write_text(json.dumps(settings))
        command = [sys.executable, "-m", "mini_vllm.cli", "serve", "--model", str(model), "--port", "0",
                   "--num-blocks", "300", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        stderr = self.process.stderr
        assert stderr is not None
        found = re.search(r"http://([\d.]+):(\d+)", stderr.readline())
        assert found is not None, stderr.read()
        self.host, self.port = found[1], int(found[2])
        stderr.readline()  # the address of the page
        self._reader = threading.Thread(target=lambda: [*stderr])  # a full pipe would stop the process
        self._reader.start()

    def end(self, number: int = signal.SIGTERM) -> None:
        """Send the process a signal and wait until it has ended."""
        if self.process.returncode is None:
            self.process.send_signal(number)
            self.process.wait()
        self._reader.join()


@contextmanager
def server(*options: str, template: str = TEMPLATE) -> Iterator[Server]:
    """Start a server. Stop it after the ``with`` block if it is still running."""
    with tempfile.TemporaryDirectory() as folder:
        started = Server(Path(folder), options, template)
        try:
            yield started
        finally:
            started.end()


def repeated(item: str, frame: str, separator: str = ",", most: int = DEFAULT_MAX_BODY_BYTES) -> bytes:
    """Return ``frame`` with ``…`` replaced by copies of ``item``: as many as fit into a body, at most ``most``."""
    room = DEFAULT_MAX_BODY_BYTES - len(frame.encode()) - 8
    count = min(most, room // (len(item.encode()) + len(separator)))
    return frame.replace("…", separator.join([item] * count)).encode()


def bodies() -> dict[str, tuple[str, bytes]]:
    """Return the costly bodies by name, each with the path to which it is sent.

    The first are the longest lists and objects that are still parsed; the others are as large as a body may be.
    """
    text, prompt = '{"model": "small", "prompt": "a", "max_tokens": 1, "F": …}', '{"model": "small", "prompt": …}'
    chat, message = '{"model": "small", "messages": …}', '{"role": "user", "content": "…"}'
    lists = {name: text.replace("F", name).replace("…", "[…]") for name in (
        "stop", "stop_token_ids", "allowed_token_ids", "bad_words", "echo", "colour")}
    items = {"numbers": ("1", MAX_VALUES), "minus ones": ("-1", MAX_VALUES), "texts": ('""', MAX_QUOTES // 2),
             "objects": ("{}", MAX_CONTAINERS)}
    found = {f"{field}: {kind}": (CHATS if field == "messages" else TEXTS, repeated(item, frame, most=most - 20))
             for field, frame in {"messages": chat.replace("…", "[…]"), "prompt": prompt.replace("…", "[…]"),
                                  **lists}.items() for kind, (item, most) in items.items()}
    names = ",".join(f'"{number:x}":1' for number in range(MAX_QUOTES // 2 - 20))
    for field, pair in (("logit_bias", '"1":1'), ("metadata", '"a":""')):
        frame = text.replace('"F": …', f'"{field}": {{…}}')
        found[f"{field}: one key"] = TEXTS, repeated(pair, frame, most=MAX_QUOTES // 4 - 20)
        found[f"{field}: many keys"] = TEXTS, frame.replace("…", names).encode()
    found["fields: many"] = TEXTS, text.replace('"F": …', names).encode()
    quoted = prompt.replace("…", '"…"')
    return found | {
        "messages without a text": (CHATS, repeated('{"role": "user", "content": ""}', chat.replace("…", "[…]"))),
        "one long message": (CHATS, repeated("word ", chat.replace("…", f"[{message}]"), "")),
        "parts of a message": (CHATS, repeated('{"type": "text", "text": "a"}',
                                               chat.replace("…", '[{"role": "user", "content": […]}]'))),
        "stop ids": (TEXTS, repeated("1", lists["stop_token_ids"])),
        "bad words": (TEXTS, repeated('"a b"', lists["bad_words"])),
        "stops": (TEXTS, repeated('"a"', lists["stop"])),
        "token ids": (TEXTS, repeated("1", prompt.replace("…", "[…]"))),
        "prompts": (TEXTS, repeated('"a"', prompt.replace("…", "[…]"))),
        "a long prompt": (TEXTS, repeated("word ", quoted, "")),
        "a prompt of one letter": (TEXTS, repeated("a", quoted, "")),
        "a prompt of escapes": (TEXTS, repeated("\\u00e9", quoted, "")),
        "nested lists": (TEXTS, repeated("[[]]", prompt.replace("…", "[…]"))),
        "brackets": (TEXTS, b"[" * DEFAULT_MAX_BODY_BYTES),
        "long numbers": (TEXTS, repeated("9" * 4000, prompt.replace("…", "[…]"))),
        "no JSON": (TEXTS, b"\xff" * DEFAULT_MAX_BODY_BYTES),
    }


def costly_to_check() -> dict[str, tuple[str, bytes]]:
    """Return bodies whose shape would take a careless check minutes."""
    return {
        "a text of quotes without an end": (TEXTS, b'"' + b'\\"' * 65_000 + b" " + b"1" * 400),
        "an odd number of quotes": (TEXTS, b'"' * (MAX_QUOTES - 1) + b" " + b"1" * 400),
        "numbers of 399 digits": (TEXTS, repeated("1" * 399, '{"model": "small", "prompt": […]}')),
    }


class Prober:
    """Sends GET /health every 20 ms in a thread, and records the longest response time."""

    def __init__(self, target: Server) -> None:
        self._address, self._ends, self._lock = (target.host, target.port), threading.Event(), threading.Lock()
        self._worst_s, self._num_probes = 0.0, 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(*self._address, timeout=ANSWER_S)
        while not self._ends.wait(PROBE_EVERY_S):
            start_s = time.perf_counter()
            try:
                connection.request("GET", "/health")
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200, answer.status
            except OSError:
                connection.close()  # no answer; the time that this took is still recorded
            with self._lock:
                self._worst_s = max(self._worst_s, time.perf_counter() - start_s)
                self._num_probes += 1

    def worst_s(self) -> float:
        """Return the longest response time since the last call, including the probe in progress."""
        num_before = self._num_probes
        while self._num_probes < num_before + 2:
            time.sleep(PROBE_EVERY_S)
        with self._lock:
            worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s

    def end(self) -> None:
        self._ends.set()
        self._thread.join()


def post(to: Server, path: str, body: bytes, key: str | None = None) -> tuple[int, str]:
    """Send ``body``. Return the status of the answer, and its message if it is an error; 0 if there is no answer."""
    connection = http.client.HTTPConnection(to.host, to.port, timeout=ANSWER_S)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        content = json.loads(answer.read())
        return answer.status, content["error"]["message"] if "error" in content else ""
    except (OSError, http.client.HTTPException) as error:
        return 0, f"no answer: {error!r}"
    finally:
        connection.close()


def attack_with_bodies(is_quick: bool) -> int:
    """Print how much each body delays other callers. Return the number of bodies that delay them too much."""
    num_failed = 0
    with server() as target:
        post(target, TEXTS, SHORT)  # from here on the model is loaded
        prober = Prober(target)
        prober.worst_s()
        for _ in range(20):
            post(target, TEXTS, b"{}")
        empty_s = prober.worst_s()
        print(f"empty body: /health within {1e3 * empty_s:.0f} ms; others may take {1e3 * MAX_DELAY_S:.0f} ms more")
        for name, (path, body) in [*costly_to_check().items(), *list(bodies().items())[::3 if is_quick else 1]]:
            assert len(body) <= DEFAULT_MAX_BODY_BYTES, f"{name}: {len(body)} bytes"
            for _ in range(NUM_TRIES):
                prober.worst_s()
                start_s = time.perf_counter()
                status, message = post(target, path, body)
                took_s, worst_s = time.perf_counter() - start_s, prober.worst_s()
                is_bad = worst_s > empty_s + MAX_DELAY_S or not 200 <= status < 500
                if not is_bad:
                    break
            num_failed += is_bad
            print(f"{'FAILED ' if is_bad else ''}{name} ({len(body) / 1e6:.1f} MB): status {status} after "
                  f"{1e3 * took_s:.0f} ms, /health within {1e3 * worst_s:.0f} ms. {message[:90]}", flush=True)
        prober.end()
    return num_failed


def attack_with_answers(is_quick: bool) -> int:
    """Request non-streamed answers with many log-probabilities. Return how many delay other callers too much."""
    num_failed = 0
    with server("--num-blocks", "3000") as target:
        post(target, TEXTS, SHORT)
        prober = Prober(target)
        for n, expected in ((64, 400), (10 if is_quick else 24, 200)):
            body = {"model": "small", "prompt": ["a"] * 5, "n": n, "max_tokens": 100, "ignore_eos": True,
                    "logprobs": 20}
            prober.worst_s()
            status, message = post(target, TEXTS, json.dumps(body).encode())
            worst_s = prober.worst_s()
            is_bad = status != expected or worst_s > MAX_ANSWER_DELAY_S
            num_failed += tell(is_bad, f"{5 * n} answers of 100 tokens with 20 log-probabilities each: status "
                               f"{status}, /health within {1e3 * worst_s:.0f} ms. {message[:90]}")
        prober.end()
    return num_failed


def tell(is_bad: bool, text: str) -> int:
    print(f"{'FAILED ' if is_bad else ''}{text}", flush=True)
    return int(is_bad)


def attack_with_templates(is_quick: bool) -> int:
    """Request chats whose template does not end. Return how often /health was late or the server did not exit."""
    chat = b'{"model": "small", "max_tokens": 1, "messages": [{"role": "user", "content": "count"}]}'
    num_failed = 0
    for number in (signal.SIGTERM, signal.SIGINT):
        with server(template=ENDLESS) as target:
            post(target, TEXTS, SHORT)
            prober = Prober(target)
            prober.worst_s()
            status, message = post(target, CHATS, chat)
            worst_s = prober.worst_s()
            prober.end()
            is_bad = worst_s > MAX_HEALTH_S or status != 400
            num_failed += tell(is_bad, f"a template without an end: status {status}, /health within "
                               f"{1e3 * worst_s:.0f} ms. {message[:90]}")
            callers = [threading.Thread(target=post, args=(target, CHATS, chat)) for _ in range(4)]
            for caller in callers:
                caller.start()
            time.sleep(0.3)  # the templates are being rendered
            start_s = time.perf_counter()
            kills = threading.Timer(ANSWER_S, target.process.kill)
            kills.start()
            target.end(number)
            kills.cancel()
            took_s = time.perf_counter() - start_s
            for caller in callers:
                caller.join()
            num_failed += tell(took_s > MAX_END_S, f"{signal.Signals(number).name} while four endless templates are "
                               f"rendered: the server ended after {took_s:.1f} s with status "
                               f"{target.process.returncode}")
        if is_quick:
            break
    return num_failed


def attack_with_keys(is_quick: bool) -> int:
    """Let one key exceed its rate limit and another fill every place. Return how many of the two checks failed.

    The first key must be rejected, and a third key must still get its answers.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.toml"
        file.write_text("\n".join(f'[keys.{name}]\nkey = "{key}"\ntier = "low"' for name, key in KEYS.items()
                                  ).replace('[keys.anna]', '[keys.anna]\nrequests_per_minute = 5'))
        with server("--keys", str(file), "--max-num-seqs", "8", "--max-waiting", "64") as target:
            many = json.dumps({"model": "small", "prompt": ["a"] * 72, "max_tokens": 100, "ignore_eos": True}).encode()
            status, message = post(target, TEXTS, many, KEYS["anna"])
            num_failed = tell(status == 200, f"72 prompts of a key that may ask for 5 per minute: status {status}. "
                              f"{message[:90]}")
            ends = threading.Event()

            def fill() -> None:
                while not ends.is_set():
                    post(target, TEXTS, many, KEYS["bert"])

            greedy = [threading.Thread(target=fill) for _ in range(4)]
            for each in greedy:
                each.start()
            time.sleep(1)  # every place is taken
            num_answers, num_tries, start_s = 0, 0, time.perf_counter()
            wanted = 5 if is_quick else 20
            while num_answers < wanted and time.perf_counter() - start_s < ANSWER_S:
                num_tries += 1
                if post(target, TEXTS, SHORT, KEYS["carl"])[0] == 200:
                    num_answers += 1
                else:
                    time.sleep(0.5)
            took_s = time.perf_counter() - start_s
            ends.set()
            for each in greedy:
                each.join()
    return num_failed + tell(num_answers < wanted, f"a key that asks while another key fills every seat: "
                             f"{num_answers} of {wanted} answers, {num_tries} tries, {took_s:.1f} s")


PARTS = {"bodies": attack_with_bodies, "answers": attack_with_answers,
         "templates": attack_with_templates, "keys": attack_with_keys}


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

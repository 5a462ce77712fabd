"""Call two replicas under Ray Serve with the openai client: ``make ray``.

tiny-tales has no chat template, so its copy here gets one.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from openai import OpenAI

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
START_S, STOP_S = 240.0, 90.0
#: Ray chooses a replica at random. After 40 requests, each has almost certainly had one.
MAX_REQUESTS = 40


def make_model(folder: Path) -> Path:
    model = folder / "tiny-tales"
    shutil.copytree(ROOT / "mini_vllm" / "assets" / "tiny-tales", model)
    settings = model / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": TEMPLATE}))
    return model


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def call(url: str) -> None:
    """Make every kind of request. Raise AssertionError if an answer is wrong, or a replica has served none."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", timeout=60)
    texts: set[str] = set()
    served: dict[str, int] = {}
    for _ in range(MAX_REQUESTS):
        answer = client.completions.with_raw_response.create(model="tiny-tales", prompt="Once upon a time",
                                                             max_tokens=8, temperature=0)
        name = answer.headers["x-mini-vllm-replica"]
        served[name] = served.get(name, 0) + 1
        texts.add(answer.parse().choices[0].text)
        if len(served) == 2:
            break
    assert len(served) == 2 and len(texts) == 1, f"replicas {served}, texts {texts}"
    text = texts.pop()
    print(f"completion: {text!r}, the same from both replicas: {served}")

    chat = client.chat.completions.create(model="tiny-tales", messages=[{"role": "user", "content": "A fox said"}],
                                          max_tokens=8, temperature=0)
    assert chat.usage is not None and chat.usage.completion_tokens == 8, chat
    print(f"chat: {chat.choices[0].message.content!r}")

    chunks = list(client.completions.create(model="tiny-tales", prompt="Once upon a time", max_tokens=8, temperature=0,
                                            stream=True))
    streamed = "".join(chunk.choices[0].text for chunk in chunks)
    assert streamed == text and len(chunks) > 1, f"{streamed!r} in {len(chunks)} chunks"
    print(f"stream: the same text in {len(chunks)} chunks")


def stop_while_streaming(server: subprocess.Popen[str], url: str) -> None:
    """Send SIGTERM in the middle of a stream. Raise AssertionError unless the stream and the server end well."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", timeout=60)
    stream = client.completions.create(model="tiny-tales", prompt="The king said", max_tokens=300, stream=True,
                                       extra_body={"ignore_eos": True})
    next(iter(stream))
    server.send_signal(signal.SIGTERM)
    *_, last = stream
    assert last.choices[0].finish_reason == "length", last
    status = server.wait(STOP_S)
    assert status == 0, f"the server ended with status {status}"
    print("SIGTERM: the stream was finished, and the server ended with status 0")


def main() -> None:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([sys.executable, str(ROOT / "deploy" / "ray_serve.py"), str(make_model(Path(folder))),
                                   "--replicas", "2", "--port", str(port)],
                                  stdout=subprocess.PIPE, text=True)
        limit = threading.Timer(START_S, server.terminate)
        limit.start()
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line.startswith("Serving "), f"the server did not start; it printed {line!r}"
            limit.cancel()
            print(line, end="")
            call(f"http://127.0.0.1:{port}")
            stop_while_streaming(server, f"http://127.0.0.1:{port}")
        finally:
            limit.cancel()
            if server.poll() is None:
                server.terminate()
                server.wait(STOP_S)


if __name__ == "__main__":
    main()

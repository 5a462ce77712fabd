"""The measured servers: each a process of its own, on a loopback port."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mini_vllm.benchmark.results import BATCHED, PEER
from mini_vllm.benchmark.serving.client import Client
from mini_vllm.models.export import export_folder
from mini_vllm.models.loader import LoadedModel

START_S = 120.0
#: mlx-lm's server, in a process with the same BLAS as ours: the backend loads it before mlx-lm imports MLX.
PEER_SERVER = "import mini_vllm.backend; from mlx_lm.server import main; main()"
#: Its options. By default it decodes 32 requests at once, where ours has 64 seats, and keeps 10 caches, so that a
#: prefix may be lost. It reads 8 prompts together, its default: with 1, mixed traffic was better in one run and shared
#: traffic no better. Logging a line for each prompt would cost it time.
PEER_OPTIONS = ("--decode-concurrency", "64", "--prompt-concurrency", "8", "--prompt-cache-size", "64",
                "--log-level", "ERROR")
#: No token has this id, so no text ends before its length.
NO_TOKEN = 1_000_000


@dataclass(frozen=True)
class Server:
    """A running server."""

    name: str
    client: Client
    process_id: int


@contextmanager
def our_server(model: str, options: Sequence[str] = ()) -> Iterator[Server]:
    """Run ``mini-vllm serve``."""
    with _running(BATCHED, ["-m", "mini_vllm", "serve", "--model", model, *options], model) as server:
        yield server


@contextmanager
def peer_server(loaded: LoadedModel) -> Iterator[Server]:
    """Run mlx-lm's server, with the weights as our engine has them: in float32 on a CPU."""
    with tempfile.TemporaryDirectory() as folder:
        write_peer_folder(loaded, Path(folder))
        with _running(PEER, ["-c", PEER_SERVER, "--model", folder, *PEER_OPTIONS], "default_model") as server:
            yield server


def write_peer_folder(loaded: LoadedModel, folder: Path) -> None:
    """Write weights, config and tokenizer, without an end of text, because mlx-lm does not know ``ignore_eos``.

    Raise ValueError if the tokenizer is not in files that mlx-lm reads, as in a .gguf.
    """
    source = Path(loaded.path)
    if not (source / "tokenizer.json").is_file():
        raise ValueError(f"{loaded.name} has no tokenizer.json, which mlx-lm's server needs: use --arm ours")
    export_folder(loaded, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": NO_TOKEN}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder / name)


@contextmanager
def _running(name: str, command: Sequence[str], model: str) -> Iterator[Server]:
    """Start a process, wait until it answers, and end it afterwards.

    Raise ValueError, with its last line of output, if it does not start.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([sys.executable, *command, "--port", str(port)], stdout=log, stderr=log)
        try:
            if not _is_up(process, f"http://127.0.0.1:{port}/health"):
                log.seek(0)
                said = [f": {line}" for line in log.read().strip().splitlines()[-1:]]
                ended = f"exited with status {process.returncode}" if process.returncode is not None else "is not up"
                raise ValueError(f"the server of {name} {ended}{''.join(said)}")
            yield Server(name, Client(port, model), process.pid)
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_up(process: subprocess.Popen[bytes], url: str) -> bool:
    """Wait until the server answers; return False if it ends or does not answer within START_S."""
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return True
        except urllib.error.HTTPError:
            return True  # it answers
        except OSError:
            time.sleep(0.1)
    return False

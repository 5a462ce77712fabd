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

from mini_vllm.benchmark.cpu_time import process_cpu_s
from mini_vllm.benchmark.results import BATCHED, PEER
from mini_vllm.benchmark.serving.client import Client
from mini_vllm.models.export import export_folder
from mini_vllm.models.loader import LoadedModel

START_S = 120.0
#: The options of mlx-lm's server. By default it decodes 32 requests at once, where ours has 64 seats, and keeps 10
#: caches, so that a prefix may be lost. It reads 8 prompts together, its default: with 1, mixed traffic was better in
#: one run and shared traffic no better. Logging a line for each prompt would cost it time.
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
    #: Its options, without the paths.
    options: tuple[str, ...]

    def cpu_s(self) -> float | None:
        return process_cpu_s(self.process_id)


@contextmanager
def our_server(model: str, options: Sequence[str] = ()) -> Iterator[Server]:
    """Run ``mini-vllm serve``."""
    command = ["-m", "mini_vllm", "serve", "--model", model, *options]
    with _running(BATCHED, command, "/health", model, tuple(options)) as server:
        yield server


@contextmanager
def peer_server(loaded: LoadedModel, options: Sequence[str] = PEER_OPTIONS) -> Iterator[Server]:
    """Run mlx-lm's server, with the weights as our engine has them: in float32 on a CPU."""
    with tempfile.TemporaryDirectory() as folder:
        write_peer_folder(loaded, Path(folder))
        command = ["-m", "mini_vllm.benchmark.serving.peer_process", "--model", folder, *options]
        with _running(PEER, command, "/health", "default_model", tuple(options)) as server:
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
def _running(name: str, command: Sequence[str], health: str, model: str, options: tuple[str, ...]) -> Iterator[Server]:
    """Start a process, wait until it answers, and end it afterwards.

    Raise ValueError, with its output, if it does not start.
    """
    port = _free_port()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([sys.executable, *command, "--port", str(port)], stdout=log, stderr=log)
        try:
            _wait_until_up(process, f"http://127.0.0.1:{port}{health}", name)
            yield Server(name, Client(port, model), process.pid, options)
        except _NotUp as error:
            log.seek(0)
            said = log.read().strip().splitlines()
            raise ValueError(f"{error}{': ' + said[-1] if said else ''}") from None
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class _NotUp(Exception):
    """A server did not start."""


def _wait_until_up(process: subprocess.Popen[bytes], url: str, name: str) -> None:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        if process.poll() is not None:
            raise _NotUp(f"the server of {name} exited at once with status {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            time.sleep(0.1)
    raise _NotUp(f"the server of {name} did not answer within {START_S:.0f} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

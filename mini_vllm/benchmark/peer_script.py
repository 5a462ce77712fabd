"""``PYTHON peer_script.py vllm|llama.cpp OPTIONS``: load a model, then serve rounds of requests, in lines of JSON.

OPTIONS is a JSON object. The first line printed has the versions. Each line that is read is a list of requests: prompt,
number of tokens, and the number of tokens of all requests after which it arrives. Its answer has their tokens and
times. PYTHON belongs to another environment, so nothing of this project is imported here. ``Watch`` is here because our
engine and mlx-lm are measured by the same class.
"""

from __future__ import annotations

import ctypes.util
import http.client
import json
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]


class Watch:
    """The tokens of each request while a workload is served, and their times in seconds since its start."""

    def __init__(self, items: Sequence[tuple[list[int], int, int]]) -> None:
        """``items`` are prompt, number of tokens, and after how many tokens it arrives, in the order of arrival."""
        self.items = items
        self.arrived_s: list[float] = []
        self.token_ids: list[list[int]] = [[] for _ in items]
        self.token_times_s: list[list[float]] = [[] for _ in items]
        self._num_tokens, self._start_s = 0, time.perf_counter()

    @property
    def num_to_come(self) -> int:
        return len(self.items) - len(self.arrived_s)

    def arrivals(self) -> list[int]:
        """Return the requests that arrive now."""
        first = len(self.arrived_s)
        while self.num_to_come and self.items[len(self.arrived_s)][2] <= self._num_tokens:
            self.arrived_s.append(time.perf_counter() - self._start_s)
        return list(range(first, len(self.arrived_s)))

    def add(self, index: int, token_ids: list[int]) -> None:
        """Record new tokens of a request."""
        self.token_ids[index] += token_ids
        self.token_times_s[index] += [time.perf_counter() - self._start_s] * len(token_ids)
        self._num_tokens += len(token_ids)


Loaded = tuple[dict[str, object], Callable[[Watch], None]]


def load_vllm(model: str, dtype: str, max_num_seqs: int, max_model_len: int) -> Loaded:
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="2", VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, CORES)),
                      VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING", VLLM_NO_USAGE_STATS="1")
    import torch
    import vllm
    from vllm.sampling_params import RequestOutputKind
    engine = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(
        model, dtype=dtype, max_num_seqs=max_num_seqs, max_model_len=max_model_len, enable_prefix_caching=True,
        skip_tokenizer_init=True))

    def serve(watch: Watch) -> None:
        while (new := watch.arrivals()) or engine.has_unfinished_requests():
            for index in new:
                prompt, num_tokens, _ = watch.items[index]
                engine.add_request(str(index), {"prompt_token_ids": prompt}, vllm.SamplingParams(
                    temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False,
                    output_kind=RequestOutputKind.DELTA))
            for output in engine.step():
                watch.add(int(output.request_id), list(output.outputs[0].token_ids))
        if not engine.reset_prefix_cache():
            raise RuntimeError("the cached prefixes cannot be forgotten")

    return {"vllm": vllm.__version__, "torch": torch.__version__, "dtype": dtype,
            "preloaded": [Path(name).name for name in os.environ.get("LD_PRELOAD", "").split(":") if name]}, serve


def load_llama(model: str, num_slots: int, slot_tokens: int) -> Loaded:
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path, params.n_parallel, params.n_ctx = model, num_slots, num_slots * slot_tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = len(CORES)
    params.n_threads_http = num_slots + 2
    params.verbosity, params.cache_ram_mib = 1, 0
    params.slot_save_path = tempfile.gettempdir()  # without this path it erases no slot
    server = xllamacpp.Server(params)

    def post(path: str, body: dict[str, object]) -> Iterator[dict[str, Any]]:
        connection = http.client.HTTPConnection(server.listening_address.removeprefix("http://"))
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(response.read().decode())
        yield from (json.loads(line[6:]) for line in response if line.startswith(b"data: {"))

    def serve(watch: Watch) -> None:
        arrived: queue.Queue[tuple[int, list[int] | None]] = queue.Queue()

        def follow(index: int) -> None:
            prompt, num_tokens, _ = watch.items[index]
            try:
                for event in post("/completion", {"prompt": prompt, "n_predict": num_tokens, "ignore_eos": True,
                                                  "temperature": 0, "stream": True, "return_tokens": True}):
                    arrived.put((index, event["tokens"]))
            finally:
                arrived.put((index, None))

        num_running = 0
        while (new := watch.arrivals()) or num_running:
            for number in new:
                threading.Thread(target=follow, args=(number,)).start()
            index, token_ids = arrived.get()
            num_running += len(new) - (token_ids is None)
            if token_ids:
                watch.add(index, token_ids)
        for slot in range(num_slots):
            list(post(f"/slots/{slot}?action=erase", {}))

    return {"xllamacpp": xllamacpp.__version__, "system": xllamacpp.get_system_info(), "num_slots": num_slots}, serve


def preload() -> None:
    """Start this process again with a faster malloc, and the OpenMP of its environment, if they are there."""
    openmp = Path(sys.prefix, "lib/libiomp5.so")
    libraries = ":".join(filter(None, [ctypes.util.find_library("tcmalloc_minimal"), str(openmp) * openmp.is_file()]))
    if libraries and "LD_PRELOAD" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "LD_PRELOAD": libraries})


def main(kind: str, options: str) -> None:
    if kind == "vllm":
        preload()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed
    load: Callable[..., Loaded] = load_vllm if kind == "vllm" else load_llama
    about, serve = load(**json.loads(options))
    print(json.dumps(about), file=answers)
    for line in sys.stdin:
        watch = Watch(json.loads(line))
        serve(watch)
        print(json.dumps({"arrived_s": watch.arrived_s, "token_ids": watch.token_ids,
                          "token_times_s": watch.token_times_s}), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Compare the speed of two source trees: serve the same workloads with each in turn and print the speedup.

    git worktree add /tmp/before HEAD~1
    python tools/compare_trees.py /tmp/before .            # every workload, five rounds
    python tools/compare_trees.py /tmp/before . --workload single --workload mixed-16 --rounds 9

Each tree is served by its own process, and only one process works at a time. Both processes are restarted for every
round: depending on where its threads and memory happen to be placed, a process can be 1.1 times as fast as another for
its whole lifetime.

Besides the workloads of ``bench throughput`` there are two more: ``single``, one request of 128 tokens, and ``prefix``,
prompts that share 1024 of 1100 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORKLOADS = ("single", "decode-16", "nano-16", "mixed-16", "mixed-64", "prefix")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--workload", action="append", metavar="NAME", help=f"default: {', '.join(WORKLOADS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="tiny-tales")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the results to a file, as JSON")
    arguments = parser.parse_args(argv)
    trees = {"before": arguments.before, "after": arguments.after}
    for tree in trees.values():
        if not (tree / "mini_vllm").is_dir():
            parser.error(f"{tree} is not a source tree: it contains no mini_vllm/")
    if arguments.rounds < 1:
        parser.error(f"--rounds is {arguments.rounds}, must be at least 1")
    saved: dict[str, Any] = {"rounds": arguments.rounds, "workloads": {}}
    names = arguments.workload or list(WORKLOADS)
    taken: dict[str, dict[str, list[float]]] = {workload: {name: [] for name in trees} for workload in names}
    for nth in range(arguments.rounds):
        workers = {name: Worker(tree, arguments.model) for name, tree in trees.items()}
        saved["machine"] = workers["after"].machine
        for workload in names:
            for name in list(workers) if nth % 2 else list(workers)[::-1]:
                taken[workload][name].append(workers[name].serve(workload))
        for worker in workers.values():
            worker.end()
        print(f"round {nth + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    print(saved["machine"])
    print(f"{'workload':<10} {'before, s':>10} {'after, s':>10}   times as fast: median of {arguments.rounds} rounds, "
          "then each round")
    for workload, seconds in taken.items():
        ratios = [before / after for before, after in zip(seconds["before"], seconds["after"])]
        saved["workloads"][workload] = {**seconds, "ratio": statistics.median(ratios)}
        medians = " ".join(f"{statistics.median(seconds[name]):>10.2f}" for name in ("before", "after"))
        print(f"{workload:<10} {medians}   {statistics.median(ratios):.3f}  "
              + " ".join(f"{ratio:.2f}" for ratio in ratios), flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")
    return 0


class Worker:
    """A process that serves workloads with the code of one tree."""

    def __init__(self, tree: Path, model: str) -> None:
        self._tree = tree
        environment = {**os.environ, "PYTHONPATH": str(tree.resolve())}
        self._process = subprocess.Popen([sys.executable, __file__, "--serve", model], cwd=tree, env=environment,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.machine = self._ask("").strip()
        self.serve("single")  # warm-up: starts threads and allocates memory

    def serve(self, workload: str) -> float:
        """Serve a workload and return the seconds that it took."""
        return float(self._ask(workload))

    def end(self) -> None:
        self._process.communicate()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that serves with {self._tree} ended with {self._process.wait()}")
        return answer


def serve_lines(model: str) -> None:
    """Run the worker process: read one workload per line from stdin and print the seconds that each took.

    An empty line asks for a description of the machine.
    """
    from mini_vllm.benchmark.machine import describe_machine
    from mini_vllm.models.loader import load
    loaded = load(model)
    for line in sys.stdin:
        name = line.strip()
        print("; ".join(describe_machine()) if not name else _seconds(loaded, name), flush=True)


def _seconds(loaded: Any, name: str) -> float:
    """Serve the workload ``name`` and return the seconds that it took.

    Import only what older trees also contain.
    """
    if name == "single":
        prompt = loaded.tokenizer.encode("Once upon a time there was a little girl who lived at the edge of the forest")
        return _serve(loaded, [[prompt]], num_tokens=128)
    if name == "prefix":
        ids = [token % 1000 + 1 for token in range(1024)]
        prompts = [ids + [token * (request + 7) % 1000 + 1 for token in range(76)] for request in range(17)]
        # all at once, then one after another, then all at once after one earlier request
        return sum(_serve(loaded, turns, num_tokens=16) for turns in (
            [prompts[:16]], [[prompt] for prompt in prompts[:16]], [prompts[16:], prompts[:16]]))
    from mini_vllm.benchmark.throughput import serve
    from mini_vllm.benchmark.workloads import make_workload
    workload = make_workload(name, loaded.config.vocab_size, loaded.config.max_position_embeddings)
    start_s = time.perf_counter()
    serve(loaded, workload, "mini_vllm", lambda num_finished, num_tokens: None)
    return time.perf_counter() - start_s


def _serve(loaded: Any, turns: Sequence[Sequence[list[int]]], num_tokens: int) -> float:
    """Serve the turns one after another with a new engine, the prompts of a turn at once. Return the seconds."""
    from mini_vllm.engine import LLMEngine
    from mini_vllm.engine_config import EngineConfig
    from mini_vllm.request import SamplingParams
    engine = LLMEngine(EngineConfig(num_blocks=600), loaded=loaded)
    params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)
    start_s = time.perf_counter()
    for prompts in turns:
        for prompt in prompts:
            engine.add_request(prompt, params)
        while engine.has_unfinished_requests():
            engine.step()
    return time.perf_counter() - start_s


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve_lines(sys.argv[2])
    else:
        sys.exit(main())

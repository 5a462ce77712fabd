"""Compare the speed of two source trees: serve the same workloads with each in turn and print the speedup.

    git worktree add /tmp/before HEAD~1
    python tools/compare_trees.py /tmp/before .            # every workload, five rounds
    python tools/compare_trees.py /tmp/before . --workload decode-16 --workload mixed-16 --rounds 9

Each tree is served by its own process, and only one process works at a time. Both processes are restarted for every
round: depending on where its threads and memory happen to be placed, a process can be 1.1 times as fast as another for
its whole lifetime.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

#: Name → the number of requests, the fewest and the most tokens of a prompt, and of an output.
WORKLOADS = {"single": (1, (20, 20), (128, 128)), "decode-16": (16, (16, 32), (128, 128)),
             "nano-16": (16, (32, 256), (32, 256)), "mixed-16": (16, (32, 512), (16, 128)),
             "mixed-64": (64, (32, 512), (16, 128))}
#: Serves with the code of one tree: reads lists of prompts and numbers of tokens, and prints the seconds of each list.
#: It imports only what older trees also contain.
SERVE = """
import json, sys, time
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.loader import load
from mini_vllm.request import SamplingParams
loaded = load(sys.argv[1])
for line in sys.stdin:
    engine = LLMEngine(EngineConfig(num_blocks=2000), loaded=loaded)
    start_s = time.perf_counter()
    for prompt, num_tokens in json.loads(line):
        engine.add_request(prompt, SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
    print(time.perf_counter() - start_s, flush=True)
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="tiny-tales")
    arguments = parser.parse_args(argv)
    trees: dict[str, Path] = {"before": arguments.before, "after": arguments.after}
    for tree in trees.values():
        if not (tree / "mini_vllm").is_dir():
            parser.error(f"{tree} is not a source tree: it contains no mini_vllm/")
    names = arguments.workload or list(WORKLOADS)
    taken: dict[str, dict[str, list[float]]] = {workload: {name: [] for name in trees} for workload in names}
    for nth in range(arguments.rounds):
        workers = {name: start(tree, arguments.model) for name, tree in trees.items()}
        for workload in names:
            for name in list(workers) if nth % 2 else list(workers)[::-1]:
                taken[workload][name].append(ask(workers[name], workload))
        for worker in workers.values():
            worker.communicate()
    print(f"{'workload':<10} {'before, s':>10} {'after, s':>10}   times as fast: median of {arguments.rounds} rounds, "
          "then each round")
    for workload, seconds in taken.items():
        ratios = [before / after for before, after in zip(seconds["before"], seconds["after"])]
        medians = " ".join(f"{statistics.median(seconds[name]):>10.2f}" for name in trees)
        print(f"{workload:<10} {medians}   {statistics.median(ratios):.3f}  "
              + " ".join(f"{ratio:.2f}" for ratio in ratios), flush=True)
    return 0


def start(tree: Path, model: str) -> subprocess.Popen[str]:
    worker = subprocess.Popen([sys.executable, "-c", SERVE, model], cwd=tree, stdin=subprocess.PIPE, text=True,
                              env={**os.environ, "PYTHONPATH": str(tree.resolve())}, stdout=subprocess.PIPE)
    ask(worker, "single")  # warm-up: starts threads and allocates memory
    return worker


def ask(worker: subprocess.Popen[str], workload: str) -> float:
    """Let a worker serve a workload, and return the seconds that it took."""
    rng, (count, prompt_tokens, output_tokens) = random.Random(0), WORKLOADS[workload]
    requests = [([rng.randrange(1, 1000) for _ in range(rng.randint(*prompt_tokens))], rng.randint(*output_tokens))
                for _ in range(count)]
    assert worker.stdin is not None and worker.stdout is not None
    print(json.dumps(requests), file=worker.stdin, flush=True)
    answer = worker.stdout.readline()
    if not answer:
        raise RuntimeError(f"a process ended with status {worker.wait()}")
    return float(answer)


if __name__ == "__main__":
    sys.exit(main())

"""Run the suites of `make test` in random order while other programs keep every core busy, and once on one core.

    python tools/orders.py [--seed N] [--rounds 3] [PYTEST ARGUMENTS]

Each run prints its seed and pytest's last line. To repeat a failure, use its seed: `--seed 17 --rounds 1`. Modules are
shuffled, and tests are shuffled within their module, so that a module's fixture is created once. This file is also the
pytest plugin that shuffles.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SEED_VARIABLE = "TEST_ORDER_SEED"
#: The same as in the Makefile.
SUITES = ("mini_vllm", "course", "tools", "phase-05-mlx-engine/capstone/test_capstone.py::test_every_part_is_ones_own")


def shuffled(names: list[str], seed: str) -> list[int]:
    """Return the indices of test ids in a random order that keeps the tests of one module together."""
    module_of = [name.split("::")[0] for name in names]
    order = {module: random.Random(f"{seed} {module}").random() for module in module_of}
    return sorted(range(len(names)), key=lambda i: (order[module_of[i]], random.Random(f"{seed} {names[i]}").random()))


def pytest_collection_modifyitems(items: list[object]) -> None:
    """Shuffle the tests, in the same way in each xdist worker."""
    seed = os.environ.get(SEED_VARIABLE)
    if seed is not None:
        items[:] = [items[i] for i in shuffled([item.nodeid for item in items], seed)]  # type: ignore[attr-defined]


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep every core busy with one process per core."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def run_suites(seed: int, what: str, prefix: list[str], num_workers: int, arguments: list[str]) -> bool:
    """Run all suites in the order of ``seed``. Print the output of a failed run, but only the last line of others."""
    command = [*prefix, sys.executable, "-m", "pytest", "-q", "-n", str(num_workers), "--dist", "worksteal", "-p",
               "no:nbval", "-p", Path(__file__).stem, *(arguments or SUITES)]
    environment = {**os.environ, SEED_VARIABLE: str(seed), "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    if done.returncode:
        print(done.stdout)
    print(f"order of seed {seed}, {what}: {done.stdout.strip().splitlines()[-1]}", flush=True)
    return done.returncode == 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="orders", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, help="seed of the first round (default: a random one)")
    parser.add_argument("--rounds", type=int, default=3,
                        help="number of rounds on busy cores; the seed grows by 1 per round (default: 3)")
    parser.add_argument("--no-pin", action="store_true", help="leave out the run on one core")
    options, rest = parser.parse_known_args(arguments)
    seed = random.randrange(10**6) if options.seed is None else options.seed
    num_cores = os.cpu_count() or 1
    with busy_cores():
        passed = [run_suites(seed + index, f"{num_cores} cores, all busy", [], num_cores, rest)
                  for index in range(options.rounds)]
    if not options.no_pin:
        one_core = ["taskset", "-c", "0"]
        passed.append(run_suites(seed + options.rounds, "pinned to one core", one_core, num_cores, rest))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

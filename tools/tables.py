"""Write the tables of measured numbers in the README and docs from the results in ``benchmarks/``.

    python tools/tables.py            rewrite the tables
    python tools/tables.py --check    list the tables that do not match the results, and exit with 1 if there are any

A table is between ``<!-- table: KIND FILE … -->`` and ``<!-- end of table -->``. TABLES lists the kinds. A file is the
``--output`` of a benchmark and says where its numbers come from (``mini_vllm/benchmark/results.py``). A file that
breaks this rule is refused.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from measure.__main__ import make_parser as measure_parser

from mini_vllm.benchmark.machine import git
from mini_vllm.benchmark.results import BATCHED, LLAMA, ONE_AT_A_TIME, PEER, VLLM_TYPES, digest
from mini_vllm.benchmark.workloads import WORKLOADS
from mini_vllm.cli import make_parser as cli_parser
from mini_vllm.cli.arguments import parse_arguments

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/*.md")
RESULTS = "benchmarks"
#: The start of a benchmark's last line.
IN_SHORT = "In short: "
#: The commands that write results: their first words, and what parses the rest.
COMMANDS = {"mini-vllm bench": cli_parser, "python tools/measure": measure_parser}
BLOCK = re.compile(r"<!-- table: (?P<words>[^>\n]+) -->\n(?P<text>.*?)<!-- end of table -->", re.S)


def faults(result: Mapping[str, Any], trees: Collection[str] | None) -> list[str]:
    """Return how a result breaks the rule. ``trees`` are the tree ids of the history, or None if it is not here."""
    found = []
    if result.get("sha256") != digest(result):
        found.append("it was changed after it was measured: its sha256 is not that of its content")
    if trees is not None and result.get("tree") not in trees:
        found.append(f"no commit has the tree {result.get('tree')!r}: measure a tree that has landed")
    if result.get("modified") != []:
        found.append(f"the measured tree was modified: {result.get('modified')}")
    if not parses(result.get("command", "")):
        found.append(f"this command does not run: {result.get('command')!r}")
    for name, keys in (("machine", {"device", "cores", "blas"}), ("noise", {"others_cores", "slowdown", "cause"})):
        if not keys <= result.get(name, {}).keys():
            found.append(f"it does not say its {name}")
    return found


def parses(command: str) -> bool:
    """Check whether a command's options still exist, and whether it measured all and not ``--quick``."""
    words = shlex.split(command)
    make_parser = COMMANDS.get(" ".join(words[:2]))
    if make_parser is None:
        return False
    parser = make_parser()
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            return not parse_arguments(parser, words[len(parser.prog.split()):]).quick
        except SystemExit:
            return False


def trees_of_history(root: Path = ROOT) -> frozenset[str] | None:
    """Return the tree ids of all commits, or None if this is no checkout, or one without its whole history."""
    if not (root / ".git").exists() or git(root, "rev-parse", "--is-shallow-repository") != "false\n":
        return None
    return frozenset((git(root, "log", "--format=%T") or "").split())


def read(path: Path, trees: Collection[str] | None) -> dict[str, Any]:
    """Return a result. Raise ValueError if it breaks the rule."""
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if found := faults(result, trees):
        raise ValueError(f"{path.name}: {'; '.join(found)}")
    return result


def _but(noise: Mapping[str, Any]) -> str:
    """Say what disturbed a measurement; empty if nothing did."""
    return f", but {noise['cause']}" if noise["cause"] else ""


#: The result of a kind of table: its titles, and its rows.
Rows = tuple[Sequence[str], Sequence[Sequence[str]]]


def throughput(results: Sequence[dict[str, Any]]) -> Rows:
    """Return a row per workload and a column per result."""
    titles = ["workload", *(f"`{result['model']}`, {_machine(result)}" for result in results)]
    rows = [[f"`{name}`: {WORKLOADS[name][0]}",
             *(_cell(result, name) if name in result["speed_ups"] else "" for result in results)]
            for name in WORKLOADS if any(name in result["speed_ups"] for result in results)]
    return titles, rows


def _machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    device = re.sub(r", \d+ cores\)$|\)$", "", machine["device"].partition("(")[2])
    return f"{machine['cores']} cores of {device}, {machine['blas']}, tree {result['tree'][:10]}"


def _cell(result: dict[str, Any], workload: str) -> str:
    ratios = result["speed_ups"][workload]
    parts = [f"{ratios[arm]:.2f} times {arm}" for arm in (ONE_AT_A_TIME, PEER, *VLLM_TYPES, LLAMA)
             if arm in ratios]
    gaps = {row["arm"]: row["worst_gap_beside_prompt_s"] / row["between_tokens_s"]["50"] for row in result["results"]
            if row["workload"] == workload and row["worst_gap_beside_prompt_s"] and row["arm"] != ONE_AT_A_TIME}
    if BATCHED in gaps:
        peer = f" (mlx-lm: {gaps[PEER]:.0f} times)" if PEER in gaps else ""
        parts.append(f"worst gap between tokens {gaps[BATCHED]:.1f} times the median{peer}")
    parts += [f"{row['arm']} has other tokens for {row['num_different']} requests" for row in result["results"]
              if row["workload"] == workload and row["num_different"]]
    return ", ".join(parts) + _but(result["noise_of"][workload])


def commands(results: Sequence[dict[str, Any]]) -> Rows:
    """Return the summary lines of ``python tools/measure NAME``, with a row per name."""
    rows = []
    for result in results:
        told = [line.removeprefix(IN_SHORT) for line in result["printed"] if line.startswith(IN_SHORT)]
        if not told:
            raise ValueError(f"{result['command']}: no line begins with {IN_SHORT!r}")
        name = shlex.split(result["command"])[2]
        rows.append((f"`{name}`", "; ".join(told), _machine(result)))
    return ["`python tools/measure …`", "result", "machine"], rows


def printed(results: Sequence[dict[str, Any]]) -> Rows:
    """Return the table that a measurement printed: the lines whose cells are two spaces apart."""
    titles, *rows = [cells for result in results for line in result["printed"]
                     if len(cells := re.split(r"\s{2,}", line.strip())) > 2]
    return titles, rows


def lines_of(kind: str, results: Sequence[dict[str, Any]]) -> list[str]:
    """Return a table. Below one that a measurement printed are the machines."""
    titles, rows = TABLES[kind](results)
    machines = "; ".join(_machine(result) + _but(result["noise"]) for result in results)
    return [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|", *(f"| {' | '.join(row)} |" for row in rows),
            *(["", f"({machines})"] if kind == "printed" else [])]


TABLES: dict[str, Callable[[Sequence[dict[str, Any]]], Rows]] = {
    "throughput": throughput, "commands": commands, "printed": printed}


def filled(text: str, folder: Path, trees: Collection[str] | None) -> str:
    """Return the page with its tables filled from the results. Raise ValueError for one that breaks the rule."""
    def table(match: re.Match[str]) -> str:
        kind, *names = match["words"].split()
        results = [read(folder / name, trees) for name in names]
        return "\n".join([f"<!-- table: {match['words']} -->", *lines_of(kind, results), "<!-- end of table -->"])

    return BLOCK.sub(table, text)


def pages(root: Path = ROOT) -> list[Path]:
    return [path for pattern in PAGES for path in sorted(root.glob(pattern))]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args(argv)
    status, trees = 0, trees_of_history()
    if trees is None:
        print("This is no checkout with its whole history: the tree ids are not checked.", file=sys.stderr)
    for path in pages():
        before = path.read_text(encoding="utf-8")
        try:
            after = filled(before, ROOT / RESULTS, trees)
        except ValueError as error:
            parser.error(f"{path.relative_to(ROOT)}: {error}")
        if after != before:
            print(f"{path.relative_to(ROOT)}: {'not what the results say' if arguments.check else 'written'}")
            status = int(arguments.check)
            if not arguments.check:
                path.write_text(after, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())

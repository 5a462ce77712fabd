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

from measure.__main__ import TIMED
from measure.__main__ import make_parser as measure_parser

from mini_vllm.benchmark.machine import git
from mini_vllm.benchmark.results import BATCHED, LLAMA, ONE_AT_A_TIME, PEER, VLLM_TYPES, digest
from mini_vllm.benchmark.traffic import TRAFFICS
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
Rows = tuple[Sequence[str], Sequence[Sequence[object]]]


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


def gpu_steps(results: Sequence[dict[str, Any]]) -> Rows:
    """Return the milliseconds per decode step: a row for each combination of request count and context."""
    rows = [(f"{row['num_requests']}{kind}", row["context"], f"{row['ours_ms']:.2f}", _number(row["peer_ms"]),
             _number(row["ratio"], ".1f", " times"), _number(row["floor_ms"]) + _but(result["noise"]))
            for result in results
            for kind, of_kind in (("", result), (", weights of 4 bits", result.get("quantised", {})))
            for row in of_kind.get("steps", ())]
    return ["requests", "context", "ours", "mlx-lm", "ratio", "floor"], rows


def gpu_workloads(results: Sequence[dict[str, Any]]) -> Rows:
    """Return whole workloads, one row each."""
    rows = []
    for row, noise in ((row, result["noise"]) for result in results for row in result["workloads"]):
        ours, peer = row["ours"], row["peer"] or {"output_tokens_per_s": None}
        gap_s, median_s = (ours["between_tokens_s"][percent] for percent in ("100", "50"))
        rows.append((f"`{ours['workload']}`", f"{ours['output_tokens_per_s']:.0f}",
                     _number(peer["output_tokens_per_s"], ".0f"), _number(row["ratio"], ".1f", " times"),
                     f"{gap_s / median_s:.1f} times the median: {gap_s * 1000:.0f} ms{_but(noise)}"))
    return ["tokens/s", "ours", "mlx-lm", "ratio", "longest time between two tokens"], rows


def _number(number: float | None, form: str = ".2f", unit: str = "") -> str:
    return "" if number is None else f"{number:{form}}{unit}"


def goodput(results: Sequence[dict[str, Any]]) -> Rows:
    """Return the results of ``bench serve``, with a row per kind of request."""
    rows = []
    for result in results:
        for name, found in ((name, result[name]["goodput"]) for name in TRAFFICS if "goodput" in result.get(name, {})):
            cells = [f"{each['requests_per_s']:.2f} requests/s, {each['tokens_per_s']:.0f} tokens/s" if each else ""
                     for each in (found["goodput"][BATCHED], found["goodput"].get(PEER))]
            ratio = _number(found["ratios"].get(PEER), ".1f", " times") + _but(found["noise"])
            rows.append((f"{name}: {TRAFFICS[name].about}", *cells, ratio, _machine(result)))
    return ["requests", "ours", "mlx-lm's", "ratio", "machine"], rows


def priority(results: Sequence[dict[str, Any]]) -> Rows:
    """Return how soon high-priority requests are served while low-priority ones occupy the engine."""
    verdicts = {True: "met", False: "missed", None: "too few requests to tell"}
    rows = [(row["about"], f"{row['loaded_first_token_s']['90'] * 1000:.1f} ms",
             f"{row['bound_s'] * 1000:.1f} ms: {verdicts[row['holds']]}{_but(result['noise'])}",
             f"{row['num_low_finished']} of {row['num_low']}", _machine(result))
            for result in results for row in result["priority"]]
    return ["overload by low-priority requests", "first token of 90 % of the high-priority requests within", "target",
            "low-priority requests that finish", "machine"], rows


def drafts(results: Sequence[dict[str, Any]]) -> Rows:
    """Return how much faster decoding is with drafts: a row per kind of text, batch size and number of tokens."""
    rows = []
    for result, cell in ((each, cell) for each in results for cell in each["cells"]):
        ratios = [plain / drafted for plain, drafted in zip(cell["plain_s"], cell["drafted_s"])]
        accepted = f"{cell['num_accepted'] / cell['num_drafted']:.0%}" if cell["num_drafted"] else "no drafts"
        but = ("" if cell["has_equal_tokens"] else ", other tokens than without drafts") + _but(result["noise"])
        rows.append((cell["kind"], cell["batch_size"], cell["num_speculative_tokens"],
                     f"{cell['steps_per_token']:.2f}", accepted,
                     f"{cell['ratio']:.2f} ({min(ratios):.2f}–{max(ratios):.2f}){but}",
                     f"`{result['model']}`, {_machine(result)}"))
    return ["text", "requests", "k", "steps per token", "accepted", "times as fast (lowest–highest round)",
            "machine"], rows


def commands(results: Sequence[dict[str, Any]]) -> Rows:
    """Return the summary lines of ``python tools/measure NAME``, with a row per name."""
    rows = []
    for result in results:
        told = [line.removeprefix(IN_SHORT) for line in result["printed"] if line.startswith(IN_SHORT)]
        if not told:
            raise ValueError(f"{result['command']}: no line begins with {IN_SHORT!r}")
        name = shlex.split(result["command"])[2]
        noise = _but(result["noise"]) if name in TIMED else ""
        rows.append((f"`{name}`", "; ".join(told) + noise, _machine(result)))
    return ["`python tools/measure …`", "result", "machine"], rows


def printed(results: Sequence[dict[str, Any]]) -> Rows:
    """Return the table that a measurement printed: the lines whose cells are two spaces apart."""
    titles, *rows = [cells for result in results for line in result["printed"]
                     if len(cells := re.split(r"\s{2,}", line.strip())) > 2]
    return titles, rows


def lines_of(kind: str, results: Sequence[dict[str, Any]]) -> list[str]:
    """Return a table. Below one that a measurement printed are the machines."""
    titles, rows = TABLES[kind](results)
    is_printed = TABLES[kind] is printed
    rule = f"| {' | '.join(['---'] * len(titles))} |" if is_printed else "|---" * len(titles) + "|"
    machines = "; ".join(_machine(result) + _but(result["noise"]) for result in results)
    return [f"| {' | '.join(titles)} |", rule, *(f"| {' | '.join(map(str, row))} |" for row in rows),
            *(["", f"({machines})"] if is_printed else [])]


TABLES: dict[str, Callable[[Sequence[dict[str, Any]]], Rows]] = {
    "throughput": throughput, "gpu-steps": gpu_steps, "gpu-workloads": gpu_workloads, "goodput": goodput,
    "priority": priority, "drafts": drafts, "commands": commands, "printed": printed}


def filled(text: str, folder: Path, trees: Collection[str] | None) -> str:
    """Return the page with its tables filled from the results.

    Raise ValueError for an unknown kind, a missing file, or one that breaks the rule.
    """
    def table(match: re.Match[str]) -> str:
        kind, *names = match["words"].split()
        if kind not in TABLES:
            raise ValueError(f"there is no table {kind!r}, only {', '.join(TABLES)}")
        missing = [name for name in names if not (folder / name).is_file()]
        if missing or not names:
            raise ValueError(f"table {kind}: " + (f"{missing[0]} is not in {folder.name}/" if missing else "no file"))
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

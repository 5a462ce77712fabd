"""The files and lines that one request runs: ``LLM("tiny-tales").generate`` of 40 tokens, in a fresh process.

Loading the model is included. A file counts if one of its functions is entered, and only lines of functions count: the
definitions that run at import do not. If the step in C runs, its files are added.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "mini_vllm"
#: Prints the functions and the lines of the package that are entered, and whether C computed the steps.
TRACED = f"""
import inspect, sys, threading
package, functions, lines = {str(PACKAGE)!r}, set(), set()
def trace(frame, event, argument):
    code = frame.f_code
    if not code.co_filename.startswith(package) or not code.co_flags & inspect.CO_OPTIMIZED:
        return None  # the body of a module or of a class
    if event == "call" and not code.co_name.startswith("<"):
        functions.add((code.co_filename, code.co_firstlineno))
    if event == "line":
        lines.add((code.co_filename, frame.f_lineno))
    return trace
threading.settrace(trace)
sys.settrace(trace)
from mini_vllm import LLM, SamplingParams
llm = LLM("tiny-tales")
(output,) = llm.generate("Once upon a time", SamplingParams(max_tokens=40))
sys.settrace(None)
assert output.token_ids
print("native" if "native" in type(llm.engine.runner).__module__ else "mlx")
for name, number in functions:
    print("function", number, name)
for name, number in lines:
    print("line", number, name)
"""


def traced() -> tuple[bool, dict[str, tuple[int, int]]]:
    """Return whether C computed the steps, and for each file its entered functions and executed lines."""
    done = subprocess.run([sys.executable, "-c", TRACED], cwd=ROOT, capture_output=True, text=True, check=True)
    first, *entries = done.stdout.splitlines()
    counts: dict[str, tuple[int, int]] = {}
    for entry in entries:
        kind, _, name = entry.split(" ", 2)
        num_functions, num_lines = counts.get(name, (0, 0))
        counts[name] = (num_functions + (kind == "function"), num_lines + (kind == "line"))
    return first == "native", counts


def run() -> None:
    is_native, counts = traced()
    total = 0
    print(f"{'file':<44} {'lines':>6} {'run':>6} {'functions':>10}")
    for name, (num_functions, num_run) in sorted(counts.items()):
        num_lines = len(Path(name).read_text(encoding="utf-8").splitlines())
        total += num_lines
        print(f"{str(Path(name).relative_to(ROOT)):<44} {num_lines:>6,} {num_run:>6,} {num_functions:>10,}")
    functions, run_lines = (sum(column) for column in zip(*counts.values()))
    print(f"{len(counts)} files with {total:,} lines; {functions:,} functions entered, {run_lines:,} lines executed")
    if is_native:
        sources = sorted(path for path in (PACKAGE / "native").iterdir() if path.suffix in (".c", ".h"))
        num_c = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources)
        print(f"the step in C: {len(sources)} more files with {num_c:,} lines; together {total + num_c:,} lines")

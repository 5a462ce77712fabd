"""Lines of code that git tracks: by package of the engine and the course, of the labs, of the tools, and in all.

Code is Python, C, headers, kernels, JavaScript, HTML, CSS, diffs, TOML, and the JSON that holds solutions. Tests are
test files, conftest.py, folders of tests, and the files that attack the grader.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = (".py", ".c", ".h", ".metal", ".cu", ".js", ".html", ".css", ".diff", ".patch", ".toml")
KIND_OF_JSON = {"solutions.json": "right variants", "variants.json": "wrong variants"}
TEST_FOLDERS = {"tests", "hostile", "browser"}


def tracked(root: Path) -> dict[Path, int]:
    """Return the number of lines of each file with code that git tracks, by its path below ``root``."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    paths = [Path(name) for name in listed.split("\0") if name]
    return {path: len((root / path).read_text(encoding="utf-8").splitlines()) for path in paths
            if (path.suffix in SUFFIXES or path.name in KIND_OF_JSON) and (root / path).is_file()}


def is_test(path: Path) -> bool:
    return path.name.startswith(("test_", "conftest")) or not TEST_FOLDERS.isdisjoint(path.parts)


def package_table(lines: dict[Path, int], top: str) -> list[str]:
    """Return a row for each package below ``top``: source in Python, its files, other languages, tests."""
    source, files, other, tests = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for path, count in lines.items():
        if path.parts[0] != top:
            continue
        for row in (f"{path.parts[1]}/" if len(path.parts) > 2 else "modules in the root", "all"):
            if path.suffix != ".py":
                other[row] += count
            elif is_test(path):
                tests[row] += count
            else:
                source[row] += count
                files[row] += 1
    rows = sorted({*source, *other, *tests} - {"all"}, key=lambda row: -source[row])
    return [f"{top:<24} {'source':>8} {'files':>6} {'other':>7} {'tests':>8}",
            *(f"{row:<24} {source[row]:>8,} {files[row]:>6,} {other[row]:>7,} {tests[row]:>8,}"
              for row in (*rows, "all"))]


def kind_in_labs(path: Path) -> str | None:
    """Return what a file is to the labs, None if it is not theirs."""
    if path.name in KIND_OF_JSON:
        return KIND_OF_JSON[path.name]
    if not path.parts[0].startswith("phase-"):
        return None
    return ("tests" if is_test(path) else "mutants" if "mutant" in str(path) or path.suffix in (".diff", ".patch")
            else "starters" if path.name == "starter.py" else "solutions and others")


def run() -> None:
    lines = tracked(ROOT)
    for top in ("mini_vllm", "course"):
        print(*package_table(lines, top), sep="\n", end="\n\n")
    labs = Counter[str]()
    for path, count in lines.items():
        labs[kind_in_labs(path) or ""] += count
    print("labs: " + ", ".join(f"{kind} {labs[kind]:,}" for kind in sorted(labs) if kind))
    tools = {path: count for path, count in lines.items() if path.parts[0] == "tools" and path.suffix == ".py"}
    num_tests = sum(count for path, count in tools.items() if is_test(path))
    print(f"tools: {sum(tools.values()):,}, of which tests {num_tests:,}")
    print(f"all code that git tracks: {sum(lines.values()):,} lines in {len(lines):,} files")

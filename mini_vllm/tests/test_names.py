"""The package as users see it: the names that ``mini_vllm`` offers, what importing them costs, and its two commands."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mini_vllm

ROOT = Path(mini_vllm.__file__).parents[1]
HOMES = mini_vllm._HOMES


def run_python(*arguments):
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("name", sorted(HOMES))
def test_a_name_is_the_one_of_the_module_that_defines_it(name):
    value = getattr(mini_vllm, name)
    assert value.__module__ == f"mini_vllm.{HOMES[name]}", f"{name} is only passed on by {HOMES[name]}"


def test_what_the_pages_import_from_the_package_is_there():
    """Check the imports of all pages.

    Pages of phases 05 and 06 are about the inside of the engine and may import other names.
    """
    pages = [ROOT / "README.md", *ROOT.glob("phase-*/**/README.md")]
    lines = {page: re.findall(r"^\s*from mini_vllm[\w.]* import .*$", page.read_text(encoding="utf-8"), re.M)
             for page in pages}
    assert sum(map(len, lines.values())) > 20
    names = {alias.name for page in pages if not {"phase-05-mlx-engine", "phase-06-further"} & set(page.parts)
             for line in lines[page] for alias in ast.parse(line.strip()).body[0].names}
    assert names <= set(HOMES), f"pages import {sorted(names - set(HOMES))}, which the package does not offer"
    for line in {line for of_page in lines.values() for line in of_page}:
        exec(line.strip(), {})


@pytest.mark.parametrize("module", ["block_pool", "kv_cache", "scheduler", "request", "prefix_tree", "request_queue"])
def test_what_the_first_labs_teach_loads_neither_mlx_nor_the_engine(module):
    code = f"import sys, mini_vllm.{module}; print(*sys.modules)"
    loaded = set(run_python("-c", code).stdout.split())
    assert f"mini_vllm.{module}" in loaded
    heavy = sorted(name for name in loaded if name.split(".")[0] in ("mlx", "numpy", "tokenizers")
                   or name in ("mini_vllm.backend", "mini_vllm.engine", "mini_vllm.llm", "mini_vllm.models"))
    assert not heavy, f"import mini_vllm.{module} loads {heavy}"


def test_the_package_alone_loads_none_of_its_modules():
    code = "import sys, mini_vllm; print(*sys.modules)"
    assert [name for name in run_python("-c", code).stdout.split() if name.startswith("mini_vllm")] == ["mini_vllm"]


# ---- the commands


def test_the_version_is_printed():
    for arguments in (["-m", "mini_vllm", "--version"], ["-m", "mini_vllm.cli", "--version"]):
        run = run_python(*arguments)
        assert (run.returncode, run.stdout) == (0, f"mini-vllm {mini_vllm.__version__}\n"), run.stderr

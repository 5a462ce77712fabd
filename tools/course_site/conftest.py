"""A small course, for tests that must not depend on the texts of the real one."""

import json
from pathlib import Path

import pytest

FILES = {
    "README.md": "# Small\n\nA small course.\n\n## The course\n\n[Phase](phase-01-a/README.md), [end](#measured).\n\n"
                 "## Measured\n\n| what | result |\n|---|---|\n| `speed` | 3.5 times as fast (12 cores) |\n\n### How\n",
    "CHANGELOG.md": "# Changelog\n",
    "docs/engine.md": "# Map\n\n## The modules\n\nThe course.\n\n| module | lab |\n|---|---|\n| `queue.py` | 1.1 |\n"
                      "| `one.py`, `two.py` | – |\n\nThe rooms:\n\n| room |\n|---|\n| `fast/` |\n| `tests/` |\n",
    "docs/site/index.md": "# Small\n\n{{README.md}}\n",
    "docs/picture.svg": "<svg/>",
    "mini_vllm/queue.py": '"""A queue."""\n',
    "mini_vllm/fast/__init__.py": "",
    "mini_vllm/fast/exp.py": "",
    "mini_vllm/fast/test_exp.py": "",
    "notebooks/00-tour.ipynb": json.dumps({"cells": [
        {"cell_type": "markdown", "source": ["# Tour\n", "[![Open](https://b.org/b.svg)](https://b.org/x)\n",
                                              "see [the lab](../phase-01-a/labs/lab-01-b/README.md)"]},
        {"cell_type": "code", "source": ["'[a](b.md)'"], "outputs": []}]}),
    "notebooks/01-a.ipynb": json.dumps({"cells": []}),
    "phase-01-a/README.md": "# Phase 01\n",
    "phase-01-a/labs/lab-01-b/README.md": "# Lab 1.1\n\n## Stretch\n\n- Why *so*?\n\n"
                                          "## The interview question\n\n> And?\n",
    "phase-01-a/labs/lab-01-b/hints.md": "# Hints\n\n## Task 1: add\n\n### Hint 1\nA.\n\n### Hint 2\nB.\n\n"
                                         "### Hint 3\n`C`.\n",
    "phase-01-a/labs/lab-01-b/answers.md": "# Answers\n\n## Stretch 1\n\nSo.\n\n## Interview\n\nYes.\n",
    "phase-01-a/labs/lab-01-b/starter.py": "",
    "phase-01-a/labs/lab-01-b/solution.py": "",
    "phase-01-a/labs/lab-01-b/mutants.py": "",
    "phase-01-a/labs/lab-02-c/README.md": "# Lab 1.2\n",
    "phase-01-a/capstone/README.md": "# The end\n",
    "build/old.md": "",
    ".venv/lib/some.md": "",
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path

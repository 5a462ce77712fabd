"""`make test-drafts`: which suites it runs, that they draft, and what it leaves out."""

import re
import subprocess
import sys
from pathlib import Path

from mini_vllm.tests import drafts_by_default

ROOT = Path(__file__).parents[2]
#: A smaller minimum than that of whole suites.
CONFTEST = """
from mini_vllm.tests import drafts_by_default
drafts_by_default.MINIMUM.update(drafted=200, accepted=60)
"""
#: Each test drafts and accepts less than the minimum, both together more.
TESTS = """
import pytest
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.request import SamplingParams

@pytest.mark.parametrize("half", ["one", "two"])
def test_half(half):
    engine = LLMEngine(EngineConfig(num_blocks=60))
    for again in "ab":
        for number in range(2):
            params = SamplingParams(max_tokens=20, temperature=1.0, seed=number, ignore_eos=True)
            engine.add_request([*range(10 + number, 20 + number)], params, f"{number}{again}")
        while engine.has_unfinished_requests():
            engine.step()

@pytest.mark.without_drafts("counts steps")
def test_left_out():
    assert False
"""


def run_tests(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_some.py").write_text(TESTS)
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:nbval", "-p", "no:cacheprovider", "-p",
                           drafts_by_default.__name__, str(folder), *options], cwd=ROOT, capture_output=True, text=True)


def test_the_counts_of_all_workers_are_added_and_a_marked_test_is_left_out_and_listed(tmp_path):
    run = run_tests(tmp_path, "-n", "2")
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"1 test left out:\n  \S*test_some.py::test_left_out: counts steps\n", run.stdout)
    drafted, accepted = map(int, re.search(r"(\d+) tokens drafted, (\d+) of them accepted", run.stdout).groups())
    assert drafted >= 200 and 60 <= accepted < drafted


def test_every_suite_that_creates_engines_is_run_with_drafts_except_those_of_drafts():
    makefile = (ROOT / "Makefile").read_text()
    suites = re.search(r"^DRAFT_SUITES = (.*?)(?<!\\)\n", makefile, re.M | re.S)[1].replace("\\\n", " ").split()
    assert all((ROOT / suite).exists() for suite in suites)
    engines = re.compile(r"^from mini_vllm\S* import .*\b(LLMEngine|AsyncLLMEngine|LLM)\b", re.M)
    missing = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "mini_vllm").rglob("test_*.py"))
               if engines.search(path.read_text()) and not any(path.is_relative_to(ROOT / suite) for suite in suites)]
    assert missing == ["mini_vllm/speculation/test_model_drafter.py", "mini_vllm/speculation/test_speculation.py"]
    called = set((ROOT / ".ci/run").read_text().replace("\\\n", " ").split('DRAFT_SUITES="')[1].split('"')[0].split())
    assert called and all(any((ROOT / each).is_relative_to(ROOT / suite) for suite in suites) for each in called)

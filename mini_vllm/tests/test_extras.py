"""The commands that install optional packages: one per extra, the same in every message, in README and in docs."""

import subprocess
import sys

import pytest

from mini_vllm import extras
from mini_vllm.extras import PROJECT, check_installed, install_line


def test_outside_of_a_clone_the_packages_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(extras, "PROJECT", tmp_path)
    assert install_line("serve") == "pip install fastapi uvicorn prometheus_client llguidance"


def test_what_is_missing_is_named_with_the_line_and_what_is_there_is_not(monkeypatch):
    monkeypatch.chdir(PROJECT)
    check_installed("serve", "the server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ValueError, match=r'^the server needs uvicorn: pip install -e "\.\[serve\]"$'):
        check_installed("serve", "the server")


def without(package, code):
    """Run code in a Python in which a package is not installed."""
    return subprocess.run([sys.executable, "-c", f"import sys; sys.modules.update(dict.fromkeys({package!r}))\n{code}"],
                          cwd=PROJECT, capture_output=True, text=True)


def test_the_base_install_generates_and_names_the_extra_of_other_commands():
    run = without(["rich", "prompt_toolkit"], """
from mini_vllm import LLM, SamplingParams
from mini_vllm.cli import main
LLM("tiny-tales", num_blocks=8).generate("A fox", SamplingParams(max_tokens=1), use_progress=True)
assert main(["generate", "A fox", "--max-tokens", "2", "--kv-memory", "8MB"]) == 0
for command in (["demo"], ["demo", "blocks"]):
    assert main(command) == 2
import course.cli
""")
    said = [line for line in run.stderr.splitlines() if line and "0 of 1 outputs" not in line]
    assert run.returncode == 1 and said[0] == "1 of 1 outputs, 1 tokens" and said[1].startswith("first token ")
    line = install_line("cli")
    assert said[2:] == [f"mini-vllm: the demo needs rich, prompt_toolkit: {line}"] * 2 + [
        f"course: rich is missing: {install_line('course')}"]

"""Nobody is told to install a stranger's project: ``mini-vllm`` on the package index is not this one."""

import os
import re
import sys
from pathlib import Path

import pytest

from mini_vllm import backend
from mini_vllm.backend import BlasInfo
from mini_vllm.benchmark.plot import plot_results
from mini_vllm.cli import doctor, main
from mini_vllm.models.fields import LoadError
from mini_vllm.models.loader import load

ROOT = Path(__file__).parents[2]
STRANGER, OURS = "mini-vllm", "mini-vllm-course"
SUFFIXES = {".py", ".md", ".toml", ".cfg", ".ini", ".txt", ".sh", ".yml", ".yaml", ".json", ".ipynb"}
NAMES = {"Makefile", "run"}
INSTALLER = re.compile(r"\b(?:pip[\d.]*|pipx|uvx?)\b(?:\s+-?[\w-]+)*?\s+(?:install|add|download)\b([^;&|#`,()\n]*)")


def text_files():
    """The project's own texts: what is hidden or built is left out, except what runs on every change."""
    for folder, inner, files in os.walk(ROOT):
        inner[:] = [name for name in inner if name == ".ci" or not name.startswith((".", "__"))
                    and not name.endswith(".egg-info") and name not in ("assets", "build", "dist")]
        yield from (path for name in files if (path := Path(folder, name)).suffix in SUFFIXES or name in NAMES)


def advised(text):
    """The projects that ``text`` tells one to install, by their normalised names."""
    joined = re.sub(r"""["']\s*\n\s*[rfb]*["']""", "", text)  # a message may be written in several pieces
    for command in INSTALLER.findall(joined):
        for word in re.findall(r"[\w.\-]+", re.sub(r"\[.*?\]|[<>=~!].*?(?=\s|$)", " ", command)):
            yield re.sub(r"[-_.]+", "-", word).lower()


@pytest.mark.parametrize("command, expected", [
    ("pip install '{}[fast-cpu]', or apt install it", True),
    ("python -m pip install --quiet {}>=0.1", True),
    ("pip3 install rich {}", True),
    ("pip --no-input install {}", True),
    ("uv pip install {}", True),
    ("pipx install {}", True),
    ("uv add {}", True),
    ('"for the hub: pip install "\n    f"{}[hub]"', True),
    ('pip install -e ".[test]"', False),
    ("pip uninstall {}", False),
    ("`pip install nvpl-blas`, then {} doctor", False),
    ("pip install nvpl-blas && {} doctor", False),
    ("pip install rich\n{} doctor", False),
])
@pytest.mark.parametrize("name", [STRANGER, OURS, "mini_vllm", "Mini.vLLM"])
def test_advice_to_install_either_name_is_recognised(command, expected, name):
    found = set(advised(command.replace("{}", name))) & {STRANGER, OURS}
    assert bool(found) == expected


def test_no_text_advises_to_install_either_name_from_the_index():
    paths = list(text_files())
    assert {"pyproject.toml", "Makefile", "README.md", "AUTHORING.md", "doctor.py", "run"} <= {p.name for p in paths}
    found = {str(path.relative_to(ROOT)): name for path in paths
             for name in advised(path.read_text(encoding="utf-8")) if name in (STRANGER, OURS)}
    assert not found, f"these advise to install a project of that name from the index: {found}"


def test_the_distribution_has_a_name_of_its_own_and_the_commands_keep_theirs():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^name = "(.*)"$', text, re.MULTILINE)[1] == OURS
    assert re.search(r'^mini-vllm = "mini_vllm.cli:main"$', text, re.MULTILINE)
    assert re.search(r'^course = "course.cli:main"$', text, re.MULTILINE)


# ---- what the messages say


@pytest.mark.parametrize("machine, expected", [
    ("aarch64", "for faster products: pip install nvpl-blas, or apt install libopenblas0-pthread"),
    ("x86_64", "for faster products: pip install mkl, or apt install libopenblas0-pthread"),
    ("riscv64", "for faster products: apt install libopenblas0-pthread"),
])
def test_the_doctor_advises_what_runs_on_this_machine(monkeypatch, machine, expected):
    monkeypatch.setattr(doctor.platform, "machine", lambda: machine)
    assert doctor.advice(BlasInfo("reference", None, backend.NOT_FOUND)) == expected


def test_a_plot_without_matplotlib_names_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match="^--plot needs matplotlib: pip install matplotlib$"):
        plot_results([], "tiny-tales", tmp_path / "out.png")


def test_a_hub_name_without_the_client_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(LoadError, match="^'org/name' is no folder here; to fetch it from the hub: "
                                        "pip install huggingface_hub$"):
        load("org/name")


def test_a_comparison_without_mlx_lm_names_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mlx_lm.utils", None)
    assert main(["bench", "throughput", "--workload", "decode-16", "--arm", "mlx-lm"]) == 2
    assert capsys.readouterr().err == "mini-vllm: a comparison with mlx-lm needs it: pip install mlx-lm\n"

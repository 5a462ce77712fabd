"""The project as it is installed: the contents of a wheel, and that it works far from a checkout.

No text tells the reader to install another project: ``mini-vllm`` on the package index is not this one.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mini_vllm import __version__
from mini_vllm.cli import main
from mini_vllm.extras import install_line
from mini_vllm.models.config import LoadError
from mini_vllm.models.loader import load

ROOT = Path(__file__).parents[2]
#: The folder of the labs in a wheel.
COURSE = "course/_course/"
STRANGER, OURS = "mini-vllm", "mini-vllm-course"
SUFFIXES = {".py", ".md", ".toml", ".cfg", ".ini", ".txt", ".sh", ".yml", ".yaml", ".json", ".ipynb"}
NAMES = {"Makefile", "run"}
INSTALLER = re.compile(r"\b(?:pip[\d.]*|pipx|uvx?)\b(?:\s+-?[\w-]+)*?\s+(?:install|add|download)\b([^;&|#`,()\n]*)")


def text_files():
    """Return the project's own text files, without hidden and built ones, except those that run on every change."""
    for folder, inner, files in os.walk(ROOT):
        inner[:] = [name for name in inner if name in (".ci", ".github") or not name.startswith((".", "__"))
                    and not name.endswith(".egg-info") and name not in ("assets", "build", "dist")]
        yield from (path for name in files if (path := Path(folder, name)).suffix in SUFFIXES or name in NAMES)


def advised(text):
    """Return the normalised names of the projects that ``text`` tells the reader to install."""
    joined = re.sub(r"""["']\s*\n\s*[rfb]*["']""", "", text)  # a message may be written in several pieces
    for command in INSTALLER.findall(joined):
        for word in re.findall(r"[\w.\-]+", re.sub(r"\[.*?\]|[<>=~!].*?(?=\s|$)", " ", command)):
            yield re.sub(r"[-_.]+", "-", word).lower()


def test_no_text_advises_to_install_either_name_from_the_index():
    paths = list(text_files())
    some = {"pyproject.toml", "Makefile", "README.md", "AUTHORING.md", "doctor.py", "run", "test.yml"}
    assert some <= {path.name for path in paths}
    found = {str(path.relative_to(ROOT)): name for path in paths
             for name in advised(path.read_text(encoding="utf-8")) if name in (STRANGER, OURS)}
    assert not found, f"these advise to install a project of that name from the index: {found}"


# ---- the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build a wheel of the project in a copy of it, because building leaves files next to the sources."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("mini_vllm", "course", "docs", "notebooks", *(path.name for path in ROOT.glob("phase-*"))):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(out)!r})"
    run = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return zipfile.ZipFile(next(out.glob("*.whl")))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Unpack the wheel's files as pip does."""
    site = tmp_path_factory.mktemp("site")
    wheel.extractall(site)
    return site


def far_away(installed, folder, *arguments):
    """Run Python in ``folder`` with the wheel's packages first on its path.

    pytest runs without plugins that happen to be installed, which take seconds to load.
    """
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(installed), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})


def is_suite(path):
    folders = {"tests", "hostile", "browser"}
    return path.name.startswith("test_") or path.name == "conftest.py" or bool(folders & set(path.parts))


def test_a_wheel_holds_every_module_and_no_suite(wheel):
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name and not name.startswith(COURSE)}
    modules = {path.relative_to(ROOT) for name in ("mini_vllm", "course") for path in (ROOT / name).rglob("*.py")}
    assert {name for name in packed if name.endswith(".py")} == {
        path.as_posix() for path in modules if not is_suite(path)}
    assert len(modules) > len([path for path in modules if not is_suite(path)]) > 50


def test_a_wheel_holds_the_model_the_page_the_kernels_the_recorded_traces_and_the_mark_that_it_is_typed(wheel):
    assets = {path.relative_to(ROOT).as_posix() for path in (ROOT / "mini_vllm" / "assets").glob("*/*")}
    assert any(name.endswith("model.safetensors") for name in assets)
    page = {path.relative_to(ROOT).as_posix() for path in (ROOT / "mini_vllm/server/live/page").iterdir()}
    assert any(name.endswith("index.html") for name in page)
    kernels = {path.relative_to(ROOT).as_posix() for path in (ROOT / "mini_vllm/gpu/kernels/sources").glob("*.h")}
    assert any(name.endswith("decode.h") for name in kernels)
    native = {path.relative_to(ROOT).as_posix() for path in (ROOT / "mini_vllm/native").glob("*.[ch]")}
    assert "mini_vllm/native/step.c" in native
    traces = {path.relative_to(ROOT).as_posix() for path in (ROOT / "course/goodput/recorded").glob("*.json")}
    assert any(name.endswith("chats.json") for name in traces)
    others = {name for name in wheel.namelist() if not name.endswith(".py") and ".dist-info/" not in name}
    assert {name for name in others if not name.startswith(COURSE)} == {
        "mini_vllm/py.typed", *native, *assets, *page, *kernels, *traces}


def test_a_wheel_holds_the_course(wheel):
    here = {path.relative_to(ROOT).as_posix() for folder in (*ROOT.glob("phase-*"), ROOT / "docs", ROOT / "notebooks")
            for path in folder.rglob("*") if path.is_file() and not {"__pycache__", "site"} & set(path.parts)}
    packed = {name.removeprefix(COURSE) for name in wheel.namelist() if name.startswith(COURSE)}
    assert packed == here | {"README.md"} and len(packed) > 100


def test_from_a_wheel_the_course_is_laid_down_and_worked_on(installed, tmp_path):
    """Do what a student without git would do: init, look, solve, test, update."""
    def course(folder, *arguments):
        return far_away(installed, folder, "-m", "course.cli", *arguments)

    assert course(tmp_path, "init", "mine").returncode == 0
    mine = tmp_path / "mine"
    assert course(mine).stdout.startswith("Next: lab 1.0")
    lab = mine / "phase-02-paged-attention" / "labs" / "lab-01-block-allocator"
    shutil.copy(lab / "solution.py", lab / "starter.py")
    tested = course(lab, "test")
    assert tested.returncode == 0 and "Passed." in tested.stdout, tested.stdout + tested.stderr
    engine = far_away(installed, mine, "-m", "pytest", "-q", str(lab), "--impl", "engine", "-k", "task_1")
    assert engine.returncode == 0 and "lab 2.1 tests" in engine.stdout, engine.stdout
    tests = mine / "phase-05-mlx-engine" / "capstone" / "test_capstone.py"
    all_workloads, text = "*WORKLOADS).equal) == list(WORKLOADS)", tests.read_text(encoding="utf-8")
    assert all_workloads in text
    tests.write_text(text.replace(all_workloads, '"turns").equal) == ["turns"]'), encoding="utf-8")  # one shows the way
    capstone = far_away(installed, mine, "-m", "pytest", "-q", str(tests), "-k", "every")
    assert capstone.returncode == 0 and "2 passed" in capstone.stdout, capstone.stdout
    tests.write_text(text, encoding="utf-8")
    assert "up to date" in course(mine, "update").stdout


def test_an_installed_wheel_generates_far_from_a_checkout(installed, tmp_path):
    run = far_away(installed, tmp_path, "-m", "mini_vllm", "generate", "A king", "--max-tokens", "8", "--json",
                   "--kv-memory", "8MB")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["usage"]["completion_tokens"] == 8
    where = far_away(installed, tmp_path, "-c", "import mini_vllm, course; print(mini_vllm.__file__, course.__file__)")
    assert where.stdout.count(str(installed)) == 2
    assert far_away(installed, tmp_path, "-m", "mini_vllm", "--version").stdout == f"mini-vllm {__version__}\n"


def test_an_installed_wheel_says_where_the_course_is(installed, tmp_path):
    run = far_away(installed, tmp_path, "-m", "course.cli", "status")
    assert run.returncode == 2 and run.stdout == ""
    assert "`course init my-course`" in run.stderr and run.stderr.count("\n") == 1


# ---- the messages


def test_a_hub_name_without_the_client_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(LoadError, match=re.escape("there is no folder 'org/name' here; to download it from the hub: "
                                                  + install_line("hub"))):
        load("org/name")


def test_a_comparison_without_mlx_lm_names_it(few_products, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mlx_lm.utils", None)
    assert main(["bench", "throughput", "--workload", "decode-16", "--arm", "mlx-lm"]) == 2
    assert capsys.readouterr().err.endswith(f"a comparison with mlx-lm needs that package: {install_line('bench')}\n")

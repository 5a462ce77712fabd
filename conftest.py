"""Set up every pytest run in this project: the labs' options and fixtures, and a machine with nothing on it.

Tests see an empty home folder, no cache, no pulled model, and one fixed seed for every request that names none. Child
processes inherit all of that through the environment. Only a test marked ``needs_model`` sees pulled models: those in
the folder that ``MINI_VLLM_TEST_MODELS`` names, as ``MINI_VLLM_CACHE`` would (`make test-models` sets it). Without
that variable the test is skipped.
"""

import contextlib
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from course.pytest_run.parallel import stay_on_a_core

pytest_plugins = ["course.plugin"]

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
#: The temporary home folder of this run. A process in which it is set was started by a test or is an xdist worker.
HOME_VARIABLE = "MINI_VLLM_TEST_HOME"
MODELS_VARIABLE = "MINI_VLLM_TEST_MODELS"
#: Variables that name folders of the user, including those outside the home folder.
FOLDER_PREFIXES = ("XDG_", "HF_", "JUPYTER_", "HUGGINGFACE_")
FOLDER_VARIABLES = ("MINI_VLLM_CACHE", "IPYTHONDIR", "MPLCONFIGDIR", "TRANSFORMERS_CACHE", "HISTFILE")


def leave_home() -> str | None:
    """Point the environment at a new, empty home folder and fix the seed. Return the folder if this process made it."""
    if os.environ.get(HOME_VARIABLE):
        return None
    home = tempfile.mkdtemp(prefix="mini-vllm-home-")
    for name in list(os.environ):
        if name.startswith(FOLDER_PREFIXES) or name in FOLDER_VARIABLES:
            del os.environ[name]
    os.environ.update({"HOME": home, HOME_VARIABLE: home, "MINI_VLLM_SEED": "0"})
    return home


_own_home = leave_home()


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers. With ``-n``, pin each process to a core and let it multiply with one thread.

    Two processes that each use all cores would wait for each other.
    """
    config.addinivalue_line("markers", "needs_model(name): needs a model that `mini-vllm pull` has fetched")
    config.addinivalue_line("markers", "without_drafts(reason): `make test-drafts` leaves it out")
    config.addinivalue_line("markers", "real_device(reason): `make pretend` leaves it out")
    if config.getoption("numprocesses", default=None):
        for name in THREADS:
            os.environ.setdefault(name, "1")
    if hasattr(config, "workerinput"):
        stay_on_a_core(int(config.workerinput["workerid"].removeprefix("gw")))


def pytest_unconfigure() -> None:
    if _own_home is not None:
        shutil.rmtree(_own_home, ignore_errors=True)


def pytest_collection_finish() -> None:
    """Freeze what was imported and collected: it stays to the end, so the garbage collector need not scan it."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Show the pulled models to a test that needs one."""
    folder = os.environ.get(MODELS_VARIABLE)
    is_shown = bool(folder) and item.get_closest_marker("needs_model") is not None
    with patch.dict(os.environ, {"MINI_VLLM_CACHE": folder}) if is_shown else contextlib.nullcontext():
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose model was not passed in; fail it if the folder does not contain the model."""
    for mark in item.iter_markers("needs_model"):
        name, folder = mark.args[0], os.environ.get(MODELS_VARIABLE)
        if not folder:
            pytest.skip(f"needs the pulled model {name}: `make test-models` runs it")
        if not any(Path(folder, "models", name).glob("*")):
            pytest.fail(f"{MODELS_VARIABLE} is {folder}, which has no model {name}: `mini-vllm pull {name}` fetches it")

"""Every pytest run in this project speaks of labs: --impl, the ``lab`` fixture, points."""

import gc
import os

import pytest

pytest_plugins = ["course.plugin"]

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def pytest_configure(config: pytest.Config) -> None:
    """With ``-n``, each process multiplies with one thread: two that use all cores each would wait for each other."""
    if config.getoption("numprocesses", default=None):
        for name in THREADS:
            os.environ.setdefault(name, "1")


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the garbage collector need not go through it each time."""
    gc.freeze()

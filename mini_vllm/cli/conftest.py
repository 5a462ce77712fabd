"""The commands' output is tested as on a machine with a fast BLAS, wherever the tests run."""

import pytest

from mini_vllm import backend
from mini_vllm.backend import BlasInfo


@pytest.fixture(autouse=True)
def no_advice(monkeypatch):
    if backend.blas.note == backend.NOT_FOUND:
        monkeypatch.setattr(backend, "blas", BlasInfo("reference", None, backend.SWITCHED_OFF))

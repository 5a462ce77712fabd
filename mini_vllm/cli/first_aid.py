"""``MINI_VLLM_BLAS`` may name a library that cannot serve: then no import of the backend succeeds, but the doctor's."""

from __future__ import annotations

import importlib
import os


def import_backend() -> str | None:
    """Import the backend as if the variable was not set, where it stops the import. What is wrong with it, if so."""
    try:
        importlib.import_module("mini_vllm.backend")
    except ValueError as error:
        del os.environ["MINI_VLLM_BLAS"]  # no library was put before others yet: the search begins as in a new process
        importlib.import_module("mini_vllm.backend")
        return str(error)
    return None

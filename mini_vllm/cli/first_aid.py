"""If ``MINI_VLLM_BLAS`` names an unusable library, importing the backend fails; only the doctor imports it anyway."""

from __future__ import annotations

import importlib
import os


def import_backend() -> str | None:
    """Import the backend; if the variable makes that fail, unset it, import again, and return what is wrong with it."""
    try:
        importlib.import_module("mini_vllm.backend")
    except ValueError as error:
        del os.environ["MINI_VLLM_BLAS"]  # no library was preloaded yet, so the search starts as in a new process
        importlib.import_module("mini_vllm.backend")
        return str(error)
    return None

"""What the engine needs and no student is to blame for: MLX, a usable BLAS, the model, and the server's packages."""

from __future__ import annotations

import importlib

from course.lab.lab import LabError


def check_machine() -> None:
    """Raise LabError if MLX cannot be imported, or if MINI_VLLM_BLAS names an unusable library."""
    try:
        importlib.import_module("mini_vllm.backend")
    except (ImportError, ValueError) as error:
        raise LabError(str(error)) from None


def check_server() -> None:
    """Raise LabError if the server's packages are not installed; the message says how to get them."""
    from mini_vllm.checks import check_installed
    try:
        check_installed("serve", "the server")
    except ValueError as error:
        raise LabError(str(error)) from None


def check_model(name: str) -> None:
    """Raise LabError, with the nearest name, if there is no such model here. A model of the hub is downloaded."""
    from mini_vllm.models.catalogue import find_model
    from mini_vllm.models.config import LoadError
    try:
        find_model(name)
    except LoadError as error:
        raise LabError(str(error)) from None

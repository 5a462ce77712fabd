"""What the engine needs and no student can be blamed for: MLX, a BLAS that serves, a model of that name, and what
a server takes."""

from __future__ import annotations

import importlib

from course.lab.lab import LabError


def check_machine() -> None:
    """Raises LabError if MLX cannot be imported, or MINI_VLLM_BLAS names a library that cannot serve."""
    try:
        importlib.import_module("mini_vllm.backend")
    except (ImportError, ValueError) as error:
        raise LabError(str(error)) from None


def check_server() -> None:
    """Raises LabError, which says how to get them, if the server's packages are not installed."""
    from mini_vllm.extras import check_installed
    try:
        check_installed("serve", "the server")
    except ValueError as error:
        raise LabError(str(error)) from None


def check_model(name: str) -> None:
    """Raises LabError, with the nearest name, if there is no such model here. One of the hub is fetched."""
    from mini_vllm.models.json_fields import LoadError
    from mini_vllm.models.resolve_name import find_model
    try:
        find_model(name)
    except LoadError as error:
        raise LabError(str(error)) from None

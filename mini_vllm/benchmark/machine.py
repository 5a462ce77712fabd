"""Where a measurement was made: a number without that cannot be compared with anything."""

from __future__ import annotations

import platform

from mini_vllm import __version__


def describe_machine() -> list[str]:
    """Device and system; the BLAS and the versions of what was measured. No date: the same twice looks the same."""
    from mini_vllm.backend import blas, device_name, mx
    mac = platform.mac_ver()[0]
    system = f"macOS {mac}" if mac else f"{platform.system()} {platform.release().partition('-')[0]}"
    version: str = mx.__version__  # type: ignore[attr-defined]  # MLX's stubs leave it out
    return [f"{device_name()}, {system}", f"BLAS: {blas.name}", f"MLX {version}, mini_vllm {__version__}"]

"""Optional packages: what each extra of the project installs, and the command that installs it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

#: Extra → the packages that its features check for: the name to import, and the name to install.
EXTRAS = {
    "cli": {"rich": "rich", "prompt_toolkit": "prompt_toolkit"},
    "serve": {"fastapi": "fastapi", "uvicorn": "uvicorn", "prometheus_client": "prometheus_client",
              "llguidance": "llguidance"},
    "course": {"pytest": "pytest", "rich": "rich"},
    "bench": {"mlx_lm": "mlx-lm", "matplotlib": "matplotlib"},
    "png": {"resvg_py": "resvg-py"},
    "structured": {"llguidance": "llguidance"},
    "cluster": {"sglang_router": "sglang-router", "vllm_router": "vllm-router"},
    "hub": {"huggingface_hub": "huggingface_hub"},
}
PROJECT = Path(__file__).resolve().parents[1]


def install_line(extra: str) -> str:
    """Return the command that installs ``extra``.

    In a clone it is the README's command, with the clone's folder unless that is the current one. The project is not on
    the package index, so elsewhere the command lists the packages.
    """
    if not (PROJECT / "pyproject.toml").is_file():
        return f"pip install {' '.join(EXTRAS[extra].values())}"
    where = "" if Path.cwd() == PROJECT else f" (in {PROJECT})"
    return f'pip install -e ".[{extra}]"{where}'


def check_installed(extra: str, what: str) -> None:
    """Raise ValueError with the command that installs ``extra`` if ``what`` lacks one of its packages."""
    missing = [package for name, package in EXTRAS[extra].items() if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"{what} needs {', '.join(missing)}: {install_line(extra)}")

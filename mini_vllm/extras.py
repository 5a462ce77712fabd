"""Optional packages: what each extra of the project brings, and the line that installs it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

#: Extra → the packages whose absence its features notice: the name to import, and the name to install.
EXTRAS = {
    "serve": {"fastapi": "fastapi", "uvicorn": "uvicorn", "prometheus_client": "prometheus_client"},
    "bench": {"mlx_lm": "mlx-lm", "matplotlib": "matplotlib"},
    "png": {"resvg_py": "resvg-py"},
    "hub": {"huggingface_hub": "huggingface_hub"},
}
PROJECT = Path(__file__).resolve().parents[1]


def install_line(extra: str) -> str:
    """Return the command that installs ``extra``: the README's in a clone, with its folder if that is not the current
    one. The project is not on the package index, so elsewhere the packages are named one by one."""
    if not (PROJECT / "pyproject.toml").is_file():
        return f"pip install {' '.join(EXTRAS[extra].values())}"
    where = "" if Path.cwd() == PROJECT else f" (in {PROJECT})"
    return f'pip install -e ".[{extra}]"{where}'


def check_installed(extra: str, what: str) -> None:
    """Raise ValueError with the line that installs ``extra`` if ``what`` lacks one of its packages."""
    missing = [package for name, package in EXTRAS[extra].items() if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"{what} needs {', '.join(missing)}: {install_line(extra)}")

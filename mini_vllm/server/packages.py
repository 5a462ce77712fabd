"""What the server needs beside the rest of the package: the extra ``[serve]``. To ask, none of it is needed."""

from __future__ import annotations

import importlib.util

PACKAGES = ("fastapi", "uvicorn", "prometheus_client")


def check_packages() -> None:
    """Raises ValueError, which says how to get them, if some are not installed."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"the server needs packages that are not here: pip install {' '.join(missing)}")

"""Run a command as on a new machine: in a fresh clone, with an empty home folder and a bare environment.

    python3 tools/newcomer.py FOLDER make test      # clones the last commit into FOLDER, and runs `make test` there

Of the environment, only ``PATH`` and what the package client needs are kept: its settings, proxies and certificates.
This file needs only Python, because it runs before anything is installed.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Variables that pip needs to reach the package index.
KEPT = ("PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


def bare_environment(home: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return ``environment`` without the variables that a newcomer would not have, and with ``home`` as home folder."""
    bare = {name: value for name, value in environment.items()
            if name in KEPT or name.startswith("PIP_") or name.lower() in PROXIES}
    for name in (".config/pip/pip.conf", ".pip/pip.conf", "Library/Application Support/pip/pip.conf"):
        if (settings := Path(environment.get("HOME", "/nowhere"), name)).is_file():
            bare.setdefault("PIP_CONFIG_FILE", str(settings))
    return {**bare, "HOME": str(home)}


def main(folder: str, *command: str) -> int:
    subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="newcomer-") as home:
        status = subprocess.run(command, cwd=folder, env=bare_environment(Path(home)), stdin=subprocess.DEVNULL
                                ).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{' '.join(command)}: exit status {status} after {time.monotonic() - start_s:.0f} s, "
          f"{used.ru_utime + used.ru_stime:.0f} s of CPU time (installation included)", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Run the notebooks from top to bottom and save their outputs: ``make notebooks``.

    python tools/notebooks.py            run all notebooks
    python tools/notebooks.py 02 05      run these two

The saved metadata is the same every time: it contains no times and no versions, and cell ids count from the top. If a
cell raises an error, the program stops and does not change that notebook's file.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"}}


def main(names: list[str]) -> int:
    paths = [path for path in sorted(FOLDER.glob("*.ipynb"))
             if not names or path.name.startswith(tuple(name.removeprefix("notebooks/") for name in names))]
    if not paths:
        print(f"{FOLDER} contains no notebook whose name begins with {' or '.join(names)}", file=sys.stderr)
        return 2
    for path in paths:
        start_s = time.perf_counter()
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": FOLDER}},
                       coalesce_streams=True).execute()
        tidy(notebook)
        nbformat.write(notebook, path)
        print(f"{path.name}: {time.perf_counter() - start_s:.0f} s, {path.stat().st_size / 1000:.0f} kB")
    return 0


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Remove metadata that differs from run to run, and number the cells."""
    notebook.metadata = METADATA
    for number, cell in enumerate(notebook.cells, 1):
        cell.id = f"cell-{number:02}"
        tags = cell.metadata.get("tags")
        cell.metadata = {"tags": tags} if tags else {}
        for output in cell.get("outputs", []):
            output.pop("execution_time", None)
            if "metadata" in output:
                output.metadata = {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Run the notebooks from top to bottom and keep their outputs: ``make notebooks``.

    python tools/notebooks.py            all of them
    python tools/notebooks.py 02 05      these

What is written is the same every time: no times, no versions, ids by position. A cell that raises ends it, and the file
stays as it was.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def main(names: list[str]) -> int:
    paths = [path for path in sorted(FOLDER.glob("*.ipynb")) if not names or path.name.startswith(tuple(names))]
    if not paths:
        print(f"{FOLDER} has no notebook that begins with {' or '.join(names)}", file=sys.stderr)
        return 2
    for path in paths:
        start_s = time.perf_counter()
        run(path)
        print(f"{path.name}: {time.perf_counter() - start_s:.0f} s, {path.stat().st_size / 1000:.0f} kB")
    return 0


def run(path: Path) -> None:
    """Raises CellExecutionError, which shows the cell, if one raises."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": FOLDER}},
                   coalesce_streams=True).execute()
    tidy(notebook)
    nbformat.write(notebook, path)


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Leave out what differs from run to run and says nothing. A picture's text is kept as its lines."""
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
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

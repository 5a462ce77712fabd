"""Run the notebooks from top to bottom and save their outputs: ``make notebooks``.

    python tools/notebooks.py            run all notebooks
    python tools/notebooks.py 02 05      run these two
    python tools/notebooks.py --heads    run nothing; only rewrite the badges and the first code cell of all notebooks

The saved metadata is the same every time: it contains no times and no versions, and cell ids count from the top. If a
cell raises an error, the program stops and does not change that notebook's file.

In a fork, change ``REPOSITORY`` and run this program with ``--heads``. The badges and the first code cell, which
installs the course, then name the fork.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from urllib.parse import quote

import nbformat

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
#: The project's repository on GitHub. A fork changes only this line.
REPOSITORY = "YOUR-ACCOUNT/mini_vllm"
BRANCH = "main"
#: The beginning of the line with the badges. It identifies that line.
BADGES = "[![Open in Colab]"
#: The beginning of the first code cell.
FIRST_CELL = "# Installs the course if it is missing"
COMMAND = "--heads"


def main(arguments: list[str]) -> int:
    names = [each for each in arguments if each != COMMAND]
    paths = [path for path in sorted(FOLDER.glob("*.ipynb")) if not names or path.name.startswith(tuple(names))]
    if not paths:
        print(f"{FOLDER} contains no notebook whose name begins with {' or '.join(names)}", file=sys.stderr)
        return 2
    for path in paths:
        start_s = time.perf_counter()
        run(path, is_run=COMMAND not in arguments)
        print(f"{path.name}: {time.perf_counter() - start_s:.0f} s, {path.stat().st_size / 1000:.0f} kB")
    return 0


def run(path: Path, is_run: bool = True) -> None:
    """Run a notebook and write it back. Raise CellExecutionError, which shows the cell, if a cell raises."""
    notebook = nbformat.read(path, as_version=4)
    write_head(notebook, path.name)
    if is_run:
        from nbclient import NotebookClient
        NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": FOLDER}},
                       coalesce_streams=True).execute()
    tidy(notebook)
    nbformat.write(notebook, path)


def write_head(notebook: nbformat.NotebookNode, name: str) -> None:
    """Write the badges under the title, and the first code cell. Raise ValueError if the notebook lacks either."""
    title, code = notebook.cells[:2]
    lines = title.source.splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith(BADGES)]
    if len(places) != 1 or code.cell_type != "code" or not code.source.startswith(FIRST_CELL):
        raise ValueError(f"{name}: cell 1 must contain one line that begins with {BADGES!r}, and cell 2 must begin "
                         f"with {FIRST_CELL!r}")
    lines[places[0]] = badges(name)
    title.source, code.source = "\n".join(lines), first_cell(name)


def badges(name: str) -> str:
    colab = f"https://colab.research.google.com/github/{REPOSITORY}/blob/{BRANCH}/notebooks/{name}"
    binder = f"https://mybinder.org/v2/gh/{REPOSITORY}/{BRANCH}?labpath={quote(f'notebooks/{name}', safe='')}"
    return (f"{BADGES}(https://colab.research.google.com/assets/colab-badge.svg)]({colab}) "
            f"[![Open in Binder](https://mybinder.org/badge_logo.svg)]({binder}) *(both untested)*")


def first_cell(name: str) -> str:
    """Return the first code cell. If the course is installed, this cell only draws the opening picture."""
    return f'''\
{FIRST_CELL}: from the clone that this notebook is in, or else from GitHub.
try:
    from course.exercises.opening import opening
except ImportError:
    import os
    import site
    source = "-e .." if os.path.exists("../pyproject.toml") else "git+https://github.com/{REPOSITORY}"
    %pip install --quiet pytest matplotlib rich {{source}}
    site.main()  # makes the new packages importable
    from course.exercises.opening import opening
opening("{name[:2]}")'''


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Remove metadata that differs from run to run, and number the cells."""
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

"""Run the notebooks from top to bottom and keep their outputs: ``make notebooks``.

    python tools/notebooks.py            all of them
    python tools/notebooks.py 02 05      these
    python tools/notebooks.py --heads    run nothing; write the badges and the first cell of all of them again

What is written is the same every time: no times, no versions, ids by position. A cell that raises ends it, and the file
stays as it was.

In a fork, change ``REPOSITORY`` and run it with ``--heads``: the badges and the cell that installs name it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from urllib.parse import quote

import nbformat

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
#: Where the project is on GitHub. The only line that a fork changes.
REPOSITORY = "YOUR-ACCOUNT/mini_vllm"
BRANCH = "main"
#: How the line of badges begins, by which it is found again.
BADGES = "[![Open in Colab]"
#: How the first code cell begins.
FIRST_CELL = "# Installs the course if it is missing"
COMMAND = "--heads"


def main(arguments: list[str]) -> int:
    names = [each for each in arguments if each != COMMAND]
    paths = [path for path in sorted(FOLDER.glob("*.ipynb")) if not names or path.name.startswith(tuple(names))]
    if not paths:
        print(f"{FOLDER} has no notebook that begins with {' or '.join(names)}", file=sys.stderr)
        return 2
    for path in paths:
        start_s = time.perf_counter()
        run(path, is_run=COMMAND not in arguments)
        print(f"{path.name}: {time.perf_counter() - start_s:.0f} s, {path.stat().st_size / 1000:.0f} kB")
    return 0


def run(path: Path, is_run: bool = True) -> None:
    """Raises CellExecutionError, which shows the cell, if one raises."""
    notebook = nbformat.read(path, as_version=4)
    write_head(notebook, path.name)
    if is_run:
        from nbclient import NotebookClient
        NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": FOLDER}},
                       coalesce_streams=True).execute()
    tidy(notebook)
    nbformat.write(notebook, path)


def write_head(notebook: nbformat.NotebookNode, name: str) -> None:
    """The badges under the title, and the first code cell. Raises ValueError if the notebook has no place for them."""
    title, code = notebook.cells[:2]
    lines = title.source.splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith(BADGES)]
    if len(places) != 1 or code.cell_type != "code" or not code.source.startswith(FIRST_CELL):
        raise ValueError(f"{name}: cell 1 must have one line that begins with {BADGES!r}, and cell 2 must begin with "
                         f"{FIRST_CELL!r}")
    lines[places[0]] = badges(name)
    title.source, code.source = "\n".join(lines), first_cell(name)


def badges(name: str) -> str:
    colab = f"https://colab.research.google.com/github/{REPOSITORY}/blob/{BRANCH}/notebooks/{name}"
    binder = f"https://mybinder.org/v2/gh/{REPOSITORY}/{BRANCH}?labpath={quote(f'notebooks/{name}', safe='')}"
    return (f"{BADGES}(https://colab.research.google.com/assets/colab-badge.svg)]({colab}) "
            f"[![Open in Binder](https://mybinder.org/badge_logo.svg)]({binder}) *(both untested)*")


def first_cell(name: str) -> str:
    """Does nothing but draw where the course is installed."""
    return f'''\
{FIRST_CELL}: from the clone that this notebook is in, or else from GitHub.
try:
    from course.exercises.opening import opening
except ImportError:
    import os
    import site
    source = "-e .." if os.path.exists("../pyproject.toml") else "git+https://github.com/{REPOSITORY}"
    %pip install --quiet pytest matplotlib {{source}}
    site.main()  # finds what was just installed
    from course.exercises.opening import opening
opening("{name[:2]}")'''


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

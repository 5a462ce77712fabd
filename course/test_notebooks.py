"""The committed notebooks: executed, complete, and able to reveal a change when they run again."""

import json
import re
from itertools import takewhile

import pytest

from course.exercises import exercises_of
from course.lab.lab import PROJECT_ROOT

FOLDER = PROJECT_ROOT / "notebooks"
NOTEBOOKS = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.ipynb"))}
IGNORED = "nbval-ignore-output"
#: Outputs that may differ between runs contain one of these.
TIMES = re.compile(r"\b(ms|s|seconds?|tokens/s)\b")
#: A chart colour that is set by hand: a name, a grey, a hex number, or black as a format.
BY_HAND = re.compile(r"""colou?r=["'][^"']+["']|["']#[0-9a-fA-F]{3,8}["']|["']k-+["']""")


def code_cells(name):
    return [cell for cell in NOTEBOOKS[name]["cells"] if cell["cell_type"] == "code"]


def text_of(cell):
    return "".join(cell["source"])


def printed(cell):
    """Return all text in a cell's outputs."""
    parts = []
    for output in cell["outputs"]:
        parts.append("".join(output.get("text", "")))
        parts += ["".join(value) for kind, value in output.get("data", {}).items() if kind == "text/plain"]
    return "\n".join(parts)


def test_there_is_a_tour_and_one_a_phase():
    phases = sorted(path.name[6:8] for path in PROJECT_ROOT.glob("phase-*"))
    assert [name[:2] for name in NOTEBOOKS] == ["00", *phases]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_was_run_in_order_and_none_failed(name):
    cells = code_cells(name)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"], "warnings frighten readers"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_outputs_are_there_to_compare_with(name):
    """Check this because nbval passes a notebook whose outputs were stripped, and then checks nothing."""
    cells = code_cells(name)
    silent = [cell for cell in cells if not cell["outputs"]]
    assert len(silent) <= len(cells) / 4, f"{len(silent)} of {len(cells)} cells have no output"
    assert sum("image/svg+xml" in output.get("data", {}) for cell in cells for output in cell["outputs"]) >= 3


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_only_cells_that_show_a_time_are_not_compared(name):
    for cell in code_cells(name):
        assert "NBVAL" not in text_of(cell), "marked by a tag, which readers do not see"
        tags = cell["metadata"].get("tags", [])
        assert set(tags) <= {IGNORED}, tags
        if tags:
            assert TIMES.search(printed(cell)), f"not compared, but no time in it:\n{text_of(cell)}"
            assert "assert" not in text_of(cell) and "check(" not in text_of(cell), "a cell that proves is compared"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_pictures_stand_beside_their_html_and_say_what_to_look_for(name):
    for cell in code_cells(name):
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "<figure" in "".join(data.get("text/html", "")):
                assert "image/svg+xml" in data and "<figcaption" in "".join(data["text/html"])
                assert "".join(data["text/plain"]).strip()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_one_predicts_before_one_sees(name):
    cells = NOTEBOOKS[name]["cells"]
    asked = [number for number, cell in enumerate(cells) if "**Predict.**" in text_of(cell)]
    assert len(asked) >= 4
    for number in asked:
        shown = list(takewhile(lambda cell: cell["cell_type"] == "code", cells[number + 1:]))
        assert any(cell["outputs"] for cell in shown), text_of(cells[number])


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_headings_are_the_same_in_all(name):
    """Check for a title with the notebook's number, Setup, numbered sections, Exercises, Where to go next."""
    lines = [line for cell in NOTEBOOKS[name]["cells"] if cell["cell_type"] == "markdown"
             for line in text_of(cell).splitlines()]
    titles, sections = ([line.partition(" ")[2] for line in lines if line.startswith(mark)] for mark in ("# ", "## "))
    assert len(titles) == 1 and titles[0].startswith(f"{name[:2]} ")
    assert sections[0] == "Setup" and sections[-2:] == ["Exercises", "Where to go next"]
    assert [section.partition(". ")[0] for section in sections[1:-2]] == [str(n) for n in range(1, len(sections) - 2)]
    told = re.findall(r"^\*\*Exercise (\d)\.\*\*", "\n".join(lines), re.M)
    assert told == [str(n) for n in range(1, len(exercises_of(name[:2])) + 1)]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_charts_have_the_colours_of_the_pictures(name):
    sources = [text_of(cell) for cell in code_cells(name)]
    assert not [found for source in sources for found in BY_HAND.findall(source)], "paint[…] names a colour"
    if any("plt." in source for source in sources):
        assert sum("use_chart_style()" in source for source in sources) == 1, "set once, before the first chart"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_slider_has_still_frames_for_pages_without_scripts(name):
    for cell in code_cells(name):
        for output in cell["outputs"]:
            page = "".join(output.get("data", {}).get("text/html", ""))
            if "<script>" in page:
                assert '<details open data-part="stills">' in page and page.count("<img ") >= 3
                assert "slider" not in re.sub("<script>.*|<summary>.*?</summary>", "", page, flags=re.S)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_one_line_switches_to_the_students_own(name):
    loads = [cell for cell in code_cells(name) if "course.load" in text_of(cell)]
    assert loads and re.search(r"(the reference[’']s|yours)", printed(loads[0])), "it says whose it shows"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_links_lead_to_files_of_the_course(name):
    links = [link for cell in NOTEBOOKS[name]["cells"] if cell["cell_type"] == "markdown"
             for link in re.findall(r"\]\(([^)\s]+)\)", text_of(cell))]
    for link in links:
        path, _, _ = link.partition("#")
        assert link.startswith("https://") or (FOLDER / path).exists(), link
    assert any(re.search(r"labs/lab-\d+", link) for link in links), "the lab that builds the piece"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.name)
def test_no_notebook_is_large_or_knows_where_it_was_made(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < 1_000_000, f"{len(text.encode())} bytes"
    assert str(PROJECT_ROOT) not in text and "site-packages" not in text
    assert NOTEBOOKS[path.name]["metadata"]["language_info"] == {"name": "python"}, "make notebooks leaves versions out"


def test_the_users_question_is_kept():
    asked = " ".join(" ".join(map(text_of, NOTEBOOKS["02-paged-attention.ipynb"]["cells"])).split())
    assert "Which line in your `touch()` is the O(1) middle removal, and which real-world event triggers it?" in asked

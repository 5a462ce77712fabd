"""The pages of the site and their links, as far as they can be tested without Sphinx."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from course.lab.hints import parse_hints
from course_site.docstrings import dedented, with_drawings
from course_site.links import LinkTurner, turn_links
from course_site.pages import site_of
from course_site.stage import LEVELS, StageError, stage

ROOT = Path(__file__).parents[2]
TOCTREE = re.compile(r"```\{toctree\}\n(?::.*\n)*\n((?:.*\n)*?)```")


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """Return the real course, as Sphinx gets it."""
    folder = tmp_path_factory.mktemp("pages")
    stage(site_of(ROOT), folder)
    return folder


# ---- the real course


def test_every_text_of_the_repository_is_on_the_site():
    shown = {file for page in site_of(ROOT).pages() for file in page.files}
    listed = subprocess.run(["git", "ls-files", "*.md", "*.ipynb"], cwd=ROOT, capture_output=True, text=True).stdout
    texts = {name for name in listed.split("\n") if name and not name.startswith(".github/")}
    assert len(texts) > 50 and texts == shown, "where on the site does it stand? (pages.py)"


def test_every_page_is_in_one_toctree(staged):
    named = []
    for path in staged.rglob("*.md"):
        for entries in TOCTREE.findall(path.read_text(encoding="utf-8")):
            for entry in entries.split():
                found = [path.parent / f"{entry}{suffix}" for suffix in (".md", ".ipynb")]
                (there,) = [each.resolve() for each in found if each.is_file()]
                named.append(there.relative_to(staged.resolve()).with_suffix("").as_posix())
    assert sorted([*named, "index"]) == sorted(page.name for page in site_of(ROOT).pages())


def test_every_hint_is_folded_away_and_no_page_leads_to_a_solution(staged):
    for path in ROOT.glob("phase-*/labs/*/hints.md"):
        page = (staged / path.parts[-4] / f"{path.parts[-2]}.md").read_text(encoding="utf-8")
        for levels in parse_hints(path.read_text(encoding="utf-8")).values():
            for level, hint in levels.items():
                first = hint.splitlines()[0].split("](")[0]
                assert f"<summary>Hint {level}: {LEVELS[level]}</summary>\n\n{first}" in page
        assert "<details" not in re.sub(r"<details.*?</details>", "", page, flags=re.S) and "### Hint" not in page
    for path in staged.rglob("*.md"):
        targets = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
        assert not [target for target in targets if re.search(r"(solution|mutants|wrong_pools)\.py", target)], path


# ---- a small course


FILES = {
    "README.md": "# Small\n\nA small course.\n\n[Phase](phase-01-a/README.md), [below](#measured).\n\n## Measured\n",
    "CHANGELOG.md": "# Changelog\n",
    "docs/engine.md": "# Map\n\n## The modules\n\nThe course.\n\n| module | lab |\n|---|---|\n| `queue.py` | 1.1 |\n"
                      "\nThe rooms:\n\n| room |\n|---|\n| `fast/` |\n| `tests/` |\n",
    "docs/site/index.md": "# Small\n\n{{README.md}} It is here.\n",
    "docs/picture.svg": "<svg/>",
    "mini_vllm/queue.py": '"""A queue."""\n',
    "mini_vllm/fast/__init__.py": "",
    "mini_vllm/fast/exp.py": "",
    "mini_vllm/fast/test_exp.py": "",
    "notebooks/00-tour.ipynb": json.dumps({"cells": [
        {"cell_type": "markdown", "source": ["# Tour\n", "[![Open](https://b.org/b.svg)](https://b.org/x)\n",
                                              "see [the lab](../phase-01-a/labs/lab-01-b/README.md)"]},
        {"cell_type": "code", "source": ["'[a](b.md)'"], "outputs": []}]}),
    "notebooks/01-a.ipynb": json.dumps({"cells": []}),
    "phase-01-a/README.md": "# Phase 01\n",
    "phase-01-a/labs/lab-01-b/README.md": "# Lab 1.1\n\n## Stretch\n\n- Why *so*?\n\n"
                                          "## The interview question\n\n> And?\n",
    "phase-01-a/labs/lab-01-b/hints.md": "# Hints\n\n## Task 1: add\n\n### Hint 1\nA.\n\n### Hint 2\nB.\n\n"
                                         "### Hint 3\n`C`.\n",
    "phase-01-a/labs/lab-01-b/answers.md": "# Answers\n\n## Stretch 1\n\nSo.\n\n## Interview\n\nYes.\n",
    "phase-01-a/labs/lab-01-b/starter.py": "",
    "phase-01-a/labs/lab-01-b/solution.py": "",
    "phase-01-a/labs/lab-02-c/README.md": "# Lab 1.2\n",
    "phase-01-a/capstone/README.md": "# The end\n",
}
LAB = "phase-01-a/labs/lab-01-b/README.md"


@pytest.fixture
def small(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_pages_are_in_the_order_of_the_course(small):
    assert [page.name for page in site_of(small).pages()] == [
        "index", "about", "notebooks/00-tour",
        "phase-01-a/index", "notebooks/01-a", "phase-01-a/lab-01-b", "phase-01-a/lab-02-c", "phase-01-a/capstone",
        "docs/engine", "api/index", "api/queue", "api/fast", "CHANGELOG"]


@pytest.mark.parametrize("link, expected", [
    ("[x](../../README.md)", "[x](index.md)"),
    ("[x](../../README.md#some-place)", "[x](index.md#some-place)"),
    ("[x](../lab-02-c/)", "[x](lab-02-c.md)"),
    ("[x](hints.md)", "[x](lab-01-b.md#hints)"),
    ("[x](hints.md#task-1-add)", "[x](lab-01-b.md#task-1-add)"),
    ("[x](#stretch)", "[x](#stretch)"),
    ("[x](starter.py)", "[x](source:phase-01-a/labs/lab-01-b/starter.py)"),
    ("[`x`](../../../mini_vllm/queue.py)", "[`x`](source:mini_vllm/queue.py)"),
    ("[x](../../../mini_vllm/fast)", "[x](../api/fast.md)"),
    ("[x](../../../notebooks/01-a.ipynb)", "[x](../notebooks/01-a.ipynb)"),
    ("[x](../../../README.md#measured)", "[x](../about.md#measured)"),
    ("![x](../../../docs/picture.svg)", "![x](../docs/picture.svg)"),
    ("[x](https://example.org/a.md)", "[x](https://example.org/a.md)"),
    ("[the solution](solution.py)", "the solution"),
    ("[all labs](../../labs)", "all labs"),
])
def test_a_link_leads_to_where_it_is_on_the_site(small, link, expected):
    site = site_of(small)
    links = LinkTurner(site)
    (page,) = [page for page in site.pages() if LAB in page.files]
    assert links.turned(link, LAB, page) == expected and links.problems == []
    assert links.pictures == ({"docs/picture.svg"} if "picture" in link else set())


@pytest.mark.parametrize("target", ["none.md", "../../../../outside.md"])
def test_a_link_that_leads_nowhere_is_told_and_nothing_is_written(small, tmp_path, target):
    (small / LAB).write_text(f"# Lab 1.1\n\nsee [x]({target})\n\n## Stretch\n\n- Why *so*?\n")
    with pytest.raises(StageError, match=re.escape(f"{LAB}: the link to {target} leads nowhere")):
        stage(site_of(small), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_staged_pages_hold_hints_answers_notebooks_the_first_paragraph_and_the_api(small, tmp_path):
    out = tmp_path / "out"
    stage(site_of(small), out)
    lab = (out / "phase-01-a/lab-01-b.md").read_text()
    assert lab.index("# Lab 1.1") < lab.index("## Hints") < lab.index("### Task 1: add") < lab.index("## Answers")
    assert re.findall(r"<summary>(.*)</summary>\n\n(.*)", lab) == [
        ("Hint 1: a nudge", "A."), ("Hint 2: the idea", "B."), ("Hint 3: nearly the code", "`C`."),
        ("Answer", "So."), ("Answer", "Yes.")]
    assert "**Stretch 1.** Why *so*?" in lab and "**The interview question.** And?" in lab
    text, code = json.loads((out / "notebooks/00-tour.ipynb").read_text())["cells"]
    assert text["source"] == "# Tour\n[Open](https://b.org/x)\nsee [the lab](../phase-01-a/lab-01-b.md)"
    assert code["source"] == ["'[a](b.md)'"]
    assert "A small course. It is here." in (out / "index.md").read_text()
    api = (out / "api/index.md").read_text()
    assert api.startswith("# The API\n\nThe course.\n") and "| [`queue.py`](queue.md) | 1.1 |" in api
    assert "| [`fast/`](fast.md) |" in api and "| `tests/` |" in api
    module = (out / "api/fast.md").read_text()
    assert re.findall("automodule:: (.*)", module) == ["mini_vllm.fast", "mini_vllm.fast.exp"] and "## exp" in module
    (small / "CHANGELOG.md").unlink()
    stage(site_of(small), out)
    assert not (out / "CHANGELOG.md").exists(), "a page that is gone is deleted"


@pytest.mark.parametrize("text, expected", [
    ('[a [b]](c.md "d")', '[a [b]](C.MD "d")'),
    ("[![a](b.svg)](c.md)", "[![a](B.SVG)](C.MD)"),
    ("`[a](b.md)` and ``x ` [a](b.md)``", "`[a](b.md)` and ``x ` [a](b.md)``"),
    ("```\n[a](b.md)\n```\n[c](d.md)\n", "```\n[a](b.md)\n```\n[c](D.MD)\n"),
    ("~~~~\n```\n[a](b.md)\n~~~~\n[c](d.md)", "~~~~\n```\n[a](b.md)\n~~~~\n[c](D.MD)"),
    ("[two\nlines](b.md)", "[two\nlines](B.MD)"),
])
def test_links_are_found_and_code_is_left_alone(text, expected):
    assert turn_links(text, lambda target: target.upper()) == expected


def a_function():
    """Draw. All but the first line is a drawing.

        a ⇄ b
          c
    """


def test_a_drawing_is_kept_and_a_list_is_no_quotation():
    assert with_drawings(dedented(a_function.__doc__)) == [
        "Draw. All but the first line is a drawing.", "", "::", "", "    a ⇄ b", "      c", ""]
    lines = ["Rules:", "", " 1. One", "    goes on", " 2. Two", "", "Text", "", "    code", "", "    more", "", "End"]
    assert with_drawings(lines) == [
        "Rules:", "", "1. One", "   goes on", "2. Two", "", "Text", "", "::", "", *lines[8:]]

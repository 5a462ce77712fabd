"""The pages of the site and their links, as far as they can be tested without Sphinx."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from course.lab.hints import parse_hints
from course_site.docstrings import dedented, with_drawings
from course_site.links import LinkTurner, turn_links
from course_site.pages import Page, Site, site_of
from course_site.stage import LEVELS, StageError, stage

ROOT = Path(__file__).parents[2]
TOCTREE = re.compile(r"```\{toctree\}\n(?::.*\n)*\n((?:.*\n)*?)```")


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """Return the real course, as Sphinx gets it."""
    folder = tmp_path_factory.mktemp("pages")
    stage(site_of(ROOT), folder)
    return folder


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


def test_pages_are_in_the_order_of_the_course():
    names = [page.name for page in site_of(ROOT).pages()]
    assert names[:3] == ["index", "about", "notebooks/00-tour"]
    phase = names.index("phase-02-paged-attention/index")
    assert names[phase + 1:phase + 3] == ["notebooks/02-paged-attention",
                                          "phase-02-paged-attention/lab-01-block-allocator"]
    assert phase < names.index("docs/engine") < names.index("api/index") < names.index("api/block_pool")
    assert "api/gpu" in names and "api/tests" not in names


def test_pages_hold_hints_answers_notebooks_the_first_paragraph_and_the_api(staged):
    lab = (staged / "phase-02-paged-attention/lab-01-block-allocator.md").read_text(encoding="utf-8")
    places = [lab.index(words) for words in ("# Lab 2.1", "## Hints", "### Task 1: ", "## Answers", "**Stretch 1.** ",
                                             "**The interview question.** ", "<summary>Answer</summary>\n\n")]
    assert places[:4] == sorted(places[:4]) and lab.count("<summary>Answer</summary>") > 1
    cells = json.loads((staged / "notebooks/00-tour.ipynb").read_text(encoding="utf-8"))["cells"]
    texts = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert "[2.1](../phase-02-paged-attention/lab-01-block-allocator.md)" in texts and "[Open in Colab](http" in texts
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    paragraph = next(part for part in readme.split("\n\n") if part[0].isalpha())
    assert paragraph.split("](")[0] in (staged / "index.md").read_text(encoding="utf-8")
    assert "| [`block_pool.py`](block_pool.md)" in (staged / "api/index.md").read_text(encoding="utf-8")
    package = (staged / "api/gpu.md").read_text(encoding="utf-8")
    modules = re.findall("automodule:: (.*)", package)
    assert modules[0] == "mini_vllm.gpu" and "mini_vllm.gpu.runner" in modules and "## runner" in package
    assert not [name for name in modules if "test_" in name]


# ---- links


LAB = "phase-02-paged-attention/labs/lab-01-block-allocator/README.md"


@pytest.mark.parametrize("link, expected", [
    ("[x](../../README.md)", "[x](index.md)"),
    ("[x](../../README.md#some-place)", "[x](index.md#some-place)"),
    ("[x](../lab-02-kv-cache-manager/)", "[x](lab-02-kv-cache-manager.md)"),
    ("[x](hints.md)", "[x](lab-01-block-allocator.md#hints)"),
    ("[x](hints.md#task-1-add)", "[x](lab-01-block-allocator.md#task-1-add)"),
    ("[x](#stretch)", "[x](#stretch)"),
    ("[x](starter.py)", "[x](source:phase-02-paged-attention/labs/lab-01-block-allocator/starter.py)"),
    ("[`x`](../../../mini_vllm/request.py)", "[`x`](source:mini_vllm/request.py)"),
    ("[x](../../../mini_vllm/gpu)", "[x](../api/gpu.md)"),
    ("[x](../../../notebooks/01-why-pages.ipynb)", "[x](../notebooks/01-why-pages.ipynb)"),
    ("[x](../../../README.md#measured)", "[x](../about.md#measured)"),
    ("![x](../../../docs/hero.svg)", "![x](../docs/hero.svg)"),
    ("[x](https://example.org/a.md)", "[x](https://example.org/a.md)"),
    ("[the solution](solution.py)", "the solution"),
    ("[all labs](../../labs)", "all labs"),
])
def test_a_link_leads_to_where_it_is_on_the_site(link, expected):
    links, page = turner()
    assert links.turned(link, LAB, page) == expected and links.problems == []
    assert links.pictures == ({"docs/hero.svg"} if "hero" in link else set())


def turner():
    """Return something that turns links, and the page of lab 2.1."""
    site = site_of(ROOT)
    return LinkTurner(site), next(page for page in site.pages() if LAB in page.files)


@pytest.mark.parametrize("target", ["none.md", "../../../../outside.md"])
def test_a_link_that_leads_nowhere_is_told_and_nothing_is_written(tmp_path, target):
    links, page = turner()
    assert links.turned(f"[x]({target})", LAB, page) == "x"
    assert links.problems == [f"{LAB}: the link to {target} leads nowhere"]
    (tmp_path / "a.md").write_text(f"[x]({target})")
    (tmp_path / "docs/site").mkdir(parents=True)
    for name in ("README.md", "docs/site/index.md"):
        (tmp_path / name).write_text("Text.")
    with pytest.raises(StageError, match=f"a.md: the link to {target} leads nowhere"):
        stage(Site(tmp_path, {"A": (Page("a", ("a.md",)),)}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


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

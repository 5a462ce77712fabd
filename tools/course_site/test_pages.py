"""The pages of the site, as far as they can be checked without Sphinx: all texts, their order, and the links."""

import json
import re
from pathlib import Path

import pytest

from course.lab.hints import parse_hints
from course_site.api import index_page, modules_of
from course_site.folding import LEVELS
from course_site.links import LinkTurner
from course_site.markdown import sections, slug
from course_site.pages import README, Page, site_of, texts_of
from course_site.stage import StageError, filled, stage

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
    assert set(texts_of(ROOT)) == shown, "where on the site does it stand? (pages.py)"
    assert len(shown) > 50


def test_every_section_of_the_readme_is_a_page():
    titles = list(sections((ROOT / README).read_text(encoding="utf-8")))
    pages = [page for page in site_of(ROOT).pages() if page.section]
    assert sorted(page.section for page in pages) == sorted(titles)
    assert {page.name for page in pages} == {slug(title) for title in titles}


def test_every_page_is_in_one_toctree(staged):
    named = []
    for path in staged.rglob("*.md"):
        for entries in TOCTREE.findall(path.read_text(encoding="utf-8")):
            for entry in entries.split():
                found = [path.parent / f"{entry}{suffix}" for suffix in (".md", ".ipynb")]
                (there,) = [each.resolve() for each in found if each.is_file()]
                named.append(there.relative_to(staged.resolve()).with_suffix("").as_posix())
    names = [page.name for page in site_of(ROOT).pages()]
    assert sorted([*named, "index"]) == sorted(names)
    assert len(names) == len(set(names))


def test_every_hint_is_folded_away(staged):
    num_hints = 0
    for path in ROOT.glob("phase-*/labs/*/hints.md"):
        page = (staged / path.parts[-4] / f"{path.parts[-2]}.md").read_text(encoding="utf-8")
        for levels in parse_hints(path.read_text(encoding="utf-8")).values():
            for level, hint in levels.items():
                first = hint.splitlines()[0].split("](")[0]
                assert f"<summary>Hint {level}: {LEVELS[level]}</summary>\n\n{first}" in page
                num_hints += 1
        open_text = re.sub(r"<details.*?</details>", "", page, flags=re.S)
        assert "<details" not in open_text and "<details open" not in page and "### Hint" not in page
    assert num_hints > 250


def test_no_page_leads_to_a_solution(staged):
    for path in staged.rglob("*.md"):
        targets = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
        assert not [target for target in targets if re.search(r"(solution|mutants|wrong_pools)\.py", target)], path


# ---- a small course


def test_pages_stand_in_the_order_of_the_course(small):
    assert [page.name for page in site_of(small).pages()] == [
        "index", "notebooks/00-tour", "the-course", "measured",
        "phase-01-a/index", "notebooks/01-a", "phase-01-a/lab-01-b", "phase-01-a/lab-02-c", "phase-01-a/capstone",
        "docs/engine", "api/index", "api/queue", "api/one", "api/two", "api/fast", "CHANGELOG"]


def test_what_is_new_has_its_place_without_a_line(small):
    new = {"docs/grading.md": "# Grading", "notebooks/02-z.ipynb": '{"cells": []}',
           "phase-02-z/README.md": "# Phase 02", "phase-02-z/labs/lab-01-y/README.md": "# Lab 2.1"}
    for name, text in new.items():
        (small / name).parent.mkdir(parents=True, exist_ok=True)
        (small / name).write_text(text)
    (small / README).write_text((small / README).read_text() + "\n## Thanks\n\nTo all.\n")
    names = [page.name for page in site_of(small).pages()]
    start = names.index("phase-02-z/index")
    assert names[start:start + 3] == ["phase-02-z/index", "notebooks/02-z", "phase-02-z/lab-01-y"]
    assert {"thanks", "docs/grading"} <= set(names)


def test_a_text_without_a_place_is_found(small):
    (small / "attic").mkdir()
    (small / "attic/old.md").write_text("# Old")
    shown = {file for page in site_of(small).pages() for file in page.files}
    assert set(texts_of(small)) - shown == {"attic/old.md"}


LAB = "phase-01-a/labs/lab-01-b/README.md"


@pytest.mark.parametrize("file, link, expected", [
    (LAB, "[x](../../README.md)", "[x](index.md)"),
    (LAB, "[x](../../README.md#some-place)", "[x](index.md#some-place)"),
    (LAB, "[x](../lab-02-c/)", "[x](lab-02-c.md)"),
    (LAB, "[x](hints.md)", "[x](lab-01-b.md#hints)"),
    (LAB, "[x](hints.md#task-1-add)", "[x](lab-01-b.md#task-1-add)"),
    (LAB, "[x](#stretch)", "[x](#stretch)"),
    (LAB, "[x](starter.py)", "[x](source:phase-01-a/labs/lab-01-b/starter.py)"),
    (LAB, "[`x`](../../../mini_vllm/queue.py#L1)", "[`x`](source:mini_vllm/queue.py#L1)"),
    (LAB, "[x](../../../mini_vllm/fast)", "[x](../api/fast.md)"),
    (LAB, "[x](../../../mini_vllm/fast/__init__.py)", "[x](../api/fast.md)"),
    (LAB, "[x](../../../notebooks/01-a.ipynb)", "[x](../notebooks/01-a.ipynb)"),
    (LAB, "[x](../../../README.md)", "[x](../index.md)"),
    (LAB, "[x](../../../README.md#measured)", "[x](../measured.md)"),
    (LAB, "[x](../../../README.md#how)", "[x](../measured.md#how)"),
    (LAB, "![x](../../../docs/picture.svg)", "![x](../docs/picture.svg)"),
    (LAB, "[x](https://example.org/a.md)", "[x](https://example.org/a.md)"),
    (LAB, "[the solution](solution.py)", "the solution"),
    (LAB, "[wrong ones](mutants.py)", "wrong ones"),
    (LAB, "[all labs](../../labs)", "all labs"),
])
def test_a_link_leads_to_where_it_is_on_the_site(small, file, link, expected):
    site = site_of(small)
    links = LinkTurner(site)
    (page,) = [page for page in site.pages() if file in page.files]
    assert links.turned(link, file, page) == expected and links.problems == []
    assert links.pictures == ({"docs/picture.svg"} if "picture" in link else set())


@pytest.mark.parametrize("target", ["none.md", "../../../../outside.md", "../../../README.md#none", "../../none.py#L3"])
def test_a_link_that_leads_nowhere_is_told_and_nothing_is_written(small, tmp_path, target):
    (small / LAB).write_text(f"# Lab 1.1\n\nsee [x]({target})\n\n## Stretch\n\n- Why *so*?\n")
    with pytest.raises(StageError, match=re.escape(f"{LAB}: the link to {target} leads nowhere")):
        stage(site_of(small), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_lab_has_its_hints_and_answers_on_its_page(small, tmp_path):
    stage(site_of(small), tmp_path / "out")
    text = (tmp_path / "out/phase-01-a/lab-01-b.md").read_text()
    assert text.index("# Lab 1.1") < text.index("## Hints") < text.index("### Task 1: add") < text.index("## Answers")
    assert re.findall(r"<summary>(.*)</summary>\n\n(.*)", text) == [
        ("Hint 1: a nudge", "A."), ("Hint 2: the idea", "B."), ("Hint 3: nearly the code", "`C`."),
        ("Answer", "So."), ("Answer", "Yes.")]
    assert "**Stretch 1.** Why *so*?" in text and "**The interview question.** And?" in text


def test_links_of_a_notebook_are_turned_in_its_texts_only(small, tmp_path):
    stage(site_of(small), tmp_path / "out")
    text, code = json.loads((tmp_path / "out/notebooks/00-tour.ipynb").read_text())["cells"]
    assert text["source"] == "# Tour\n[Open](https://b.org/x)\nsee [the lab](../phase-01-a/lab-01-b.md)"
    assert code["source"] == ["'[a](b.md)'"]


def test_what_has_not_changed_is_not_written_again_and_what_is_gone_goes(small, tmp_path):
    out = tmp_path / "out"
    stage(site_of(small), out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.md")}
    (small / "CHANGELOG.md").unlink()
    (small / "phase-01-a/README.md").write_text("# Phase one\n")
    stage(site_of(small), out)
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*.md")}
    assert set(before) - set(after) == {out / "CHANGELOG.md"}
    assert {path for path in after if before[path] != after[path]} == {out / "phase-01-a/index.md", out / "index.md"}


def test_the_front_page_begins_with_the_first_paragraph_of_the_readme(small):
    assert filled("{{README.md}} It is here.", small) == "A small course. It is here."


def test_the_api_is_grouped_as_the_map_is(small):
    text = index_page((small / "docs/engine.md").read_text())
    assert text.startswith("# The API\n\nThe course.\n") and "| [`queue.py`](queue.md) | 1.1 |" in text
    assert "| [`one.py`](one.md), [`two.py`](two.md) | – |" in text
    assert "| [`fast/`](fast.md) |" in text and "| `tests/` |" in text
    assert modules_of(small, "fast") == ["mini_vllm.fast", "mini_vllm.fast.exp"]


def test_pages_below_are_walked_in_order():
    tree = Page("a", below=(Page("b", below=(Page("c"),)), Page("d")))
    assert [page.name for page in tree.walk()] == ["a", "b", "c", "d"]

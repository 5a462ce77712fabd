"""The reader's map, docs/engine.md: every link leads to the line that defines its name, and no module is missing."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/engine.md"
PACKAGE = ROOT / "mini_vllm"

spec = importlib.util.spec_from_file_location("line_links", ROOT / "tools/line_links.py")
line_links = importlib.util.module_from_spec(spec)
spec.loader.exec_module(line_links)


def test_every_link_leads_to_the_line_that_defines_its_symbol():
    links = line_links.LINK.findall(PAGE.read_text(encoding="utf-8"))
    problems = line_links.broken_links(PAGE)
    assert len(links) > 40
    assert not problems, "\n".join([*problems, "`make map` updates the line numbers"])


def test_every_module_and_every_room_is_on_the_map():
    text = PAGE.read_text(encoding="utf-8")
    modules = [path.name for path in PACKAGE.glob("*.py") if not path.name.startswith(("test_", "__", "conftest"))]
    rooms = [f"{path.name}/" for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()]
    assert [name for name in modules + rooms if f"`{name}`" not in text] == []


@pytest.mark.parametrize("link, problem", [
    ("[`add`](sums.py#L3)", None),
    ("[`Sum.total`](sums.py#L8)", None),
    ("[`LIMIT`](sums.py#L1)", None),
    ("[`add`](sums.py#L4)", "page.md: add is at line 3 of sums.py, the link says 4"),
    ("[`subtract`](sums.py#L3)", "page.md: sums.py does not define subtract"),
    ("[`add`](products.py#L3)", "page.md: products.py does not define add"),
])
def test_a_link_that_leads_elsewhere_is_found_and_mended_if_it_can_be(tmp_path, link, problem):
    (tmp_path / "sums.py").write_text("LIMIT = 3\n\ndef add(a, b):\n    return a + b\n\n\nclass Sum:\n"
                                      "    def total(self):\n        return 0\n")
    page = tmp_path / "page.md"
    page.write_text(f"See {link}.\n")
    assert line_links.broken_links(page) == ([problem] if problem else [])
    line_links.mend(page)
    is_mended = problem is None or "at line" in problem
    assert (line_links.broken_links(page) == []) == is_mended

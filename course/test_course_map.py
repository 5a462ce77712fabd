"""The maintainer's map, docs/course.md: links lead to files that have the name, and every folder is listed."""

import re
from pathlib import Path

from course.plugin import MARKERS
from mini_vllm.tests.test_engine_map import lost_names

PACKAGE = Path(__file__).parent
PAGE = PACKAGE.parent / "docs/course.md"


def test_every_name_is_in_the_file_that_its_link_leads_to():
    assert lost_names(PAGE) == []


def test_every_folder_and_every_module_at_the_top_is_on_the_map():
    text = PAGE.read_text(encoding="utf-8")
    folders = [f"`{path.parent.relative_to(PACKAGE).as_posix()}/`" for path in PACKAGE.rglob("__init__.py")
               if path.parent != PACKAGE]
    modules = [path.stem for path in PACKAGE.glob("*.py") if not path.name.startswith(("test_", "__", "conftest"))]
    missing = [name for name in modules if f"`{name}.py`" not in text and f"`course.{name}`" not in text]
    assert len(folders) > 15 and len(modules) > 5
    assert not missing + [folder for folder in folders if f"| {folder} |" not in text]


def test_every_marker_is_documented_for_authors():
    """Check that exactly the existing markers are documented."""
    section = (PACKAGE / "AUTHORING.md").read_text(encoding="utf-8").split("### Markers")[1].split("\n## ")[0]
    documented = set(re.findall(r"^\| `(\w+(?:\(\w+\))?)` \|", section, re.MULTILINE))
    assert documented - {"parametrize"} == {marker.split(":")[0] for marker in MARKERS}

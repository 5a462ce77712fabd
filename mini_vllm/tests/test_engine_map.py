"""The reader's map, docs/engine.md: every file that it links to contains the name, and no module is missing."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/engine.md"
PACKAGE = ROOT / "mini_vllm"


def lost_names(page):
    """Return a line for each link ``[`Scheduler.preempt`](../mini_vllm/scheduler.py)`` whose file lacks the name."""
    links = re.findall(r"\[`([\w.]+)`\]\(([^)#\s]+\.py)\)", page.read_text(encoding="utf-8"))
    assert len(links) > 40
    texts = {target: (page.parent / target).read_text(encoding="utf-8") for _, target in links}
    return [f"{target} has no {name}" for name, target in links
            if not name.endswith(".py") and not re.search(rf"\b{name.split('.')[-1]}\b", texts[target])]


def test_every_name_is_in_the_file_that_its_link_leads_to():
    assert lost_names(PAGE) == []


def test_every_module_and_every_room_is_on_the_map():
    text = PAGE.read_text(encoding="utf-8")
    modules = [path.name for path in PACKAGE.glob("*.py") if not path.name.startswith(("test_", "__", "conftest"))]
    rooms = [f"{path.name}/" for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()]
    assert [name for name in modules + rooms if f"`{name}`" not in text] == []

"""The pages of the site as Sphinx reads them: every text with its links converted and its toctree."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from course.lab.answers import INTERVIEW, parse_answers, questions_of
from course.lab.hints import parse_hints, task_titles
from course_site.links import SOURCE, LinkTurner
from course_site.pages import FRONT, MAP, MODULE_NAME, NOT_CALLED, PACKAGE, README, Page, Site, table_of_modules

#: What a hint of each level contains, in the README's words for ``course hint``.
LEVELS = {1: "a nudge", 2: "the idea", 3: "nearly the code"}
#: A link that shows a picture from another site. Our site must work without a network, so on its pages the link shows
#: the picture's alternative text instead.
_BADGE = re.compile(r"\[!\[([^\]]*)\]\(https?://[^)\s]+\)\]")


class StageError(Exception):
    """Some pages cannot be made. The message lists all problems, one per line."""


def stage(site: Site, folder: Path) -> None:
    """Replace ``folder`` by all pages and the pictures that they show. Raise StageError first if a link is broken."""
    links = LinkTurner(site)
    texts = {f"{page.name}{'.ipynb' if ''.join(page.files).endswith('.ipynb') else '.md'}": text_of(site, page, links)
             for page in site.pages()}
    if links.problems:
        raise StageError("\n".join(links.problems))
    shutil.rmtree(folder, ignore_errors=True)
    for name in (*texts, *links.pictures):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name in links.pictures:
        shutil.copy2(site.root / name, folder / name)


def text_of(site: Site, page: Page, links: LinkTurner) -> str:
    """Return the text of one page."""
    def read(name: str) -> str:
        return (site.root / name).read_text(encoding="utf-8")

    if page.module:
        return module_page(site.root, page.module)
    if page.name == "api/index":
        # Links in the map's own text are relative to the map; links to the modules are made here, relative to the API.
        return index_page(links.turned(read(MAP), MAP, page)) + _toctree(page, page.below)
    file = page.files[0]
    if file.endswith(".ipynb"):
        return _notebook(json.loads(read(file)), file, page, links)
    if file == FRONT:
        paragraph = next(part for part in read(README).split("\n\n") if part[0].isalpha())
        text = links.turned(read(FRONT).replace("{{README.md}}", paragraph), FRONT, page)
        return text + "".join(_toctree(page, pages, caption) for caption, pages in site.groups.items())
    text = links.turned(read(file), file, page)
    for other in page.files[1:]:
        section = hints_section(read(other)) if other.endswith("hints.md") else answers_section(read(file), read(other))
        text = f"{text.rstrip()}\n\n{links.turned(section, other, page)}"
    return text + (_toctree(page, page.below) if page.below else "")


def hints_section(hints: str) -> str:
    """Convert a lab's hints.md to a section of its page: three folded levels for every task."""
    titles = task_titles(hints)
    parts = ["## Hints", "There are three hints per task. Try again after each one before you open the next."]
    for task, levels in parse_hints(hints).items():
        parts.append(f"### Task {task}: {titles[task]}")
        parts += [_folded(f"Hint {level}: {LEVELS[level]}", hint, "hint") for level, hint in sorted(levels.items())]
    return "\n\n".join(parts) + "\n"


def answers_section(readme: str, answers: str) -> str:
    """Convert a lab's answers.md to a section of its page: every open question again, with a folded answer."""
    found = parse_answers(answers)
    parts = ["## Answers", "Answers to the questions that this page leaves open. Think first."]
    for question in questions_of(readme):
        name = "The interview question" if question.name == INTERVIEW else f"Stretch {question.name}"
        parts += [f"**{name}.** {question.text}", _folded("Answer", found[question.name], "answer")]
    return "\n\n".join(parts) + "\n"


def _folded(summary: str, text: str, kind: str) -> str:
    return f'<details class="{kind}">\n<summary>{summary}</summary>\n\n{text.strip()}\n\n</details>\n'


def _notebook(notebook: dict[str, Any], file: str, page: Page, links: LinkTurner) -> str:
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = links.turned(_BADGE.sub(r"[\1]", "".join(cell["source"])), file, page)
    return json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"


def _toctree(page: Page, pages: tuple[Page, ...], caption: str = "") -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *(page.path_to(each.name) for each in pages), "```", ""])


# ---- the API


def index_page(text: str) -> str:
    """Return the map's tables with the module names linked to their pages."""
    def linked(row: re.Match[str]) -> str:
        return MODULE_NAME.sub(lambda name: name[0] if name[1] in NOT_CALLED else f"[{name[0]}]({name[1]}.md)", row[0])

    section = re.sub(r"^\| `[^|]*\|", linked, table_of_modules(text), flags=re.M)
    return re.sub(r"^##(#*) ", r"#\1 ", section, flags=re.M).replace("# The modules", "# The API", 1)


def module_page(root: Path, name: str) -> str:
    """Return a page with the docstrings of a module, or of a package and all its modules."""
    folder = root / PACKAGE / name
    found = sorted(path for path in folder.rglob("*.py") if not path.name.startswith(("test_", "conftest", "__"))
                   and "browser" not in path.parts)
    paths = [folder / "__init__.py", *found] if folder.is_dir() else [folder.with_suffix(".py")]
    parts = [f"# {name}"]
    for path in paths:
        file = path.relative_to(root).as_posix()
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if path in found:
            parts.append(f"## {module.removeprefix(f'{PACKAGE}.{name}.')}")
        parts += [f"[`{file}`]({SOURCE}{file})", f"```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n```"]
    return "\n\n".join(parts) + "\n"

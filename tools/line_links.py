"""Links from a page to the line that defines a symbol: ``[`Scheduler.preempt`](../mini_vllm/scheduler.py#L210)``.

    python tools/line_links.py docs/engine.md      updates the line number of every such link
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

#: A symbol in backquotes, the path of its module, and a line number.
LINK = re.compile(r"\[`([\w.]+)`\]\(([^)#\s]+\.py)#L(\d+)\)")


def definitions(text: str) -> dict[str, int]:
    """Return the line of every class, function, method and constant of a module, by dotted name."""
    lines: dict[str, int] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                lines[prefix + node.name] = node.lineno
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            targets = (node.targets if isinstance(node, ast.Assign)
                       else [node.target] if isinstance(node, ast.AnnAssign) else [])
            for target in targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        lines[prefix + name.id] = node.lineno

    visit(ast.parse(text).body, "")
    return lines


def broken_links(page: Path) -> list[str]:
    """Return a message for each link of ``page`` that does not lead to its symbol."""
    problems = []
    for symbol, target, line in LINK.findall(page.read_text(encoding="utf-8")):
        path = page.parent / target
        wanted = definitions(path.read_text(encoding="utf-8")).get(symbol) if path.is_file() else None
        if wanted is None:
            problems.append(f"{page.name}: {target} does not define {symbol}")
        elif wanted != int(line):
            problems.append(f"{page.name}: {symbol} is at line {wanted} of {target}, the link says {line}")
    return problems


def mend(page: Path) -> None:
    """Update every line number. Leave a link to a missing symbol unchanged."""

    def mended(link: re.Match[str]) -> str:
        symbol, target, line = link.groups()
        path = page.parent / target
        known = definitions(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return f"[`{symbol}`]({target}#L{known.get(symbol, line)})"

    page.write_text(LINK.sub(mended, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        mend(Path(name))
        print(*broken_links(Path(name)), sep="\n")

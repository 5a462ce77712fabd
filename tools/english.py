"""Check the English of everything that a person reads.

    python tools/english.py                 check every file of the repository; exit with 1 if it finds anything
    python tools/english.py --count         print the number of findings per folder
    python tools/english.py docs course     check these files and folders

It finds:

- a number with a unit, followed by "a" or "an" ("22.5 KiB a token": write "per token");
- a sentence that begins with "Who" and is not a question;
- the words in ``WORDS``;
- docstrings of functions that do not begin with a verb of ``verbs.txt`` (properties and classes may be nouns).

It skips code in Markdown, text that a model generated (the outputs of notebooks), and lines of Python that end in
``# as it was said``, because they quote a text.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERBS = frozenset(Path(__file__).with_name("verbs.txt").read_text(encoding="utf-8").split())
#: Word → what to write instead.
WORDS = {"anew": "again", "so many": "a number, or “that many”", "mend": "fix", "mends": "fixes", "mended": "fixed",
         "mending": "fixing"}
QUOTED = "# as it was said"
#: Files that contain the habits as examples.
LEFT_OUT = ("tools/english.py", "tools/test_english.py")
SUFFIXES = (".md", ".py", ".ipynb", ".js", ".html", ".toml", ".yml", ".cfg", ".cff", ".sh", ".svg", "lab.json",
            "variants.json", "Makefile", ".ci/run")
_NUMBER = r"(?:\d[\d.,–]*|two|three|four|five|six|seven|eight|nine|ten)"
_UNIT = (r"(?:[KMGT]i?B|bytes?|bits|tokens?|blocks?|requests?|hints?|lines?|points?|tests?|ms|s|milliseconds|seconds?|"
         r"minutes?|hours?|steps?|words?|files?|rows?|slots?|numbers?)")
_PER = re.compile(rf"\b{_NUMBER}\s{{1,2}}{_UNIT}\s+an?\s+(?!(?:few|lot|bit)\b)[a-z]", re.I)
_WHO = re.compile(r"(?:^|(?<=[.:!?]\s)|(?<=\n\n))Who\b(?!\s*:)[^.?!\n]*(?:\n(?!\n)[^.?!\n]*)*[.!]", re.M)
_WORD = re.compile(rf"\b({'|'.join(sorted(WORDS, key=len, reverse=True))})\b", re.I)
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2[^\n]*$", re.S | re.M)
_INLINE = re.compile(r"(`+)[^`\n]*\1")


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def findings_of_text(text: str) -> Iterator[tuple[int, str]]:
    """Yield the findings in a text, each with its line, counted from 0."""
    for pattern, advice in ((_PER, "say “per”"), (_WHO, "start with a noun, or write a question"), (_WORD, "")):
        for match in pattern.finditer(text):
            said = " ".join(match[0].split())
            yield text.count("\n", 0, match.start()), f"{said!r}: {advice or 'say ' + WORDS[match[0].lower()]}"


def findings_of_file(path: Path, name: str) -> list[Finding]:
    """Return the findings in a file, in the order of its lines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        found = _of_python(text)
    elif path.suffix == ".ipynb":
        found = _of_notebook(text)
    elif path.suffix == ".md":
        found = list(findings_of_text(_without_code(text)))
    else:
        found = list(findings_of_text(text))
    lines = text.splitlines()
    return [Finding(name, line + 1, told) for line, told in sorted(found)
            if line >= len(lines) or not lines[line].endswith(QUOTED)]


def _without_code(markdown: str) -> str:
    """Return the same lines, with empty lines instead of code."""
    blank = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), markdown)
    return _INLINE.sub("", blank)


def _of_notebook(text: str) -> list[tuple[int, str]]:
    """Return the findings in the cells of a notebook. The line is that of the beginning of the cell."""
    found = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        line = text.count("\n", 0, max(text.find(json.dumps(source[:40], ensure_ascii=False)[1:-1]), 0))
        kept = _without_code(source) if cell["cell_type"] == "markdown" else _strings(source)
        found += [(line, told) for _, told in findings_of_text(kept)]
    return found


def _strings(source: str) -> str:
    try:
        return "\n".join(token.string for token in tokenize.generate_tokens(io.StringIO(source).readline)
                         if token.type in (tokenize.STRING, tokenize.COMMENT))
    except (tokenize.TokenError, IndentationError):  # a magic command of IPython
        return ""


def _of_python(source: str) -> list[tuple[int, str]]:
    """Return the findings in comments, strings and docstrings."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or "STRING" in tokenize.tok_name[token.type]:
            found += [(token.start[0] - 1 + line, told) for line, told in findings_of_text(token.string)]
        elif tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            found += [(token.start[0] - 1 + line, told) for line, told in findings_of_text(token.string)]
    return found + list(_docstrings_without_a_verb(ast.parse(source)))


def _docstrings_without_a_verb(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or _is_property(node):
            continue
        docstring = ast.get_docstring(node)
        first = re.match(r"[A-Za-z]+", docstring) if docstring else None
        if docstring and (first is None or first[0].lower() not in VERBS):
            begins = " ".join(docstring.split()[:6])
            yield node.body[0].lineno - 1, f"the docstring of {node.name} does not begin with a verb: {begins!r}"


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    called = [decorator.func if isinstance(decorator, ast.Call) else decorator for decorator in node.decorator_list]
    names = {getattr(decorator, "id", getattr(decorator, "attr", "")) for decorator in called}
    return bool(names & {"property", "cached_property", "setter"})


def files_of(arguments: Sequence[str], root: Path = ROOT) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *arguments],
                            cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted({root / name for name in listed if name.endswith(SUFFIXES) and not name.startswith(LEFT_OUT)
                   and (root / name).is_file()})


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", help="files and folders; default: the whole repository")
    parser.add_argument("--count", action="store_true", help="print the number of findings per folder")
    arguments = parser.parse_args(argv)
    found = [finding for path in files_of(arguments.paths)
             for finding in findings_of_file(path, path.relative_to(ROOT).as_posix())]
    if arguments.count:
        for folder, number in sorted(Counter("/".join(each.path.split("/")[:2]) for each in found).items()):
            print(f"{number:>6}  {folder}")
    else:
        print("".join(f"{finding}\n" for finding in found), end="")
    print(f"{len(found)} findings", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

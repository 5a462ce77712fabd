"""Check that the scripts on the course pages print what the pages show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: A script that a reader pastes into a shell, followed directly by its output, folded or not.
SCRIPT = re.compile(r"```\npython - <<'END'\n(?P<text>((?!```).)*?)\nEND\n```\n\n"
                    r"(<details><summary>[^<]*</summary>\n\n)?```\n(?P<printed>((?!```).)*?)\n```\n", re.S)
#: Numbers that depend on the machine.
MEASURED = re.compile(r" *[\d.]+ +(?=ms|tokens/s|times as)")
PAGES = sorted(ROOT.glob("phase-*/**/*.md"))
FOUND = [pytest.param(match["text"], match["printed"], id=f"{path.relative_to(ROOT)}:{index}")
         for path in PAGES for index, match in enumerate(SCRIPT.finditer(path.read_text(encoding="utf-8")), start=1)]


@pytest.mark.parametrize("text, printed", FOUND)
def test_a_page_shows_what_its_script_prints(text, printed):
    run = subprocess.run([sys.executable, "-"], input=text, capture_output=True, text=True, cwd=ROOT, timeout=300,
                         env={**os.environ, "COLUMNS": "120"})
    assert run.returncode == 0, run.stderr[-2000:]
    assert _comparable(run.stdout) == _comparable(printed)


def _comparable(text):
    return [MEASURED.sub(" N ", line.rstrip()) for line in text.strip("\n").split("\n")]


def test_there_are_such_pages():
    assert len(FOUND) >= 5

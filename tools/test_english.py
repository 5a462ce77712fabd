"""The check of the English: what it finds, and what it skips."""

import json

import pytest
from english import findings_of_file, findings_of_text, main


def told(text):
    return [said for _, said in findings_of_text(text)]


@pytest.mark.parametrize("text", [
    "22.5 KiB a token", "three hints a task", "about 4 ms a step", "1,000 requests an hour", "two  blocks a request",
    "It is 5 bytes\na number.", "Who was removed is never served.", "It ends. Who comes later waits.",
    "First.\n\nWho stays\nis served.", "It is made anew.", "so many tokens", "Mend it.", "it was mended"])
def test_a_habit_is_found(text):
    assert len(told(text)) == 1


@pytest.mark.parametrize("text", [
    "22.5 KiB per token", "a token has 22.5 KiB", "Who was removed?", "Whose is it? Who knows?", "Whoever comes waits.",
    "renewed", "amend the record", "recommend it",
    "5 tokens and a block", "3 steps a few times"])
def test_good_english_is_left_alone(text):
    assert told(text) == []


def found_in(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return [(finding.line, finding.text) for finding in findings_of_file(tmp_path / name, name)]


def test_of_markdown_code_is_left_alone(tmp_path):
    text = "Good.\n\n```\n3 hints a task\n```\n\n`2 ms a step`\n\nIt is 2 ms a step.\n"
    assert found_in(tmp_path, "a.md", text) == [(9, "'2 ms a s': say “per”")]


def test_of_python_comments_strings_and_docstrings_are_read(tmp_path):
    text = ('"""A module may be a noun."""\n\n# 3 bytes a number\nX = "done anew"\nmend = 1\n\n\n'
            'class Thing:\n    """A class, too."""\n\n    @property\n    def size(self):\n        """How large."""\n\n'
            '    def run(self):\n        """What runs."""\n\n    def go(self):\n        """Go.\n\n        Anew.\n'
            '        """\n\n\ndef f():\n    return "so many"  # as it was said\n')
    assert found_in(tmp_path, "a.py", text) == [
        (3, "'3 bytes a n': say “per”"), (4, "'anew': say again"),
        (16, "the docstring of run does not begin with a verb: 'What runs.'"), (21, "'Anew': say again")]


def test_of_a_notebook_only_its_own_texts_are_read(tmp_path):
    cells = [{"cell_type": "markdown", "source": ["# Title\n", "2 ms a step"]},
             {"cell_type": "code", "source": ["x = 'made anew'\n"], "outputs": [{"text": ["so many words"]}]}]
    found = found_in(tmp_path, "a.ipynb", json.dumps({"cells": cells}, indent=1))
    assert [text for _, text in found] == ["'2 ms a s': say “per”", "'anew': say again"]


def test_the_command_tells_and_counts(capsys, tmp_path):
    assert main(["tools/release.py", "--count"]) in (0, 1)
    assert capsys.readouterr().err.endswith(" findings\n")

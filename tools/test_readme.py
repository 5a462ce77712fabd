"""Check that everything the README names exists, and test how `make readme` runs it from top to bottom."""

import re
import subprocess

import pytest
from readme import PAGES, ROOT, Reader, Step, run_all, steps_of, steps_of_pages, without_comment

from course import cli as course_cli
from mini_vllm import cli as engine_cli

TEXT = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
PROGRAM = {"mini-vllm": engine_cli.main, "course": course_cli.main}


def test_commands_are_read_from_fences_and_tables_and_snippets_whole():
    text = """
`course status` in a sentence is none.

```
make demo        # with a comment
 prompt ──▶ queue
course test 2.1
```
| `python -m thing …` | result |
|---|---|
| `one` | 1 |

| `pytest labs` | what |
| `no command` | what |

```python
import this

print(1)  # kept
```
"""
    assert list(steps_of(text)) == [
        Step(5, "make demo"), Step(7, "course test 2.1"), Step(11, "python -m thing one"), Step(13, "pytest labs"),
        Step(17, "import this\n\nprint(1)  # kept", is_python=True)]


@pytest.mark.parametrize("command, complaint", [("python -c 'exit(3)'", "exit status 3, expected 0"),
                                                ("make test-that-is-not-there", "exit status 2")])
def test_a_command_that_fails_is_told_with_its_line(command, complaint, tmp_path):
    with pytest.raises(AssertionError, match=rf"README\.md:7: {re.escape(command)}\n{complaint}"):
        Reader(tmp_path, tmp_path).run(Step(7, command))


def test_all_of_it_runs_and_the_first_that_says_nothing_ends_it(tmp_path, capsys):
    steps = steps_of("```\ncd .\npython --version\npython -c pass\npython -m this\n```\n")
    with pytest.raises(AssertionError, match=r"README\.md:4: python -c pass\nprints nothing"):
        run_all(list(steps), tmp_path, tmp_path)
    assert " s  README.md:3: python --version\n" in capsys.readouterr().out


def test_the_shell_keeps_folder_and_environment(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "activate").write_text("export COLOUR='a b\nc'\n")
    reader = Reader(tmp_path, tmp_path)
    for command in ("cd below", "source ../activate"):
        reader.run(Step(1, command))
    assert reader.run(Step(1, 'python3 -c "import os; print(os.getcwd(), repr(os.environ[\'COLOUR\']))"')) == \
        f"{tmp_path / 'below'} 'a b\\nc'\n"


def help_of(command, capsys):
    """Return the output of a command's --help."""
    program, *words = command.split()[:3 if command.startswith("mini-vllm bench") else 2]
    with pytest.raises(SystemExit) as end:
        PROGRAM[program]([*words, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("line", [line for line in TEXT.splitlines() if line.split(" ")[0] in PROGRAM and "--" in line],
                         ids=without_comment)
def test_every_option_that_is_named_beside_a_command_is_one_of_its_options(line, capsys):
    said = help_of(line, capsys)
    for option in re.findall(r"(?<=[ (])--[a-z-]+", line):
        assert re.search(rf"{option}\b(?!-)", said), f"{option} is no option of {without_comment(line)}"


def inline_commands():
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.S)
    return sorted({command for command in re.findall(r"`((?:make|course|mini-vllm|python -m) [^`…]+)`", prose)})


def test_a_command_of_several_pages_runs_once_in_the_order_of_the_pages():
    steps = steps_of_pages()
    assert len({step.text for step in steps}) == len(steps) and {step.page for step in steps} == set(PAGES)
    assert [step.page for step in steps] == sorted((step.page for step in steps), key=PAGES.index)


def test_every_target_of_make_in_a_sentence_is_there():
    targets = [command.split()[1] for command in inline_commands() if command.startswith("make ")]
    made = subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, text=True)
    assert targets and made.returncode == 0, made.stderr


@pytest.mark.parametrize("command", [command for command in inline_commands() if not command.startswith("make ")])
def test_a_command_in_a_sentence_is_there(command, capsys):
    program, *words = command.split()
    if program == "course":
        assert words[0] in course_cli.COMMANDS
    elif program == "mini-vllm":
        assert help_of(f"mini-vllm {words[0]}", capsys)
    else:
        assert (ROOT / words[1].replace(".", "/")).exists()


def test_a_newcomer_has_an_empty_home_and_nothing_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("MINI_VLLM_CACHE", "/models")
    reader = Reader(tmp_path, home=tmp_path / "home")
    assert reader.environment["HOME"] == str(tmp_path / "home") and "PYTHONPATH" not in reader.environment
    assert reader.environment["MINI_VLLM_CACHE"] == "/models", "a model is not fetched again"
    reader.run(Step(1, "git clone somewhere copy"))
    assert (tmp_path / "copy/README.md").is_file() and not (tmp_path / "copy/.venv").exists()

"""The compiled module matches the current source, and a copy of the source runs it."""

import subprocess
import sys

from course.grading.remote_lab.bytecode import cached_name, compiled


def test_a_copy_runs_what_was_compiled_and_not_its_source(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    (there / "__pycache__").mkdir(parents=True)
    here.mkdir()
    (here / "m.py").write_text("SAYS = 'compiled'\n")
    (there / cached_name("m.py")).write_bytes(compiled(here / "m.py", (here / "m.py").read_bytes()))
    (there / "m.py").write_text("SAYS = 'source'\n")
    code = f"import sys; sys.path.insert(0, {str(there)!r}); import m; print(m.SAYS, m.__file__)"
    told = subprocess.run([sys.executable, "-I", "-B", "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["compiled", str(there / "m.py")]


def test_a_file_that_has_changed_is_compiled_again(tmp_path):
    path = tmp_path / "m.py"
    found = []
    for text in ("A = 1\n", "A = 2; another_name = 3\n"):
        path.write_text(text)
        found.append(compiled(path, path.read_bytes()))
    assert b"another_name" not in found[0] and b"another_name" in found[1]

"""A replacement for ``subprocess.Popen`` whose processes start with the imports done: some suites start dozens of them.

The tests below compare such a process with a real one; own_engine/test_run.py and grade_file/test_grade_file.py also
run one real process each.
"""

import contextlib
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest
from _pytest.config import default_plugins

from course.pytest_run.run_lab import run_lab

#: The modules that may be run → their imports. The course's plugin is not preloaded for pytest, because pytest rewrites
#: its assertions. On a Mac no engine is forked: Metal does not survive a fork.
IMPORTED = {"pytest": ["pytest", *(f"_pytest.{name}" for name in default_plugins), "unittest",
                       "course.grading.grade_file.grade_json", "course.grading.remote_lab.pytest_bridge",
                       "course.grading.remote_lab.sandbox_files", "course.pytest_run.exception_guard",
                       "course.pytest_run.selection"]}
if sys.platform == "linux":
    IMPORTED["course.own_engine.process"] = ["course.own_engine.capstone", "course.own_engine.workloads",
                                             "mini_vllm.native.advice", "mini_vllm.pictures.recorded"]
#: The server runs no test and computes nothing, and NumPy's OpenBLAS ends its threads before a fork. So a forked
#: process is as clean as one that Python starts.
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload([name for names in IMPORTED.values() for name in names] + ["course.test_forked"])


def run_module(module, arguments, folder, environment, output, passed):
    """Do what ``python -m`` does, in a forked process. ``passed`` maps descriptor numbers to files."""
    gc.freeze()  # a collection need not visit the server's imports
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.dont_write_bytecode = [module, *arguments], "PYTHONDONTWRITEBYTECODE" in environment
    if "PYTHONSAFEPATH" not in environment:
        sys.path.insert(0, folder)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, file in passed.items():
        os.dup2(file.fileno(), number)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class ForkedPopen:
    """Like ``subprocess.Popen``, for ``python -m`` and a module of ``IMPORTED``."""

    stdin = stdout = None

    def __init__(self, command, cwd, env, stdout, pass_fds=(), **_):
        assert command[:2] == [sys.executable, "-m"] and command[2] in IMPORTED, command
        output, passed = Connection(os.dup(stdout.fileno())), {each: Connection(os.dup(each)) for each in pass_fds}
        self._process = _server.Process(target=run_module, args=(command[2], command[3:], str(cwd), dict(env), output,
                                                                 passed), daemon=True)
        self._process.start()
        for file in (output, *passed.values()):
            file.close()
        self.pid = self._process.pid
        with contextlib.suppress(ProcessLookupError):  # already ended
            while os.getpgid(self.pid) != self.pid:  # until then, its group cannot be killed
                time.sleep(0.001)

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def wait(self):
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)


def popen(command, **options):
    return (ForkedPopen if command[2] in IMPORTED else subprocess.Popen)(command, **options)


STAND_IN = SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL, PIPE=subprocess.PIPE)


@pytest.mark.parametrize("add, double", [
    ("return a + b if b != 1 else 0", "print('adding')\n    return {}[a]"),  # passes, is wrong, raises
    ("return a + b", "import os; os._exit(3)"), ("return a + b", "import os; os.abort()"),
    ("return a + b", "while True: pass"),
])
def test_a_forked_process_says_what_a_real_one_says(lab1, monkeypatch, add, double):
    text = lab1.solution.read_text().replace("return a + b", add).replace("return add(a, a)", double)
    lab1.starter.write_text(text)
    real = run_lab(lab1, ["starter"], time_limit_s=0.2)
    monkeypatch.setattr("course.core.child_process.subprocess", STAND_IN)
    assert run_lab(lab1, ["starter"], time_limit_s=0.2) == real

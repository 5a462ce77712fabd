"""Processes for the labs' tests that begin where pytest is imported already, for suites that start dozens of them.

What such a process does is proved on real ones, in test_running.py. Here, that one of these does the same.
"""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from course.runner import run_lab
from course.test_running import write_starter

#: All that a lab's process imports, but the plugin itself: pytest rewrites the assertions of that.
IMPORTED = ["pytest", "_pytest.capture", "course.base", "course.failures", "course.impls", "course.limits",
            "course.loading", "course.points", "course.tamed", "course.test_forked"]
#: The server has no threads and runs no test, so what it forks is as clean as what Python starts.
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(IMPORTED)


def run_pytest(arguments, folder, environment, output):
    """What ``python -m pytest`` does, in a process that was forked."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.dont_write_bytecode = ["pytest", *arguments], "PYTHONDONTWRITEBYTECODE" in environment
    sys.path.insert(0, folder)
    with open(output, "ab") as file, open(os.devnull, "rb") as nothing:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        os.dup2(nothing.fileno(), 0)
    raise SystemExit(pytest.console_main())


class ForkedPopen:
    """As ``subprocess.Popen`` for the command of ``course.child``."""

    def __init__(self, command, cwd, env, stdout, **_):
        assert command[:3] == [sys.executable, "-m", "pytest"], command
        self._process = _server.Process(target=run_pytest, args=(command[3:], str(cwd), dict(env), stdout.name),
                                        daemon=True)
        self._process.start()
        self.pid = self._process.pid
        with contextlib.suppress(ProcessLookupError):  # it has ended
            while os.getpgid(self.pid) != self.pid:  # until then, its group could not be ended
                time.sleep(0.001)

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def wait(self):
        self._process.join()
        return self._process.exitcode


STAND_IN = SimpleNamespace(Popen=ForkedPopen, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT)


@pytest.mark.parametrize("double", [
    "return add(a, a)", "return 0", "print('adding')\n    return {}[a]", "import os; os._exit(3)",
    "import os; os.abort()", "while True: pass",
])
def test_a_forked_process_says_what_a_real_one_says(lab1, monkeypatch, double):
    write_starter(lab1, double=double)
    real = run_lab(lab1, ["starter"], time_limit_s=0.3)
    monkeypatch.setattr("course.child.subprocess", STAND_IN)
    assert run_lab(lab1, ["starter"], time_limit_s=0.3) == real

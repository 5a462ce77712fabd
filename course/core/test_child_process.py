"""A process is killed together with everything it started, however its supervisor leaves."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from course.core.child_process import ChildProcess, ending_on_signals

#: Starts a process that holds the same descriptors, prints that it has, and waits for it.
PARENT = ("import subprocess, sys; sleeper = [sys.executable, '-S', '-c', 'import time; time.sleep(600)']; "
          "child = subprocess.Popen(sleeper, close_fds=False); print('started', flush=True); child.wait()")
#: Far longer than a killed process needs to disappear.
PATIENCE_S = 60


@pytest.fixture
def start(tmp_path):
    def start(text, **more):
        return ChildProcess([sys.executable, "-S", "-c", text], tmp_path, os.environ, tmp_path / "printed", **more)

    return start


@pytest.mark.parametrize("way", ["a reason", "an exception", "the end of the block"])
def test_what_it_started_goes_with_it(start, way):
    reading, writing = os.pipe()
    child = start(PARENT, descriptors=(writing,))
    os.close(writing)

    def look():
        if not child.printed().endswith("\n"):
            return None
        if way == "an exception":
            raise KeyError("somebody pressed a key")
        return "it takes too long"

    if way == "a reason":
        assert child.watch(look) == "it takes too long"
    elif way == "an exception":
        with pytest.raises(KeyError):
            child.watch(look)
    else:
        with child:
            while look() is None:
                pass
    assert child.status == -9
    with os.fdopen(reading, "rb") as pipe:  # it reaches its end once no process holds the other side any more
        assert select.select([pipe], [], [], PATIENCE_S)[0] and pipe.read() == b""


#: Starts a supervised process that inherits a descriptor, and watches it until a signal comes.
SUPERVISOR = """
import os, pathlib, signal, sys
from course.core.child_process import ChildProcess, ending_on_signals
# A suite that runs under nohup, or in the background of a script, inherits ignored signals.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
sleeper = [sys.executable, '-S', '-c', "import time; print('started', flush=True); time.sleep(600)"]
is_told = []
def look():
    if child.printed() and not is_told:
        is_told.append(print('started', flush=True))
with ending_on_signals():
    child = ChildProcess(sleeper, pathlib.Path('.'), os.environ, pathlib.Path('inner'), descriptors=(int(sys.argv[1]),))
    child.watch(look)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_ends_the_supervisor_ends_the_process_too(tmp_path, number):
    reading, writing = os.pipe()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(writing)], cwd=tmp_path, pass_fds=(writing,),
                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as supervisor:
        os.close(writing)
        assert supervisor.stdout.readline() == b"started\n"
        supervisor.send_signal(number)
        with os.fdopen(reading, "rb") as pipe:
            assert select.select([pipe], [], [], PATIENCE_S)[0] and pipe.read() == b""


def test_a_signal_that_is_ignored_stays_ignored():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_on_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_the_end_of_its_own_accord(start):
    child = start("import sys; print('a' * 3000); sys.exit(3)")
    looks = []
    assert child.watch(lambda: looks.append(1)) is None
    assert child.status == 3 and child.printed(10) == "aaaaaaaaa\n"
    child.end()  # a second call changes nothing


def test_an_empty_reason_is_a_reason(start):
    assert start("import time; time.sleep(600)").watch(lambda: "") == ""


def test_with_pipes_it_is_talked_to(start):
    with start("import sys; print(input() + '!'); print('?', file=sys.stderr)", has_pipes=True) as child:
        child.process.stdin.write(b"hello\n")
        assert child.process.stdout.readline() == b"hello!\n"
        child.process.wait()
    assert child.printed() == "?\n" and child.process.stdout.closed

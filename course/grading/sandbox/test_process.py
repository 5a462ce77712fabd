"""A sandbox from start to end: what works in it, what ends it, and that nothing is left of it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from course.grading.sandbox import Level, Limits, SandboxError, SandboxFiles, choose_level, launch, start
from course.grading.sandbox.conftest import LIMITS
from course.grading.sandbox.inside.init_process import descendants

HELLO = "import os, sys; os.write(int(sys.argv[1]), b'hello'); "
WAITS = HELLO + "import signal\nwhile True: signal.pause()"
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def say(sandbox):
    """Return everything that the sandbox sends until it closes its socket."""
    return b"".join(iter(lambda: sandbox.connection.recv(1000), b"")).decode()


def receive(sandbox, num_bytes):
    """Receive ``num_bytes`` bytes, or fewer if the sandbox ends first."""
    received = b""
    while len(received) < num_bytes and (more := sandbox.connection.recv(num_bytes - len(received))):
        received += more
    return received


def assert_all_have_ended(watch):
    """Check that all processes have ended. ``watch`` is a copy of the grader's end: it reads as closed only when no
    process holds the other end."""
    with watch, contextlib.suppress(ConnectionResetError):  # closed while sent data is unread
        watch.setblocking(False)
        while watch.recv(1000):  # BlockingIOError: a process still holds the other end
            pass


def test_what_an_honest_file_needs_works(run_file, level):
    """Use libraries, threads, an event loop, a caught error and half a gigabyte of memory."""
    sandbox = run_file(level, """if True:
        import asyncio, os, sys, threading
        import mlx.core as mx, numpy as np
        numbers = []
        thread = threading.Thread(target=lambda: numbers.append(int(np.arange(4).sum())))
        thread.start(); thread.join()
        async def wait(): await asyncio.sleep(0); return mx.compile(lambda x: x @ x)(mx.ones((64, 64))).sum().item()
        numbers.append(asyncio.run(wait()))
        os.write(int(sys.argv[1]), repr(numbers).encode())
        """, limits=Limits(20, 512 << 20, 1 << 16, 64), packages=("numpy", "mlx"))
    assert say(sandbox) == "[6, 262144.0]", sandbox.printed()
    assert 0.05 < sandbox.cpu_s() < 20


def test_pytest_can_be_brought_along(run_file):
    sandbox = run_file(choose_level("auto"), HELLO + "import pytest; assert pytest.main(['--version']) == 0",
                       packages=("pytest",))
    assert say(sandbox) == "hello" and sandbox.end() == 0, sandbox.printed()
    assert "pytest" in sandbox.printed()


def test_a_sandbox_has_folders_and_arguments(level):
    main = (b"import lab, os, sys; os.write(int(sys.argv[1]), repr(sys.argv[2:]).encode() + lab.WHO + "
            b"__name__.encode())")
    files = SandboxFiles({"course/main.py": main, "lab.py": b"WHO = b'me'"})
    with start(level, files, "course/main.py", ["a b", "c"], LIMITS) as sandbox:
        assert say(sandbox) == "['a b', 'c']me__main__", sandbox.printed()


def test_each_part_of_what_is_printed_can_be_shown_alone(run_file, level):
    sandbox = run_file(level, HELLO + "print('one'); print('two', file=sys.stderr); os.write(int(sys.argv[1]), b'1')\n"
                                      "os.read(int(sys.argv[1]), 1); print('thr\\xe9e'); os._exit(3)")
    assert receive(sandbox, 6) == b"hello1"
    assert sandbox.printed() == "one\ntwo\n"
    sandbox.clear_printed()
    assert sandbox.printed() == ""
    sandbox.connection.send(b"x")
    assert say(sandbox) == ""
    assert sandbox.end() == sandbox.end() == 3
    assert sandbox.printed() == "thrée\n"


@pytest.mark.parametrize("text, status", [
    ("", 0), ("raise SystemExit(5)", 5), ("1 / 0", 1), ("os.abort()", 128 + signal.SIGABRT),
    ("import ctypes; ctypes.string_at(8)", 128 + signal.SIGSEGV),
])
def test_the_status_is_that_of_the_file(run_file, text, status):
    sandbox = run_file(choose_level("auto"), HELLO + text)
    assert say(sandbox) == "hello" and sandbox.end() == status


@pytest.mark.parametrize("wanted", ["auto", "none"])
def test_the_cpu_limit_ends_it(run_file, wanted):
    sandbox = run_file(choose_level(wanted), HELLO + "\nwhile True: pass", limits=Limits(0.5, 1 << 30, 1 << 16, 64))
    assert say(sandbox) == "hello"
    assert 0.5 < sandbox.cpu_s() < 5
    assert sandbox.end() == 128 + signal.SIGXCPU


@pytest.mark.parametrize("text", [
    "for each in range(1, 65):\n  try: signal.signal(each, signal.SIG_IGN)\n  except (OSError, ValueError): pass",
    "os.kill(os.getpid(), signal.SIGSTOP)", "os.close(int(sys.argv[1]))",
])
def test_it_ends_whatever_it_does_about_it(run_file, level, text):
    sandbox = run_file(level, f"import signal, os, sys\nos.write(int(sys.argv[1]), b'x')\n{text}\n"
                              "while True: signal.pause()")
    assert receive(sandbox, 1) == b"x"
    watch = sandbox.connection.dup()
    assert sandbox.end() is None
    assert_all_have_ended(watch)


LEAVES_OTHERS = """
import os, signal, sys
connection = int(sys.argv[1])
for behaviour in ("daemon", "stopped", "deaf"):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        os.write(connection, b"x")
        while True:
            os.kill(os.getpid(), signal.SIGSTOP) if behaviour == "stopped" else signal.pause()
    os.wait()
"""


@ON_LINUX
@pytest.mark.parametrize("text", ["while True: signal.pause()", "os.read(connection, 1); os._exit(3)"])
def test_what_it_started_ends_with_it(run_file, level, no_filter, text):
    """Start daemons, stopped processes and processes that ignore signals; also let the file itself end first."""
    before = descendants(os.getpid())
    sandbox = run_file(level, LEAVES_OTHERS + text)
    assert receive(sandbox, 3) == b"xxx"
    sandbox.connection.send(b"x")
    watch = sandbox.connection.dup()
    sandbox.end()
    assert_all_have_ended(watch)
    assert descendants(os.getpid()) == before


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


GRADER = """
import sys
from course.grading.sandbox import Level, Limits, SandboxFiles, start
files = SandboxFiles({"main.py": b"import signal\\nwhile True: signal.pause()"})
sandbox = start(Level(sys.argv[1]), files, "main.py", [], Limits(20, 1 << 30, 1 << 16, 64))
print(sandbox.pid, flush=True)
sys.stdin.read()
"""


@ON_LINUX
def test_a_grader_that_is_killed_leaves_no_process(level, tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", GRADER, level.value], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          env=environment) as grader:
        pid = int(grader.stdout.readline())
        assert is_running(pid)
        grader.kill()
    give_up_s = time.monotonic() + 20
    while time.monotonic() < give_up_s:
        if not is_running(pid):
            return
    pytest.fail(f"process {pid} outlived its grader")


@ON_LINUX
def test_many_starts_leave_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    level = choose_level("auto")
    files = SandboxFiles({"main.py": HELLO.encode()})

    def what_is_there():
        return len(os.listdir("/proc/self/fd")), descendants(os.getpid()), os.listdir(tmp_path)

    before = what_is_there()
    for _ in range(20):
        with start(level, files, "main.py", [], LIMITS) as sandbox:
            assert sandbox.connection.recv(5) == b"hello"
    assert what_is_there() == before
    with monkeypatch.context() as patch:
        patch.setattr(launch, "command_of", lambda *_: [sys.executable, "-SIc", "raise SystemExit('no room')"])
        for _ in range(3):
            with pytest.raises(SandboxError, match="could not be set up: no room$"):
                start(level, files, "main.py", [], LIMITS)
    assert what_is_there() == before


@ON_LINUX
def test_a_setup_that_fails_says_why(monkeypatch):
    orders_for = launch.orders_for
    monkeypatch.setattr(launch, "orders_for", lambda *given: {**orders_for(*given), "home": "/no/such/folder"})
    with pytest.raises(SandboxError, match=r"could not be set up: .*No such file or directory: '/no/such/folder'"):
        start(Level.PLAIN, SandboxFiles({"main.py": b""}), "main.py", [], LIMITS)


@pytest.mark.parametrize("files, message", [
    (SandboxFiles({"other.py": b""}), "'main.py' is not in the sandbox; it holds other.py"),
    (SandboxFiles({"main.py": b"", "../up.py": b""}), r"'\.\./up\.py' would not be in the sandbox"),
    (SandboxFiles({"main.py": b"", "/etc/x": b""}), "'/etc/x' would not be in the sandbox"),
    (SandboxFiles({"main.py": b""}, packages=("no_such_thing",)), "package 'no_such_thing' is not installed"),
])
def test_files_that_cannot_be_are_refused(files, message):
    with pytest.raises(SandboxError, match=message):
        start(Level.PLAIN, files, "main.py", [], LIMITS)


def test_the_socket_is_an_ordinary_one(run_file):
    sandbox = run_file(choose_level("auto"), WAITS)
    assert sandbox.connection.gettimeout() is None and sandbox.connection.family == socket.AF_UNIX
    assert sandbox.connection.recv(5) == b"hello"

"""The second wall: what the process that runs the tests can no longer do, with and without the kernel's help."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from course.grading.sandbox.inside import landlock, seccomp

ROOT = Path(__file__).resolve().parents[3]
#: Runs behind the wall: each function is one attempt. ``raw`` ones call the kernel, bypassing Python's audit hook.
ATTEMPTS = '''
import ctypes, json, os, socket, subprocess, sys
from course.grading.sandbox import tests_wall as wall
from course.grading.sandbox.inside import landlock, seccomp

outside, port, has_kernel = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "kernel"
if not has_kernel:
    landlock.abi, seccomp.is_available = lambda: 0, lambda: False
kept = open(outside + "/kept", "rb")
wall.raise_wall([sys.argv[4]])
libc = ctypes.CDLL(None, use_errno=True)

def check(result):
    if result < 0: raise OSError(ctypes.get_errno(), "refused")

def write_a_file(): open(outside + "/new", "w").close()
def append_to_a_file(): open(outside + "/kept", "a").close()
def write_in_the_project(): open(sys.argv[4] + "/new", "w").close()
def write_to_null(): open(os.devnull, "w").close()
def remove_a_file(): os.remove(outside + "/kept")
def rename_a_file(): os.rename(outside + "/kept", outside + "/other")
def make_a_folder(): os.mkdir(outside + "/folder")
def link_a_file(): os.symlink("kept", outside + "/link")
def read_a_file(): open(outside + "/kept").read()
def read_by_descriptor_path(): open(f"/proc/self/fd/{kept.fileno()}").read()
def read_by_dev_path(): open(f"/dev/fd/{kept.fileno()}").read()
def read_its_memory(): open("/proc/self/mem", "rb").close()
def read_its_environment(): open("/proc/self/environ").read()
def list_a_folder(): os.listdir(outside)
def list_processes(): os.listdir("/proc")
def connect(): socket.create_connection(("127.0.0.1", port), 5).close()
def listen(): socket.socket().bind(("127.0.0.1", 0))
def look_up_a_name(): socket.getaddrinfo("localhost", 80)
def run_a_program(): subprocess.run([sys.executable, "-c", ""], check=True)
def run_by_a_shell(): os.system("true")
def fork(): os.fork() or os._exit(0)
def signal_its_parent(): os.kill(os.getppid(), 0)
def raw_write(): check(libc.open(os.fsencode(outside + "/new"), os.O_WRONLY | os.O_CREAT, 0o600))
def raw_read(): check(libc.open(os.fsencode(outside + "/kept"), os.O_RDONLY))
def raw_remove(): check(libc.unlink(os.fsencode(outside + "/kept")))
def raw_socket(): check(libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0))
def raw_fork(): check(libc.fork() or os._exit(0))
def may_read_the_project(): open(sys.argv[4] + "/mine").read()
def may_read_what_is_open(): os.fstat(kept.fileno()); kept.read()
def may_import(): import wave, numpy.polynomial
def may_start_a_thread():
    import threading
    thread = threading.Thread(target=len, args=("",)); thread.start(); thread.join()

outcomes = {}
for name, attempt in list(globals().items()):
    if callable(attempt) and getattr(attempt, "__module__", "") == "__main__" and name != "check":
        try:
            attempt()
        except OSError as error:
            outcomes[name] = type(error).__name__
        else:
            outcomes[name] = "done"
os.write(1, json.dumps(outcomes).encode())
'''


@pytest.mark.parametrize("walls", ["kernel", "hook"])
def test_the_tests_process_can_only_compute_and_read_what_is_its_own(tmp_path, walls):
    if walls == "kernel" and not (sys.platform == "linux" and landlock.abi() and seccomp.is_available()):
        pytest.skip("this kernel has not both Landlock and seccomp")
    outside, own = tmp_path / "outside", tmp_path / "own"
    outside.mkdir()
    own.mkdir()
    (outside / "kept").write_text("not for you")
    (own / "mine").write_text("mine")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        run = subprocess.run([sys.executable, "-c", ATTEMPTS, outside, port, walls, own], cwd=own,
                             env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    outcomes = json.loads(run.stdout)
    assert len(outcomes) > 25
    for name, outcome in outcomes.items():
        if walls == "hook" and name.startswith("raw_"):
            continue  # without the kernel's help machine code is not stopped
        assert (outcome == "done") == name.startswith("may_"), f"{name}: {outcome}"
    assert sorted(path.name for path in outside.iterdir()) == ["kept"] or walls == "hook"

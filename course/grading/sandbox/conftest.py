"""A hostile file that makes one attempt after the other, run once at each level that this machine offers."""

import contextlib
import json
import os
import socket
from dataclasses import dataclass

import pytest

from course.grading.sandbox import Level, Limits, SandboxFiles, launch, start
from course.grading.sandbox.levels import why_not

LIMITS = Limits(cpu_s=20, memory_bytes=1 << 30, file_bytes=1 << 16, open_files=64)

#: Each function in it is one attempt. Functions whose names begin with an underscore are helpers.
HOSTILE = '''
import ctypes, fcntl, json, os, resource, signal, socket, subprocess, sys

connection, outside, grader, port, inbox_port, packages = sys.argv[1:]
connection, grader, port, inbox_port = int(connection), int(grader), int(port), int(inbox_port)


def _is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


descriptors = [descriptor for descriptor in range(200) if descriptor != connection and _is_open(descriptor)]
libc = ctypes.CDLL(None, use_errno=True)


def _call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def read_outside(): open(outside + "/private").read()
def read_passwd(): open("/etc/passwd").read()
def read_the_tests(): open(outside + "/test_lab.py").read()
def list_outside(): os.listdir(outside)
def read_processes(): os.listdir("/proc")
def read_the_graders_memory(): open(f"/proc/{grader}/mem", "rb").close()
def import_what_was_not_asked_for(): import rich
def import_from_site_packages():
    sys.path.append(packages)
    import rich

def write_outside(): open(outside + "/private", "a").close()
def make_outside(): open(outside + "/made", "w").close()
def make_folder_outside(): os.mkdir(outside + "/folder")
def rename_outside(): os.rename(outside + "/old", outside + "/new")
def remove_outside(): os.unlink(outside + "/victim")
def link_outside(): os.symlink("private", outside + "/link")
def truncate_outside(): os.truncate(outside + "/private", 0)
def change_mode_outside(): os.chmod(outside + "/private", 0o400)
def change_time_outside(): os.utime(outside + "/private", (0, 0))
def lock_outside(): fcntl.flock(os.open(outside + "/private", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
def write_in_the_room(): open(__file__, "a").close()
def write_in_the_current_folder(): open("made", "w").close()
def write_in_tmp(): open(f"/tmp/made-by-{grader}", "w").close()
def write_to_shared_memory(): open(f"/dev/shm/made-by-{grader}", "w").close()

def connect(): socket.create_connection(("127.0.0.1", port), 5).close()
def connect_by_path():
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(outside + "/socket")
def send_a_datagram():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(b"x", ("127.0.0.1", inbox_port))

def fork():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
def spawn(): os.waitpid(os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}), 0)
def run(): subprocess.run([sys.executable, "-S", "-c", ""], check=True)

def signal_the_grader(): os.kill(grader, 0)
def signal_the_keeper(): os.kill(os.getppid(), 0)
def signal_everybody_in_the_group(): os.killpg(os.getpgid(grader), 0)
def make_the_socket_signal_the_grader(): fcntl.fcntl(connection, fcntl.F_SETOWN, grader)
def limit_the_grader(): resource.prlimit(grader, resource.RLIMIT_CORE)
def slow_the_grader(): os.setpriority(os.PRIO_PROCESS, grader, os.getpriority(os.PRIO_PROCESS, grader))
def trace_the_grader(): _call("ptrace", 16, grader, 0, 0); _call("ptrace", 17, grader, 0, 0)
def outlive_the_keeper(): _call("prctl", 1, 0, 0, 0, 0); _call("prctl", 1, 9, 0, 0, 0)
def enter_namespaces(): _call("unshare", 0x10000000)
def share_memory_that_stays():
    segment = libc.shmget(0, 4096, 0o1600)
    if segment < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    libc.shmctl(segment, 0, None)
def use_too_much_memory(): bytearray(2 << 30)
def make_a_file_in_memory(): os.close(os.memfd_create("made"))
def raise_the_limits(): resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY,) * 2)
def open_too_many():
    opened = []
    try:
        for _ in range(200):
            opened.append(os.dup(0))
    finally:
        for descriptor in opened:
            os.close(descriptor)
def print_a_flood():
    for _ in range(100):
        os.write(1, b"flood " * 1000)


outcomes = {}
for name, attempt in list(globals().items()):
    if callable(attempt) and not name.startswith("_"):
        try:
            attempt()
        except BaseException as error:
            outcomes[name] = type(error).__name__
        else:
            outcomes[name] = "done"

seen = {"descriptors": descriptors, "environment": dict(os.environ), "folder": os.getcwd(), "files": os.listdir(),
        "path": sys.path, "flags": [sys.flags.isolated, sys.flags.no_site, sys.flags.dont_write_bytecode],
        "input": os.read(0, 10).hex()}
os.write(connection, json.dumps([outcomes, seen]).encode())
'''


@dataclass
class Report:
    """The outcome of each attempt, and what the file saw; ``printed`` is the grader's view."""

    outcomes: dict
    seen: dict
    printed: str


@pytest.fixture(params=list(Level), ids=lambda level: level.value)
def level(request):
    """Return each level that this machine offers. For the others, test_commands.py tests what would be started."""
    reason = why_not(request.param) if request.param is not Level.PLAIN else None
    if reason is not None:
        pytest.skip(f"{request.param.value} does not work here: {reason}")
    return request.param


@pytest.fixture
def no_filter(monkeypatch):
    """Start sandboxes without the filter of system calls, as on a kernel that has none."""
    monkeypatch.setattr(launch.seccomp, "is_available", lambda: False)


def start_file(level, text, *arguments, limits=LIMITS, packages=()):
    files = SandboxFiles({"main.py": text.encode()}, packages)
    return start(level, files, "main.py", [str(each) for each in arguments], limits)


@pytest.fixture
def run_file():
    """Yield ``run_file(level, text, *arguments)``, which starts a sandbox with this text. It ends with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(start_file(*arguments, **options))


@pytest.fixture(scope="package")
def attack(tmp_path_factory):
    """Return ``attack(level, has_filter)``, which gives the report of the hostile file. Each is run once."""
    reports = {}

    def run(level, has_filter):
        if (level, has_filter) not in reports:
            with pytest.MonkeyPatch.context() as patch:
                if not has_filter:
                    patch.setattr(launch.seccomp, "is_available", lambda: False)
                reports[level, has_filter] = _attack(level, tmp_path_factory.mktemp("outside"))
        return reports[level, has_filter]

    return run


def _attack(level, outside):
    for name in ("private", "old", "victim", "test_lab.py"):
        (outside / name).write_text("not for you")
    here = os.getcwd()
    os.chdir(outside)  # the path of a Unix socket must be short
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as by_path, \
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as inbox:
            by_path.bind("socket")
            by_path.listen()
            inbox.bind(("127.0.0.1", 0))
            packages = os.path.dirname(os.path.dirname(pytest.__file__))
            arguments = (outside, os.getpid(), server.getsockname()[1], inbox.getsockname()[1], packages)
            with start_file(level, HOSTILE, *arguments) as sandbox:
                sandbox.connection.settimeout(30)
                said = b"".join(iter(lambda: sandbox.connection.recv(65536), b""))
                assert said, sandbox.printed()[-2000:]
                report = Report(*json.loads(said), printed=sandbox.printed())
            # bwrap's own network has a loopback, which accepts a datagram and loses it.
            if report.outcomes["send_a_datagram"] == "done" and not _has_arrived(inbox):
                report.outcomes["send_a_datagram"] = "lost"
            return report
    finally:
        os.chdir(here)
        for folder in ("/tmp", "/dev/shm"):
            if os.path.exists(f"{folder}/made-by-{os.getpid()}"):
                os.unlink(f"{folder}/made-by-{os.getpid()}")


def _has_arrived(inbox):
    """Check whether a datagram is in ``inbox``. Loopback delivers before the sender's call returns."""
    inbox.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        return inbox.recv(1) == b"x"
    return False

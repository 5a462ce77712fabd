"""The commands for levels that this machine does not offer, and the calls that the filter allows."""

import errno
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from course.grading.sandbox import Level, SandboxError, choose_level, commands, levels, visible_paths
from course.grading.sandbox.inside import landlock, seccomp, syscalls
from course.grading.sandbox.visible_paths import View, interpreter, view_of

VIEW = View(trees=("/usr/lib", "/dev/null", "/tmp/sandbox-1/files"), holes=("/usr/lib/python3/dist-packages",),
            links=(("/lib", "usr/lib"),), packages=("/usr/lib/python3/dist-packages/numpy",))
INSIDE = str(Path(commands.__file__).parent / "inside")


@pytest.fixture
def everything_installed(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


def test_python_is_started_isolated():
    command = commands.command_of(Level.PLAIN, VIEW, Path("/home"))
    assert command[:5] == [interpreter(), "-I", "-S", "-B", "-X"] and ".venv" not in command[0]


def test_bubblewrap_shows_what_namespaces_show(everything_installed):
    command = commands.command_of(Level.BUBBLEWRAP, VIEW, Path("/tmp/sandbox-1/home"))
    hole, package = VIEW.holes[0], VIEW.packages[0]
    assert command[:command.index("--")] == [
        "/usr/bin/bwrap", "--unshare-all", "--die-with-parent", "--as-pid-1",
        "--ro-bind", "/usr/lib", "/usr/lib", "--dev-bind", "/dev/null", "/dev/null",
        "--ro-bind", "/tmp/sandbox-1/files", "/tmp/sandbox-1/files", "--tmpfs", hole, "--ro-bind", package, package,
        "--ro-bind", INSIDE, INSIDE, "--symlink", "usr/lib", "/lib", "--remount-ro", hole, "--remount-ro", "/",
        "--chdir", "/tmp/sandbox-1/home"]
    assert command[command.index("--") + 1] == interpreter()


def test_the_profile_for_macos_denies_first_and_allows_after(everything_installed):
    _, option, profile, *python = commands.command_of(Level.SEATBELT, VIEW, Path("/home"))
    rules = profile.splitlines()
    assert option == "-p" and python[0] == interpreter() and rules[:2] == ["(version 1)", "(allow default)"]
    assert all(rule.count("(") == rule.count(")") for rule in rules)
    for denied in ("network*", "file-write*", "process-fork", "process-exec*", "signal", "file-read-data"):
        assert f"(deny {denied})" in rules
    reading = ["(deny file-read-data)", '(allow file-read-data (subpath "/tmp/sandbox-1/files"))',
               f'(deny file-read-data (subpath "{VIEW.holes[0]}"))',
               f'(allow file-read-data (subpath "{VIEW.packages[0]}"))', f'(allow file-read-data (subpath "{INSIDE}"))']
    assert [rule for rule in rules if rule in reading] == reading, "of the rules that fit, the last one counts"


def test_a_path_cannot_end_its_rule():
    assert commands._quoted('a"b\\c') == '"a\\"b\\\\c"'


@pytest.mark.parametrize("level", [Level.BUBBLEWRAP, Level.SEATBELT])
def test_a_missing_program_is_named(monkeypatch, level):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match="is not installed"):
        commands.command_of(level, VIEW, Path("/home"))


# ---- what a sandbox can see


def test_no_folder_of_installed_packages_is_shown_as_a_whole():
    shown = view_of(("numpy",))
    for path in [path for path in sys.path if path.endswith("-packages")]:
        within = [tree for tree in shown.trees if f"{path}/".startswith(f"{tree}/")]
        holes = [hole for hole in shown.holes if f"{path}/".startswith(f"{hole}/")]
        assert not within or holes, f"{path} can be read, in {within}"
    assert "numpy" in {Path(path).name for path in shown.packages}


def test_a_hole_is_found_in_each_kind_of_prefix(tmp_path):
    folders = ("lib/python3.12/site-packages", "lib/python3/dist-packages", "lib/python3.12/json")
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    for prefix in (tmp_path, tmp_path / "lib"):
        assert set(visible_paths._site_folders(str(prefix))) == {str(tmp_path / each) for each in folders[:2]}
    assert visible_paths._site_folders(str(tmp_path / "lib/python3.12")) == [str(tmp_path / folders[0])]


# ---- which level


@pytest.mark.parametrize("reasons, level", [
    ({}, Level.BUBBLEWRAP), ({Level.BUBBLEWRAP: "no"}, Level.NAMESPACES),
    ({Level.BUBBLEWRAP: "no", Level.NAMESPACES: "no"}, Level.LANDLOCK),
    ({Level.BUBBLEWRAP: "not installed", Level.NAMESPACES: "EPERM", Level.LANDLOCK: "too old"}, Level.PLAIN),
])
def test_the_tightest_that_works_is_chosen(monkeypatch, reasons, level):
    monkeypatch.setattr(levels.sys, "platform", "linux")
    monkeypatch.setattr(levels, "why_not", reasons.get)
    assert choose_level("auto") is level and choose_level("none") is Level.PLAIN
    if level is Level.PLAIN:
        with pytest.raises(SandboxError, match="bubblewrap: not installed; namespaces: EPERM; landlock: too old"):
            choose_level("require")
    else:
        assert choose_level("require") is level


@pytest.mark.skipif(sys.platform != "linux", reason="these are Linux's")
def test_a_level_works_where_the_kernel_has_it():
    """Check that these levels work. If they did not, the hostile file's tests would be skipped without notice."""
    found = {level: levels.why_not(level) for level in (Level.NAMESPACES, Level.LANDLOCK)}
    if landlock.abi() > 0:
        assert found[Level.LANDLOCK] is None
    unshare = [shutil.which("unshare") or "true", "-Urmpfni", "mount", "-t", "tmpfs", "none", "/mnt"]
    if unshare[0] != "true" and subprocess.run(unshare, capture_output=True).returncode == 0:
        assert found[Level.NAMESPACES] is None


def test_a_level_that_lets_a_file_be_read_does_not_count():
    assert "could read a file outside" in levels.why_not(Level.PLAIN)


def test_an_unknown_wish_is_refused():
    with pytest.raises(SandboxError, match="sandbox is 'docker', must be one of auto, require, none"):
        choose_level("docker")


# ---- the filter of system calls, run here as the kernel would run it


OWN_PID = 4711
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
YES, NO, NOT_THERE = "yes", errno.EPERM, errno.ENOSYS


def answer(machine, number, *arguments, arch=None):
    """Return the program's answer to a call: YES or the number of an error."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=iIQ6Q", number, ARCH[machine] if arch is None else arch, 0, *padded)
    program, at, register = seccomp.compile_filter(machine, OWN_PID), 0, 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        if code == 0x06:
            return YES if value == 0x7FFF0000 else value & 0xFFFF
        if code == 0x20:
            (register,) = struct.unpack_from("=I", data, value)
        elif code == 0x54:
            register &= value
        elif code == 0x05:
            at += value
        else:
            at += if_true if (register == value if code == 0x15 else register >= value) else if_false


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_the_filter_answers_each_call(machine):
    column = syscalls.MACHINES.index(machine)
    number = {name: numbers[column] for name, (numbers, _) in syscalls.conditions(OWN_PID).items()}
    for name, numbers in syscalls.REFUSED.items():
        assert numbers[column] is None or answer(machine, numbers[column]) == NO, name
    read, at_here, writing = {"x86_64": 0, "aarch64": 63}[machine], -100 & 0xFFFFFFFFFFFFFFFF, 1
    for expected, call in [
        (YES, (read,)), (YES, (number["clone"], 0x3D0F00)), (NO, (number["clone"], 17)),
        (YES, (number["openat"], at_here, 1, 0o2000000)), (NO, (number["openat"], at_here, 1, writing)),
        (NO, (number["openat"], at_here, 1, 0o100)), (YES, (number["kill"], OWN_PID, 6)), (NO, (number["kill"], 1, 0)),
        (NO, (number["kill"], 0, 9)), (NO, (number["kill"], 2**64 - 1, 9)), (YES, (number["tgkill"], OWN_PID, 5, 6)),
        (YES, (number["socketpair"], 1, 0o2000001, 0)), (NO, (number["socketpair"], 1, 2, 0)),
        (NO, (number["socketpair"], 30, 1, 0)), (NO, (number["fcntl"], 3, 8, 1)), (YES, (number["fcntl"], 3, 3)),
        (NO, (number["ioctl"], 3, 0x8901)), (YES, (number["ioctl"], 3, 0x5401)), (NO, (number["prctl"], 1, 0)),
        (YES, (number["prctl"], 15, 0)), (YES, (number["prlimit64"], 0)), (NO, (number["prlimit64"], 1)),
        (NOT_THERE, (435,)), (NOT_THERE, (437,)), (NOT_THERE, (syscalls.FIRST_NEWER,)), (NO, (0x40000000 + 1,)),
    ]:
        assert answer(machine, *call) == expected, call
    assert answer(machine, read, arch=0x40000003) == NO, "calls of another kind of machine have other numbers"

"""Whether a busy machine is noticed: with invented readings, so that the test machine does not matter."""

import subprocess
import sys

import pytest

from mini_vllm.benchmark import machine
from mini_vllm.benchmark.machine import Clocks, Noise, NoiseWatch, busy_s, quota_cores, read_clocks

STAT = """cpu  500 20 70 9000 30 4 6 10 0 0
cpu0 100 10 20 4000 10 2 3 5 0 0
cpu1 300 10 40 1000 10 1 2 4 0 0
cpu12 100 0 10 4000 10 1 1 1 0 0
intr 12345
"""


def noise_of(monkeypatch, *runs, product_s=(0.1,), num_cores=2, quota=float("inf"), has_stat=True):
    """Return the noise of runs on a machine with invented clocks: seconds, our busy cores and those of others."""
    now, times = [0.0, 0.0, 0.0], list(product_s)
    monkeypatch.setattr(machine, "my_cores", lambda: range(num_cores))
    monkeypatch.setattr(machine, "quota_cores", lambda: quota)
    monkeypatch.setattr(machine, "fastest_product_s", lambda: times.pop(0) if len(times) > 1 else times[0])
    watch = NoiseWatch(lambda: Clocks(now[0], now[1], now[2] if has_stat else None))
    for seconds, own, others in runs:
        with watch.over():
            now[:] = now[0] + seconds, now[1] + own * seconds, now[2] + (own + others) * seconds
    return watch.noise()


def test_what_counts_as_busy_is_all_but_idle_and_waiting_for_disks():
    assert busy_s(STAT, {0}, 100) == pytest.approx(1.40)
    assert busy_s(STAT, {0, 1}, 100) == pytest.approx(1.40 + 3.57), "cpu12 and the sum of all are not asked for"
    assert busy_s("cpu0 100 10 20 4000\n", {0}, 100) == pytest.approx(1.30), "an old system"


@pytest.mark.parametrize("stat", ["", "cpu0 0 0 0 0 0 0 0 0 0 0\n", "cpu7 1 1 1 1\n"])
def test_a_system_that_says_nothing_of_our_cores_is_not_guessed_about(stat, tmp_path, monkeypatch):
    (tmp_path / "stat").write_text(stat)
    monkeypatch.setattr(machine, "STAT", tmp_path / "stat")
    monkeypatch.setattr(machine, "my_cores", lambda: {0})
    assert read_clocks().all_s is None
    assert noise_of(monkeypatch, (5, 1.0, 2.0), has_stat=False) == Noise(0.0, 2)


@pytest.mark.parametrize("text, expected", [
    ("150000 100000\n", 1.5), ("max 100000\n", float("inf")), (None, float("inf")), ("nonsense", float("inf"))])
def test_the_share_of_a_container_is_found(text, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CPU_MAX", tmp_path / "cpu.max")
    if text is not None:
        (tmp_path / "cpu.max").write_text(text)
    assert quota_cores() == expected


def test_the_time_of_running_and_ended_children_is_ours():
    before = read_clocks()
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        running = read_clocks()
        child.kill()
    ended = read_clocks()
    assert before.at_s < running.at_s < ended.at_s
    assert before.all_s is None or min(running.own_s, ended.own_s) >= before.own_s + 0.28


def test_a_quiet_machine_says_nothing(monkeypatch):
    noise = noise_of(monkeypatch, (5, 1.9, 0.1), (5, 1.0, 0.2), product_s=(0.1, 0.11, 0.13))
    assert noise.cause == noise.warning() == noise.warning_before() == noise.mark == ""
    assert (noise.others_cores, noise.slowdown) == (pytest.approx(0.15), pytest.approx(1.3))
    assert noise_of(monkeypatch) == Noise(0.0, 2), "nothing ran"


def test_other_programs_are_noticed(monkeypatch, capsys):
    noise = noise_of(monkeypatch, (1, 1.0, 2.6), (1, 1.0, 0.0))
    assert noise.warning() == (
        "? During the run, other programs kept 1.3 of 2 cores busy: do not trust these numbers.\n")
    assert noise.mark == " ?"
    monkeypatch.setattr(machine, "product_times_s", lambda *_: [0.1])
    monkeypatch.setattr(NoiseWatch, "noise", lambda self: noise)
    machine.warn_if_busy()
    assert capsys.readouterr().err == (
        "Other programs keep 1.3 of 2 cores busy, so measurements will be unreliable.\n")


def test_a_machine_that_slows_down_is_noticed_though_no_program_is_to_blame(monkeypatch):
    noise = noise_of(monkeypatch, (5, 1.0, 0.0), (5, 1.0, 0.0), product_s=(0.1, 0.1, 0.25))
    assert noise.cause == "the speed of the machine varied by a factor of 2.5" and noise.warning_before() == ""
    assert Noise(1.3, 2, 1.94).to_dict() == {
        "others_cores": 1.3, "num_cores": 2, "slowdown": 1.94,
        "cause": "other programs kept 1.3 of 2 cores busy and the speed of the machine varied by a factor of 1.9"}


def test_a_container_is_disturbed_only_by_those_who_want_its_share(monkeypatch):
    """Keep 40 of 64 cores busy with other work while 4 are ours: there is room for all. With 62, there is not."""
    assert noise_of(monkeypatch, (5, 4.0, 40.0), num_cores=64, quota=4) == Noise(0.0, 4)
    noise = noise_of(monkeypatch, (5, 2.0, 62.0), num_cores=64, quota=4)
    assert noise.warning().startswith("? During the run, other programs kept 2.0 of 4 cores")

"""Whether a busy machine is noticed: with invented readings, so that the test machine does not matter."""

import io
import os

import pytest
from measure.__main__ import TIMED, make_parser

from mini_vllm.benchmark import cpu_time
from mini_vllm.benchmark.cpu_time import (
    STOLEN_FIELD,
    CpuReading,
    busy_s,
    others_cores,
    quota_cores,
    read_cpu,
    stolen_share,
)
from mini_vllm.benchmark.machine_noise import Noise, NoiseWatch, look_around, told_if_loud
from mini_vllm.benchmark.products import fastest_product_s

STAT = """cpu  500 20 70 9000 30 4 6 10 0 0
cpu0 100 10 20 4000 10 2 3 5 0 0
cpu1 300 10 40 1000 10 1 2 4 0 0
cpu12 100 0 10 4000 10 1 1 1 0 0
intr 12345
"""


class Machine:
    """A machine with controlled clocks and product times."""

    def __init__(self, *product_s, has_stat=True):
        self.at_s = self.own_s = self.all_s = 0.0
        self.load = None
        self.has_stat, self.product_s = has_stat, list(product_s)

    def read(self):
        return CpuReading(self.at_s, self.own_s, self.all_s if self.has_stat else None, self.load)

    def time_product(self):
        return self.product_s.pop(0) if len(self.product_s) > 1 else self.product_s[0]

    def run(self, seconds, own, others):
        """Let some seconds pass, with the given numbers of busy cores."""
        self.at_s += seconds
        self.own_s += own * seconds
        self.all_s += (own + others) * seconds

    def watch(self, num_cores=2, num_mine=None):
        return NoiseWatch(self.read, self.time_product, num_cores, num_cores if num_mine is None else num_mine)


def watched(machine, *runs, **cores):
    watch = machine.watch(**cores)
    for side, *run in runs:
        with watch.over(side):
            machine.run(*run)
    return watch.noise()


# ---- the clocks


def test_what_the_host_took_is_a_share_of_all_cores(monkeypatch):
    monkeypatch.setattr("mini_vllm.benchmark.cpu_time.my_cores", lambda: {0, 1})
    earlier, later = CpuReading(10.0, 0.0, 0.0, stolen_s=3.0), CpuReading(20.0, 0.0, 0.0, stolen_s=5.0)
    assert stolen_share(earlier, later) == pytest.approx(0.1)
    assert stolen_share(later, earlier) == 0.0


def test_a_watch_takes_over_what_another_has_seen():
    machine = Machine(1.0)
    both, other = machine.watch(), machine.watch()
    with both.over("a"):
        machine.run(1.0, 1.0, 0.0)
    with other.over("a"):
        machine.run(1.0, 0.0, 1.0)
    both.add(other)
    assert both.noise().others_cores == pytest.approx(0.5)


def test_what_counts_as_busy_is_all_but_idle_and_waiting_for_disks():
    assert busy_s(STAT, {0}, 100) == pytest.approx(1.40)
    assert busy_s(STAT, {0, 1}, 100) == pytest.approx(1.40 + 3.57), "cpu12 and the sum of all are not asked for"
    assert busy_s(STAT, {0}, 100, fields=(STOLEN_FIELD,)) < busy_s(STAT, {0}, 100)
    old = "cpu0 100 10 20 4000\n"
    assert busy_s(old, {0}, 100) == pytest.approx(1.30)


@pytest.mark.parametrize("stat", ["", "cpu0 0 0 0 0 0 0 0 0 0 0\n", "cpu7 1 1 1 1\n"])
def test_a_system_that_says_nothing_of_our_cores_is_asked_for_its_load(stat, tmp_path, monkeypatch):
    (tmp_path / "stat").write_text(stat)
    monkeypatch.setattr(cpu_time, "STAT", tmp_path / "stat")
    monkeypatch.setattr(cpu_time, "my_cores", lambda: {0})
    monkeypatch.setattr(os, "getloadavg", lambda: (3.5, 1.0, 1.0))
    reading = read_cpu()
    assert (reading.all_s, reading.load) == (None, 3.5)


def test_others_are_all_but_us():
    machine = Machine(0.1)
    before = machine.read()
    machine.run(10, own=1.5, others=0.4)
    assert others_cores(before, machine.read()) == pytest.approx(0.4)
    assert others_cores(before, before) == 0.0
    machine = Machine(0.1, has_stat=False)
    before, machine.load = machine.read(), 3.0
    machine.run(10, own=1.8, others=0.0)
    assert others_cores(before, machine.read()) == pytest.approx(1.2), "by the load average"


@pytest.mark.parametrize("files, expected", [
    ({"CPU_MAX": "150000 100000\n"}, 1.5), ({"CPU_MAX": "max 100000\n"}, None),
    ({"CFS_QUOTA": "50000\n", "CFS_PERIOD": "100000\n"}, 0.5), ({"CFS_QUOTA": "-1\n", "CFS_PERIOD": "100000\n"}, None),
    ({}, None), ({"CPU_MAX": "nonsense"}, None)])
def test_the_share_of_a_container_is_found(files, expected, tmp_path, monkeypatch):
    for name in ("CPU_MAX", "CFS_QUOTA", "CFS_PERIOD"):
        monkeypatch.setattr(cpu_time, name, tmp_path / name)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert quota_cores() == expected


def test_the_real_clocks_run_and_the_real_product_takes_time():
    before = read_cpu()
    assert fastest_product_s(seconds=0.001) > 0
    after = read_cpu()
    assert after.at_s > before.at_s and after.own_s >= before.own_s
    assert after.all_s is None or before.all_s is None or after.all_s >= before.all_s


# ---- the resulting noise


def test_a_quiet_machine_says_nothing():
    noise = watched(Machine(0.1, 0.11, 0.13), ("ours", 5, 1.9, 0.1), ("theirs", 5, 1.0, 0.15))
    assert not noise.is_loud and noise.cause == noise.warning() == noise.warning_before() == ""
    assert (noise.others_cores, noise.slowdown) == (pytest.approx(0.15), pytest.approx(1.3))


def test_other_programs_beside_one_side_alone_are_enough():
    noise = watched(Machine(0.1), ("ours", 1, 1.0, 1.3), ("theirs", 30, 1.9, 0.0), ("ours", 1, 1.0, 1.3))
    assert noise.is_loud and noise.others_cores == pytest.approx(1.3)
    assert noise.warning() == ("? During the run, other programs kept 1.3 of 2 cores busy: do not trust these numbers. "
                               "Close them and measure again.")


def test_rounds_of_a_side_count_together():
    noise = watched(Machine(0.1), ("ours", 1, 1.0, 0.9), ("ours", 1, 1.0, 0.0), ("ours", 1, 1.0, 0.0))
    assert noise.others_cores == pytest.approx(0.3)


def test_a_moment_too_short_to_be_measured_counts_only_with_all_the_others():
    runs = [("ours", 0.02, 1.0, 1.0), ("theirs", 4, 1.0, 0.0)]
    assert watched(Machine(0.1), *runs).others_cores == pytest.approx(0.0)
    assert watched(Machine(0.1), runs[0], ("theirs", 0.02, 1.0, 0.0)).others_cores == pytest.approx(0.5)
    assert watched(Machine(0.1)).others_cores == 0.0


def test_a_machine_that_slows_down_is_noticed_though_nobody_is_to_blame():
    noise = watched(Machine(0.1, 0.1, 0.25), ("ours", 5, 1.0, 0.0), ("theirs", 5, 1.0, 0.0))
    assert noise.is_loud and not noise.has_others
    assert noise.warning() == ("? During the run, the speed of the machine varied by a factor of 2.5: do not trust "
                               "these numbers. Measure again when the machine is idle and cool.")
    assert noise.warning_before() == ""


def test_a_container_is_disturbed_only_by_those_who_want_its_share():
    """Keep 40 of 64 cores busy with other work while 4 are ours: there is room for all. With 62, there is not."""
    room = watched(Machine(0.1), ("ours", 5, 4.0, 40.0), num_cores=64, num_mine=4)
    assert (room.others_cores, room.num_cores, room.is_loud) == (0.0, 4, False)
    assert watched(Machine(0.1), ("ours", 5, 2.0, 62.0), num_cores=64, num_mine=4).warning().startswith(
        "? During the run, other programs kept 2.0 of 4 cores busy:")


def test_both_causes_are_named():
    assert Noise(1.3, 2, 1.94).to_dict() == {
        "others_cores": 1.3, "num_cores": 2, "slowdown": 1.94,
        "cause": "other programs kept 1.3 of 2 cores busy and the speed of the machine varied by a factor of 1.9"}


def test_one_core_is_one_core():
    assert "0.5 of 1 core busy" in Noise(0.5, 1).warning()


def test_what_disturbs_is_told_before_and_after():
    machine, stream = Machine(0.1), io.StringIO()

    def time_product():
        machine.run(0.1, own=1.0, others=0.8)
        return 0.1

    def make_watch():
        return NoiseWatch(machine.read, time_product, 2, 2)

    assert look_around(make_watch()).others_cores == pytest.approx(0.8)
    with told_if_loud(stream, make_watch):
        machine.run(5, own=1.0, others=0.5)
        print("the ratios", file=stream)
    assert " ".join(stream.getvalue().split()) == " ".join([
        "Other programs keep 0.8 of 2 cores busy, so measurements will be unreliable. Close those programs first.",
        "the ratios",
        "? During the run, other programs kept 0.5 of 2 cores busy: do not trust these numbers.",
        "Close them and measure again."])


def test_a_benchmark_that_breaks_says_what_broke_and_nothing_else():
    machine, stream = Machine(0.1), io.StringIO()
    with pytest.raises(ZeroDivisionError), told_if_loud(stream, machine.watch):
        machine.run(5, own=1.0, others=2.0)
        raise ZeroDivisionError
    assert stream.getvalue() == ""


def test_every_benchmark_that_prints_times_is_watched():
    names = next(action.choices for action in make_parser()._actions if action.dest == "name")
    assert set(TIMED) <= set(names) and {"single", "prefix", "pool", "tree", "allocator"} <= set(TIMED)
    assert "seeds" not in TIMED, "it counts draws"

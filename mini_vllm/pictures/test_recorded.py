"""A recorded run is saved as a picture, or as a trace to draw later."""

import sys

import pytest

from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.pictures.recorded import check_run_target, save_run
from mini_vllm.request import Request, SamplingParams
from mini_vllm.scheduler import Scheduler
from mini_vllm.simulation import Clock, Simulation
from mini_vllm.trace.recorder import StepTrace


@pytest.fixture
def trace():
    clock = Clock()
    simulation = Simulation(Scheduler(KVCacheManager(9, 4), 2, 8), clock=clock, trace=(trace := StepTrace(clock)))
    simulation.add(Request("fox", range(6), SamplingParams(max_tokens=3)))
    simulation.run()
    return trace


def test_the_end_of_the_name_says_what_is_written(trace, tmp_path):
    for name in ("run.svg", "run.PNG", "run.trace", "run"):
        check_run_target(tmp_path / name)
        save_run(trace, tmp_path / name)
    assert "fox" in (tmp_path / "run.svg").read_text(encoding="utf-8")
    assert (tmp_path / "run.PNG").read_bytes().startswith(b"\x89PNG")
    assert StepTrace.load(tmp_path / "run.trace").steps == StepTrace.load(tmp_path / "run").steps == trace.steps


def test_what_cannot_be_written_is_told_before_the_run(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="is a folder"):
        check_run_target(tmp_path)
    with pytest.raises(ValueError, match="there is no folder"):
        check_run_target(tmp_path / "no" / "run.svg")
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(ValueError, match="a PNG needs resvg-py"):
        check_run_target(tmp_path / "run.png")

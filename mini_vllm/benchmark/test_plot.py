"""The plot of a benchmark shows what was measured, on what, how often, and the speed-ups."""

import pytest

from mini_vllm.backend import blas, device_name
from mini_vllm.benchmark.machine import Noise
from mini_vllm.benchmark.plot import LOOKS, check_plot, make_figure
from mini_vllm.benchmark.results import ARMS, BATCHED, DRAFTED, LLAMA, ONE_AT_A_TIME, PEER, VLLM_TYPES, BenchmarkResult
from mini_vllm.cli import main

RATIOS = {"decode-16": {ONE_AT_A_TIME: [4.567], PEER: [1.234, 9.0, 1.0]}, "chat": {ONE_AT_A_TIME: [2.0], PEER: [0.98]}}


def drawn(arms=ARMS, ratios=RATIOS):
    results = [BenchmarkResult(workload, arm, 16, 1600, seconds, {50: 0.1, 90: 0.2, 99: 0.3, 100: 0.4},
                               {50: 0.01, 90: 0.02, 99: 0.03, 100: 0.04}, 0.0, num_rounds=3)
               for workload in RATIOS for arm, seconds in zip(arms, (10.0, 2.0, 2.5))]
    return make_figure(results, "tiny-tales", ratios, {"decode-16": Noise(1.3, 2), "chat": Noise(0.1, 2)})


def test_it_says_machine_blas_rounds_and_noise():
    told = drawn().get_supxlabel()
    assert device_name() in told and f"BLAS: {blas.name}" in told and "rounds: 3" in told
    assert told.splitlines()[4:] == [
        "? decode-16: other programs kept 1.3 of 2 cores busy. Do not trust these numbers."]


def test_every_bar_has_its_number_and_the_ratios_are_over_the_bars_of_their_workload():
    texts = drawn().axes[0].texts
    numbers = [text.get_text() for text in texts if text.get_text().isdigit()]
    assert numbers == ["160", "160", "800", "800", "640", "640"]
    ratios = {text.get_text(): text.xy for text in texts if "×" in text.get_text()}
    assert ratios == {"4.57× one at a time ?\n1.23× mlx-lm ?": (0, 800.0),
                      "2.00× one at a time\n0.98× mlx-lm": (1, 800.0)}


def test_drafts_have_their_own_bars_and_arms_differ_by_more_than_colour():
    assert drawn((BATCHED, DRAFTED), {}).axes[0].get_legend_handles_labels()[1] == [BATCHED, DRAFTED]
    assert set(LOOKS) == {*ARMS, DRAFTED, *VLLM_TYPES, LLAMA}
    hatched = [hatch for _, hatch in LOOKS.values() if hatch]
    assert len(set(hatched)) == len(hatched) == len(LOOKS) - 2, "the two without are light and dark"


@pytest.mark.parametrize("name, complaint", [
    ("out.gif", "a plot is written as .svg, .pdf, .png, not as .gif"), ("out", "not as a name without a suffix"),
    ("nowhere/out.png", "there is no folder")])
def test_where_the_plot_goes_is_checked_before_anything_is_measured(name, complaint, tmp_path, capsys):
    with pytest.raises(ValueError, match=complaint):
        check_plot(tmp_path / name)
    assert main(["bench", "throughput", "--model", "no-such-model", "--plot", str(tmp_path / name)]) == 2
    assert complaint in capsys.readouterr().err

"""The plot of a benchmark shows what was measured, on what, how often, and the speed-ups."""

import pytest

from mini_vllm import __version__
from mini_vllm.backend import blas, device_name, mx
from mini_vllm.benchmark.machine import Noise
from mini_vllm.benchmark.plot import LOOKS, check_plot, make_figure
from mini_vllm.benchmark.results import ARMS, BATCHED, DRAFTED, LLAMA, ONE_AT_A_TIME, PEER, VLLM_TYPES, BenchmarkResult
from mini_vllm.cli import main

RATIOS = {"decode-16": {ONE_AT_A_TIME: [4.567], PEER: [1.234, 9.0, 1.0]}, "chat": {ONE_AT_A_TIME: [2.0], PEER: [0.98]}}
QUIET = dict.fromkeys(RATIOS, Noise(0.1, 2))


def results(num_rounds=3, arms=ARMS):
    return [BenchmarkResult(workload, arm, 16, 1600, seconds, {50: 0.1, 90: 0.2, 99: 0.3, 100: 0.4},
                            {50: 0.01, 90: 0.02, 99: 0.03, 100: 0.04}, 0.0, num_rounds=num_rounds)
            for workload in RATIOS for arm, seconds in zip(arms, (10.0, 2.0, 2.5))]


def texts(figure):
    found = [text.get_text() for axes in figure.axes for text in axes.texts]
    return [*found, *(text.get_text() for text in figure.texts), figure.get_suptitle(), figure.get_supxlabel()]


def test_it_says_machine_blas_versions_and_rounds():
    told = make_figure(results(), "tiny-tales", RATIOS, QUIET).get_supxlabel()
    for part in (device_name(), f"BLAS: {blas.name}", f"MLX {mx.__version__}", f"mini_vllm {__version__}",
                 "rounds: 3"):
        assert part in told, told


def test_the_ratios_stand_over_the_bars_of_their_workload():
    figure = make_figure(results(), "tiny-tales", RATIOS, QUIET)
    ratios = {text.get_text(): text.xy for text in figure.axes[0].texts if "×" in text.get_text()}
    assert list(ratios) == ["4.57× one at a time\n1.23× mlx-lm", "2.00× one at a time\n0.98× mlx-lm"]
    assert [place for place, _ in ratios.values()] == [0, 1]
    assert {height for _, height in ratios.values()} == {800.0}, "over the highest bar"
    assert not any("×" in text for text in texts(make_figure(results(), "tiny-tales", {}, QUIET)))


def test_ratios_of_a_busy_machine_are_marked_and_the_footer_says_why():
    noise = {"decode-16": Noise(1.3, 2), "chat": Noise(0.1, 2)}
    figure = make_figure(results(), "tiny-tales", RATIOS, noise)
    ratios = [text.get_text() for text in figure.axes[0].texts if "×" in text.get_text()]
    assert ratios == ["4.57× one at a time ?\n1.23× mlx-lm ?", "2.00× one at a time\n0.98× mlx-lm"]
    assert figure.get_supxlabel().splitlines()[4:] == [
        "? decode-16: other programs kept 1.3 of 2 cores busy. Do not trust these numbers."]


def test_every_bar_has_its_number():
    figure = make_figure(results(), "tiny-tales", RATIOS, QUIET)
    assert [text for text in texts(figure) if text.isdigit()] == ["160", "160", "800", "800", "640", "640"]


def test_arms_differ_by_more_than_colour():
    assert set(LOOKS) == {*ARMS, DRAFTED, *VLLM_TYPES, LLAMA}
    hatched = [hatch for _, hatch in LOOKS.values() if hatch]
    assert len(set(hatched)) == len(hatched) == len(LOOKS) - 2, "the two without are light and dark"


def test_drafts_have_their_own_bars_and_the_speed_up_is_theirs():
    figure = make_figure(results(arms=(BATCHED, DRAFTED)), "tiny-tales", {"chat": {BATCHED: [1.1]}}, QUIET)
    assert figure.axes[0].get_legend_handles_labels()[1] == [BATCHED, DRAFTED]
    assert "1.10× mini_vllm" in texts(figure)


@pytest.mark.parametrize("name, complaint", [
    ("out.gif", "a plot is written as .svg, .pdf, .png, not as .gif"), ("out", "not as a name without a suffix"),
    ("nowhere/out.png", "there is no folder")])
def test_where_the_plot_goes_is_checked_before_anything_is_measured(name, complaint, tmp_path, capsys):
    with pytest.raises(ValueError, match=complaint):
        check_plot(tmp_path / name)
    assert main(["bench", "throughput", "--model", "no-such-model", "--plot", str(tmp_path / name)]) == 2
    assert complaint in capsys.readouterr().err

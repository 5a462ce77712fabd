"""The measured numbers in the documents must match the saved results."""

import json

import pytest
import tables

MACHINE = {"device": "cpu (Neoverse-N1, 8 cores)", "cores": 2, "blas": "nvpl", "commit": "abc"}
RESULT = {"machine": MACHINE, "model": "tiny-tales",
          "speed_ups": {"decode-16": {"one at a time": 5.654, "mlx-lm": 1.151}, "long-arrival": {"mlx-lm": 1.5}},
          "noise": {"decode-16": {"is_loud": True}, "long-arrival": {"is_loud": False}},
          "results": [{"workload": "long-arrival", "arm": arm, "worst_gap_beside_prompt_s": gap,
                       "between_tokens_s": {"50": 0.01}} for arm, gap in (("mini_vllm", 0.027), ("mlx-lm", 1.58))]}
STEPS = {"steps": [{"num_requests": 64, "context": 4096, "ours_ms": 8.95, "peer_ms": 51.8, "ratio": 5.788,
                    "floor_ms": 6.5}],
         "quantised": {"steps": [{"num_requests": 1, "context": 512, "ours_ms": 2.5, "peer_ms": None, "ratio": None,
                                  "floor_ms": None}]}}


WORKLOADS = {"workloads": [{"ours": {"workload": "nano-64", "output_tokens_per_s": 9035.9, "between_tokens_s":
                                     {"50": 0.004, "100": 0.03}}, "peer": {"output_tokens_per_s": 807.4},
                            "ratio": 11.19}]}
COMMAND = {"machine": MACHINE, "command": "python tools/measure pool",
           "printed": ["a table", "In short: it costs 1.0 times as much", "", "In short: and its checks 1.1 times"]}
SERVE = {"machine": MACHINE, "mixed": {"goodput": {
    "goodput": {"mini_vllm": {"requests_per_s": 4.844, "tokens_per_s": 280.4},
                "mlx-lm": {"requests_per_s": 1.161, "tokens_per_s": 72.0}},
    "ratios": {"mlx-lm": 4.17}, "noise": {"is_loud": True}}}, "shared": {"rates": []},
    "priority": [{"about": "200 low requests", "loaded_first_token_s": {"90": 0.2384}, "bound_s": 0.2676,
                  "num_low": 200, "num_low_finished": 199}]}

DRAFTS = {"machine": MACHINE, "model": "smollm2", "noise": {"is_loud": False}, "cells": [
    {"kind": "quoting", "batch_size": 1, "num_speculative_tokens": 7, "steps_per_token": 0.312, "num_drafted": 80,
     "num_accepted": 60, "ratio": 1.852, "plain_s": [2.0, 2.2], "drafted_s": [1.0, 1.25]},
    {"kind": "free", "batch_size": 8, "num_speculative_tokens": 4, "steps_per_token": 1.0, "num_drafted": 0,
     "num_accepted": 0, "ratio": 0.99, "plain_s": [1.0], "drafted_s": [1.01]}]}


def test_the_headline_names_its_workload_and_machine():
    lines = tables.headline([RESULT, {**RESULT, "machine": {**MACHINE, "device": "cpu (aarch64, 2 cores)"}}])
    assert lines[0] == "| workload | compared with | 2 cores, x86 with NVPL | 2 cores, aarch64 with NVPL |"
    assert lines[2].startswith("| `decode-16`: ")
    assert lines[2].endswith("| one request at a time | 5.7 times | 5.7 times |")
    assert lines[3].endswith("| mlx-lm's batches | not measured | not measured |")


@pytest.fixture
def folder(tmp_path):
    silent = {**COMMAND, "printed": ["a table"]}
    for name, result in (("a.json", RESULT), ("gpu.json", STEPS), ("whole.json", WORKLOADS), ("pool.json", COMMAND),
                         ("silent.json", silent), ("serve.json", SERVE), ("drafts.json", DRAFTS)):
        (tmp_path / name).write_text(json.dumps(result))
    return tmp_path


def page(words, text="| old |\n"):
    return f"before\n<!-- table: {words} -->\n{text}<!-- end of table -->\nafter\n"


def test_the_documents_say_what_the_results_say():
    assert tables.main(["--check"]) == 0
    assert any(tables.BLOCK.search(path.read_text(encoding="utf-8")) for path in tables.pages())


def test_a_table_of_drafts_has_a_row_per_kind_of_text(folder):
    lines = tables.filled(page("drafts drafts.json"), folder).splitlines()
    assert lines[4].startswith("| quoting | 1 | 7 | 0.31 | 75% | 1.85 (1.76–2.00) | `smollm2`, 2 cores")
    assert lines[5].startswith("| free | 8 | 4 | 1.00 | no drafts | 0.99 (0.99–0.99) | `smollm2`, ")


def test_a_throughput_table_names_its_machines_and_its_noise(folder):
    lines = tables.filled(page("throughput a.json a.json"), folder).splitlines()
    assert lines[2].count("`tiny-tales`, 2 cores of Neoverse-N1, nvpl, abc") == 2
    assert ("| 5.65 times one at a time, 1.15 times mlx-lm, measured while other programs ran |" in lines[4]
            and lines[4].startswith("| `decode-16`: 16 requests"))
    assert "1.50 times mlx-lm, worst gap between tokens 2.7 times the median (mlx-lm: 158 times)" in lines[5]
    assert (lines[0], lines[-1]) == ("before", "after")


def test_a_table_of_steps(folder):
    lines = tables.filled(page("gpu-steps gpu.json"), folder).splitlines()
    assert lines[4:6] == ["| 64 | 4096 | 8.95 | 51.80 | 5.8 times | 6.50 |",
                          "| 1, weights of 4 bits | 512 | 2.50 |  |  |  |"]


def test_tables_of_the_server(folder):
    goodput = tables.filled(page("goodput serve.json"), folder).splitlines()
    assert len(goodput) == 7 and goodput[4].startswith("| mixed: prompts of 32–512 tokens, outputs of 16–128 | 4.84 r")
    assert "| 4.84 requests/s, 280 tokens/s | 1.16 requests/s, 72 tokens/s | 4.2 times, measured while" in goodput[4]
    assert tables.filled(page("priority serve.json"), folder).splitlines()[4].startswith(
        "| 200 low requests | 238 ms | 268 ms | 199 of 200 | 2 cores of Neoverse-N1")


def test_a_table_of_workloads_and_one_of_commands(folder):
    assert tables.filled(page("gpu-workloads whole.json"), folder).splitlines()[4] == (
        "| `nano-64` | 9036 | 807 | 11.2 times | 7.5 times the median: 30 ms |")
    assert tables.filled(page("commands pool.json"), folder).splitlines()[4] == (
        "| `pool` | it costs 1.0 times as much; and its checks 1.1 times | 2 cores of Neoverse-N1, nvpl, abc |")


def test_a_printed_table_is_the_lines_whose_cells_are_two_spaces_apart(folder):
    printed = ["2 servers; in brackets the worst", "router            cached tokens  busiest",
               "round robin  51.4% (44.2%)      50%", "In short: well"]
    (folder / "router.json").write_text(json.dumps({**COMMAND, "printed": printed}))
    assert tables.filled(page("printed router.json"), folder).splitlines()[2:5] == [
        "| router | cached tokens | busiest |", "| --- | --- | --- |", "| round robin | 51.4% (44.2%) | 50% |"]


def test_writing_twice_changes_nothing(folder):
    once = tables.filled(page("throughput a.json"), folder)
    assert once != page("throughput a.json") and tables.filled(once, folder) == once


@pytest.mark.parametrize("words, complaint", [("no a.json", "there is no table 'no'"), ("throughput", "no file"),
                                              ("throughput b.json", "b.json is not in"),
                                              ("commands silent.json", "no line begins with 'In short: '")])
def test_a_table_that_cannot_be_made_is_told(folder, words, complaint):
    with pytest.raises(ValueError, match=complaint):
        tables.filled(page(words), folder)

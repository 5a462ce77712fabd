"""The measured numbers in the documents must match the saved results."""

import json
import subprocess

import pytest
import tables

from mini_vllm.benchmark.results import digest

TREE = "0123456789" * 4
QUIET, LOUD = ({"others_cores": 0.01, "num_cores": 2, "slowdown": slowdown, "cause": cause} for slowdown, cause in (
    (1.2, ""), (1.9, "the speed of the machine varied by a factor of 1.9")))
ORIGIN = {"command": "mini-vllm bench throughput --rounds 3", "tree": TREE, "modified": [], "noise": QUIET,
          "machine": {"device": "cpu (Neoverse-N1, 8 cores)", "cores": 2, "blas": "nvpl"}}
RESULT = {**ORIGIN, "model": "tiny-tales",
          "speed_ups": {"decode-16": {"one at a time": 5.654, "mlx-lm": 1.151}, "long-arrival": {"mlx-lm": 1.5}},
          "noise_of": {"decode-16": LOUD, "long-arrival": QUIET},
          "results": [{"workload": "long-arrival", "arm": arm, "worst_gap_beside_prompt_s": gap,
                       "num_different": different, "between_tokens_s": {"50": 0.01}}
                      for arm, gap, different in (("mini_vllm", 0.027, 0), ("mlx-lm", 1.58, 2))]}
STEPS = {**ORIGIN, "steps": [{"num_requests": 64, "context": 4096, "ours_ms": 8.95, "peer_ms": 51.8, "ratio": 5.788,
                    "floor_ms": 6.5}],
         "quantised": {"steps": [{"num_requests": 1, "context": 512, "ours_ms": 2.5, "peer_ms": None, "ratio": None,
                                  "floor_ms": None}]}}


WORKLOADS = {**ORIGIN, "workloads": [{"ours": {"workload": "nano-64", "output_tokens_per_s": 9035.9, "between_tokens_s":
                                               {"50": 0.004, "100": 0.03}}, "peer": {"output_tokens_per_s": 807.4},
                            "ratio": 11.19}]}
COMMAND = {**ORIGIN, "command": "python tools/measure pool --output a.json", "noise": LOUD,
           "printed": ["a table", "In short: it costs 1.0 times as much", "", "In short: and its checks 1.1 times"]}
SERVE = {**ORIGIN, "mixed": {"goodput": {
    "goodput": {"mini_vllm": {"requests_per_s": 4.844, "tokens_per_s": 280.4},
                "mlx-lm": {"requests_per_s": 1.161, "tokens_per_s": 72.0}},
    "ratios": {"mlx-lm": 4.17}, "noise": LOUD}}, "shared": {"rates": []},
    "priority": [{"about": "200 low requests", "loaded_first_token_s": {"90": 0.2384}, "bound_s": 0.2676,
                  "holds": True, "num_low": 200, "num_low_finished": 199},
                 {"about": "96 low requests", "loaded_first_token_s": {"90": 0.170116}, "bound_s": 0.169982,
                  "holds": False, "num_low": 96, "num_low_finished": 96}]}

DRAFTS = {**ORIGIN, "model": "smollm2", "cells": [
    {"kind": "quoting", "batch_size": 1, "num_speculative_tokens": 7, "steps_per_token": 0.312, "num_drafted": 80,
     "num_accepted": 60, "ratio": 1.852, "has_equal_tokens": True, "plain_s": [2.0, 2.2], "drafted_s": [1.0, 1.25]},
    {"kind": "free", "batch_size": 8, "num_speculative_tokens": 4, "steps_per_token": 1.0, "num_drafted": 0,
     "num_accepted": 0, "ratio": 0.99, "has_equal_tokens": False, "plain_s": [1.0], "drafted_s": [1.01]}]}


@pytest.fixture
def folder(tmp_path):
    silent = {**COMMAND, "printed": ["a table"]}
    for name, result in (("a.json", RESULT), ("gpu.json", STEPS), ("whole.json", WORKLOADS), ("pool.json", COMMAND),
                         ("silent.json", silent), ("serve.json", SERVE), ("drafts.json", DRAFTS)):
        write(tmp_path / name, result)
    return tmp_path


def write(path, result):
    path.write_text(json.dumps({**result, "sha256": digest(result)}))


def filled(words, folder):
    return tables.filled(page(words), folder, [TREE]).splitlines()


def page(words, text="| old |\n"):
    return f"before\n<!-- table: {words} -->\n{text}<!-- end of table -->\nafter\n"


def test_the_documents_say_what_the_results_say():
    assert tables.main(["--check"]) == 0


def test_a_table_of_drafts_has_a_row_per_kind_of_text(folder):
    lines = filled("drafts drafts.json", folder)
    assert lines[4].startswith("| quoting | 1 | 7 | 0.31 | 75% | 1.85 (1.76–2.00) | `smollm2`, 2 cores")
    assert lines[5].startswith("| free | 8 | 4 | 1.00 | no drafts | 0.99 (0.99–0.99), other tokens than ")


def test_a_throughput_table_names_its_machines_and_its_noise(folder):
    lines = filled("throughput a.json a.json", folder)
    assert lines[2].count("`tiny-tales`, 2 cores of Neoverse-N1, nvpl, tree 0123456789 |") == 2
    assert ("| 5.65 times one at a time, 1.15 times mlx-lm, but the speed of the machine varied by a factor of 1.9 |"
            in lines[4]
            and lines[4].startswith("| `decode-16`: 16 requests"))
    assert ("1.50 times mlx-lm, worst gap between tokens 2.7 times the median (mlx-lm: 158 times), "
            "mlx-lm has other tokens for 2 requests |" in lines[5])
    assert (lines[0], lines[-1]) == ("before", "after")


def test_a_table_of_steps(folder):
    lines = filled("gpu-steps gpu.json", folder)
    assert lines[4:6] == ["| 64 | 4096 | 8.95 | 51.80 | 5.8 times | 6.50 |",
                          "| 1, weights of 4 bits | 512 | 2.50 |  |  |  |"]


def test_tables_of_the_server(folder):
    goodput = filled("goodput serve.json", folder)
    assert len(goodput) == 7 and goodput[4].startswith("| mixed: prompts of 32–512 tokens, outputs of 16–128 | 4.84 r")
    assert "| 4.84 requests/s, 280 tokens/s | 1.16 requests/s, 72 tokens/s | 4.2 times, but the speed" in goodput[4]


def test_a_missed_target_is_called_missed(folder):
    met, missed = filled("priority serve.json", folder)[4:6]
    assert met.startswith("| 200 low requests | 238.4 ms | 267.6 ms: met | 199 of 200 | 2 cores of Neoverse-N1")
    assert missed.startswith("| 96 low requests | 170.1 ms | 170.0 ms: missed | 96 of 96 |")


def test_a_table_of_workloads_and_one_of_commands(folder):
    assert filled("gpu-workloads whole.json", folder)[4] == (
        "| `nano-64` | 9036 | 807 | 11.2 times | 7.5 times the median: 30 ms |")
    assert filled("commands pool.json", folder)[4] == (
        "| `pool` | it costs 1.0 times as much; and its checks 1.1 times, but the speed of the machine varied by a "
        "factor of 1.9 | 2 cores of Neoverse-N1, nvpl, tree 0123456789 |")


def test_counts_do_not_depend_on_the_noise(folder):
    write(folder / "seeds.json", {**COMMAND, "command": "python tools/measure seeds"})
    assert "but the speed" not in filled("commands seeds.json", folder)[4]


def test_a_printed_table_is_the_lines_whose_cells_are_two_spaces_apart(folder):
    printed = ["2 servers; in brackets the worst", "router            cached tokens  busiest",
               "round robin  51.4% (44.2%)      50%", "In short: well"]
    write(folder / "router.json", {**COMMAND, "printed": printed})
    assert filled("printed router.json", folder)[2:7] == [
        "| router | cached tokens | busiest |", "| --- | --- | --- |", "| round robin | 51.4% (44.2%) | 50% |", "",
        "(2 cores of Neoverse-N1, nvpl, tree 0123456789, but the speed of the machine varied by a factor of 1.9)"]


def test_writing_twice_changes_nothing(folder):
    once = tables.filled(page("throughput a.json"), folder, [TREE])
    assert once != page("throughput a.json") and tables.filled(once, folder, [TREE]) == once


@pytest.mark.parametrize("words, complaint", [("no a.json", "there is no table 'no'"), ("throughput", "no file"),
                                              ("throughput b.json", "b.json is not in"),
                                              ("commands silent.json", "no line begins with 'In short: '")])
def test_a_table_that_cannot_be_made_is_told(folder, words, complaint):
    with pytest.raises(ValueError, match=complaint):
        filled(words, folder)


# ---- the rule


@pytest.mark.parametrize("change, complaint", [
    ({"tree": "f" * 40}, "no commit has the tree 'ffff"), ({"modified": ["a.py"]}, r"modified: \['a.py'\]"),
    ({"modified": None}, "modified: None"), ({"machine": {}}, "its machine"),
    ({"noise": {"others_cores": 0}}, "its noise"),
    ({"command": "python -m mini_vllm.benchmark pool"}, "does not run: 'python -m mini_vllm.benchmark pool'"),
    ({"command": "python tools/measure quizzes"}, "does not run"),
    ({"command": "mini-vllm bench throughput --faster"}, "does not run"),
    ({"command": "mini-vllm bench throughput --quick"}, "does not run"), ({"command": "rm -rf ."}, "does not run"),
])
def test_a_file_that_breaks_the_rule_is_refused(folder, change, complaint):
    write(folder / "a.json", {**RESULT, **change})
    with pytest.raises(ValueError, match=f"a.json: .*{complaint}"):
        filled("throughput a.json", folder)


def test_a_file_that_was_changed_later_is_refused(folder):
    path = folder / "pool.json"
    path.write_text(path.read_text().replace("it costs", "it takes"))
    with pytest.raises(ValueError, match="pool.json: it was changed after it was measured"):
        filled("commands pool.json", folder)


def test_the_trees_of_the_history_are_those_of_all_commits(tmp_path):
    def git(*words):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.org", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    assert tables.trees_of_history(tmp_path) is None
    git("init", "-q")
    for number in range(2):
        (tmp_path / "a.py").write_text(str(number))
        git("add", "-A")
        git("commit", "-qm", "more")
    assert tables.trees_of_history(tmp_path) == {git("rev-parse", f"{commit}^{{tree}}") for commit in ("HEAD", "HEAD~")}
    git("clone", "-q", "--depth", "1", tmp_path.as_uri(), str(tmp_path / "shallow"))
    assert tables.trees_of_history(tmp_path / "shallow") is None


# ---- the files in benchmarks/


def results():
    return sorted((tables.ROOT / tables.RESULTS).glob("*"))


@pytest.mark.parametrize("path", results(), ids=lambda path: path.name)
def test_a_result_says_where_it_comes_from_and_a_page_shows_it(path):
    assert tables.faults(json.loads(path.read_text(encoding="utf-8")), trees=None) == []
    assert any(path.name in page.read_text(encoding="utf-8") for page in tables.pages())


def test_the_trees_of_all_results_are_in_the_history():
    trees = tables.trees_of_history()
    if trees is None:
        pytest.skip("NOT CHECKED: this is no checkout with its whole history, so the results' tree ids are unknown")
    found = {path.name: json.loads(path.read_text(encoding="utf-8"))["tree"] for path in results()}
    assert {name: tree for name, tree in found.items() if tree not in trees} == {}

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
COMMAND = {**ORIGIN, "command": "python tools/measure seeds --output a.json", "noise": LOUD,
           "printed": ["a table", "In short: 3 draws changed", "", "In short: and 1 text"]}
#: The directory's results, by path.
KEPT = sorted((tables.ROOT / tables.RESULTS).glob("*"))


def filled(words, folder, **results):
    """Return the lines of a page whose table is filled from these results, ``a`` from a file a.json."""
    for name, result in results.items():
        (folder / f"{name}.json").write_text(json.dumps({**result, "sha256": digest(result)}))
    page = f"before\n<!-- table: {words} -->\n| old |\n<!-- end of table -->\nafter\n"
    once = tables.filled(page, folder, [TREE])
    assert once != page and tables.filled(once, folder, [TREE]) == once
    return once.splitlines()


def test_the_documents_say_what_the_results_say():
    assert tables.main(["--check"]) == 0


def test_a_throughput_table_names_its_machines_and_its_noise(tmp_path):
    lines = filled("throughput a.json a.json", tmp_path, a=RESULT)
    assert lines[2].count("`tiny-tales`, 2 cores of Neoverse-N1, nvpl, tree 0123456789 |") == 2
    assert lines[4].startswith("| `decode-16`: 16 requests") and (
        "| 5.65 times one at a time, 1.15 times mlx-lm, but the speed of the machine varied by a factor of 1.9 |"
        in lines[4])
    assert ("1.50 times mlx-lm, worst gap between tokens 2.7 times the median (mlx-lm: 158 times), "
            "mlx-lm has other tokens for 2 requests |" in lines[5])
    assert (lines[0], lines[-1]) == ("before", "after")


def test_a_table_of_summaries_needs_them_and_does_not_depend_on_the_noise(tmp_path):
    assert filled("commands a.json", tmp_path, a=COMMAND)[4] == (
        "| `seeds` | 3 draws changed; and 1 text | 2 cores of Neoverse-N1, nvpl, tree 0123456789 |")
    with pytest.raises(ValueError, match="no line begins with 'In short: '"):
        filled("commands a.json", tmp_path, a={**COMMAND, "printed": ["a table"]})


def test_a_printed_table_is_the_lines_whose_cells_are_two_spaces_apart(tmp_path):
    printed = ["2 servers; in brackets the worst", "router            cached tokens  busiest",
               "round robin  51.4% (44.2%)      50%", "In short: well"]
    assert filled("printed a.json", tmp_path, a={**COMMAND, "printed": printed})[2:7] == [
        "| router | cached tokens | busiest |", "|---|---|---|", "| round robin | 51.4% (44.2%) | 50% |", "",
        "(2 cores of Neoverse-N1, nvpl, tree 0123456789, but the speed of the machine varied by a factor of 1.9)"]


@pytest.mark.parametrize("change, complaint", [
    ({"tree": "f" * 40}, "no commit has the tree 'ffff"), ({"modified": ["a.py"]}, r"modified: \['a.py'\]"),
    ({"machine": {}}, "its machine"), ({"noise": {"others_cores": 0}}, "its noise"),
    ({"command": "python tools/measure quizzes"}, "does not run"), ({"command": "rm -rf ."}, "does not run"),
    ({"command": "mini-vllm bench throughput --quick"}, "does not run"),
])
def test_a_file_that_breaks_the_rule_is_refused(tmp_path, change, complaint):
    with pytest.raises(ValueError, match=f"a.json: .*{complaint}"):
        filled("throughput a.json", tmp_path, a={**RESULT, **change})


def test_a_file_that_was_changed_later_is_refused(tmp_path):
    filled("commands a.json", tmp_path, a=COMMAND)
    path = tmp_path / "a.json"
    path.write_text(path.read_text().replace("3 draws", "2 draws"))
    with pytest.raises(ValueError, match="a.json: it was changed after it was measured"):
        tables.read(path, [TREE])


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


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_a_result_says_where_it_comes_from_and_a_page_shows_it(path):
    trees = tables.trees_of_history()
    assert tables.read(path, trees)
    assert any(path.name in page.read_text(encoding="utf-8") for page in tables.pages())
    if trees is None:
        pytest.skip("NOT CHECKED: this is no checkout with its whole history, so the result's tree id is unknown")

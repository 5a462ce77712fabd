"""Similar task bodies are found, however they are disguised; what the whole class shares is not reported."""

import re

import pytest

from course.grading.export.similarity_pages import write_similarity
from course.grading.similarity.compare import REFERENCE, compare
from course.grading.similarity.task_bodies import MAX_CHARACTERS, Unreadable, bodies_of, task_names
from course.lab.lab import discover, find_lab
from course.lab.starters import clean_solution, make_starter

OWN = '''
class FreeKVCacheBlockQueue:
    def append(self, block):
        if block.next_free or block.prev_free:
            raise RuntimeError("queued")
        self._tail.prev_free.next_free = block
        block.next_free, block.prev_free = self._tail, self._tail.prev_free
        self._tail.prev_free = block
        self.num_free_blocks = self.num_free_blocks + 1

    def remove(self, block):
        if not block.next_free or not block.prev_free:
            raise RuntimeError("not queued")
        block.next_free.prev_free, block.prev_free.next_free = block.prev_free, block.next_free
        block.next_free = None
        block.prev_free = None
        self.num_free_blocks = self.num_free_blocks - 1

    def get_all_free_blocks(self):
        found, here = [], self._head
        while here.next_free is not self._tail:
            here = here.next_free
            found = found + [here]
        return found
'''


@pytest.fixture(scope="module")
def lab():
    return find_lab("2.1", discover())


@pytest.fixture(scope="module")
def solution(lab):
    return clean_solution(lab.solution.read_text(encoding="utf-8"))


def disguised(text):
    """Change the names of locals, the formatting, the comments and the strings."""
    for old, new in (("before", "vorher"), ("after", "nachher"), ("last", "hinten"), ("seen", "schon")):
        text = re.sub(rf"(?<![\w.]){old}(?!\w)", new, text)
    text = text.replace("queue already", "list").replace("        self.num_free_blocks += 1",
                                                         "        # one more\n\n        self.num_free_blocks   += 1")
    return text.replace("(parent_hash, tuple(token_ids))", "(parent_hash,\n            tuple(token_ids),)")


def test_a_disguised_copy_is_a_copy(lab, solution):
    found = compare(lab, {"copy": disguised(solution), "own": OWN})
    (pair,) = found.pairs
    assert (pair.first, pair.second, pair.ratio) == ("copy", REFERENCE, 1.0)
    assert "FreeKVCacheBlockQueue.append_n" in {body.name for body in pair.bodies}
    assert "schon.add(block.block_id)" in "".join(body.first_text for body in pair.bodies)
    assert all("def " not in body.first_text for body in pair.bodies)
    assert "seen.add(block.block_id)" in "".join(body.second_text for body in pair.bodies)


def test_two_that_agree_are_found_beside_the_reference(lab):
    found = compare(lab, {"anna": OWN, "ben": OWN.replace("here", "node").replace("found", "blocks")})
    assert [(pair.first, pair.second, pair.ratio) for pair in found.pairs] == [("anna", "ben", 1.0)]


def test_what_was_given_out_is_no_work_of_ones_own(lab):
    starter = make_starter(lab.solution.read_text(encoding="utf-8"))[0]
    found = compare(lab, {f"s{i}": starter for i in range(6)})
    assert found.pairs == () and found.num_compared == 6
    assert "FreeKVCacheBlockQueue.append" not in found.left_out, "six who have not begun did not write the same"


def test_what_most_of_the_class_wrote_is_left_out(lab):
    same = {f"s{i}": OWN for i in range(5)}
    found = compare(lab, same)
    assert found.pairs == () and found.left_out["FreeKVCacheBlockQueue.append"] == "5 of 5 wrote the same"
    few = compare(lab, {"s0": OWN, "s1": OWN})
    assert "FreeKVCacheBlockQueue.append" not in few.left_out


def test_short_bodies_are_left_out(lab):
    assert "hardly another way" in compare(lab, {}).left_out["KVCacheBlock.reset_hash"]


@pytest.mark.parametrize("text, why", [("def f(:\n  '''", "does not parse"), ("x = (", "does not parse"),
                                       ("x" * (MAX_CHARACTERS + 1), "more than 200,000"), ("\x00", "")])
def test_what_cannot_be_read_is_said(lab, text, why):
    found = compare(lab, {"anna": text})
    assert found.pairs == () and why in found.not_compared.get("anna", "")


@pytest.mark.parametrize("text", ["a" + ".b" * 50_000 + "\n", "x = " + "-" * 50_000 + "1\n", "def f():\n    return 1",
                                  "class A:\n    def f(self): return 1\n", "def", "class", "",
                                  "def x " * 20_000 + "\n"])
def test_no_text_ends_the_grader(text):
    try:
        assert set(bodies_of(text)) <= {"f"}
    except Unreadable:
        pass


def test_every_task_of_the_course_has_a_body():
    for lab in discover():
        solution = lab.solution.read_text(encoding="utf-8")
        names, bodies = task_names(solution), bodies_of(clean_solution(solution))
        _, stubs = make_starter(solution)
        assert names and set(names) <= set(bodies), lab
        labels = {stub.label.split(".")[-1] for stub in stubs if re.fullmatch(r"[\w.]+", stub.label)}
        assert labels <= {name.split(".")[-1] for name in names}, lab


def test_f_strings_are_one_word_in_every_python():
    one, other = (bodies_of(f"def f():\n    x = 1\n    return {text}\n")["f"].tokens
                  for text in ("f'a {x!r:>{x}} b'", "'plain'"))
    assert one == other


def test_the_page_shows_both_sides_and_breaks_on_nothing(lab, tmp_path):
    nasty = OWN.replace("queued", "</pre><script>``` \x1b[31m")
    write_similarity(tmp_path, [compare(lab, {"<b>anna": nasty, "ben": nasty})])
    html, markdown = ((tmp_path / f"similarity.{kind}").read_text(encoding="utf-8") for kind in ("html", "md"))
    assert html.count('<div class="beside">') >= 2 and "<script" not in html and "<b>" not in html
    assert "never scored" in markdown and "100 %" in markdown and "\x1b" not in markdown + html


def test_pairs_within_a_group_are_left_out_and_counted(lab, tmp_path):
    texts = {name: OWN for name in ("anna", "ben", "cora", "dan")}
    groups = {"anna": "red", "ben": "red", "cora": "blue", "zoe": "blue"}
    found = compare(lab, texts, groups)
    assert {(pair.first, pair.second) for pair in found.pairs} == {
        ("anna", "cora"), ("anna", "dan"), ("ben", "cora"), ("ben", "dan"), ("cora", "dan")}
    assert (found.num_in_groups, found.num_alike) == (1, 5)
    everyone = compare(lab, texts)
    assert (everyone.num_in_groups, len(everyone.pairs)) == (0, 6)
    write_similarity(tmp_path, [found, everyone])
    page = (tmp_path / "similarity.md").read_text(encoding="utf-8")
    assert page.count("Left out: 1 pair within a group.") == 1 and "4 files compared." in page
    alone = compare(lab, {"anna": OWN, "ben": OWN}, groups)
    write_similarity(tmp_path, [alone])
    page = (tmp_path / "similarity.md").read_text(encoding="utf-8")
    assert not alone.pairs and "no two are very similar. Left out: 1 pair" in page

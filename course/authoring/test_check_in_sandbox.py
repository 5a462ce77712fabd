"""The long proof, on a lab of two functions."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from course.authoring import call_surface
from course.authoring.check_in_sandbox import SandboxCheck
from course.authoring.empty_files import FILES
from course.lab.lab import discover
from course.testing.measure import is_protocol


def test_survivors_are_named_and_so_is_who_should_find_nothing(lab1, tmp_path, forked):
    text = lab1.mutants.read_text()
    for old, new in (('"return a - b"', '"return b + a"'), ('"double: After: it is even"', '"double: After", True')):
        assert text.count(old) == 1
        text = text.replace(old, new)
    lab1.mutants.write_text(text)
    with ThreadPoolExecutor(2) as pool:
        problems, _ = SandboxCheck(discover(lab1.root)[0], "none", pool, tmp_path).result()
    assert problems[:1] == ["mutant subtracts survives test_task_1_add_adds, which should have caught it"]
    assert problems[1].startswith("mutant halves, which relies on the tests' process, fails test_double_doubles")
    assert len(problems) == 2


def test_a_test_that_passes_on_anything_is_named(lab1, tmp_path, forked):
    """Check this in a sandbox: an object of the file arrives as a stand-in with its own notion of equality."""
    text = lab1.tests.read_text()
    assert text.count("got == 8") == 1
    lab1.tests.write_text(text.replace("got == 8", "got != 9"))
    with ThreadPoolExecutor(2) as pool:
        problems, _ = SandboxCheck(discover(lab1.root)[0], "none", pool, tmp_path).result()
    passing = [problem for problem in problems if problem.startswith("test_double_doubles passes on ")]
    assert [problem.partition(", so it gives away 3 points")[0] for problem in passing] == [
        f"test_double_doubles passes on {what}" for what in FILES.values()]


def test_what_listens_to_the_talk_is_not_the_files_work():
    """Check that lines of ``course check --surface``, which runs tests that count lines, do not count as the file's."""
    assert is_protocol(SimpleNamespace(f_globals=vars(call_surface)))
    assert not is_protocol(SimpleNamespace(f_globals=globals()))

"""What is in the sandbox of a file that is compared with a reference, and in the reference's own."""

import json

import pytest

from course.grading.limits import limits_for
from course.grading.remote_lab import sandbox_files
from course.grading.remote_lab.grader_side import SandboxedLab
from course.grading.remote_lab.sandbox_files import SandboxSettings
from course.grading.sandbox import Level, visible_paths
from course.lab.lab import discover, find_lab
from course.testing import measure

#: The answers to lab 5.4: the reference, what it is made of, and the engine's faster code.
ANSWERS = ("course/faster_step/reference.py", "course/faster_step/ideas.py", "mini_vllm/model_runner.py",
           "mini_vllm/attention.py", "mini_vllm/fast/attention.py")


@pytest.fixture
def settings():
    lab = find_lab("5.4", discover())
    return SandboxSettings(lab, lab.solution.read_bytes(), Level.PLAIN, limits_for(lab))


def test_a_submission_cannot_import_the_reference(settings):
    files = settings.files().files
    assert "mini_vllm/models/network.py" in files and not [name for name in ANSWERS if name in files]
    assert not settings.surface.imports(), "and the grader's process computes nothing for it"


def test_the_reference_is_equipped_like_the_file(settings):
    own, reference = settings.files(), settings.of_reference().files()
    assert reference.packages == own.packages and settings.of_reference().limits == settings.limits
    assert "mini_vllm/model_runner.py" in reference.files and "mini_vllm/attention.py" in reference.files
    both = [json.loads(each.files["settings.json"])["environment"] for each in (own, reference)]
    assert both[0] == both[1]
    given = [name for name in own.files if name.startswith("mini_vllm/") and name.endswith(".py")]
    assert given and all(reference.files[name] == own.files[name] for name in given)


def test_a_fast_blas_is_offered_to_both_if_it_is_installed(settings, monkeypatch, tmp_path):
    (tmp_path / "lib").mkdir()
    for name in ("libmkl_rt.so.3", "libmkl_core.so.3", "libother.so"):
        (tmp_path / "lib" / name).touch()
    monkeypatch.setattr(visible_paths.sys, "prefix", str(tmp_path))
    files = settings.files()
    assert "mkl" in files.packages
    library = str(tmp_path / "lib" / "libmkl_rt.so.3")
    assert json.loads(files.files["settings.json"])["environment"]["MINI_VLLM_BLAS"] == library
    assert sorted(visible_paths.package_paths("mkl")) == [library.replace("_rt", "_core"), library]
    links = dict(visible_paths.view_of.__wrapped__(("mkl",)).links)
    assert links["/proc/self/exe"] == visible_paths.interpreter()
    (tmp_path / "lib" / "libmkl_rt.so.3").unlink()
    assert visible_paths.mkl_library() is None and "mkl" not in settings.files().packages
    assert "/proc/self/exe" not in dict(visible_paths.view_of.__wrapped__(()).links)
    assert sandbox_files._choice_of_blas() == {}


def test_only_the_labs_own_reference_can_be_started(settings):
    lab = SandboxedLab(settings)
    with pytest.raises(ValueError, match="is 'course.faster_step.reference', not 'mini_vllm.engine'"):
        with lab.reference("mini_vllm.engine"):
            pass


@pytest.mark.parametrize("platform, has_filter, level, expected", [
    ("linux", True, Level.PLAIN, True), ("linux", False, Level.NAMESPACES, False), ("darwin", True, Level.PLAIN, False),
    ("darwin", False, Level.SEATBELT, True)])
def test_a_ratio_is_kept_only_where_no_process_can_be_started(settings, monkeypatch, platform, has_filter, level,
                                                               expected):
    from course.grading.remote_lab import grader_side
    from course.grading.remote_lab.sandbox_measures import SandboxMeasures
    monkeypatch.setattr(grader_side.sys, "platform", platform)
    monkeypatch.setattr(grader_side.seccomp, "is_available", lambda: has_filter)
    lab = SandboxedLab(SandboxSettings(settings.lab, settings.source, level, settings.limits))
    assert SandboxMeasures(lab).is_one_process() is expected
    assert measure.HERE.is_one_process()

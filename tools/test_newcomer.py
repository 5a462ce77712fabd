"""What a newcomer's machine contains, and how little the tests see of the machine they run on."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from newcomer import ROOT, bare_environment

from course.lab.load_module import load_file


def test_of_the_environment_only_the_path_and_pips_own_variables_are_kept(tmp_path):
    (tmp_path / "user/.config/pip").mkdir(parents=True)
    settings = tmp_path / "user/.config/pip/pip.conf"
    settings.touch()
    given = {"PATH": "/bin", "HOME": str(tmp_path / "user"), "PYTHONUNBUFFERED": "1", "CI": "true", "LANG": "C",
             "MINI_VLLM_CACHE": "/models", "PIP_INDEX_URL": "https://index.example", "HTTPS_PROXY": "http://proxy.example",
             "SSL_CERT_FILE": "/certificates"}
    assert bare_environment(tmp_path / "new", given) == {
        "PATH": "/bin", "HOME": str(tmp_path / "new"), "PIP_INDEX_URL": "https://index.example",
        "HTTPS_PROXY": "http://proxy.example", "SSL_CERT_FILE": "/certificates", "PIP_CONFIG_FILE": str(settings)}


def test_the_command_runs_in_a_clone_with_an_empty_home_and_its_status_is_passed_on(tmp_path):
    script = ("import os, sys; print(os.getcwd(), os.listdir(os.environ['HOME']), 'PYTHONPATH' in os.environ); "
              "sys.exit(3)")
    command = [sys.executable, ROOT / "tools/newcomer.py", tmp_path / "clone", sys.executable, "-c", script]
    done = subprocess.run(command, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": "."}, capture_output=True, text=True)
    assert done.returncode == 3 and f"{tmp_path / 'clone'} [] False\n" in done.stdout
    assert (tmp_path / "clone/README.md").is_file() and "exit status 3 after" in done.stdout


# ---- what a test sees of the machine it runs on: see the conftest.py in the root folder


@pytest.fixture
def conftest():
    return load_file(ROOT / "conftest.py")


def test_the_users_folders_are_left_behind_and_a_worker_keeps_its_controllers_home(conftest, monkeypatch, tmp_path):
    given = {"HOME": "/home/ana", "XDG_CACHE_HOME": "/disk/cache", "HF_HOME": "/disk/hub", "MINI_VLLM_CACHE": "/models",
             "MPLCONFIGDIR": "/disk/fonts", "PATH": "/bin", "TMPDIR": str(tmp_path)}
    monkeypatch.setattr(conftest.os, "environ", given)
    monkeypatch.setattr(conftest.tempfile, "tempdir", str(tmp_path))
    home = conftest.leave_home()
    assert given == {"HOME": home, "MINI_VLLM_TEST_HOME": home, "MINI_VLLM_SEED": "0", "PATH": "/bin",
                     "TMPDIR": str(tmp_path)}
    assert conftest.leave_home() is None and given["HOME"] == home


def test_a_test_without_its_model_is_skipped_and_fails_if_the_folder_lacks_it(conftest, monkeypatch, tmp_path):
    needy = SimpleNamespace(get_closest_marker=lambda name: name == "needs_model",
                            iter_markers=lambda name: [SimpleNamespace(args=("fake",))] * (name == "needs_model"))
    monkeypatch.delenv("MINI_VLLM_TEST_MODELS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs the pulled model fake"):
        conftest.pytest_runtest_setup(needy)
    monkeypatch.setenv("MINI_VLLM_TEST_MODELS", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match="has no model fake"):
        conftest.pytest_runtest_setup(needy)
    (tmp_path / "models/fake").mkdir(parents=True)
    (tmp_path / "models/fake/fake.gguf").touch()
    conftest.pytest_runtest_setup(needy)

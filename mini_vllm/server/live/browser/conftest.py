"""These tests need a browser, so they run only when BROWSER says so: all of them, or with BROWSER=short a part."""

import os

import pytest

if not os.environ.get("BROWSER"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def browser():
    from mini_vllm.server.live.browser.chromium import chromium
    with chromium() as opened:
        yield opened

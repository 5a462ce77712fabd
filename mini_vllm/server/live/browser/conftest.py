"""These tests need a browser, so they run only if BROWSER is set: with BROWSER=short only some of them."""

import os

import pytest

if not os.environ.get("BROWSER"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def browser():
    from mini_vllm.server.live.browser.chromium import chromium
    with chromium() as opened:
        yield opened

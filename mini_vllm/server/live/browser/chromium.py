"""A Chromium to test the page in, and the page's files without a server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, Route, sync_playwright

from mini_vllm.server.live.files import page_file

#: Debian's Chromium, unless the variable CHROMIUM names another.
EXECUTABLE = os.environ.get("CHROMIUM", "/usr/bin/chromium")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
#: The address of the page's files without a server; no request leaves the browser.
NOWHERE = "http://mini-vllm.invalid"


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=EXECUTABLE, args=OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


def open_files(page: Page) -> None:
    """Open the page from its files. Every other address is not found."""
    page.route(f"{NOWHERE}/**", _answer)
    page.goto(f"{NOWHERE}/live/page/index.html")


def _answer(route: Route) -> None:
    response = page_file(route.request.url.rpartition("/")[2])
    if response is None:
        route.fulfill(status=404, json={"error": {"message": "no server is here"}})
    else:
        route.fulfill(status=200, body=bytes(response.body), headers=dict(response.headers))

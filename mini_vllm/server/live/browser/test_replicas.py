"""The page of a front in a browser: which replica served which request, what the router believes, and each engine."""

import asyncio
import contextlib
import re
import threading
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from mini_vllm.router import RoundRobinRouter
from mini_vllm.server.conftest import KEYS, running, settings_for
from mini_vllm.server.live.browser.chromium import open_files
from mini_vllm.server.live.browser.test_page import SIZES, TALE, fill, pane, visit  # noqa: F401
from mini_vllm.server.replicas.exchange import Address
from mini_vllm.server.replicas.fleet import Fleet
from mini_vllm.server.replicas.front import make_front
from mini_vllm.server.serving import DrainingServer, address_of, listen

#: What the front may tell: a replica that is down, a text that looks like HTML, a router that failed.
STATE = {
    "router": {"name": "<b>Router</b>", "error": None},
    "replicas": [{"name": "replica-0", "is_up": True, "num_running": 1, "num_answered": 12, "num_blocks": 3},
                 {"name": "replica-1", "is_up": False, "num_running": None, "num_answered": 4, "num_blocks": None}],
    "requests": [{"number": 2, "text": "<img src=x onerror=alert(1)>", "num_blocks": 4, "replica": "replica-0",
                  "expected": {"replica-0": 2, "replica-1": 0}, "status": "running", "error": None},
                 {"number": 1, "text": "x" * 100, "num_blocks": 1, "replica": None, "expected": None,
                  "status": "router failed", "error": "route raised ValueError: <b>"}],
    "prefixes": [{"level": 0, "text": "<i>a king", "num_blocks": 4, "model": "m", "caller": None,
                  "cached": {"replica-0": 3}},
                 {"level": 1, "text": "y" * 100, "num_blocks": 2, "model": "m", "caller": None,
                  "cached": {"replica-0": 0}}]}
DRAW = """async (states) => {
  const { Replicas } = await import("/live/page/replicas.js"), find = (id) => document.getElementById(id);
  const chosen = [], replicas = new Replicas(find, null, (name) => chosen.push(name));
  find("replicas").hidden = false;
  for (const state of states) replicas.draw(state);
  return chosen;
}"""


@contextlib.contextmanager
def running_front(settings, *servers, router=None):
    addresses = {f"replica-{number}": Address.parse(server.url) for number, server in enumerate(servers)}
    listener = listen(settings)
    server = DrainingServer(make_front(settings, Fleet(addresses, router)), settings)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield address_of(listener)
    finally:
        server.should_exit = True
        thread.join(30)


def serving(**changes):
    return running(settings_for("tiny-tales", sizes=SIZES, **changes))


def row(page, name):
    return page.locator("#replica-rows tr").filter(has_text=name)


def send(page, prompt):
    fill(page, 1, prompt, 8)
    pane(page, 1).get_by_role("button", name="Send", exact=True).click()
    note = pane(page, 1).locator(".note")
    expect(note).to_have_text(re.compile(r"8 new tokens, served by replica-\d$"))
    return note.inner_text().rpartition(" ")[2]


def test_the_page_tells_who_served_what_and_shows_the_engine_of_each_replica(visit):  # noqa: F811
    with serving() as first, serving() as second, running_front(settings_for("tiny-tales"), first, second) as url:
        page = visit(url)
        expect(page.locator("#connection")).to_have_text("Watching tiny-tales at replica-0")
        expect(page.locator("#lessons")).to_be_hidden()
        had_none, had_tale = sorted(["replica-0", "replica-1"], key=send(page, TALE).__eq__)
        assert send(page, TALE) == had_tale, "the second one where the first one was"
        assert send(page, "Another text, which has no beginning in common, goes to the other replica") == had_none
        requests = page.locator("#routed li")
        expect(requests).to_have_count(3)
        expect(requests.nth(0)).to_contain_text(f"R{had_none[-1]}Another text")
        expect(requests.nth(1)).to_contain_text(
            re.compile(rf"R{had_tale[-1]}Once upon .*200.*2 blocks; expected in the cache:.* R{had_tale[-1]} 2"))
        beliefs = page.locator("#prefix-rows tr")
        expect(beliefs).to_have_count(2)
        expect(beliefs.filter(has_text="Once upon a time")).to_contain_text(
            "2 blocks 2 0" if had_tale == "replica-0" else "2 blocks 0 2")
        expect(row(page, had_tale)).to_have_text(re.compile(rf"R{had_tale[-1]} {had_tale}up022$"))
        expect(row(page, had_none)).to_have_text(re.compile(rf"R{had_none[-1]} {had_none}up011$"))

        for name, num_cached, other in ((had_tale, 3, had_none), (had_none, 2, had_tale)):
            row(page, name).get_by_role("button").click()
            expect(page.locator("#connection")).to_have_text(f"Watching tiny-tales at {name}")
            expect(page.locator('#pool [data-state="cached"]')).to_have_count(num_cached)
            expect(row(page, name).get_by_role("button")).to_have_attribute("aria-pressed", "true")
            expect(row(page, other).get_by_role("button")).to_have_attribute("aria-pressed", "false")
        page.click("#pause")
        expect(page.locator("#pause")).to_have_text("Resume")
        assert send(page, TALE) == had_tale, "the router chooses, not the page; only the other engine is paused"
        page.context.close()


def test_a_replica_that_dies_is_down_and_is_shown_again_when_it_is_back(visit):  # noqa: F811
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(serving())
        settings = replace(settings_for("tiny-tales", sizes=SIZES), port=int(first.url.rpartition(":")[2]))
        second = stack.enter_context(serving())
        page = visit(stack.enter_context(running_front(settings_for("tiny-tales"), first, second)))
        expect(page.locator("#connection")).to_have_text("Watching tiny-tales at replica-0")
        num_served = int(send(page, TALE) == "replica-0")
        first.stop()
        expect(row(page, "replica-0")).to_have_text(re.compile(f"down–{num_served}–$"))
        expect(page.locator("#connection")).to_have_text("Connection lost. Trying again…")
        assert send(page, TALE) == "replica-1"
        first.thread.join(30)
        stack.enter_context(running(settings))
        expect(row(page, "replica-0")).to_have_text(re.compile(f"up0{num_served}0$"))
        expect(page.locator("#connection")).to_have_text("Watching tiny-tales at replica-0")
        page.context.close()


def test_with_keys_the_page_asks_once_and_a_router_without_beliefs_is_told(visit, tmp_path):  # noqa: F811
    (tmp_path / "keys.toml").write_text(KEYS)
    keys = {"keys_file": tmp_path / "keys.toml"}
    with serving(**keys) as only, running_front(settings_for("tiny-tales", **keys), only,
                                                router=RoundRobinRouter()) as url:
        page = visit(url)
        for key in ("bert-has-a-secret", "anna-has-a-secret"):
            expect(page.get_by_role("dialog")).to_be_visible()
            expect(page.locator("#replicas")).to_be_hidden()
            page.get_by_label("Key", exact=True).fill(key)
            page.get_by_role("button", name="Use this key").click()
        expect(page.locator("#connection")).to_have_text("Watching tiny-tales at replica-0")
        send(page, TALE)
        expect(page.locator("#no-prefixes")).to_have_text("RoundRobinRouter does not say what it believes.")
        expect(page.locator("#routed li")).to_contain_text("2 blocks")
        assert "expected" not in page.locator("#routed").inner_text()
        page.context.close()


def test_a_single_server_has_no_such_panel(visit):  # noqa: F811
    with serving() as server:
        page = visit(server.url)
        expect(page.locator("#connection")).to_have_text("Watching tiny-tales")
        expect(page.locator("#replicas")).to_be_hidden()
        expect(page.locator("#lessons")).to_be_visible()
        fill(page, 1, TALE, 8)
        pane(page, 1).get_by_role("button", name="Send", exact=True).click()
        expect(pane(page, 1).locator(".note")).to_have_text(re.compile("8 new tokens$"))
        page.context.close()


# ---- made-up states


@pytest.fixture
def draw(browser):
    """Return a function that draws states one after the other, and returns the page and the chosen replicas."""
    pages, errors = [], []

    def drawn(*states, width=400, scheme="light"):
        page = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme).new_page()
        page.on("pageerror", lambda error: errors.append(error))
        pages.append(page)
        open_files(page)
        return page, page.evaluate(DRAW, list(states))

    yield drawn
    for page in pages:
        page.context.close()
    assert not errors


def test_every_mark_of_the_panel_is_explained_and_no_other(draw):
    page, _ = draw(STATE)
    told = page.locator("#replicas-legend li").evaluate_all("items => items.map(item => item.dataset.mark)")
    bars = page.locator("#prefix-rows [data-mark]").evaluate_all("marks => marks.map(mark => mark.dataset.mark)")
    signs = page.locator("#replicas .columns span").evaluate_all(
        "spans => spans.map(({ classList }) => ['replica', 'expected'].find(name => classList.contains(name)) ?? '')")
    assert set(told) == {*bars, *signs} - {""}


def test_a_text_is_never_html(draw):
    page, _ = draw({**STATE, "router": {"name": "<b>Router</b>", "error": "loads raised <script>"}})
    assert page.locator("#replicas :is(b, i, img, script)").count() == 0
    expect(page.locator("#routed li").first).to_contain_text("<img src=x onerror=alert(1)>")
    expect(page.locator("#replicas-said")).to_have_text("The router failed: loads raised <script>")
    expect(page.locator("#routed li").last).to_contain_text("the router failed: route raised ValueError: <b>")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_panel_is_readable_at_400_pixels_and_without_colour(draw, scheme):
    page, _ = draw({**STATE, "router": {"name": "R" * 100, "error": "e" * 200}}, scheme=scheme)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 400
    assert page.locator("#replicas .scroll").evaluate_all(
        "parts => parts.every(part => part.scrollWidth <= part.clientWidth)"), "nothing is beyond the edge"
    assert page.locator("#replica-rows .chip").all_inner_texts() == ["R0", "R1"]
    colours = page.locator("#replica-rows .chip").evaluate_all("chips => chips.map(chip => chip.style.backgroundColor)")
    assert len(set(colours)) == 2
    sizes = page.locator("#replicas :is(td, th, p, span, bdi, li)").evaluate_all(
        "all => all.filter(each => each.textContent).map(each => parseFloat(getComputedStyle(each).fontSize))")
    assert min(sizes) >= 12
    bar, cell = (page.locator("#prefix-rows [data-mark=held]").first.bounding_box(),
                 page.locator("#prefix-rows [data-mark=missing]").first.bounding_box())
    assert bar["width"] == pytest.approx(0.75 * cell["width"], abs=1), "3 of 4 blocks"


def test_the_first_replica_that_is_up_is_chosen_and_again_when_it_comes_back(draw):
    up, down = ({**STATE, "replicas": [{**each, "is_up": each["name"] == name} for each in STATE["replicas"]]}
                for name in ("replica-1", "none"))
    page, chosen = draw(down, up, up, down, up)
    assert chosen == ["replica-1", "replica-1"]
    page, chosen = draw(down)
    assert chosen == []


def test_a_button_keeps_the_focus_when_the_state_changes(draw):
    page, _ = draw(STATE)
    kept = page.evaluate("""async (state) => {
      const { Replicas } = await import("/live/page/replicas.js"), find = (id) => document.getElementById(id);
      const replicas = new Replicas(find, null, () => {});
      replicas.draw(state);
      const button = find("replica-rows").querySelector("button");
      button.focus();
      state.replicas[0].num_answered += 1;
      state.requests.pop();
      replicas.draw(state);
      return [document.activeElement === button, find("routed").childElementCount];
    }""", STATE)
    assert kept == [True, 1]

"""The page in a browser, with a real server: the actions of a learner, and what the learner sees."""

import os
import re

import pytest
from playwright.sync_api import expect

from mini_vllm.conftest import make_talker
from mini_vllm.pictures.palette import PAINTS
from mini_vllm.server.conftest import KEYS, running, settings_for
from mini_vllm.server.live.small_pool import PROMPTS
from mini_vllm.server.live.small_pool import SIZES as SMALL
from mini_vllm.speculation.test_speculation import FREE

TALE = ("Once upon a time there was a king who had three sons, and the youngest of them was so kind that all the birds "
        "in the forest knew his name.")
#: How long to wait for an answer. A whole lesson may wait for a queue to age, on a busy machine.
PATIENCE_MS = 90_000
expect.set_options(timeout=PATIENCE_MS)
LESSONS = ["share", "copy"] if os.environ.get("BROWSER") == "short" else ["preempt", "share", "copy", "evict", "starve"]
#: At full speed, the first of two texts may have ended before the second arrives.
AT_ITS_OWN_SPEED = ["share"]
SIZES = {"num_blocks": 48, "block_size": 16}


@pytest.fixture(scope="module")
def server():
    with running(settings_for("tiny-tales", sizes=SIZES)) as opened:
        yield opened


@pytest.fixture
def visit(browser):
    """Return a function that opens the page. At the end, check that no error occurred in it."""
    pages, errors = [], []

    def open_page(url, **options):
        page = browser.new_context(**{"viewport": {"width": 1400, "height": 1000}, **options}).new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: errors.append(str(error)))
        pages.append(page)
        page.goto(url)
        return page

    yield open_page
    for page in pages:
        page.context.close()
    assert not errors


@pytest.fixture
def page(visit, server):
    opened = visit(server.url)
    expect(opened.locator("#connection")).to_have_text("Watching tiny-tales")
    opened.click("#as-started")
    expect(opened.locator("#said")).to_contain_text("Restarted")
    expect(opened.locator("#pool [data-block]")).to_have_count(SIZES["num_blocks"])  # drawn: now nothing moves
    return opened


def pane(page, number):
    return page.locator(f"#pane-{number}")


def fill(page, number, prompt, tokens=64):
    pane(page, number).get_by_label("Text to continue").fill(prompt)
    pane(page, number).get_by_label("Tokens").fill(str(tokens))


def shared(page):
    return page.locator('#pool [data-state="shared"]')


def test_an_output_that_must_match_is_shown_with_its_automaton_and_what_was_allowed(page):
    page.select_option("#speed", "20")
    expect(page.locator("#matches")).to_be_hidden()
    fill(page, 1, "The wolf was born on", 20)
    pane(page, 1).get_by_label("Must match").fill(r"\d{4}-[01]\d")
    pane(page, 1).get_by_role("button", name="Send", exact=True).click()
    match = page.locator("#match-list article")
    expect(match).to_contain_text(r"must match the expression \d{4}-[01]\d")
    expect(match).to_contain_text("Token 7, ")
    expect(match).to_contain_text("10 of 4,096 tokens were allowed. Now in state 7, of 8 states. The output has ended")
    assert match.locator("[data-allowed]").evaluate_all(
        "bars => bars.map(bar => Number(bar.dataset.allowed))") == [10, 10, 10, 10, 1, 2, 10]
    filled = match.locator("circle[data-state]").evaluate_all(
        "circles => circles.filter(each => each.style.fill).map(each => each.dataset.state)")
    assert filled == ["7"] and match.locator("circle[data-state]").count() == 8
    assert re.fullmatch(r"A \d{4}-[01]\d", pane(page, 1).locator(".continued").inner_text())


def test_an_expression_that_is_wrong_is_refused_with_the_place(page):
    fill(page, 1, "The wolf was born on", 20)
    pane(page, 1).get_by_label("Must match").fill("(a")
    pane(page, 1).get_by_role("button", name="Send", exact=True).click()
    expect(pane(page, 1).locator(".note")).to_contain_text("structured_outputs.regex")
    expect(page.locator("#matches")).to_be_hidden()


def test_two_prompts_share_blocks_while_they_run_and_release_them(page):
    page.select_option("#speed", "20")
    fill(page, 1, TALE + " One day a fox", 40)
    fill(page, 2, TALE + " One day a wolf", 40)
    page.click("#send-all")
    expect(shared(page)).to_have_count(2)
    expect(page.locator("#pool-sentence")).to_contain_text("2 of them shared")
    assert "ref_cnt 2" in shared(page).first.locator("title").text_content()
    expect(page.locator('#tree [data-state="shared"]')).to_have_count(2)
    expect(page.locator("#tables [data-table]")).to_have_count(2)
    for number in (1, 2):
        expect(pane(page, number).locator(".note")).to_contain_text("40 new")
        expect(pane(page, number).locator(".chip")).to_have_text(re.compile("^[AB]$"))
    notes = [pane(page, number).locator(".note").inner_text() for number in (1, 2)]  # either may have arrived first
    assert sorted("32 found in the cache" in note for note in notes) == [False, True], notes
    expect(shared(page)).to_have_count(0)
    expect(page.locator('#pool [data-state="used"]')).to_have_count(0)
    assert page.locator('#pool [data-state="cached"]').count() > 4
    expect(page.locator("#no-tables")).to_be_visible()


def test_pause_and_step_compute_one_step_at_a_time(page):
    page.click("#pause")
    expect(page.locator("#pause")).to_have_text("Resume")
    page.click("#step")
    expect(page.locator("#said")).to_contain_text("nothing to compute")
    fill(page, 1, "A fox", 5)
    pane(page, 1).get_by_role("button", name="Send").click()
    expect(page.locator("#queue")).to_contain_text("normal, waited")
    for step in range(3):
        page.click("#step")
        expect(page.locator("#schedule")).to_have_attribute("aria-label", re.compile(f"to step {step}: 1 request"))
    expect(page.locator("#tiles")).to_contain_text("paused")
    page.click("#pause")
    expect(pane(page, 1).locator(".note")).to_contain_text("5 new")
    expect(page.locator("#schedule")).to_have_attribute("aria-label", re.compile("to step 4"))


def test_a_fork_and_the_same_prefix_again(page):
    fill(page, 1, TALE + " Then one day", 12)
    pane(page, 1).get_by_role("button", name="Fork").click()
    expect(pane(page, 1).locator(".note")).to_contain_text("48 new")
    expect(pane(page, 1).locator(".chip")).to_have_text(["A", "B", "C", "D"])
    expect(page.locator('#schedule [data-kind="forked"]')).to_have_count(3)
    pane(page, 1).get_by_role("button", name="Same prefix again").click()
    expect(pane(page, 3).locator(".note")).to_contain_text(re.compile(r"[1-9]\d found in the cache"))


def test_stop_brings_the_blocks_home(page):
    fill(page, 1, TALE, 600)
    page.select_option("#speed", "20")
    pane(page, 1).get_by_role("button", name="Send").click()
    expect(page.locator("#tables [data-table]")).to_have_count(1)
    pane(page, 1).get_by_role("button", name="Stop").click()
    expect(page.locator("#no-tables")).to_be_visible()
    expect(pane(page, 1).locator(".note")).to_contain_text("Stopped")


def test_the_sliders_restart_the_engine_with_other_sizes(page):
    page.locator("#pool-size").fill("2")
    page.locator("#budget").fill("3")
    page.click("#restart")
    expect(page.locator("#sizes")).to_have_text(
        "Now: 24 blocks of 16 tokens; per step at most 24 tokens of at most 16 requests.")
    expect(page.locator("#pool [data-block]")).to_have_count(25)
    page.locator("#pool-size").fill("17")
    page.click("#restart")
    expect(page.locator("#pool-sentence")).to_contain_text("4095 blocks")
    expect(page.locator("#bare-pool")).to_be_visible()
    expect(page.locator("#bare-pool")).to_have_attribute("aria-label", re.compile("4095 blocks"))


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_notices_that_it_was_done(page, lesson):
    card = open_lesson(page, lesson)
    set_up(page, lesson)
    expect(page.locator("#said")).to_contain_text("Set up")
    assert "done" not in card.get_attribute("class")
    if lesson not in AT_ITS_OWN_SPEED:
        page.select_option("#speed", "0")
    page.click("#send-all")
    expect(card).to_have_class(re.compile("done"))
    proof = card.locator(".progress").inner_text()
    assert proof.startswith("Done. ") and re.search(r"\d", proof)
    page.click("#stop-all")
    page.reload()
    expect(card.locator(".progress")).to_have_text(proof)  # it is remembered


def test_a_lesson_is_ticked_only_while_it_is_set_up_and_open(page):
    share, copy = (page.locator(f"#lesson-{lesson}") for lesson in ("share", "copy"))
    open_lesson(page, "share")
    page.select_option("#speed", "20")
    for number, end in ((1, " One day a fox"), (2, " One day a wolf")):
        fill(page, number, TALE + end, 40)
    page.click("#send-all")  # it is open, but not set up
    expect(shared(page)).to_have_count(2)
    expect(pane(page, 2).locator(".note")).to_contain_text("40 new")
    expect(share).not_to_have_class(re.compile("done"))

    open_lesson(page, "copy")
    set_up(page, "copy")
    open_lesson(page, "share")  # closes the other, which is then set up but not open
    expect(copy).not_to_have_attribute("open", "")
    page.select_option("#speed", "0")
    page.click("#send-all")
    expect(pane(page, 1).locator(".note")).to_contain_text("192 new")
    assert "1" < tile(page, "copies on write")
    expect(copy).not_to_have_class(re.compile("done"))

    open_lesson(page, "copy")
    page.click("#send-all")
    expect(copy).to_have_class(re.compile("done"))
    page.click("#start-over")
    open_lesson(page, "copy")
    set_up(page, "copy")
    page.click("#as-started")  # another engine: no lesson is set up now
    expect(page.locator("#said")).to_contain_text("Restarted")
    pane(page, 1).get_by_role("button", name="Fork").click()
    expect(pane(page, 1).locator(".note")).to_contain_text("new")
    expect(copy).not_to_have_class(re.compile("done"))


def test_a_lesson_that_is_set_up_again_keeps_its_tick(page):
    card = open_lesson(page, "copy")
    for _ in range(2):
        set_up(page, "copy")
        page.select_option("#speed", "0")
        page.click("#send-all")
        expect(card).to_have_class(re.compile("done"))
        expect(card.locator(".progress")).to_contain_text("Done. Before step")
    set_up(page, "copy")
    expect(card).to_have_class(re.compile("done"))
    expect(card.locator(".mark")).to_have_text("✓")
    page.reload()
    expect(card).to_have_class(re.compile("done"))
    page.click("#start-over")
    expect(card).not_to_have_class(re.compile("done"))


def open_lesson(page, lesson):
    """Open a lesson with the keyboard: a click would be lost if the page moved under the pointer."""
    card = page.locator(f"#lesson-{lesson}")
    if card.get_attribute("open") is None:  # the page opens a lesson only when it loads or starts over
        card.locator("summary").press("Enter")
    expect(card).to_have_attribute("open", "")
    return card


def set_up(page, lesson):
    """With the keyboard, for the same reason."""
    button = page.locator(f"#lesson-{lesson}").get_by_role("button", name="Set it up")
    expect(button).to_be_enabled()
    button.press("Enter")
    expect(page.locator("#said")).to_contain_text("Set up")


def tile(page, name):
    return page.locator("#tiles div").filter(has_text=name).locator("dd").inner_text()


def prompts(page):
    return [page.locator(f"#pane-{number}-prompt").input_value() for number in (1, 2)]


def test_the_small_pool_is_one_click_away_and_its_two_prompts_share_blocks(page):
    fill(page, 1, "A fox", 5)
    page.click("#small-pool")
    expect(page.locator("#sizes")).to_contain_text("Now: 96 blocks of 8 tokens")
    expect(page.locator("#pool [data-block]")).to_have_count(97)
    expect(page.locator("#said")).to_contain_text("Send all")
    assert prompts(page) == [*PROMPTS] and page.locator(".pane").count() == 2
    page.click("#send-all")
    expect(shared(page)).to_have_count(3)
    page.click("#as-started")
    page.click("#restart-anyway")  # both are still running
    expect(page.locator("#sizes")).to_contain_text("Now: 47 blocks of 16 tokens")


@pytest.mark.parametrize("button", ["small-pool", "restart"])
def test_a_restart_asks_before_it_ends_running_requests(page, button):
    page.click("#pause")
    expect(page.locator("#pause")).to_have_text("Resume")
    fill(page, 1, "A fox", 5)
    pane(page, 1).get_by_role("button", name="Send").click()
    expect(page.locator("#queue")).to_contain_text("normal, waited")
    page.locator("#pool-size").fill("2")
    for answer in ("restart-not", "restart-anyway"):
        page.click(f"#{button}")
        expect(page.locator("#restart-dialog")).to_be_visible()
        expect(page.locator("#restart-why")).to_have_text(re.compile("1 request in flight"))
        before = page.locator("#sizes").inner_text()
        page.click(f"#{answer}")
        expect(page.locator("#restart-dialog")).to_be_hidden()
        if answer == "restart-not":
            expect(page.locator("#said")).to_contain_text("Not restarted: tiny-tales has 1 request in flight")
            assert page.locator("#sizes").inner_text() == before and prompts(page)[0] == "A fox"
            expect(page.locator("#queue")).to_contain_text("normal, waited")
    expect(page.locator("#sizes")).to_contain_text("96 blocks of 8" if button == "small-pool" else "24 blocks of 16")
    expect(page.locator("#pane-1-prompt")).to_have_value(PROMPTS[0] if button == "small-pool" else "A fox")


def test_a_server_with_the_small_pool_opens_ready_to_share(visit):
    with running(settings_for("tiny-tales", sizes=SMALL)) as server:
        page = visit(server.url)
        expect(page.locator("#said")).to_contain_text("Send all")
        assert prompts(page) == [*PROMPTS]
        expect(page.locator("#speed")).to_have_value("5")
        page.click("#send-all")
        expect(shared(page)).to_have_count(3)
        expect(page.locator("#pool-sentence")).to_contain_text("96 blocks of 8 tokens")
        page.context.close()


def test_with_keys_the_page_asks_for_one(visit, tmp_path):
    (tmp_path / "keys.toml").write_text(KEYS)
    with running(settings_for("tiny-tales", sizes=SIZES, keys_file=tmp_path / "keys.toml")) as server:
        page = visit(server.url)
        for key in ("wrong", "bert-has-a-secret", "anna-has-a-secret"):
            expect(page.get_by_role("dialog")).to_be_visible()
            page.get_by_label("Key", exact=True).fill(key)
            page.get_by_role("button", name="Use this key").click()
        expect(page.locator("#connection")).to_have_text("Watching tiny-tales")
        fill(page, 1, "A fox", 5)
        pane(page, 1).get_by_role("button", name="Send").click()
        expect(pane(page, 1).locator(".note")).to_contain_text("5 new")
        page.context.close()  # otherwise the server would wait for it


def test_drafted_tokens_are_seen_in_the_schedule_a_tile_and_the_note(visit, monkeypatch):
    monkeypatch.setenv("MINI_VLLM_SEED", "9")  # with it, some of the guesses are right and some are wrong
    with running(settings_for("tiny-tales", sizes={**SIZES, "num_speculative_tokens": 7})) as server:
        server.call("tiny-tales", lambda engine: setattr(engine.speculation, "costs", FREE))
        page = visit(server.url)
        expect(page.locator("#connection")).to_have_text("Watching tiny-tales")
        expect(page.locator("#tiles")).to_contain_text("drafts accepted0 of 0")
        for mark in ("accepted", "rejected"):
            expect(page.locator(f'#schedule-legend [data-mark="{mark}"]')).to_have_count(1)
        fill(page, 1, "one two three one two three one two three", 36)
        pane(page, 1).get_by_role("button", name="Send").click()
        note = pane(page, 1).locator(".note")
        expect(note).to_contain_text(re.compile(r"36 new tokens, \d+ of \d+ drafted tokens accepted"))
        accepted, drafted = map(int, re.search(r"(\d+) of (\d+) drafted", note.inner_text()).groups())
        numbers = server.call("tiny-tales", lambda engine: engine.speculation)
        assert (accepted, drafted) == (numbers.num_accepted_tokens, numbers.num_drafted_tokens)
        assert 0 < accepted < drafted
        expect(page.locator("#tiles")).to_contain_text(f"drafts accepted{accepted} of {drafted}")
        last = server.call("tiny-tales", lambda engine: engine.num_steps) - 1
        expect(page.locator("#schedule")).to_have_attribute("aria-label", re.compile(f"to step {last}: 1 request"))
        for part, number in (("accepted", accepted), ("rejected", drafted - accepted)):
            paths = page.locator(f'#schedule [data-request] [data-part="{part}"]')
            assert sum(path.get_attribute("d").count("M") for path in paths.all()) == number, part
        first = page.locator('#schedule [data-kind="drafted"]').first
        first.dispatch_event("pointerover")
        told = re.compile(r"^step \d+: A computes 1 token after \d+ computed earlier; \d drafted, \d accepted$")
        expect(first.locator("title")).to_have_text(told)
        page.context.close()


def test_tokens_per_second_count_accepted_drafts_and_the_tile_is_there_while_the_engine_drafts(visit, server):
    page = visit(server.url)
    told = page.evaluate("""async () => {
      const { Numbers } = await import("/live/page/numbers.js"), { EngineState } = await import("/live/page/state.js");
      const [tiles, queue, sentence] = ["dl", "ol", "p"].map((name) => document.createElement(name));
      const numbers = new Numbers(tiles, queue, sentence);
      numbers.hear({ sampled: ["a", "b"], drafts: { a: [7, 5] } }, 1000);
      const texts = [0, 7, 0].map((num_speculative_tokens) => {
        const state = new EngineState({ num_blocks: 4, max_num_seqs: 2, num_speculative_tokens });
        Object.assign(state.totals, { num_drafted_tokens: 7, num_accepted_tokens: 5 });
        numbers.draw(state, false);
        return tiles.textContent;
      });
      return { rate: numbers.rate(2000), texts };
    }""")
    assert told["rate"] == 7, "two tokens, and five accepted ones, in one second"
    assert ["drafts accepted5 of 7" in text for text in told["texts"]] == [False, True, False]


def test_a_page_of_an_engine_that_does_not_draft_does_not_speak_of_drafts(page):
    fill(page, 1, "A fox", 5)
    pane(page, 1).get_by_role("button", name="Send").click()
    expect(pane(page, 1).locator(".note")).to_have_text(re.compile("5 new tokens$"))
    assert "draft" not in page.locator("body").inner_text()


def test_a_model_with_a_chat_template_is_talked_to(visit, checkpoints, tmp_path):
    with running(settings_for(make_talker(checkpoints, tmp_path), sizes=SIZES)) as server:
        page = visit(server.url)
        expect(page.locator("#connection")).to_have_text("Watching talker")
        for number in range(2):
            pane(page, 1).get_by_label("Message").fill(f"question {number}")
            pane(page, 1).get_by_role("button", name="Send").click()
            expect(pane(page, 1).locator(".continued")).to_have_count(number + 1)
            expect(pane(page, 1).get_by_label("Message")).to_have_value("")
        expect(pane(page, 1).locator(".asked")).to_have_text(["question 0", "question 1"])
        pane(page, 1).get_by_role("button", name="Same prefix again").click()
        expect(pane(page, 3).locator(".note")).to_contain_text(re.compile(r"[1-9]\d* found in the cache"))
        page.context.close()


def test_everything_has_a_name_and_can_be_reached_and_the_focus_is_seen(page):
    controls = page.locator("button, select, input, textarea, summary")
    names = set()
    for number in range(controls.count()):
        control = controls.nth(number)
        if control.is_visible() and control.is_enabled():
            names.add(control.evaluate("each => each.id || each.textContent.trim()"))
            assert control.evaluate("each => (each.labels?.[0] ?? each).textContent.trim() || each.ariaLabel")
    reached = set()
    page.locator("body").click(position={"x": 2, "y": 2})
    for _ in range(len(names) * 3):
        page.keyboard.press("Tab")
        told = page.evaluate("() => { const each = document.activeElement, style = getComputedStyle(each); return "
                             "[each.id || each.textContent.trim(), style.outlineStyle, style.outlineWidth]; }")
        if page.evaluate("() => document.activeElement !== document.body"):
            assert told[1] != "none" and told[2] != "0px", f"{told[0]} shows no focus"
        reached.add(told[0])
    assert names <= reached, f"not reached: {names - reached}"
    for picture in page.locator("svg[role=img], canvas[role=img]").all():
        if picture.is_visible():
            assert picture.get_attribute("aria-label")
    expect(page.locator("#sentence")).to_contain_text("0 requests run")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_papers_and_a_narrow_screen(visit, server, scheme):
    page = visit(server.url, color_scheme=scheme, viewport={"width": 400, "height": 800})
    expect(page.locator("#connection")).to_have_text("Watching tiny-tales")
    page.click("#as-started")
    expect(page.locator('#pool [data-state="empty"]')).to_have_count(47)
    red, green, blue = (int(getattr(PAINTS["empty"], scheme)[place:place + 2], 16) for place in (1, 3, 5))
    expect(page.locator('#pool [data-state="empty"]').first).to_have_css("fill", f"rgb({red}, {green}, {blue})")
    fill(page, 1, TALE, 20)
    pane(page, 1).get_by_role("button", name="Fork").click()
    expect(pane(page, 1).locator(".note")).to_contain_text("80 new")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 400

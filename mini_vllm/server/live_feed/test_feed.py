"""The messages to a page: everything once, then the changes; and the engine never waits for the page."""

import asyncio
import dataclasses
import gc
import json
import weakref
import xml.etree.ElementTree as ElementTree

import pytest

from mini_vllm.async_engine import AsyncLLMEngine
from mini_vllm.engine import LLMEngine, engine_of
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.pictures.tree import draw_tree
from mini_vllm.request import Priority, SamplingParams
from mini_vllm.server.live_feed.feed import LiveFeed
from mini_vllm.server.live_feed.structures import MAX_TEXT, describe
from mini_vllm.server.live_feed.watcher import Watcher
from mini_vllm.server.live_feed.window import Window
from mini_vllm.speculation.test_speculation import FREE
from mini_vllm.structured.grammar import RegexGrammar
from mini_vllm.structured.guided import GuidedExpression
from mini_vllm.structured.params import StructuredOutputsParams
from mini_vllm.trace.recorder import StepTrace

GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


@pytest.fixture
def config(shallow):
    return EngineConfig(model=shallow("llama3"), num_blocks=40, block_size=4, max_num_seqs=8,
                        max_num_batched_tokens=16, enable_lookahead=False)


class Page:
    """The state that a page derives from its messages: current tables, blocks and keys."""

    def __init__(self):
        self.tables, self.blocks, self.keys, self.steps, self.requests, self.waiting = {}, {}, {}, [], {}, []

    def hear(self, messages):
        for message in map(json.loads, map(json.dumps, messages)):  # only JSON values
            if message["type"] == "snapshot":
                self.__init__()
                self.header = message["header"]
                self._take(message["base"])
                for event in message["events"]:
                    self._take(event)
            else:
                self._take(message)
        return self

    def _take(self, event):
        self.tables = {name: table for name, table in {**self.tables, **event["tables"]}.items() if table}
        self.blocks |= {block_id: [ref_cnt, bool(found)] for block_id, ref_cnt, found in event["blocks"]}
        self.keys |= {key[0]: key[1:] for key in event["keys"]}
        self.requests |= event["arrived"]
        self.waiting = event.get("waiting", [])
        for request_id in event.get("finished", ()):
            self.requests.pop(request_id, None)
        if event.get("step") is not None:
            self.steps.append(event["step"])

    def check(self, engine):
        """Check that the page agrees with the engine."""
        pool = engine.kv_cache.block_pool
        shown = {block.block_id: self.blocks.get(block.block_id, [0, False]) for block in pool.blocks[1:]}
        assert shown == {block.block_id: [block.ref_cnt, block.block_hash is not None] for block in pool.blocks[1:]}
        assert self.tables == {name: engine.kv_cache.get_block_ids(name) for name in self.tables}
        assert {name for name in engine.scheduler.requests if engine.kv_cache.get_block_ids(name)} == set(self.tables)
        assert set(self.requests) == set(engine.scheduler.requests)
        assert self.waiting == [request.request_id for request in engine.scheduler.waiting]
        assert {block_id for block_id, (key, *_) in self.keys.items() if key is not None} == \
            {block.block_id for block in pool.blocks if block.block_hash is not None}


async def read(watcher):
    await asyncio.sleep(0)
    return await watcher.next(0.001)


def run(config, script, parts=None, **options):
    """Run ``script(engine, feed, page, update)`` with an engine whose feed is watched."""
    async def main():
        feed = LiveFeed()
        engine, watcher, page = LLMEngine(config, parts, trace=feed), Watcher(**options), Page()
        feed.open(watcher, engine)

        async def update():
            for _ in range(3):  # messages posted to the loop arrive in its next rounds
                page.hear(await read(watcher))
            return page

        await script(engine, feed, watcher, update)
    asyncio.run(main())


@pytest.mark.without_drafts("needs a preemption; with drafts requests end before there is one")
def test_the_page_shows_what_is_after_every_step_and_when_all_have_gone(config):
    async def script(engine, feed, watcher, update):
        for number, length in enumerate((30, 9, 30, 3)):
            engine.add_request([7] * length, GREEDY, f"r{number}", Priority(number % 3))
        engine.add_request([5] * 6, SamplingParams(n=3, max_tokens=5, seed=1), "many")
        num_steps = 0
        while engine.has_unfinished_requests():
            engine.step()
            num_steps += 1
            page = await update()
            if engine.has_unfinished_requests():
                feed.look(engine.scheduler)
                (await update()).check(engine)
        page.check(engine)
        assert page.steps == list(range(num_steps)) and not page.tables and not page.requests
        assert page.header["num_blocks"] == 18 and page.header["aging_rate"] == 0.1
        assert engine.metrics().num_evictions and engine.metrics().num_preemptions, "the pool is too large to tell"

    run(dataclasses.replace(config, num_blocks=18), script)


def test_between_steps_arrivals_and_aborts_are_told_when_asked_for_and_else_nothing(config):
    async def script(engine, feed, watcher, update):
        await update()
        engine.add_request([7] * 9, GREEDY, "low", Priority.LOW)
        feed.look(engine.scheduler)
        page = await update()
        assert page.requests["low"][0] == 2 and page.waiting == ["low"] and page.steps == []
        feed.look(engine.scheduler)
        assert await read(watcher) == [], "nothing has changed"
        engine.step()
        engine.abort_request("low")
        feed.look(engine.scheduler)
        (await update()).check(engine)
        assert not page.requests and page.steps == [0]

    run(config, script)


def test_who_comes_later_is_told_all_that_holds_and_the_last_steps(config):
    async def script(engine, feed, watcher, update):
        feed._window = Window(num_events=5)
        for number in range(4):
            params = SamplingParams(max_tokens=30 if number else 2, temperature=0, ignore_eos=True)
            engine.add_request([number + 1] * 12, params, f"r{number}")
        for _ in range(12):
            engine.step()
        late, page = Watcher(), Page()
        feed.open(late, engine)
        (message,) = await late.next(1)
        page.hear([message]).check(engine)
        assert len(message["events"]) == 5 and page.steps[-1] == 11
        assert set(message["base"]["prompts"]) == {"r1", "r2", "r3"}, "of those that have ended nothing is kept"
        assert all(most >= 12 and found == 0 for most, found in message["base"]["computed"].values())

    run(config, script)


def test_who_reads_slowly_is_told_everything_anew_and_the_engine_does_not_wait(config):
    async def script(engine, feed, watcher, update):
        engine.add_request([7] * 9, SamplingParams(max_tokens=30, temperature=0, ignore_eos=True), "a")
        for _ in range(20):
            engine.step()
        await asyncio.sleep(0)
        assert watcher.is_behind and await watcher.next(0.001) == []
        feed.open(watcher, engine)
        (await update()).check(engine)
        assert not watcher.is_behind and feed.num_watchers == 1
        engine.step()
        (await update()).check(engine)

    run(config, script, max_behind=8)


def test_while_nobody_watches_nothing_is_recorded(config, monkeypatch):
    async def script(engine, feed, watcher, update):
        watcher.is_gone = True
        monkeypatch.setattr(StepTrace, "record_plan", lambda *_: pytest.fail("somebody listens"))
        engine.add_request([7] * 9, GREEDY, "a")
        engine.step()
        assert feed.num_watchers == 0
        monkeypatch.undo()
        feed.open(watcher, engine)
        page = await update()
        page.check(engine)
        engine.step()

    run(config, script)


def test_drafts_are_told_and_counted_also_those_that_no_page_has_seen(config):
    async def script(engine, feed, watcher, update):
        def totals():
            return {"num_drafted_tokens": engine.speculation.num_drafted_tokens,
                    "num_accepted_tokens": engine.speculation.num_accepted_tokens}

        engine.speculation.costs = FREE
        watcher.is_gone = True
        for number in range(2):  # only two different tokens: some guesses are right and some are wrong
            params = SamplingParams(max_tokens=20, seed=1, allowed_token_ids=[97, 98], ignore_eos=True)
            engine.add_request([*b"abab"], params, f"r{number}")
            while number == 0 and engine.has_unfinished_requests():
                engine.step()
        num_steps, unseen, late, expected = engine.num_steps, totals(), Watcher(), []
        feed.open(late, engine)
        while engine.has_unfinished_requests():
            engine.step()
            expected.append(totals())
        snapshot, *events = [message for _ in range(3) for message in await read(late)]
        assert snapshot["header"]["num_speculative_tokens"] == 5
        events = [event for event in events if event["step"] is not None]
        assert [event["step"] for event in events] == [*range(num_steps, engine.num_steps)]
        assert [{name: event["totals"][name] for name in unseen} for event in events] == expected
        drafts = [draft for event in events for draft in event.get("drafts", {}).values()]
        assert [before + sum(draft[i] for draft in drafts) for i, before in enumerate(unseen.values())] == [
            *totals().values()]
        assert all(0 < accepted < drafted for drafted, accepted in (unseen.values(), map(sum, zip(*drafts))))

    run(dataclasses.replace(config, num_speculative_tokens=5), script)


def test_what_a_later_page_is_told_of_a_request_includes_its_accepted_tokens():
    window = Window(num_events=1)
    event = {"now_s": 0.0, "tables": {}, "blocks": [], "keys": [], "prompts": {}, "names": {}, "arrived": {},
             "finished": {}, "tokens": {"a": [8, 1]}, "drafts": {"a": [4, 3]}}
    window.add(event)
    window.add({**event, "tokens": {"a": [12, 1]}})
    assert window.to_json()["base"]["computed"] == {"a": [12, 8]}


def test_an_engine_that_does_not_draft_says_so(config):
    async def script(engine, feed, watcher, update):
        engine.add_request([7] * 9, GREEDY, "a")
        while engine.has_unfinished_requests():
            engine.step()
        messages = [message for _ in range(3) for message in await read(watcher)]
        assert messages[0]["header"]["num_speculative_tokens"] == 0
        assert not any("drafts" in message for message in messages) and len(messages) > 5

    run(config, script)


def bound(n=1, **structured):
    return SamplingParams(max_tokens=40, seed=1, n=n, structured_outputs=StructuredOutputsParams(**structured))


def messages_of(params, num_events=96, grammar=RegexGrammar, **changes):
    """Return what a page hears while a request is served whose output must match, and what a later page hears."""
    heard = []

    async def script(engine, feed, watcher, update):
        feed._window = Window(num_events=num_events)
        engine.add_request("The wolf was born on", params, "bound")
        engine.add_request("Once upon a time", SamplingParams(max_tokens=60, temperature=0, ignore_eos=True), "free")
        while engine.has_unfinished_requests():
            if engine.num_steps == 4:
                late = Watcher()
                feed.open(late, engine)
                heard.extend(await late.next(1))
                late.is_gone = True
            engine.step()
            heard.extend(await read(watcher))
        heard.extend([message for _ in range(3) for message in await read(watcher)])

    run(EngineConfig(num_blocks=60, block_size=8, enable_lookahead=False, **changes), script,
        EngineParts(grammar=grammar))
    first, late = (message for message in heard if message["type"] == "snapshot")
    return first, late, [message for message in heard if message["type"] == "event" and message["step"] is not None]


@pytest.mark.parametrize("grammar", [RegexGrammar, GuidedExpression])
def test_an_output_that_must_match_is_told_with_its_automaton_and_each_state(grammar):
    first, _, events = messages_of(bound(regex=r"\d{2}-[01]"), grammar=grammar)
    assert first["header"]["vocab_size"] == 4096
    told = [event for event in events if "drawn" in event]
    assert [event["allowed"]["bound"][0][0] for event in told] == [10, 10, 1, 2]
    assert [event["drawn"]["bound"][0][1] for event in told] == [1, 2, 3, 4], "the state after each token"
    assert told[2]["drawn"]["bound"] == [["-", 3]]
    assert ["structures" in event for event in told] == [True, False, False, False]
    structure = told[0]["structures"]["bound"]
    assert (structure["kind"], structure["text"], structure["num_states"]) == ("regex", r"\d{2}-[01]", 5)
    circles = [each for each in ElementTree.fromstring(structure["svg"]).iter() if each.get("data-state")]
    assert {int(each.get("data-state")) for each in circles} == {0, 1, 2, 3, 4}
    assert "<style" not in structure["svg"] and "<script" not in structure["svg"]
    assert json.loads(json.dumps(events)) == events


def test_a_later_page_is_told_what_a_running_output_must_match_and_nothing_of_one_that_has_ended():
    _, late, _ = messages_of(bound(regex="[ab]{30}"), num_events=1)
    assert set(late["base"]["structures"]) == {"bound"} and late["base"]["structures"]["bound"]["text"] == "[ab]{30}"
    _, late, _ = messages_of(bound(regex="[ab]"), num_events=1)
    assert late["base"]["structures"] == {}


def test_every_sample_is_told_also_accepted_drafts():
    _, _, events = messages_of(bound(n=3, choice=["ab ab ab ab ab ab", "cd cd cd cd cd cd"]), num_speculative_tokens=4)
    structures = {name: each for event in events for name, each in event.get("structures", {}).items()}
    assert set(structures) == {"bound#0", "bound#1", "bound#2"}
    assert structures["bound#0"]["text"] == '"ab ab ab ab ab ab" | "cd cd cd cd cd cd"'
    for event in events:
        assert {name: len(each) for name, each in event.get("drawn", {}).items()} == {
            name: len(each) for name, each in event.get("allowed", {}).items()}


@pytest.mark.parametrize("pattern, num_states", [("[ab]{500}", 501), ("[ab]{1000}", None), ("<b>&" + "x" * 510, None)])
def test_a_large_automaton_is_not_drawn(pattern, num_states):
    told = describe(StructuredOutputsParams(regex=pattern))
    assert told["svg"] is None and told["num_states"] == num_states and len(told["text"]) <= MAX_TEXT


@pytest.mark.parametrize("structured, text", [
    ({"json": {"type": "integer"}}, '{"type":"integer"}'), ({"json_object": True}, "any JSON object")])
def test_a_parser_has_no_automaton(structured, text):
    assert describe(StructuredOutputsParams(**structured)) == {
        "kind": next(iter(structured)), "text": text, "num_states": None, "svg": None}


def test_a_picture_contains_no_markup_of_the_expression():
    params = StructuredOutputsParams(regex="<script>|<style>\\n")
    told = describe(params)
    assert "<script" not in told["svg"] and "<style" not in told["svg"] and "&lt;" in told["svg"]
    assert describe(params)["svg"] is told["svg"], "drawn once"


def test_the_keys_are_the_tree_that_the_notebooks_draw(config):
    async def script(engine, feed, watcher, update):
        for tail in ([1, 2, 3], [4, 5, 6, 7, 8]):
            engine.add_request([*b"once upon a time ", *tail], GREEDY)
            while engine.has_unfinished_requests():
                engine.step()
        page = await update()
        nodes = {block_id: key for block_id, key in page.keys.items() if key[0] is not None}
        first_of = {key: block_id for block_id, (key, *_) in sorted(nodes.items(), reverse=True)}
        pool = engine.kv_cache.block_pool
        for block_id, (_, parent, text) in nodes.items():
            key = pool.blocks[block_id].block_hash
            assert (parent is None) == (key.parent is None)
            if parent is not None:
                assert pool.blocks[first_of[parent]].block_hash == key.parent
            svg = draw_tree(pool, text_of=lambda token: engine.tokenizer.decode([token])).svg
            assert f'data-block="{block_id}"' in svg and text.split(" ")[0] in svg

    run(config, script)


def test_an_engine_that_is_told_of_does_not_outlive_its_owner(config):
    async def main():
        feed = LiveFeed()
        async with AsyncLLMEngine(make_engine=lambda: engine_of(config, trace=feed)) as engine:
            watcher = Watcher()
            await engine.call(lambda inner: feed.open(watcher, inner))
            outputs = [output async for output in engine.generate([1, 2, 3], GREEDY)]
            return outputs[-1].finished, await engine.call(weakref.ref), feed

    is_finished, engine, feed = asyncio.run(main())
    gc.collect()
    assert is_finished and engine() is None and feed is not None

"""The cost of one redraw of the page in Chromium, with many requests and a large pool.

    python -m mini_vllm.server.live.browser.redraw [--requests 60] [--blocks 4096] [--steps 200]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from playwright.sync_api import CDPSession

from mini_vllm.engine_frame import EngineFrame
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Request, RequestStatus, SamplingParams
from mini_vllm.scheduler import Scheduler
from mini_vllm.server.live.browser.chromium import chromium, open_files
from mini_vllm.server.live_feed.feed import LiveFeed
from mini_vllm.server.live_feed.watcher import Watcher

#: The target for the median. It is only reported, not enforced: a busy machine is slower.
LIMIT_MS = 50.0
BLOCK_SIZE = 16
WARM_UP = 20


class Load:
    """A scheduler that is always full, without a model: tokens are made up.

    Prompts fill most of the pool; a third of them have the same beginning. A request that ends is replaced by another.
    """

    def __init__(self, num_requests: int, num_blocks: int, feed: LiveFeed) -> None:
        self._rng, self._feed, self._num_requests, self._num_added = random.Random(0), feed, num_requests, 0
        self._most = int(num_blocks * BLOCK_SIZE * 0.9 / num_requests)
        self._common = [self._rng.randrange(1000) for _ in range(self._most // 2)]
        self.scheduler = Scheduler(KVCacheManager(num_blocks, BLOCK_SIZE, tree_class=PrefixTree), num_requests,
                                   max(num_requests, 2048))

    def step(self) -> None:
        scheduler, feed = self.scheduler, self._feed
        while len(scheduler.requests) < self._num_requests:
            self._add()
        feed.start_step(scheduler)
        plan = scheduler.schedule()
        feed.record_plan(scheduler, plan)
        tokens = {request.request_id: self._rng.randrange(1000) for request in plan.requests
                  if request.num_computed_tokens == request.num_tokens}
        scheduler.update_from_output(plan, tokens)
        for request in plan.requests:
            if len(request.output_token_ids) == request.sampling_params.max_tokens:
                scheduler.finish(request, RequestStatus.FINISHED_LENGTH)
        feed.end_step(plan, tokens)

    def _add(self) -> None:
        length = self._rng.randint(self._most // 2, self._most - 64)
        begin = self._common[:length // 2] if self._rng.random() < 0.34 else []
        rest = [self._rng.randrange(1000) for _ in range(length - len(begin))]
        params = SamplingParams(max_tokens=self._rng.randint(30, 200))
        self.scheduler.add_request(Request(f"request-{self._num_added}", begin + rest, params))
        self._num_added += 1


async def record(num_requests: int, num_blocks: int, num_steps: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Record the messages of a full engine to a page: the whole picture, then one event per step."""
    feed, watcher = LiveFeed(), Watcher(max_behind=num_steps + 100)
    load = Load(num_requests, num_blocks, feed)
    engine = cast(EngineFrame, SimpleNamespace(
        scheduler=load.scheduler, config=SimpleNamespace(aging_rate=0.1, num_speculative_tokens=0), draft_counts=dict,
        loaded=SimpleNamespace(config=SimpleNamespace(vocab_size=1000)),
        tokenizer=SimpleNamespace(decode=lambda token_ids: f"w{token_ids[0]}")))
    feed.introduce("made up", lambda request: f"request {request.request_id}")
    feed.open(watcher, engine)
    for _ in range(60):  # after that all prompts are computed
        load.step()
    feed.open(watcher, engine)
    for _ in range(num_steps):
        load.step()
    await asyncio.sleep(0)
    snapshot, *events = await watcher.next(1)
    return snapshot, events


def measure(snapshot: dict[str, Any], events: list[dict[str, Any]]) -> dict[str, Any]:
    """Measure every redraw in milliseconds of wall-clock time: the script alone, and until the frame is painted.

    Also return the mean CPU time of the page's thread, which does not depend on the machine's other load.
    """
    script = (Path(__file__).parent / "redraw.js").read_text(encoding="utf-8")
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        open_files(page)
        told = json.loads(json.dumps({"snapshot": snapshot, "events": events}))
        page.evaluate(script, {**told, "events": told["events"][:WARM_UP]})
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        before = _durations_s(session)
        result = cast(dict[str, Any], page.evaluate(script, told))
        after = _durations_s(session)
        return {**result, "cpu_ms": {name: (after[name] - before[name]) * 1000 / len(events) for name in after}}


def _durations_s(session: CDPSession) -> dict[str, float]:
    metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    return {name: metrics[name] for name in ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration")}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="redraw", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--blocks", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args(arguments)
    with ThreadPoolExecutor(1) as thread:  # the browser has a loop in this thread
        snapshot, events = thread.submit(asyncio.run, record(options.requests, options.blocks,
                                                             options.steps)).result()
    result = measure(snapshot, events)
    print(f"{options.requests} requests, {options.blocks} blocks, {len(events)} steps, {result['numShapes']} shapes; "
          f"an event is {statistics.median(len(json.dumps(event)) for event in events) / 1000:.1f} kB")
    medians = {}
    for name, times in (("script", result["script"]), ("until it is painted", result["frame"])):
        times = sorted(times)
        medians[name] = statistics.median(times)
        print(f"redraw, {name}: median {medians[name]:.1f} ms, p90 {times[int(0.9 * len(times))]:.1f} ms, "
              f"most {times[-1]:.1f} ms")
    cpu = result["cpu_ms"]
    print(f"redraw, CPU time of the page's thread: mean {cpu['TaskDuration']:.1f} ms, of it script "
          f"{cpu['ScriptDuration']:.1f}, layout {cpu['LayoutDuration']:.1f}, style {cpu['RecalcStyleDuration']:.1f}")
    is_quick = medians["until it is painted"] < LIMIT_MS
    print(f"the median is {'below' if is_quick else 'NOT below'} {LIMIT_MS:g} ms")


if __name__ == "__main__":
    main(sys.argv[1:])

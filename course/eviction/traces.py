"""Lab 3.5: traces of requests, generated from a seed. They differ in which blocks are requested again.

With blocks of 32 tokens, the engine's default, a system prompt of 8 blocks is a short page, and a document of 40 blocks
is five such pages.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

from course.eviction.arena import Block, Chain, Trace

#: An endless sequence of requests; a trace contains the first of them.
Story = Iterator[Chain]


class _Blocks:
    """Makes new blocks; no two have the same key."""

    def __init__(self) -> None:
        self._keys = itertools.count(1)

    def after(self, chain: Chain, num_blocks: int) -> Chain:
        """Return ``chain`` followed by ``num_blocks`` new blocks."""
        blocks = list(chain)
        for _ in range(num_blocks):
            blocks.append(Block(next(self._keys), blocks[-1].key if blocks else None, len(blocks)))
        return tuple(blocks)


# ---------------------------------------------------------------------------------------------- the stories


def chats(rng: random.Random, new: _Blocks, num_open: int, once: float, leaves: float = 0.06) -> Story:
    """Yield turns of conversations, each of which starts with one of three system prompts.

    A turn repeats the whole conversation so far and adds 2 to 4 blocks. The share ``once`` of the conversations has a
    single turn. About ``num_open`` of the others are active at any time. Each turn is the last with probability
    ``leaves``, and no conversation has more than 45 blocks.
    """
    systems = [new.after((), 8) for _ in range(3)]
    going: list[Chain] = []
    while True:
        if len(going) < num_open or rng.random() < once * 0.7:
            chat = new.after(rng.choice(systems), rng.randint(2, 6))
            if rng.random() >= once:
                going.append(chat)
        else:
            i = rng.randrange(len(going))
            chat = going[i] = new.after(going[i], rng.randint(2, 4))
            if rng.random() < leaves or len(chat) > 41:
                going.pop(i)
        yield chat


def few_shot(rng: random.Random, new: _Blocks, num_prompts: int) -> Story:
    """Yield few-shot prompts of 6 to 16 blocks, each time with a new question of 1 to 3 blocks.

    The n-th prompt is used 1/n as often as the first.
    """
    prompts = [new.after((), rng.randint(6, 16)) for _ in range(num_prompts)]
    weights = [1 / rank for rank in range(1, num_prompts + 1)]
    while True:
        yield new.after(rng.choices(prompts, weights)[0], rng.randint(1, 3))


def documents(rng: random.Random, new: _Blocks) -> Story:
    """Yield texts of 20 to 50 blocks. No text is requested twice."""
    while True:
        yield new.after((), rng.randint(20, 50))


def agents(rng: random.Random, new: _Blocks, num_agents: int) -> Story:
    """Yield the steps of agents that explore.

    Each step adds 1 to 3 blocks to the agent's last step or, three times in ten, to a random one of its steps. An
    agent begins another task after 25 steps.
    """
    tools = new.after((), 10)
    tasks: list[list[Chain]] = []
    while True:
        if len(tasks) < num_agents:
            tasks.append([new.after(tools, rng.randint(3, 8))])
            yield tasks[-1][0]
        i = rng.randrange(len(tasks))
        steps = tasks[i]
        steps.append(new.after(rng.choice(steps) if rng.random() < 0.3 else steps[-1], rng.randint(1, 3)))
        yield steps[-1]
        if len(steps) > 25:
            tasks.pop(i)


def in_turn(rng: random.Random, story: Story, num_usual: int, burst: Story, num_burst: int) -> Story:
    """Yield about ``num_usual`` requests of ``story``, then about ``num_burst`` of ``burst``, in turn."""
    while True:
        yield from itertools.islice(story, rng.randint(num_usual // 2, num_usual * 3 // 2))
        yield from itertools.islice(burst, rng.randint(num_burst // 2, num_burst * 3 // 2))


def mixed(rng: random.Random, stories: list[Story], weights: list[float]) -> Story:
    while True:
        yield next(rng.choices(stories, weights)[0])


# ---------------------------------------------------------------------------------------------- the traces


#: The size of the cache, the story, and the number of requests.
Kind = Callable[[random.Random, _Blocks], tuple[int, Story, int]]


def _mixture(rng: random.Random, new: _Blocks) -> tuple[int, Story, int]:
    stories = [chats(rng, new, num_open=4, once=0.5), few_shot(rng, new, num_prompts=20), documents(rng, new),
               agents(rng, new, num_agents=2)]
    return 150, mixed(rng, stories, [4, 3, 1, 2]), 300


def _random(rng: random.Random, new: _Blocks) -> tuple[int, Story, int]:
    """Draw how often each story occurs, how many run at a time, and how large the cache is."""
    stories = [chats(rng, new, rng.randint(3, 8), rng.uniform(0.2, 0.7)), few_shot(rng, new, rng.randint(10, 40)),
               agents(rng, new, rng.randint(1, 4))]
    usual = mixed(rng, stories, [rng.uniform(0.5, 3), rng.uniform(0.5, 3), rng.uniform(0.2, 2)])
    story = in_turn(rng, usual, rng.randint(10, 40), documents(rng, new), rng.randint(2, 6))
    return rng.randint(120, 240), story, 250


KINDS: dict[str, Kind] = {
    "chats": lambda rng, new: (200, chats(rng, new, num_open=10, once=0.6), 300),
    "few-shot": lambda rng, new: (150, few_shot(rng, new, num_prompts=40), 400),
    "scan": lambda rng, new: (
        200, in_turn(rng, chats(rng, new, num_open=5, once=0.2), 24, documents(rng, new), 6), 300),
    "agents": lambda rng, new: (150, agents(rng, new, num_agents=6), 300),
    "mixture": _mixture,
    "random": _random,
}
FIXED = [name for name in KINDS if name != "random"]


def make_trace(name: str, seed: int | None = None) -> Trace:
    """Make the trace ``scan`` or ``random 3``; with a seed, another one of its kind."""
    kind, _, number = name.partition(" ")
    source: int | str = f"lab 3.5, trace {number}" if number else 1 + FIXED.index(kind)
    if seed is not None:
        source, name = f"lab 3.5, {name}, {seed}", f"{name} of seed {seed}"
    rng = random.Random(source)
    num_blocks, story, num_requests = KINDS[kind](rng, _Blocks())
    return Trace(name, num_blocks, tuple(itertools.islice(story, num_requests)))


def fixed_traces() -> list[Trace]:
    """Return the five traces that never change."""
    return [make_trace(name) for name in FIXED]

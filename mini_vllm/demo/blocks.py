"""Three requests, served by the real KV cache manager. The screen shows every change of its state.

    mini-vllm demo blocks
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from mini_vllm.block_pool import BlockPool, KVCacheBlock
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.parts import BlockPoolPart, KVCacheManagerPart
from mini_vllm.request import Request

BLOCK_SIZE = 4
NUM_BLOCKS = 9
STORIES = {
    "ada": "once upon a time there lived a king who had three",
    "ben": "once upon a time there lived a king but no queen",
    "cleo": "the fox saw grapes and jumped for them all day long until dark",
}


class Demo:
    """A server without a model: it knows how each story continues, and shows where the tokens are.

    Manager and pool may be other classes with the same interfaces. Hits are whole blocks: there is no prefix tree.
    """

    def __init__(self, console: Console, manager_class: Callable[..., KVCacheManagerPart] = KVCacheManager,
                 pool_class: type[BlockPoolPart] = BlockPool) -> None:
        self.console = console
        self.manager = manager_class(NUM_BLOCKS, BLOCK_SIZE, pool_class=pool_class)
        self.words: list[str] = []
        self.requests: dict[str, Request] = {}

    def tokens(self, text: str) -> list[int]:
        """Split a text into tokens for human readers: one token per word."""
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
        return [self.words.index(word) for word in text.split()]

    def admit(self, name: str) -> None:
        request = Request(name, self.tokens(STORIES[name]))
        hits, num_cached = self.manager.get_computed_blocks(request)
        taken = self.manager.allocate_slots(request, request.num_tokens - num_cached, hits)
        asks = f"{name} arrives with {request.num_tokens} tokens"
        if taken is None:
            self.show(f"{asks}: they do not fit now, so nothing changes")
            return
        request.num_computed_tokens = request.num_tokens
        self.requests[name] = request
        found = f"{num_cached} are found in {_named(hits)} and not copied" if hits else "none are cached"
        self.show(f"{asks}: {found}; {request.num_tokens - num_cached} are computed into {_named(taken)}")

    def decode(self, name: str, text: str) -> None:
        request = self.requests[name]
        taken: list[KVCacheBlock] = []
        for token_id in self.tokens(text):
            request.append_output_token(token_id)
            blocks = self.manager.allocate_slots(request, 1)
            assert blocks is not None, f"the script lets {name} decode only what fits"
            taken += blocks
            request.num_computed_tokens += 1
        where = _say(taken, "is allocated", "are allocated") if taken else "the last block has room"
        self.show(f"{name} decodes “{text}”: {where}")

    def finish(self, name: str) -> None:
        table = [self.manager.block_pool.blocks[block_id] for block_id in self.manager.get_block_ids(name)]
        self.manager.free(self.requests.pop(name))
        free = [block for block in reversed(table) if block.ref_cnt == 0]
        shared = [block for block in table if block.ref_cnt > 0]
        findable = [block for block in free if block.block_hash is not None]
        told = [_say(free, "is freed", "are freed, the last one first")]
        if findable:
            told.append(_say(findable, "is full and stays cached", "are full and stay cached"))
        elif free:
            told.append("it is not cached, because it is not full" if len(free) == 1 else "none of them is cached")
        if shared:
            told.append(_say(shared, "still has an owner", "still have an owner"))
        self.show(f"{name} is done: {'; '.join(told)}")

    def show(self, event: str) -> None:
        self.manager.check_integrity()
        pool = self.manager.block_pool
        self.console.print(Text(event, style="bold"), soft_wrap=False)
        for name, request in self.requests.items():
            self._show_table(name, request)
        shared = [f"{block.block_id} (ref_cnt {block.ref_cnt})" for block in pool.blocks if block.ref_cnt > 1]
        queue = [f"{block.block_id}{'′' if block.block_hash is not None else ''}"
                 for block in pool.free_block_queue.get_all_free_blocks()]
        self._print_folded("", [Text(f"  shared {', '.join(shared) or 'none'} "),
                                Text(f"  free queue {' → '.join(queue) or 'empty'} "),
                                Text(f"  in use {pool.get_usage():.0%}")])
        self.console.print()

    def _show_table(self, name: str, request: Request) -> None:
        """Print the blocks of a request."""
        blocks = []
        for index, block_id in enumerate(self.manager.get_block_ids(name)):
            tokens = request.all_token_ids[index * BLOCK_SIZE:(index + 1) * BLOCK_SIZE]
            slots = [self.words[token] for token in tokens] + ["·"] * (BLOCK_SIZE - len(tokens))
            is_shared = self.manager.block_pool.blocks[block_id].ref_cnt > 1
            style, mark = ("green", "*") if is_shared else ("", "")
            blocks.append(Text.assemble((f" {block_id}", f"bold {style}"), (f"{mark}[{' '.join(slots)}]", style)))
        self._print_folded(f"  {name:<5}", blocks)

    def _print_folded(self, title: str, parts: Sequence[Text]) -> None:
        """Print the parts, as many per line as fit; the following lines are indented by the title's width."""
        line = Text(title)
        for part in parts:
            if len(line) + len(part) > self.console.width and len(line) > len(title):
                self.console.print(line)
                line = Text(" " * len(title))
            line.append(part)
        self.console.print(line)


def _named(blocks: Sequence[KVCacheBlock]) -> str:
    ids = ", ".join(str(block.block_id) for block in blocks)
    return f"block {ids}" if len(blocks) == 1 else f"blocks {ids}" if blocks else "no block"


def _say(blocks: Sequence[KVCacheBlock], of_one: str, of_several: str) -> str:
    return f"{_named(blocks)} {of_one if len(blocks) <= 1 else of_several}"


def show_blocks(console: Console, manager_class: Callable[..., KVCacheManagerPart] = KVCacheManager,
                pool_class: type[BlockPoolPart] = BlockPool) -> None:
    console.print(f"{NUM_BLOCKS} blocks of {BLOCK_SIZE} tokens, one token per word. Block 0, the null block, is never "
                  "allocated. * marks a block that several requests share, ′ marks a free block whose tokens are still "
                  "cached.\n",
                  soft_wrap=False)
    demo = Demo(console, manager_class, pool_class)
    demo.admit("ada")
    demo.admit("ben")
    demo.decode("ada", "sons and")
    demo.admit("cleo")
    demo.finish("ben")
    demo.admit("cleo")
    demo.finish("ada")
    demo.decode("cleo", "came and the fox went home")
    demo.finish("cleo")
    demo.admit("ben")
    stats = demo.manager.stats
    console.print(f"Prompt tokens: {stats.num_query_tokens}; found in the cache: {stats.num_hit_tokens} "
                  f"({stats.hit_rate:.0%}); blocks evicted: {stats.num_evicted_blocks}.", soft_wrap=False)

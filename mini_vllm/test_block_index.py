"""The indices of the manager: what they have in common, and how they handle keys that prove nothing."""

import random

import pytest

from mini_vllm.block_pool import BlockHash, BlockPool, KVCacheBlock
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.prefix_tree import BlockIndex, NoIndex, PrefixTree, key_of
from mini_vllm.request import Request
from mini_vllm.test_block_pool import ids, snapshot

SIZE = 4
NO_BLOCK_HASH = r"block {} is cached under 777, which is of type int; a prefix index needs a BlockHash"


def table_of(pool, num_tokens):
    return pool.get_new_blocks(-(-num_tokens // SIZE))


def tree_snapshot(index):
    return snapshot(index.block_pool), dict(getattr(index, "_places", {}))


# ---- what they have in common


@pytest.mark.parametrize("index_class", [BlockIndex, PrefixTree])
@pytest.mark.parametrize("seed", range(5))
def test_whole_blocks_are_found_as_comparing_with_all_texts_finds_them(index_class, seed):
    rng = random.Random(seed)
    pool = BlockPool(200)
    index = index_class(pool, SIZE)
    texts = [[rng.randrange(2) for _ in range(rng.randint(1, 14))] for _ in range(20)]
    for tokens in texts:
        index.insert(tokens, table_of(pool, len(tokens)))
        pool.check_integrity()
    for _ in range(50):
        wanted = [rng.randrange(2) for _ in range(rng.randint(1, 14))]
        num_wanted = max(n for n in range(0, len(wanted) + 1, SIZE)
                         if n == 0 or any(len(text) >= n and text[:n] == wanted[:n] for text in texts))
        match = index.match(wanted)
        assert len(match.blocks) * SIZE == num_wanted
        for block, start in zip(match.blocks, range(0, num_wanted, SIZE)):
            assert block.block_hash.token_ids == tuple(wanted[start:start + SIZE])
        if index_class is BlockIndex:
            assert (match.partial_block, match.num_partial_tokens) == (None, 0)


def test_only_full_blocks_are_inserted_and_a_donated_tail_is_lost():
    pool = BlockPool(9)
    index = BlockIndex(pool, SIZE)
    table = table_of(pool, 10)
    index.insert(range(10), table, num_tokens=7)
    assert [block.block_hash is not None for block in table] == [True, False, False]
    index.insert(range(10), table)
    index.donate(range(10), table)
    assert ids(pool.free_block_queue.get_all_free_blocks())[-3:] == ids(table)[::-1]
    assert index.match(range(10)).blocks == table[:2]
    index.clear()
    assert index.match(range(10)).blocks == []


def test_no_index_finds_nothing_and_gives_the_blocks_back():
    pool = BlockPool(9, enable_caching=False)
    index = NoIndex(pool, SIZE)
    table = table_of(pool, 8)
    index.insert(range(8), table)
    assert index.match(range(8)).blocks == [] and table[0].block_hash is None
    index.donate(range(8), table)
    assert pool.get_num_free_blocks() == 8


class OnlyTheInterface:
    """A tree with only the methods that the manager may call. It looks empty."""

    def __init__(self, block_pool, block_size):
        self._tree = PrefixTree(block_pool, block_size)
        self.match, self.insert = self._tree.match, self._tree.insert
        self.donate, self.clear = self._tree.donate, self._tree.clear

    def __len__(self):
        return 0


def test_the_manager_calls_nothing_else_of_a_tree():
    manager = KVCacheManager(9, SIZE, tree_class=OnlyTheInterface)
    first, second = Request("first", range(7)), Request("second", range(7))
    manager.allocate_slots(first, 7)
    first.num_computed_tokens = 7
    manager.finish_step()
    manager.free(first)
    hits, num_cached = manager.get_computed_blocks(second)
    assert num_cached == 6, "the half-filled tail is found"
    manager.allocate_slots(second, 1, hits, num_cached)
    manager.free(second)
    manager.finish_step()
    manager.reset_prefix_cache()
    assert manager.get_computed_blocks(second) == ([], 0)
    manager.check_integrity()


@pytest.mark.parametrize("enable_caching, tree_class, kind", [
    (True, PrefixTree, PrefixTree), (True, None, BlockIndex), (False, PrefixTree, NoIndex), (False, None, NoIndex)])
def test_the_manager_has_one_index(enable_caching, tree_class, kind):
    manager = KVCacheManager(9, SIZE, enable_caching, tree_class=tree_class)
    assert type(manager._index) is kind
    assert manager.prefix_tree is (manager._index if kind is PrefixTree else None)


# ---- keys that prove nothing


def test_a_key_is_a_block_hash_or_none():
    key = BlockHash(None, [1, 2])
    assert key_of(KVCacheBlock(5)) is None and key_of(KVCacheBlock(5, block_hash=key)) is key
    with pytest.raises(RuntimeError, match=NO_BLOCK_HASH.format(5)):
        key_of(KVCacheBlock(5, block_hash=777))


def test_stats_and_match_name_a_bare_number():
    pool = BlockPool(9)
    tree = PrefixTree(pool, SIZE)
    (block,) = pool.get_new_blocks(1)
    pool.cache_full_blocks([block], [int(BlockHash(None, range(4)))])  # equal by value, so it is found
    for look in (lambda: tree.match(range(9)), lambda: tree.stats):
        with pytest.raises(RuntimeError, match="block 1 is cached under .* a prefix index needs a BlockHash"):
            look()


def test_a_twin_under_a_bare_number_lends_no_key():
    pool = BlockPool(9)
    tree = PrefixTree(pool, SIZE)
    twin, block = pool.get_new_blocks(2)
    pool.cache_full_blocks([twin], [int(BlockHash(None, range(4)))])
    tree.insert(range(4), [block])
    assert key_of(block).token_ids == (0, 1, 2, 3)


def test_a_half_hit_of_another_tenant_is_refused():
    manager = KVCacheManager(9, SIZE, tree_class=PrefixTree)
    mine, other = Request("mine", range(3), extra_keys=("a",)), Request("other", range(5), extra_keys=("b",))
    manager.allocate_slots(mine, 3)
    mine.num_computed_tokens = 3
    manager.finish_step()
    block = manager.block_pool.blocks[manager.get_block_ids("mine")[0]]
    manager.free(mine)
    with pytest.raises(RuntimeError, match="does not hold its tokens 0 to 2"):
        manager.allocate_slots(other, 2, [block], 3)

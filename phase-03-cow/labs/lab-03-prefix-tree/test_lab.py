"""Lab 3.3, the prefix tree. Each test checks one rule, and its failure message names that rule.

The tests have their own memory: every slot of every block stores the whole text up to the token written there, with its
extra keys. So the tests can read each match back, independently of the tree. Work is counted, not timed: the tests
count the lines of Python that run during a call, and the comparisons of the tokens that were passed to it.
"""

import random
from dataclasses import dataclass, field

import pytest

from course.gauges import lines_of_questions, num_lines
from mini_vllm.block_pool import BlockHash, BlockPool


def text(num_tokens, start=0):
    return list(range(start, start + num_tokens))


def ids(blocks):
    return [block.block_id for block in blocks]


@dataclass
class Running:
    """A request: its tokens, the number of tokens with K/V, and the blocks that hold them."""

    tokens: list
    salt: tuple | None = None
    num_computed: int = 0
    table: list = field(default_factory=list)


class Server:
    """A pool, the tree under test and the memory. It does the work of the KV cache manager, with calls to the pool."""

    def __init__(self, lab, num_blocks=20, size=4):
        self.pool = BlockPool(num_blocks)
        self.tree = lab.PrefixTree(self.pool, size)
        self.size = size
        self.memory = {}

    def adopt(self, tokens, salt=None):
        """Put the cached blocks, including the partial one, into the table of a new request. Copy nothing."""
        match = self.tree.match(tokens, salt)
        table = match.blocks + ([] if match.partial_block is None else [match.partial_block])
        self.pool.touch(table)
        return Running(list(tokens), salt, match.num_tokens, table)

    def write(self, request, num_tokens=None):
        """Compute the first ``num_tokens`` tokens (default: all). The first write into a shared block forks it."""
        end = len(request.tokens) if num_tokens is None else num_tokens
        for p in range(request.num_computed, end):
            index, offset = divmod(p, self.size)
            if index == len(request.table):
                request.table += self.pool.get_new_blocks(1)
            request.table[index] = self.writable(request.table[index], offset)
            self.memory[request.table[index].block_id, offset] = request.salt or None, tuple(request.tokens[:p + 1])
        request.num_computed = max(request.num_computed, end)
        return request

    def writable(self, block, offset):
        """Return ``block`` itself if no other request and no key needs its content at ``offset``; else a copy."""
        if block.block_hash is not None and len(block.block_hash.token_ids) > offset:
            self.pool.touch([block])  # the index names the token that would be overwritten, so it counts as an owner
            copy = self.pool.fork_block(block)
            self.pool.free_blocks([block])
        else:
            copy = self.pool.fork_block(block)
        for source, target in self.pool.pending_copies:
            for i in range(self.size):
                self.memory[target.block_id, i] = self.memory.get((source.block_id, i))
        self.pool.finish_copies()
        return copy

    def compute(self, tokens, salt=None):
        """Compute all tokens of a new request in fresh blocks, without a lookup. Do not tell the tree."""
        return self.write(Running(list(tokens), salt))

    def insert(self, request, **options):
        self.tree.insert(request.tokens, request.table, request.num_computed, request.salt, **options)
        return request

    def leave(self, request, with_tail=True):
        """Insert and free a request by hand, as donate does."""
        self.insert(request, with_tail=with_tail)
        self.pool.free_blocks(reversed(request.table))
        return request

    def donate(self, request):
        self.tree.donate(request.tokens, request.table, request.num_computed, request.salt)
        return request

    def read_back(self, request):
        """Check that the request's table leads to each of its computed tokens."""
        for p in range(request.num_computed):
            self.check_slot(request.table[p // self.size], p, request.tokens, request.salt, "a request's table")

    def check_slot(self, block, p, tokens, salt, who):
        found, expected = self.memory.get((block.block_id, p % self.size)), (salt or None, tuple(tokens[:p + 1]))
        assert found == expected, (f"{who} names block {block.block_id} for token {p} of {list(tokens)} (extra keys "
                                   f"{salt}), but that slot holds the K/V of {found}: the block must hold that prefix")

    def state(self):
        """Return the state that a lookup or a refused call must not change."""
        return (ids(self.pool.free_block_queue.get_all_free_blocks()),
                [(block.ref_cnt, block.block_hash) for block in self.pool.blocks])


def look(server, tokens, salt=None):
    """Call match(), check it against the memory, and return (whole block ids, partial block id, total tokens)."""
    match = server.tree.match(tokens, salt)
    who = f"match({list(tokens)}, {salt})"
    whole, partial = list(match.blocks), match.partial_block
    num_partial_tokens, num_tokens = match.num_partial_tokens, match.num_tokens
    assert (partial is None) == (num_partial_tokens == 0), (
        f"{who} has num_partial_tokens {num_partial_tokens}, but partial_block is {partial}: if tokens "
        "count, return the block that holds them. If you do not return it, no request touches it, and it is reused")
    assert num_tokens == len(whole) * server.size + num_partial_tokens, (
        f"{who} has num_tokens {num_tokens}, but it returns {len(whole)} whole blocks of {server.size} and "
        f"{num_partial_tokens} tokens of one more block")
    assert num_tokens <= len(tokens), (f"{who} found {num_tokens} tokens of {len(tokens)}: a match is never longer "
                                       "than the given tokens")
    blocks = whole + ([] if partial is None else [partial])
    for p in range(num_tokens):
        server.check_slot(blocks[p // server.size], p, tokens, salt, who)
    return ids(whole), partial and partial.block_id, num_tokens


def cache_by_hand(server, request):
    """Index the full blocks of a request in the pool, without the tree."""
    parent, size = None, server.size
    for i in range(request.num_computed // size):
        parent = BlockHash(parent, request.tokens[i * size:(i + 1) * size], request.salt)
        server.pool.cache_full_blocks([request.table[i]], [parent])
    return request


def use_up(server, block_id):
    """Take fresh blocks from the pool until it returns the block with this id; return that block."""
    while True:
        block = server.pool.get_new_blocks(1)[0]
        if block.block_id == block_id:
            return block


def refused(call, words):
    """Return the message of the RuntimeError that ``call`` raises. Pass a NotImplementedError on."""
    try:
        call()
    except NotImplementedError:
        raise
    except RuntimeError as error:
        return str(error)
    pytest.fail(f"{words} raised no error, expected a RuntimeError", pytrace=False)


# ---- Task 1: whole blocks


@pytest.mark.points(1)
def test_task_1_whole_blocks_are_found_in_order(lab):
    server = Server(lab)
    cache_by_hand(server, server.compute(text(12)))
    got = look(server, text(12))
    assert got == ([1, 2, 3], None, 12), (f"12 tokens are cached in blocks 1, 2, 3; match gave {got}, expected "
                                          "([1, 2, 3], None, 12)")


@pytest.mark.points(1)
@pytest.mark.parametrize("num_tokens", [0, 1, 3, 4, 5, 7, 8, 11, 12, 13])
def test_task_1_a_match_is_never_longer_than_the_tokens(lab, num_tokens):
    server = Server(lab)
    cache_by_hand(server, server.compute(text(12)))
    whole = min(num_tokens // 4, 3)
    got = look(server, text(num_tokens))
    assert got == (text(whole, 1), None, 4 * whole), (
        f"12 tokens are cached in whole blocks of 4; match of their first {num_tokens} gave {got}, expected "
        f"{(text(whole, 1), None, 4 * whole)}")


@pytest.mark.points(1)
def test_task_1_a_half_filled_block_is_no_whole_block(lab):
    server = Server(lab)
    request = cache_by_hand(server, server.compute(text(10)))
    server.pool.cache_full_blocks([request.table[2]], [BlockHash(request.table[1].block_hash, [8, 9])])
    match = server.tree.match(text(10))
    got = ids(match.blocks), match.num_tokens
    assert got == ([1, 2], 8), (
        f"tokens 0 to 7 are cached in blocks 1 and 2, and 8 9 in block 3 under a key of two tokens. match({text(10)}) "
        f"gave (whole blocks, tokens) {got}, expected ([1, 2], 8): after block 2 fewer than block_size tokens remain, "
        "so no further whole block can match")


@pytest.mark.points(1)
def test_task_1_the_walk_stops_at_the_first_miss(lab):
    server = Server(lab)
    cache_by_hand(server, server.compute(text(12)))
    other = text(4) + [99] + text(7, 5)
    got = look(server, other)
    assert got == ([1], None, 4), f"token 4 differs, so only block 1 matches; match gave {got}, expected ([1], None, 4)"
    server.pool.evict_blocks([1])
    got = look(server, text(12))
    assert got == ([], None, 0), (f"block 1 is not cached any more; match gave {got}, expected ([], None, 0): "
                                  "blocks 2 and 3 without block 1 are not a prefix")


@pytest.mark.points(1)
def test_task_1_equal_tokens_after_another_prefix_are_no_match(lab):
    server = Server(lab)
    cache_by_hand(server, server.compute(text(4) + text(4, 50)))
    cache_by_hand(server, server.compute(text(4, 70)))
    for tokens, expected in ((text(4, 50), ([], None, 0)), (text(4) + text(4, 70), ([1], None, 4))):
        got = look(server, tokens)
        assert got == expected, (f"match({tokens}) gave {got}, expected {expected}: the parent's key is part of a "
                                 "block's key, because K/V depends on all tokens before it")


@pytest.mark.points(1)
def test_task_1_extra_keys_keep_tenants_apart(lab):
    server = Server(lab)
    cache_by_hand(server, server.compute(text(8), ("tenant a",)))
    for salt, expected in ((("tenant a",), 8), (("tenant b",), 0), (None, 0)):
        got = look(server, text(8), salt)[2]
        assert got == expected, f"tenant a cached 8 tokens; extra keys {salt} find {got} of them, expected {expected}"


@pytest.mark.points(2)
def test_task_1_a_match_is_proved_not_just_hashed(lab, monkeypatch):
    monkeypatch.setattr("mini_vllm.block_pool.hash_block_tokens", lambda *args: 0)
    server = Server(lab)
    cache_by_hand(server, server.compute(text(8)))
    cache_by_hand(server, server.compute(text(4, 50) + text(4, 4)))
    for tokens, expected in ((text(8), ([1, 2], None, 8)), (text(4, 50) + text(4, 4), ([3, 4], None, 8)),
                             (text(8, 4), ([], None, 0))):
        got = look(server, tokens)
        assert got == expected, (f"with every hash forced to 0, match({tokens}) gave {got}, expected {expected}: pass "
                                 "the BlockHash itself to the pool, and compare with None (a hash of 0 is false)")


@pytest.mark.points(1)
def test_task_1_a_lookup_changes_nothing(lab):
    server = Server(lab)
    request = cache_by_hand(server, server.compute(text(8)))
    other = server.compute(text(4, 50))
    server.pool.free_blocks([*reversed(request.table), *other.table])  # the free queue ends with 2 1 3
    before = server.state()
    got = look(server, text(8))
    assert got == ([1, 2], None, 8), f"match({text(8)}) gave {got}, expected ([1, 2], None, 8): both blocks are cached"
    assert server.state() == before, (f"match({text(8)}) changed the pool (free queue, counts and keys) from {before} "
                                      f"to {server.state()}: only a request that takes the blocks touches them. If you "
                                      "touch a block and free it again, it moves to the end of the free queue")


def fill(server, num_blocks):
    """Return a request with ``num_blocks`` full blocks and empty slots, for tests that only count lines."""
    num_tokens = num_blocks * server.size
    return Running(text(num_tokens), None, num_tokens, server.pool.get_new_blocks(num_blocks))


WHOLE_WALK = 300
MAX_LINES_A_BLOCK = 200  # about 30 are enough; comparing keys back to the front of the text takes 900


@pytest.mark.points(2)
def test_task_1_the_walk_takes_as_long_for_the_last_block_as_for_the_first(lab):
    server = Server(lab, num_blocks=WHOLE_WALK + 9)
    request = cache_by_hand(server, fill(server, WHOLE_WALK))
    got = num_lines(lambda: server.tree.match(request.tokens)) / WHOLE_WALK
    assert got <= MAX_LINES_A_BLOCK, (
        f"{WHOLE_WALK} whole blocks are cached. match() of their text ran {got:.0f} lines of Python per block, at most "
        f"{MAX_LINES_A_BLOCK} are allowed: make one key per block, and use the block_hash of the block that you found "
        "as the next parent. If you use your own equal key, every comparison goes back to the front of the text")
    got = server.tree.match(request.tokens).num_tokens
    assert got == 4 * WHOLE_WALK, f"{4 * WHOLE_WALK} tokens are cached in whole blocks, but match() found {got} of them"


# ---- Task 2: inserting full blocks


@pytest.mark.points(1)
def test_task_2_full_blocks_are_found_and_a_half_filled_one_is_not(lab):
    server = Server(lab)
    server.insert(server.compute(text(10)))
    got = look(server, text(8)), server.pool.blocks[3].block_hash
    assert got == (([1, 2], None, 8), None), (f"10 tokens in blocks 1, 2, 3 were inserted without the tail: (match, "
                                              f"key of block 3) is {got}, expected (([1, 2], None, 8), None)")


@pytest.mark.points(1)
def test_task_2_tokens_without_kv_are_not_found(lab):
    server = Server(lab)
    request = server.compute(text(8))
    request.tokens += text(4, 8)
    request.table += server.pool.get_new_blocks(1)  # slots for tokens 8 to 11, not written yet
    server.tree.insert(request.tokens, request.table, 8)
    got = look(server, text(12))
    assert got == ([1, 2], None, 8), f"insert(…, num_tokens=8) of 12 tokens: match gave {got}, expected 8 tokens"


@pytest.mark.points(1)
def test_task_2_by_default_all_tokens_count_and_zero_is_not_the_default(lab):
    server = Server(lab)
    a, b = server.compute(text(6)), server.compute(text(8, 50))
    server.tree.insert(a.tokens, a.table)
    server.tree.insert(b.tokens, b.table, 0)
    got = [block.block_hash is not None for block in a.table], look(server, text(6))[0]
    assert got == ([True, False], [1]), (
        f"insert({a.tokens}, blocks 1 and 2): (whether each has a key, whole blocks found) is {got}, expected "
        "([True, False], [1]): by default all tokens count, and 6 tokens fill one block of 4")
    got = look(server, b.tokens)
    assert got == ([], None, 0), (f"insert({b.tokens}, blocks 3 and 4, num_tokens=0), then match of these tokens gave "
                                  f"{got}, expected ([], None, 0): no token has K/V yet")


@pytest.mark.points(1)
def test_task_2_equal_tokens_after_another_prefix_are_two_nodes(lab):
    server = Server(lab)
    server.insert(server.compute(text(4) + text(4, 50)))
    server.insert(server.compute(text(4, 20) + text(4, 50)))
    for tokens, expected in ((text(4) + text(4, 50), [1, 2]), (text(4, 20) + text(4, 50), [3, 4])):
        got = look(server, tokens)[0]
        assert got == expected, f"match({tokens}) gave blocks {got}, expected {expected}: each key names its parent"


@pytest.mark.points(1)
def test_task_2_a_table_that_grows_is_inserted_bit_by_bit(lab):
    server = Server(lab)
    request = Running(text(14))
    for end in (3, 5, 6, 11, 14):
        server.insert(server.write(request, end))
        got = look(server, text(end // 4 * 4))[2]
        assert got == end // 4 * 4, (f"after {end} computed tokens, {got} are found in whole blocks, expected "
                                     f"{end // 4 * 4}")


@pytest.mark.points(2)
def test_task_2_insert_goes_on_where_it_stopped(lab, monkeypatch):
    server = Server(lab, num_blocks=410)
    request = server.insert(fill(server, 400))
    calls = []
    monkeypatch.setattr("mini_vllm.block_pool.hash_block_tokens",
                        lambda parent, tokens, extra_keys=None: calls.append(tokens) or hash((parent, tuple(tokens))))
    request.tokens += text(5, 1600)
    server.write(request)
    for num_tokens, story in ((1604, "one more block was filled"), (1605, "one token was written into another block")):
        calls.clear()
        got = num_lines(lambda end=num_tokens: server.tree.insert(request.tokens, request.table, end))
        assert len(calls) <= 3, (f"400 blocks were indexed and {story}: insert(…, num_tokens={num_tokens}) made "
                                 f"{len(calls)} keys, expected at most 3. Start after the last indexed block, not at "
                                 "the front of the text")
        assert got <= 300, (f"400 blocks were indexed and {story}: insert(…, num_tokens={num_tokens}) ran {got} lines "
                            "of Python, at most 300 are allowed. Search for the last indexed block from the end")
    got = server.tree.match(request.tokens).num_tokens
    assert got == 1604, f"1605 tokens were inserted in steps; match found {got}, expected 1604, in whole blocks"


@pytest.mark.points(1)
def test_task_2_insert_goes_on_from_a_key_that_is_zero(lab, monkeypatch):
    calls = []
    monkeypatch.setattr("mini_vllm.block_pool.hash_block_tokens", lambda *args: calls.append(args) or 0)
    server = Server(lab)
    request = server.insert(server.compute(text(40)))
    request.tokens += text(4, 40)
    server.write(request)
    calls.clear()
    server.insert(request)
    assert len(calls) <= 3, (f"every hash is forced to 0, 10 blocks were indexed and one more was filled: insert(…, "
                             f"num_tokens=44) made {len(calls)} keys, expected 1. Compare block_hash with None: a key "
                             "of 0 is false")
    got = look(server, request.tokens)
    assert got == (text(11, 1), None, 44), (
        f"every hash is forced to 0, and 44 tokens were inserted, first 40 and then 4: match of them gave {got}, "
        f"expected {(text(11, 1), None, 44)}: the parent of block 11 is the key of block 10, even if that key is 0")


@pytest.mark.points(1)
def test_task_2_what_is_findable_stays_as_it_is(lab):
    server = Server(lab)
    request = server.insert(server.compute(text(8)))
    before = server.state()
    server.insert(request)
    assert server.state() == before, (f"a second insert({text(8)}, blocks 1 and 2) changed the pool (free queue, "
                                      f"counts and keys) from {before} to {server.state()}, expected no change")
    got = look(server, text(8))
    assert got == ([1, 2], None, 8), (f"after a second insert of the same table match({text(8)}) gave {got}, expected "
                                      "([1, 2], None, 8)")


@pytest.mark.points(1)
def test_task_2_twins_share_one_chain_and_both_serve(lab):
    server = Server(lab)
    a, b = server.insert(server.compute(text(8))), server.insert(server.compute(text(8)))
    for mine, twin in zip(a.table, b.table):
        assert mine.block_hash is twin.block_hash, (
            f"blocks {mine.block_id} and {twin.block_id} hold the same text, but their keys are two equal objects. "
            "Use the twin's key object for both: otherwise get_cached_block compares the parents of the keys back to "
            "the front of the text")
    server.pool.evict_blocks([2])
    got = look(server, text(8))[2]
    assert got == 8, f"block 2 was evicted, but its twin, block 4, holds the same text: {got} tokens found, expected 8"


@pytest.mark.points(1)
def test_task_2_one_text_of_two_tenants_is_two_texts(lab):
    server = Server(lab)
    for salt in (("tenant a",), ("tenant b",), None):
        server.insert(server.compute(text(8), salt))
    for salt, expected in ((("tenant a",), [1, 2]), (("tenant b",), [3, 4]), (None, [5, 6])):
        got = look(server, text(8), salt)[0]
        assert got == expected, f"with extra keys {salt} match found blocks {got}, expected {expected}"


# ---- Task 3: inside a block


@pytest.mark.points(2)
@pytest.mark.parametrize("tokens, expected", [
    (text(6), ([1], 2, 6)), (text(7) + [99, 98], ([1], 2, 7)), (text(1), ([], 1, 1)), (text(3) + [99], ([], 1, 3)),
    (text(5) + [99] + text(2, 6), ([1], 2, 5)), (text(8) + [99], ([1, 2], None, 8)), (text(4) + [99], ([1], None, 4)),
    ([99] + text(7, 1), ([], None, 0)), (text(4), ([1], None, 4)), ([], ([], None, 0))])
def test_task_3_a_match_ends_inside_a_block(lab, tokens, expected):
    server = Server(lab)
    server.insert(server.compute(text(8)))
    got = look(server, tokens)
    assert got == expected, (f"tokens 0 to 7 are in blocks 1 and 2; match({tokens}) gave {got}, expected {expected} "
                             "(whole blocks, partial block, number of tokens)")


@pytest.mark.points(1)
@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
@pytest.mark.parametrize("is_best_larger", [False, True])
def test_task_3_the_longest_child_is_taken(lab, order, is_best_larger):
    """Check that the longest match wins in any order of insertion.

    After the shared tokens, either the best child continues with a larger token and the others with smaller ones, or
    the other way round.
    """
    server = Server(lab)
    requests = [server.compute(text(4)) for _ in range(4)]
    for shared in order:
        other = 60 if (shared == 3) == is_best_larger else 10
        requests[shared] = server.compute(text(4) + text(shared, 40) + text(4 - shared, other))
        server.insert(requests[shared])
    got = look(server, text(4) + text(4, 40))
    expected = requests[3].table[1].block_id
    assert got[1:] == (expected, 7), (
        f"the children {[requests[shared].tokens[4:] for shared in order]} share {order} tokens with 40 41 42 43; "
        f"match took block {got[1]} and found {got[2]} tokens, expected block {expected} and 7")


@pytest.mark.points(2)
def test_task_3_a_child_of_another_parent_is_not_taken(lab):
    server = Server(lab)
    server.insert(server.compute(text(4) + text(4, 50)))
    server.insert(server.compute(text(4, 20) + text(4, 70)))
    for tokens, expected in ((text(4) + text(3, 70), ([1], None, 4)), (text(2, 50), ([], None, 0)),
                             (text(4, 20) + text(3, 70), ([3], 4, 7)), (text(4) + text(2), ([1], None, 4))):
        got = look(server, tokens)
        assert got == expected, (f"match({tokens}) gave {got}, expected {expected}: search only the children of the "
                                 "last whole block")


@pytest.mark.points(2)
@pytest.mark.parametrize("new_text", [None, text(4, 80) + [4, 5, 6, 7], text(4) + [30, 31, 32, 33]],
                         ids=["forgotten", "same tokens, other parent", "other tokens, same parent"])
def test_task_3_a_stale_child_is_passed_over(lab, new_text):
    server = Server(lab)
    first = server.insert(server.compute(text(4) + [4, 5, 6, 7]))
    second = server.insert(server.compute(text(4) + [4, 5, 60, 70]))
    stale = first.table[1]
    server.pool.free_blocks([stale])
    use_up(server, stale.block_id)
    story = f"block {stale.block_id}, which held 4 5 6 7, was given to another request"
    if new_text is not None:
        for offset in range(4):
            server.memory[stale.block_id, offset] = None, tuple(new_text[:4 + offset + 1])
        server.pool.cache_full_blocks([stale], [BlockHash(BlockHash(None, new_text[:4]), new_text[4:])])
        story += f", which filled it with {new_text[4:]} after {new_text[:4]}, and the tree was not told"
    expected = [first.table[0].block_id], second.table[1].block_id, 6
    got = look(server, text(7))
    assert got[1] is not None, (
        f"{story}. Block {expected[1]} still holds 4 5 60 70, but match({text(7)}) gave {got}, expected {expected}: "
        "after you take a stale child down, search the remaining children again")
    assert got == expected, (f"{story}; match({text(7)}) gave {got}, expected {expected}: the key of a child's block "
                             "must name these tokens and this parent")


@pytest.mark.points(1)
def test_task_3_a_stale_block_that_is_alone_is_not_served(lab):
    server = Server(lab)
    server.insert(server.compute(text(8)))
    server.pool.evict_blocks([2])
    got = look(server, text(7))
    assert got == ([1], None, 4), f"the content of block 2 was forgotten; match gave {got}, expected ([1], None, 4)"
    server.pool.evict_blocks([1])
    got = look(server, text(7))
    assert got == ([], None, 0), f"nothing is cached any more; match gave {got}, expected ([], None, 0)"
    for live, gone, num_shared in (([], [[1, 2, 3, 4]], 0), ([[1, 0, 0, 0]], [[1, 2, 3, 4]], 1),
                                   ([[1, 0, 0, 0]], [[1, 2, 3, 4], [1, 2, 3, 5]], 1),
                                   ([[1, 9, 9, 9]], [[1, 2, 8, 8], [1, 3, 8, 8]], 1),
                                   ([[1, 2, 8, 8]], [[1, 2, 9, 9]], 2), ([[1, 2, 9, 9]], [[1, 2, 8, 8]], 3)):
        server = Server(lab)
        kept = [server.insert(server.compute(tokens)).table[0] for tokens in live]
        server.pool.evict_blocks([server.insert(server.compute(tokens)).table[0].block_id for tokens in gone])
        expected = ([], kept[0].block_id if kept else None, num_shared)
        for asked in ("once", "twice"):
            got = look(server, [1, 2, 9])
            assert got == expected, (
                f"{gone} are forgotten and {live} are cached; match([1, 2, 9]), called {asked}, gave {got}, expected "
                f"{expected}: skip stale children on both sides of the position of these tokens, and take down no "
                "other child")


@pytest.mark.points(1)
def test_task_3_a_stale_child_of_another_tenant_is_not_served(lab):
    server = Server(lab)
    (block,) = server.insert(server.compute(text(4), ("tenant a",))).table
    server.pool.evict_blocks([1])
    for offset in range(4):
        server.memory[1, offset] = ("tenant b",), tuple(text(offset + 1))
    server.pool.cache_full_blocks([block], [BlockHash(None, text(4), ("tenant b",))])
    got = look(server, text(3), ("tenant a",))
    assert got == ([], None, 0), (
        f"block 1 held {text(4)} of tenant a. Now tenant b owns it, with the same tokens, and the tree was not told; "
        f"match({text(3)}, ('tenant a',)) gave {got}, expected ([], None, 0): the key of a child's block must also "
        "name these extra keys")


@pytest.mark.points(1)
def test_task_3_a_twin_serves_a_part_of_its_tokens_too(lab):
    server = Server(lab)
    server.insert(server.compute(text(8)))
    server.insert(server.compute(text(8)))
    server.pool.evict_blocks([1, 2])
    for tokens, expected in ((text(6), ([3], 4, 6)), (text(3), ([], 3, 3))):
        got, again = look(server, tokens), look(server, tokens)
        why = ("a second call finds it. The first call took the stale block down, and must then search again itself"
               if again == expected else "also hang twins under the parent, and do not stop at a stale child")
        assert got == expected, (f"blocks 1 and 2 were forgotten, and their twins 3 and 4 hold the same text; "
                                 f"match({tokens}) gave {got}, expected {expected}: {why}")
    server = Server(lab)
    server.insert(server.compute(text(4)))
    server.insert(server.compute(text(4)))
    server.pool.evict_blocks([2])
    got = look(server, text(3))
    assert got == ([], 1, 3), (f"block 2, the twin of block 1, was forgotten; match({text(3)}) gave {got}, expected "
                               "([], 1, 3)")


@pytest.mark.points(1)
@pytest.mark.parametrize("asked", [None, ()])
@pytest.mark.parametrize("inserted", [None, ()])
def test_task_3_no_extra_keys_are_written_in_two_ways(lab, inserted, asked):
    server = Server(lab)
    server.leave(server.compute(text(8), inserted), with_tail=False)
    for tokens, expected in ((text(8), ([1, 2], None, 8)), (text(6), ([1], 2, 6)), (text(3), ([], 1, 3))):
        got = look(server, tokens, asked)
        assert got == expected, (f"inserted with extra keys {inserted}: match({tokens}, {asked}) gave {got}, expected "
                                 f"{expected}: None and () both mean that there are no extra keys")


@pytest.mark.points(1)
def test_task_3_an_orphan_is_not_served_until_its_parent_is_back(lab):
    server = Server(lab)
    server.insert(server.compute(text(8)))
    server.pool.evict_blocks([1])
    got = look(server, text(7))
    assert got == ([], None, 0), (f"the parent of block 2 is not cached any more; match gave {got}, expected "
                                  "([], None, 0)")
    server.insert(server.compute(text(4)))
    got = look(server, text(7))
    assert got == ([3], 2, 7), (f"tokens 0 to 3 were computed again, into block 3; match gave {got}, expected "
                                "([3], 2, 7): block 2 still holds the tokens that follow that text")


@pytest.mark.points(1)
def test_task_3_extra_keys_keep_tenants_apart_inside_a_block(lab):
    server = Server(lab)
    server.insert(server.compute(text(8), ("tenant a",)))
    server.insert(server.compute(text(4) + text(4, 50), ("tenant b",)))
    for _ in range(2):  # a lookup with the wrong keys must not change the result for the right keys
        for salt, tokens, expected in ((("tenant a",), text(3), ([], 1, 3)), (("tenant b",), text(3), ([], 3, 3)),
                                       (None, text(3), ([], None, 0)), ((), text(3), ([], None, 0)),
                                       (("tenant b",), text(6), ([3], None, 4)), (("tenant a",), text(6), ([1], 2, 6))):
            got = look(server, tokens, salt)
            assert got == expected, f"match({tokens}, {salt}) gave {got}, expected {expected}"


@pytest.mark.points(1)
def test_task_3_a_half_match_is_proved_not_just_hashed(lab, monkeypatch):
    monkeypatch.setattr("mini_vllm.block_pool.hash_block_tokens", lambda *args: 0)
    server = Server(lab)
    server.insert(server.compute(text(8)))
    server.insert(server.compute(text(4, 50) + text(4, 4)))
    for tokens, expected in ((text(6), ([1], 2, 6)), (text(4, 50) + text(3, 4), ([3], 4, 7)),
                             (text(3, 4), ([], None, 0))):
        got = look(server, tokens)
        assert got == expected, f"with every hash forced to 0, match({tokens}) gave {got}, expected {expected}"


@pytest.mark.points(1)
def test_task_3_a_half_match_changes_nothing(lab):
    server = Server(lab)
    server.leave(server.compute(text(8)), with_tail=False)
    server.leave(server.compute(text(4, 50)), with_tail=False)  # the free queue ends with 2 1 3
    before = server.state()
    got = look(server, text(6))
    assert got == ([1], 2, 6), f"match({text(6)}) gave {got}, expected ([1], 2, 6): two tokens of block 2 match"
    assert server.state() == before, (f"match({text(6)}), which ends inside block 2, changed the pool (free queue, "
                                      f"counts and keys) from {before} to {server.state()}: a lookup must not touch "
                                      "a block, not even to free it at once")


NUM_CHILDREN = 700
MAX_LINES = 600  # 100 to 150 are enough, in any style; looking at all children takes at least 700
MAX_COMPARISONS = 400  # of the tokens passed to one call; comparing them with all children takes 700


class Counted(int):
    """A token that counts how often it is compared."""

    num_comparisons = 0

    def __eq__(self, other):
        Counted.num_comparisons += 1
        return int.__eq__(self, other)

    def __lt__(self, other):
        Counted.num_comparisons += 1
        return int.__lt__(self, other)

    def __gt__(self, other):
        Counted.num_comparisons += 1
        return int.__gt__(self, other)

    __hash__ = int.__hash__


def counted(tokens):
    return [Counted(token) for token in tokens]


def assert_looks_at_few(call, do, why):
    """Run ``do()``, which uses counted tokens, and check the number of lines and of comparisons."""
    before = Counted.num_comparisons
    num_run = num_lines(do)
    num_compared = Counted.num_comparisons - before
    num_run -= lines_of_questions(num_compared)  # comparisons have a separate limit
    assert num_run <= MAX_LINES, f"{call} ran {num_run} lines of Python, at most {MAX_LINES} are allowed: {why}"
    assert num_compared <= MAX_COMPARISONS, (f"{call} compared its tokens {num_compared} times, at most "
                                             f"{MAX_COMPARISONS} are allowed: {why}")


def crowd(lab, num_in_common, num_children=NUM_CHILDREN):
    """Return a server that caches many one-block texts with the same first tokens; their blocks are free."""
    rng = random.Random(33)
    server = Server(lab, num_blocks=num_children + 9)
    blocks = server.pool.get_new_blocks(num_children)
    for block, last in zip(blocks, rng.sample(range(10 * num_children), num_children)):
        tokens = text(num_in_common) + [100 + last] * (4 - num_in_common)
        for offset in range(4):
            server.memory[block.block_id, offset] = None, tuple(tokens[:offset + 1])
        server.tree.insert(tokens, [block])
    server.pool.free_blocks(blocks)
    return server


@pytest.mark.points(4)
@pytest.mark.parametrize("num_in_common", [1, 3])
def test_task_3_a_lookup_among_hundreds_looks_at_few(lab, num_in_common):
    server = crowd(lab, num_in_common)
    for last in (0, 99, 100 + 5 * NUM_CHILDREN, 10**6):  # before all, among them, after all
        tokens = counted(text(num_in_common) + [last])
        assert_looks_at_few(
            f"{NUM_CHILDREN} cached texts share their first {num_in_common} tokens. match({tokens})",
            lambda tokens=tokens: server.tree.match(tokens),
            "the children are sorted, so those that share the most are next to the position of these tokens")
        found = look(server, tokens)[2]
        assert found in (num_in_common, num_in_common + 1), (
            f"match({tokens}) found {found} tokens, expected {num_in_common}, or one more for the last one")


@pytest.mark.points(2)
def test_task_3_stale_children_are_met_once(lab):
    server = crowd(lab, 2, num_children=500)
    in_order = sorted(range(1, 501), key=lambda block_id: server.pool.blocks[block_id].block_hash.token_ids)
    live = in_order[245:255]  # half of the stale children come before these in the order, and half after them
    server.pool.evict_blocks([block_id for block_id in in_order if block_id not in live])
    questions = [text(2) + [last] for last in (10**6, 0, 1000, 2500, 4000)]
    for tokens in questions:
        got = look(server, tokens)
        assert got[1] in live and got[2] >= 2, (
            f"490 of 500 children are stale, and blocks {live} hold 0 1 and two more tokens; match({tokens}) gave "
            f"{got}, expected two tokens of one of these blocks")
    for tokens in questions:
        got = num_lines(lambda tokens=tokens: server.tree.match(tokens))
        assert got <= MAX_LINES, (
            f"490 of 500 children were stale when match({tokens}) was first called. The second call ran {got} lines "
            f"of Python, at most {MAX_LINES} are allowed: take down every stale child that you meet, before or after "
            "the position of the tokens, so that no later lookup meets it")
    server.pool.evict_blocks(live)
    got = look(server, text(2))
    assert got == ([], None, 0), f"nothing is cached any more, but match({text(2)}) gave {got}, expected ([], None, 0)"


@pytest.mark.points(2)
def test_task_3_a_divergent_request_adopts_the_block_and_its_first_write_forks_it(lab):
    server = Server(lab)
    server.leave(server.compute(text(8)), with_tail=False)
    request = server.adopt(text(6) + [99, 98])
    got = ids(request.table), [block.ref_cnt for block in request.table]
    assert got == ([1, 2], [1, 1]), (f"6 of 8 tokens are cached in blocks 1 and 2; the adopter's table and counts are "
                                     f"{got}, expected ([1, 2], [1, 1]): the table includes the partial block")
    server.write(request)
    got = ids(request.table)
    assert got[0] == 1 and got[1] != 2, (f"the first write must fork block 2; the adopter's table is {got}, expected "
                                         "block 1 and a copy of block 2")
    server.read_back(request)
    server.insert(request)
    got = look(server, text(8)), look(server, request.tokens)
    assert got == (([1, 2], None, 8), (ids(request.table), None, 8)), f"match must find both texts now, but gave {got}"


@pytest.mark.points(2)
def test_task_3_many_requests_adopt_one_prefix_at_once(lab):
    server = Server(lab)
    server.leave(server.compute(text(8)), with_tail=False)
    requests = [server.adopt(text(4 + i % 4) + [90 + i, 80 + i]) for i in range(1, 8)]
    got = [(block.block_id, block.ref_cnt) for block in server.pool.blocks[1:3]]
    assert got == [(1, 7), (2, 6)], (f"seven requests adopt block 1. All but the fourth, which diverges after 4 "
                                     f"tokens, also adopt block 2: (id, ref_cnt) is {got}, expected [(1, 7), (2, 6)]")
    for request in requests:
        server.write(request)
    for request in requests:
        server.read_back(request)
        server.pool.free_blocks(reversed(request.table))
    server.pool.check_integrity()
    got = look(server, text(8))
    assert got == ([1, 2], None, 8), f"shared blocks must not change; match gave {got}, expected ([1, 2], None, 8)"
    assert server.pool.get_usage() == 0.0, f"all requests have ended, but usage is {server.pool.get_usage()}"


# ---- Task 4: the half-filled tail


@pytest.mark.points(1)
def test_task_4_the_tail_of_a_finished_request_is_found(lab):
    server = Server(lab)
    server.leave(server.compute(text(10)))
    for tokens, expected in ((text(10), ([1, 2], 3, 10)), (text(9) + [99], ([1, 2], 3, 9)),
                             (text(12), ([1, 2], 3, 10))):
        got = look(server, tokens)
        assert got == expected, (f"10 tokens were inserted with their tail (two tokens in block 3); match({tokens}) "
                                 f"gave {got}, expected {expected}")


@pytest.mark.points(1)
def test_task_4_a_text_shorter_than_a_block_is_all_tail(lab):
    server = Server(lab)
    server.leave(server.compute(text(3)))
    got = look(server, text(8))
    assert got == ([], 1, 3), f"a text of 3 tokens is in block 1; match gave {got}, expected ([], 1, 3)"


@pytest.mark.points(1)
def test_task_4_a_text_that_fills_its_blocks_has_no_tail(lab):
    server = Server(lab)
    request = server.compute(text(8))
    try:
        server.tree.insert(request.tokens, request.table, 8, with_tail=True)
    except IndexError as error:
        pytest.fail(f"insert({request.tokens}, blocks 1 and 2, 8, with_tail=True) raised {error!r}: 8 tokens fill two "
                    "blocks of 4, so there is no tail and no third block", pytrace=False)
    got = look(server, text(9))
    assert got == ([1, 2], None, 8), (f"8 tokens were inserted with their tail, which is empty; match({text(9)}) gave "
                                      f"{got}, expected ([1, 2], None, 8)")


@pytest.mark.points(1)
def test_task_4_the_tail_ends_with_the_tokens_that_have_kv(lab):
    server = Server(lab)
    request = server.compute(text(10))
    request.tokens.append(10)  # sampled, but never computed
    server.leave(request)
    got = look(server, text(11))
    assert got == ([1, 2], 3, 10), (f"the 11th token has no K/V; after insert(…, num_tokens=10, with_tail=True), match "
                                    f"gave {got}, expected ([1, 2], 3, 10)")


@pytest.mark.points(2)
def test_task_4_one_adopter_writes_in_place_and_the_tail_is_indexed_again(lab):
    server = Server(lab)
    server.leave(server.compute(text(10)))
    request = server.adopt(text(14))
    server.write(request, 11)
    assert ids(request.table) == [1, 2, 3], (
        f"no other request owns the tail in block 3, and the tail ends where the match ends, so append to it in place; "
        f"the table is {ids(request.table)}, expected [1, 2, 3]")
    got = look(server, text(11))
    assert got == ([1, 2], 3, 10), f"token 10 is written but not inserted yet; match gave {got}, expected 10 tokens"
    server.insert(request, with_tail=True)
    got = look(server, text(11))
    assert got == ([1, 2], 3, 11), (
        f"the tail has grown to 3 tokens and was inserted again; match gave {got}, expected ([1, 2], 3, 11)")
    server.insert(server.write(request, 13))
    got = look(server, text(13))
    assert got == ([1, 2, 3], None, 12), (
        f"block 3 had a key of 3 tokens. It is full now, and insert(…, num_tokens=13) was called; match({text(13)}) "
        f"gave {got}, expected ([1, 2, 3], None, 12): if the key of a block names fewer than block_size tokens, the "
        "block is not indexed as full, so insert must give it the longer key")
    server.pool.check_integrity()


@pytest.mark.points(1)
def test_task_4_a_second_adopter_of_a_tail_gets_a_copy(lab):
    server = Server(lab)
    server.leave(server.compute(text(10)))
    first, second = server.adopt(text(10) + [50, 51]), server.adopt(text(10) + [60, 61])
    assert server.pool.blocks[3].ref_cnt == 2, f"block 3 has ref_cnt {server.pool.blocks[3].ref_cnt}, expected 2"
    server.write(first)
    server.write(second)
    for request in (first, second):
        server.read_back(request)
        server.insert(request)
        got = look(server, request.tokens)
        assert got[2] == 12, f"match({request.tokens}) found {got[2]} tokens, expected 12"
    server.pool.check_integrity()


@pytest.mark.points(1)
def test_task_4_tails_that_diverge_hang_side_by_side(lab):
    server = Server(lab)
    requests = [server.leave(server.compute(text(4) + tail)) for tail in ([7, 8], [7, 9, 1], [6])]
    for request in requests:
        expected = [requests[0].table[0].block_id], request.table[1].block_id, len(request.tokens)
        got = look(server, request.tokens)
        assert got == expected, f"match({request.tokens}) gave {got}, expected {expected}"


@pytest.mark.points(1)
@pytest.mark.parametrize("after", [[], [0], [99]])
def test_task_4_of_equal_matches_the_one_without_further_tokens(lab, after):
    server = Server(lab)
    server.leave(server.compute(text(6)))
    longer = server.compute(text(8))
    server.insert(longer)
    got = look(server, text(6) + after)
    assert got == ([1], 2, 6), (f"block 2 holds tokens 4 5 and block {longer.table[1].block_id} holds 4 5 6 7; "
                                f"match({text(6) + after}) gave {got}, expected ([1], 2, 6): only block 2 can be "
                                "extended without a copy")
    server.pool.evict_blocks([2])
    got, expected = look(server, text(6) + after), ([1], longer.table[1].block_id, 6)
    assert got == expected, (f"the content of block 2 was forgotten: match({text(6) + after}) gave {got}, expected "
                             f"{expected}: skip a stale child even if it holds only the shared tokens")


@pytest.mark.points(2)
def test_task_4_a_tail_among_hundreds_looks_at_few(lab):
    server = crowd(lab, 1)
    request = server.compute(counted([0, 77, 78]))
    assert_looks_at_few(
        f"{NUM_CHILDREN} cached texts begin with the first token of a tail. insert(…, with_tail=True)",
        lambda: server.insert(request, with_tail=True), "one lookup tells whether the tail can already be found")
    got = look(server, [0, 77, 78, 79])
    assert got == ([], request.table[0].block_id, 3), (
        f"the tail 0 77 78 was inserted; match gave {got}, expected ([], {request.table[0].block_id}, 3)")


@pytest.mark.points(1)
def test_task_4_a_tail_that_is_found_already_is_not_inserted_twice(lab):
    server = Server(lab)
    server.insert(server.compute(text(8)))
    request = server.leave(server.compute(text(6)))
    assert request.table[1].block_hash is None, (
        f"tokens 4 5 are found in block 2, which holds 4 5 6 7, so block {request.table[1].block_id} with the tail 4 5 "
        "must not be indexed")
    got = look(server, text(6))[1:]
    assert got == (2, 6), f"match of 6 tokens ends in block {got[0]} with {got[1]} tokens, expected block 2 with 6"


@pytest.mark.points(1)
def test_task_4_extra_keys_keep_tails_apart(lab):
    server = Server(lab)
    for salt, num_tokens in ((("tenant a",), 6), (("tenant b",), 7), (None, 2)):
        server.leave(server.compute(text(num_tokens), salt))
    for salt, expected in ((("tenant a",), ([1], 2, 6)), (("tenant b",), ([3], 4, 7)), (None, ([], 5, 2)),
                           (("tenant c",), ([], None, 0))):
        got = look(server, text(8), salt)
        assert got == expected, f"match of 8 tokens with extra keys {salt} gave {got}, expected {expected}"


@pytest.mark.points(1)
def test_task_4_tails_are_proved_not_just_hashed(lab, monkeypatch):
    monkeypatch.setattr("mini_vllm.block_pool.hash_block_tokens", lambda *args: 0)
    server = Server(lab)
    requests = [server.leave(server.compute(tokens)) for tokens in (text(6), text(4, 50) + [4, 9], [4, 9, 9], text(7))]
    for request in requests:
        got = look(server, request.tokens)[2]
        assert got == len(request.tokens), (f"with every hash forced to 0, match({request.tokens}) found {got} tokens, "
                                            f"expected {len(request.tokens)}")
    grown = server.write(server.adopt(text(8)))
    try:
        server.insert(grown)
        got = look(server, text(8))
    except NotImplementedError:
        raise
    except RuntimeError as error:
        got = f"insert raised {error!r}"
    assert got == (ids(grown.table), None, 8), (
        f"with every hash forced to 0, a tail has grown to a full block and was inserted again; then match({text(8)}) "
        f"gave {got}, expected {(ids(grown.table), None, 8)}: a key of 0 is also a key: remove it "
        "before you set the longer one")


# ---- Task 5: donating


@pytest.mark.points(1)
def test_task_5_a_donor_keeps_no_references_and_its_text_is_found(lab):
    server = Server(lab)
    request = server.donate(server.compute(text(10)))
    got = [block.ref_cnt for block in request.table]
    assert got == [0, 0, 0], f"after donate the blocks of the request have ref_cnts {got}, expected [0, 0, 0]"
    got = look(server, text(10))
    assert got == ([1, 2], 3, 10), (
        f"10 tokens were donated; match gave {got}, expected ([1, 2], 3, 10), which includes the tail")
    server.pool.check_integrity()


@pytest.mark.points(1)
def test_task_5_the_last_block_is_given_back_first(lab):
    server = Server(lab, num_blocks=6)
    request = server.donate(server.compute(text(10)))
    got = ids(server.pool.free_block_queue.get_all_free_blocks())
    assert got == [4, 5, 3, 2, 1], (f"after donate of the table [1, 2, 3] the free queue is {got}, expected "
                                    "[4, 5, 3, 2, 1]: free the last block first, because a tail without its head "
                                    "can never be matched")
    got = ids(request.table)
    assert got == [1, 2, 3], (f"donate got the table [1, 2, 3], which is {got} afterwards. The list belongs to the "
                              "caller: iterate over it backwards, but do not reverse it in place")


@pytest.mark.points(1)
def test_task_5_tokens_without_kv_are_not_donated(lab):
    server = Server(lab)
    request = server.compute(text(11))
    request.tokens += [11, 12]  # token 11 was sampled, but never computed; it would fill block 3
    server.donate(request)
    got = look(server, request.tokens)
    assert got == ([1, 2], 3, 11), f"donate(…, num_tokens=11) of 13 tokens; match gave {got}, expected 11 tokens"


@pytest.mark.points(1)
def test_task_5_by_default_all_tokens_are_donated_and_zero_is_not_the_default(lab):
    server = Server(lab)
    a, b = server.compute(text(6)), server.compute(text(6, 50))
    server.tree.donate(a.tokens, a.table)
    server.tree.donate(b.tokens, b.table, 0)
    got = look(server, a.tokens), look(server, b.tokens), server.pool.get_usage()
    assert got == (([1], 2, 6), ([], None, 0), 0.0), (
        f"donate({a.tokens}, blocks 1 and 2), and donate({b.tokens}, blocks 3 and 4, num_tokens=0): (match of the "
        f"first text, match of the second, usage) is {got}, expected (([1], 2, 6), ([], None, 0), 0.0)")


@pytest.mark.points(1)
def test_task_5_the_extra_keys_go_with_what_is_donated(lab):
    server = Server(lab)
    server.donate(server.compute(text(6), ("tenant a",)))
    for salt, expected in ((("tenant a",), ([1], 2, 6)), (None, ([], None, 0))):
        got = look(server, text(6), salt)
        assert got == expected, (f"6 tokens were donated with extra keys ('tenant a',); match of them with {salt} gave "
                                 f"{got}, expected {expected}")


@pytest.mark.points(1)
def test_task_5_blocks_that_others_use_stay_with_them(lab):
    server = Server(lab)
    first = server.insert(server.compute(text(8)))
    second = server.write(server.adopt(text(8) + [50]))
    server.donate(first)
    got = [server.pool.blocks[i].ref_cnt for i in (1, 2)]
    assert got == [1, 1], (
        f"two requests shared blocks 1 and 2, and one of them donated: their ref_cnts are {got}, expected [1, 1]")
    server.read_back(second)


@pytest.mark.points(1)
def test_task_5_blocks_beyond_the_tokens_are_given_back_too(lab):
    server = Server(lab, num_blocks=6)
    request = server.compute(text(5))
    request.table += server.pool.get_new_blocks(2)  # slots for tokens that were never sampled
    server.donate(request)
    got = server.pool.get_num_free_blocks()
    assert got == 5, f"a table of 4 blocks with 5 tokens was donated; {got} of 5 blocks are free, expected all"


@pytest.mark.points(2)
def test_task_5_a_chat_finds_all_it_said_before(lab):
    """Run a chat whose turns each send the whole conversation; the last token of each answer has no K/V."""
    server, conversation = Server(lab), []
    tables, found = [], []
    for turn in range(4):
        conversation = conversation + text(5, 100 * turn)  # the question
        request = server.adopt(conversation[:-1])
        request.tokens = conversation + text(6, 100 * turn + 50)
        found.append(request.num_computed)
        server.write(request, len(request.tokens) - 1)
        server.read_back(request)
        tables.append(ids(request.table))
        conversation = request.tokens
        server.donate(request)
        server.pool.check_integrity()
    assert found == [0, 10, 21, 32], (f"each turn adds 5 + 6 tokens, and the last token has no K/V. The turns found "
                                      f"{found} cached tokens, expected [0, 10, 21, 32]: a turn finds every computed "
                                      "token, even in a block that is not full")
    assert tables[-1][:len(tables[0])] == tables[0], (f"each turn continues where the last one stopped, so no block "
                                                      f"may be copied: the tables were {tables}")


# ---- Task 6: evicting


def node_ids(server):
    return [block.block_id for block in server.pool.blocks if block.block_hash is not None]


@pytest.mark.points(2)
def test_task_6_the_oldest_text_goes_first_and_leaves_before_their_parents(lab):
    server = Server(lab)
    server.donate(server.compute(text(10)))          # blocks 1, 2, 3
    server.donate(server.compute(text(6, 50)))       # blocks 4, 5
    got = []
    for _ in range(5):
        server.tree.evict(1)
        got.append(node_ids(server))
    expected = [[1, 2, 4, 5], [1, 4, 5], [4, 5], [4], []]
    assert got[0] != [1, 2, 3, 4, 5], (
        "blocks 1 to 5 are cached and unused, and evict(1) forgot none of them. Blocks 6 to 19 have no key. They come "
        "before blocks 1 to 5 in the free queue, but do not count: leave them out first, then take num_blocks")
    assert got == expected, (f"blocks 1, 2, 3 were donated first, then 4 and 5; the nodes left after each evict(1) are "
                             f"{got}, expected {expected}")


@pytest.mark.points(1)
def test_task_6_what_is_used_again_is_young_again(lab):
    server = Server(lab)
    server.donate(server.compute(text(8)))           # blocks 1, 2
    server.donate(server.compute(text(8, 50)))       # blocks 3, 4
    server.donate(server.adopt(text(8)))             # blocks 1, 2 again
    evicted = server.tree.evict(2)
    got = evicted, node_ids(server)
    assert got == (2, [1, 2]), (f"blocks 1 and 2 were used after 3 and 4; for evict(2), (returned, nodes left) is "
                                f"{got}, expected (2, [1, 2])")


@pytest.mark.points(2)
def test_task_6_a_block_in_use_is_never_evicted(lab):
    server = Server(lab)
    server.donate(server.compute(text(12)))
    request = server.adopt(text(8))
    got = server.tree.evict(10), node_ids(server)
    assert got == (1, [1, 2]), (f"blocks 1 and 2 are in use, block 3 is not; for evict(10), (returned, nodes left) is "
                                f"{got}, expected (1, [1, 2])")
    server.write(request)
    server.read_back(request)
    got = look(server, text(12))
    assert got == ([1, 2], None, 8), (f"blocks 1 and 2 are in use; after evict(10) match({text(12)}) gave {got}, "
                                      "expected ([1, 2], None, 8): blocks in use must still be found")


@pytest.mark.points(1)
def test_task_6_evict_counts_what_it_forgot(lab):
    server = Server(lab, num_blocks=8)
    server.pool.free_blocks(server.compute(text(4, 90)).table)  # block 1: free, without a key
    server.donate(server.compute(text(8)))
    before = ids(server.pool.free_block_queue.get_all_free_blocks())
    got = [server.tree.evict(n) for n in (0, 1)]
    after = ids(server.pool.free_block_queue.get_all_free_blocks())
    assert after == before, f"after evict(1) the free queue is {after}, expected {before}: blocks keep their place"
    got += [server.tree.evict(n) for n in (5, 5)]
    assert got == [0, 1, 1, 0], (f"two cached blocks are free, and other free blocks have no key; evict(0), evict(1), "
                                 f"evict(5), evict(5) returned {got}, expected [0, 1, 1, 0]")
    after = ids(server.pool.free_block_queue.get_all_free_blocks())
    assert after == before, f"evict must only forget content, but the free queue went from {before} to {after}"


@pytest.mark.points(1)
def test_task_6_a_key_may_be_zero(lab, monkeypatch):
    monkeypatch.setattr("mini_vllm.block_pool.hash_block_tokens", lambda *args: 0)
    server = Server(lab, num_blocks=4)
    server.donate(server.compute(text(10)))
    got = server.tree.evict(1), node_ids(server)
    assert got == (1, [1, 2]), (f"with every hash forced to 0, blocks 1, 2, 3 are cached and unused; for evict(1), "
                                f"(returned, nodes left) is {got}, expected (1, [1, 2]): compare block_hash with None, "
                                "because a key of 0 is false")


@pytest.mark.points(1)
def test_task_6_evict_unused_forgets_all_unused_blocks(lab):
    server = Server(lab)
    server.donate(server.compute(text(10)))
    server.insert(server.compute(text(8, 50)))       # in use
    got = server.tree.evict_unused(), look(server, text(10)), look(server, text(8, 50))[2]
    assert got == (3, ([], None, 0), 8), (f"evict_unused with 3 unused nodes and 2 in use: (returned, match of the "
                                          f"unused text, tokens found of the used text) is {got}, expected (3, ([], "
                                          "None, 0), 8)")


def longest_indexed_prefix(server, tokens, salt):
    """Find the length of the longest cached prefix by brute force over the keys of all blocks, without the tree."""
    findable = set()
    for block in server.pool.blocks:
        key, chain = block.block_hash, ()
        while key is not None:
            chain, key = key.token_ids + chain, key.parent
        num_own = len(block.block_hash.token_ids) if block.block_hash is not None else 0
        for end in range(len(chain) - num_own + 1, len(chain) + 1):
            findable.add((block.block_hash.extra_keys, chain[:end]))
    length = 0
    while length < len(tokens) and (salt, tuple(tokens[:length + 1])) in findable:
        length += 1
    return length


@pytest.mark.points(5)
def test_task_6_random_traffic_finds_the_longest_prefix_and_reads_back_its_own_tokens(lab):
    for seed in range(8):
        rng = random.Random(seed)
        server = Server(lab, num_blocks=rng.randint(5, 14), size=rng.randint(1, 4))
        pool, running = server.pool, []
        for step in range(50):
            where = f"seed {seed}, step {step}"
            dice = rng.random()
            if dice < 0.45:
                tokens = [rng.randint(0, 1) for _ in range(rng.randint(1, 13))]
                salt = rng.choice([None, None, ("tenant",)])
                found, expected = look(server, tokens, salt)[2], longest_indexed_prefix(server, tokens, salt)
                assert found == expected, (f"{where}: match({tokens}, {salt}) found {found} tokens, but {expected} are "
                                           "indexed: a match must be the longest cached prefix")
                if pool.get_num_free_blocks() > -(-len(tokens) // server.size) + 1:
                    request = server.adopt(tokens, salt)
                    if rng.random() < 0.8:
                        server.insert(server.write(request, rng.randint(request.num_computed, len(tokens))))
                    running.append(request)
            elif dice < 0.7 and running and pool.get_num_free_blocks() > 1:
                request = rng.choice(running)
                if request.num_computed == len(request.tokens):
                    request.tokens.append(rng.randint(0, 1))
                server.insert(server.write(request, request.num_computed + 1))
            elif dice < 0.92 and running:
                request = running.pop(rng.randrange(len(running)))
                server.donate(request)
                found = look(server, request.tokens[:request.num_computed], request.salt)[2]
                assert found == request.num_computed, (f"{where}: {request.num_computed} computed tokens of "
                                                       f"{request.tokens} were donated, but {found} are found")
            else:
                used = [block.block_hash for block in pool.blocks if block.ref_cnt]
                server.tree.evict(rng.randint(0, 2))
                assert [block.block_hash for block in pool.blocks if block.ref_cnt] == used, \
                    f"{where}: evict changed the key of a block in use"
            pool.check_integrity()
            for request in running:
                server.read_back(request)
        for request in running:
            server.donate(request)
        assert pool.get_usage() == 0.0, f"seed {seed}: all requests have donated, but some blocks are still in use"


# ---- Task 7: clearing and counting


@pytest.mark.points(1)
def test_task_7_clear_forgets_everything(lab):
    server = Server(lab)
    server.donate(server.compute(text(10)))
    server.tree.clear()
    got = look(server, text(10))
    assert got == ([], None, 0), f"after clear match gave {got}, expected ([], None, 0)"
    server.pool.check_integrity()
    server.donate(server.compute(text(7)))
    got = look(server, text(10))[2]
    assert got == 7, f"7 tokens were donated after clear, but {got} are found"


@pytest.mark.points(1)
def test_task_7_after_clear_no_lookup_meets_what_hung_there(lab):
    server = crowd(lab, 1, num_children=500)
    num_tokens = look(server, text(1))[2]
    assert num_tokens == 1, (f"500 texts that begin with token 0 are cached: match({text(1)}) found {num_tokens} "
                             "tokens, expected 1")
    server.tree.clear()
    got = num_lines(lambda: server.tree.match(text(3)))
    assert got <= MAX_LINES, (
        f"500 texts with the same first token were cached, then clear() was called. The next match() ran {got} lines "
        f"of Python, at most {MAX_LINES} are allowed: clear() must empty both the tree and the pool")
    server = Server(lab, num_blocks=4)
    for tokens in (text(10), text(10, 50)):  # the second time in the same blocks
        try:
            server.donate(server.compute(tokens))
        except KeyError as error:
            pytest.fail(f"after clear(), donate({tokens}) into blocks that were in the tree before raised {error!r}: "
                        "clear() must also empty _places", pytrace=False)
        found = look(server, tokens)[2]
        assert found == 10, f"10 tokens were donated, and match() found {found} of them, expected 10"
        server.tree.clear()


@pytest.mark.points(1)
def test_task_7_clear_is_refused_while_a_block_is_in_use(lab):
    server = Server(lab)
    server.donate(server.compute(text(10)))
    request = server.adopt(text(4))
    before = server.state()
    message = refused(server.tree.clear, "clear() while block 1 is in use")
    assert "1" in message, (f"clear() while one block is in use raised {message!r}, expected a message with the "
                            "number of blocks in use")
    assert server.state() == before, (f"clear() was refused, but the pool (free queue, counts and keys) changed from "
                                      f"{before} to {server.state()}")
    got = look(server, text(10))
    assert got == ([1, 2], 3, 10), (f"clear() was refused, and then match({text(10)}) gave {got}, expected ([1, 2], 3, "
                                    "10): nothing may change. Call the pool before you empty the children")
    server.read_back(request)


@pytest.mark.points(1)
def test_task_7_stats_count_nodes_tokens_and_nodes_in_use(lab):
    server = Server(lab)
    server.donate(server.compute(text(10)))
    server.adopt(text(4))
    server.compute(text(4, 50))  # in use, but not inserted: not a node
    stats = server.tree.stats
    got = stats.num_nodes, stats.num_tokens, stats.num_nodes_in_use
    assert got == (3, 10, 1), f"10 tokens are in 3 nodes, one of them adopted: stats are {got}, expected (3, 10, 1)"
    cache_by_hand(server, twin := server.compute(text(4)))
    other = cache_by_hand(server, server.compute(text(4, 70)))
    stats = server.tree.stats
    got = stats.num_nodes, stats.num_tokens, stats.num_nodes_in_use
    assert got == (5, 18, 3), (f"then a twin of the first node and another text of 4 tokens were indexed in the pool "
                               f"only: stats are {got}, expected (5, 18, 3): every block with a hash is a node")
    server.pool.free_blocks([*twin.table, *other.table])
    got = server.tree.stats.num_nodes_in_use
    assert got == 1, f"these two blocks were freed: stats count {got} nodes in use, expected 1: count at each call"


@pytest.mark.points(1)
def test_task_7_stats_count_a_node_whose_key_is_zero(lab, monkeypatch):
    monkeypatch.setattr("mini_vllm.block_pool.hash_block_tokens", lambda *args: 0)
    server = Server(lab)
    server.insert(server.compute(text(10)), with_tail=True)
    stats = server.tree.stats
    got = stats.num_nodes, stats.num_tokens, stats.num_nodes_in_use
    assert got == (3, 10, 3), (f"with every hash forced to 0, 10 tokens are in 3 nodes, all in use: stats are {got}, "
                               "expected (3, 10, 3): compare block_hash with None, because a key of 0 is false")


@pytest.mark.points(1)
def test_task_7_a_block_that_was_given_out_again_is_no_node(lab):
    server = Server(lab, num_blocks=4)
    server.donate(server.compute(text(10)))
    server.compute(text(4, 50))  # takes block 3, the tail
    stats = server.tree.stats
    got = stats.num_nodes, stats.num_tokens, stats.num_nodes_in_use
    assert got == (2, 8, 0), f"the tail's block was given to another request: stats are {got}, expected (2, 8, 0)"

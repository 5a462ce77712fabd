"""Gaps in the proxy that hostile files have found, tested one at a time and without a sandbox."""

import contextlib
import socket
import struct
import threading
import types
from typing import Any

import mlx.nn
import numpy as np
import pytest

from course.grading.protocol.connection import Peer
from course.grading.protocol.exceptions import MAX_MESSAGE_CHARACTERS
from course.grading.protocol.message_bytes import NO_BYTES
from course.grading.protocol.proxies import make_class
from course.grading.protocol.socket_messages import ProtocolError, Wire
from course.grading.remote_lab.permissions import GraderPermissions
from course.grading.remote_lab.surface import Surface
from course.lab.lab import discover, find_lab
from course.lab.load_module import load_file
from mini_vllm.block_pool import BlockPool
from mini_vllm.request import Priority


def _unknown(name):
    return None


@pytest.fixture
def grader():
    """Return the grader's side. There is no process at the other end."""
    ends = socket.socketpair()
    yield Peer(Wire(ends[0]), GraderPermissions(Surface({})), first_id=2, trusts_other=False, find_class=_unknown)
    for end in ends:
        end.close()


def stand_in(grader, operators):
    return grader.handles.stand_in(NO_BYTES, 1, 1, ["Evil", "object", operators, [], [], 0, []])


@pytest.mark.parametrize("name", ["save", "load", "eval", "zeros", "array", "__loader__", "fast"])
def test_of_mlx_only_types_of_numbers_can_be_named(grader, name):
    with pytest.raises(ProtocolError):
        grader.reading.decode(["K", name], NO_BYTES)
    assert str(grader.reading.decode(["K", "float16"], NO_BYTES)) == "mlx.core.float16"


def test_numpy_does_not_take_a_students_object_for_memory(grader):
    evil = stand_in(grader, ["__len__"])
    for name in ("__array_interface__", "__array__", "__array_struct__", "__dlpack__", "__deepcopy__"):
        assert not hasattr(evil, name)


@pytest.mark.parametrize("name", ["__lt__", "__le__", "__sub__", "__abs__", "__float__", "__index__", "__eq__"])
def test_a_students_object_does_not_say_how_it_compares_or_computes(grader, name):
    operators = ["__lt__", "__le__", "__gt__", "__ge__", "__sub__", "__abs__", "__float__", "__index__", "__eq__"]
    assert name not in vars(type(stand_in(grader, operators)))


@pytest.mark.parametrize("tag", ["z", "s", "d"])
def test_keys_that_share_a_hash_are_refused(grader, tag):
    keys = [number * ((1 << 61) - 1) for number in range(1, 5_000)]
    value = ["z", *keys] if tag == "z" else [tag, 1, [[key, 0] for key in keys] if tag == "d" else keys]
    with pytest.raises(ProtocolError, match="share their hashes"):
        grader.reading.decode(value, NO_BYTES)
    assert len(grader.reading.decode(["z", *range(5_000)], NO_BYTES)) == 5_000


@pytest.mark.parametrize("columns", [(1, 6 * 10**9), (10**12, 1), (-9, 1), ("1", 1)])
def test_a_syntax_error_points_at_no_column_that_cannot_be(grader, columns):
    first, last = columns
    sent = ["t", "m", ["t", "f", 1, first, "x", 1, last]]
    error = grader.errors.decode(NO_BYTES, ["builtins.SyntaxError"], sent, "m (f, line 1)", None)
    assert error.end_offset is None and isinstance(error, SyntaxError)
    sent = ["t", "m", ["t", "f", 1, 3, "x", 1, 5]]
    near = grader.errors.decode(NO_BYTES, ["builtins.SyntaxError"], sent, "m (f, line 1)", None)
    assert near.end_offset == 5 <= MAX_MESSAGE_CHARACTERS


@pytest.mark.parametrize("owner", ["ab", 2, (1,), [1], np.zeros(3)])
def test_the_grader_computes_nothing_with_what_it_is_sent(owner):
    with pytest.raises(TypeError, match="the grader does not compute"):
        GraderPermissions(Surface({})).check_operator(owner, "__mul__")


def test_the_text_of_a_container_must_be_listed_to_be_read():
    kind = type("CountedTokens", (list,), {"__module__": "test_lab"})
    for listed, is_allowed in (("__len__", False), ("__len__ __repr__", True)):
        policy = GraderPermissions(Surface({"test_lab.CountedTokens": listed}))
        with contextlib.nullcontext() if is_allowed else pytest.raises(TypeError, match="may not use __repr__"):
            policy.check_operator(kind([1, 2]), "__repr__")


def test_only_what_the_lab_lists_can_be_used_of_the_graders_objects():
    class Model(mlx.nn.Module):
        limit = 1

        def forward(self): ...

    Model.__module__, Model.__qualname__ = "mini_vllm.models.network", "Model"
    policy = GraderPermissions(Surface({"mini_vllm.models.network.Model": "forward limit=",
                                   "mini_vllm.block_pool.BlockPool": "get_new_blocks"}))
    policy.check_get(Model(), "forward")
    policy.check_get(BlockPool(2), "get_new_blocks")
    policy.check_get(types.SimpleNamespace(clock=1), "clock")
    policy.check_set(Model(), "limit")
    for owner, name in ((Model(), "save_weights"), (Model(), "load_weights"), (Model(), "__class__"),
                        (BlockPool, "mro"),
                        (BlockPool(2), "free_blocks"), (Priority, "mro"), (print, "__self__"), (policy, "surface"),
                        (types.SimpleNamespace(clock=1), "__dict__")):
        with pytest.raises(AttributeError):
            policy.check_get(owner, name)
    for owner, name in ((Model(), "forward"), (BlockPool(2), "num_blocks"), (BlockPool, "get_new_blocks"),
                        (types.SimpleNamespace(clock=1), "clock")):
        with pytest.raises(AttributeError):
            policy.check_set(owner, name)
    for function in (Model, BlockPool, Model()):
        with pytest.raises(TypeError):
            policy.check_call(function)
    assert policy.methods_of(Model) == ["forward"]


def test_after_a_message_that_breaks_the_rules_nothing_more_is_asked():
    here, there = socket.socketpair()
    peer = Peer(Wire(here), GraderPermissions(Surface({})), first_id=2, trusts_other=False, find_class=_unknown)
    Wire(there).send(["?", 1, ["nonsense"]], [])
    with pytest.raises(ProtocolError, match="there is no way to"):
        peer.request("load")
    assert peer.is_broken
    here.close()
    there.close()


def test_a_message_of_millions_of_lists_is_not_read():
    here, there = socket.socketpair()
    text = b"[" + b"[]," * 1_000_000 + b"[]]"
    sender = threading.Thread(target=there.sendall, args=(struct.pack("!II", len(text), len(text)) + text,))
    sender.start()
    with pytest.raises(ProtocolError, match="lists"):
        Wire(here).receive()
    sender.join()
    here.close()
    there.close()


def test_pools_of_lab_2_4_do_not_show_how_they_read_their_arguments():
    pools = load_file(find_lab("2.4", discover()).folder / "wrong_pools.py")

    class Spy:
        def __init__(self, items):
            self.items = items

        def __iter__(self):
            told.append("iter")
            return iter(self.items)

        def __len__(self):
            told.append("len")
            return len(self.items)

        def __getitem__(self, key):
            told.append("item")
            return self.items[key]

    logs = {}
    for kind in [*pools.RIGHT, *pools.WRONG.values()]:
        told = logs[kind.name] = []
        pool = pools.hand_out(kind).BlockPool(6)
        block = pool.get_new_blocks(1)[0]
        for name, *lists in (("touch", [block]), ("cache_full_blocks", [block], [111]), ("free_blocks", [block]),
                             ("cache_full_blocks", [block, block], [111]), ("evict_blocks", [block.block_id])):
            with contextlib.suppress(Exception):
                getattr(pool, name)(*map(Spy, lists))
    assert len({tuple(told) for told in logs.values()}) == 1, logs


def _finds_what_was_given_out(pool):
    a, b = pool.get_new_blocks(2)
    pool.evict_blocks([a.block_id, b.block_id])
    pool.cache_full_blocks([a, b], [111, 111])
    pool.evict_blocks([b.block_id])
    pool.free_blocks([a])
    pool.get_new_blocks(4)
    pool.evict_blocks([a.block_id])
    return pool.get_cached_block(111)


def _queue_after_one_of_two_owners_left(pool):
    block = pool.blocks[3]
    pool.touch([block, block])
    pool.free_blocks([block])
    with pytest.raises(RuntimeError):
        pool.free_blocks([block, pool.null_block])
    return [free.block_id for free in pool.free_block_queue.get_all_free_blocks()]


def _queue_after_two_refused_calls(pool):
    for n in (6, 7):
        with pytest.raises(ValueError):
            pool.get_new_blocks(n)
    return [free.block_id for free in pool.free_block_queue.get_all_free_blocks()]


@pytest.mark.parametrize("names, look, expected", [
    (["FindsWhatIsGone"], _finds_what_was_given_out, None),
    (["LeavesItAmongTheFree", "TakesAnotherOut"], _queue_after_one_of_two_owners_left, [1, 2, 4, 5]),
    (["PutsBackInAnotherOrder"], _queue_after_two_refused_calls, [1, 2, 3, 4, 5])])
def test_no_earlier_call_hides_what_a_pool_of_lab_2_4_does_wrong(names, look, expected):
    pools = load_file(find_lab("2.4", discover()).folder / "wrong_pools.py")
    for kind in pools.RIGHT:
        assert look(pools.hand_out(kind).BlockPool(6)) == expected, kind.name
    for name in names:
        assert look(pools.hand_out(pools.WRONG[name]).BlockPool(6)) != expected, name


def test_a_class_that_was_handed_in_can_stand_in_an_alias():
    """Evaluate ``MaybeRow = SamplerRow | None``, as when the file is loaded."""
    row = make_class("SamplerRow", "class", ["__or__", "__call__"], [], [], 0, None, forwards_equality=True)
    assert row.__or__(object(), None) is Any and row.__ror__(object(), None) is Any

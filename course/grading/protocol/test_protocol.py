"""Two sides of one socket: what crosses, what stays, what is shared, and what the sandbox cannot do."""

import enum
import gc
import json
import math
import operator as operators
import socket
import struct
import threading
import types
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.grading.protocol.access_rules import Permissions
from course.grading.protocol.bounds import MAX_BYTES, MAX_ITEMS, MAX_TEXT_CHARACTERS
from course.grading.protocol.connection import MAX_NESTED_CALLS, Peer
from course.grading.protocol.proxies import MAX_DEFERRED, Remote
from course.grading.protocol.socket_messages import MAX_MESSAGE_BYTES, Gone, ProtocolError, Wire
from course.grading.remote_lab.permissions import GraderPermissions
from course.grading.remote_lab.sandbox_measures import SandboxMeasures
from course.grading.remote_lab.surface import TESTS, Surface
from course.lab.lab import discover, find_lab
from course.testing import measure
from mini_vllm.block_pool import BlockHash, BlockPool
from mini_vllm.logit_rules import SamplerRow
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.random_model import random_weights
from mini_vllm.models.weights import make_model
from mini_vllm.request import Priority, Request, RequestStatus, SamplingParams


def surface(**listed):
    """Return the surface that four labs list, with classes of this file added."""
    labs = [find_lab(number, discover()) for number in ("3.4", "4.1", "5.1", "5.2")]
    found = {name: words for lab in labs for name, words in lab.surface.items()}
    made = Surface({**found, **{f"{TESTS}.{name}": words for name, words in listed.items()}})
    made.load()
    made.add_tests(__name__)
    return made


def known(name):
    classes = {"mini_vllm.request.RequestStatus": RequestStatus, "mini_vllm.request.Priority": Priority}
    return classes.get(name)


class Colour(enum.Enum):
    RED = 1


@dataclass
class Thing:
    """A class in the student's file."""

    number: int = 3
    text: str = "a"

    def twice(self):
        self.number *= 2
        return self.number

    def add(self, items):
        items.append(self.number)
        self.kept = items
        return items

    def write(self, array):
        array[0] = 77

    def raises(self, error):
        raise error


class Yes:
    """An object that claims to be equal to everything."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


def reads_rows(rows):
    return [(row.params.temperature, row.key, len(row.output_token_ids)) for row in reversed(rows)][::-1]


def reads(requests):
    return [(r.request_id, r.num_tokens, r.num_computed_tokens, r.priority, r.status) for r in requests]


def advances(requests):
    for request in requests:
        request.num_computed_tokens = 5
    return [(request.num_computed_tokens, request.num_tokens) for request in requests]


class Exploding(Exception):
    def __str__(self):
        raise RuntimeError("boom")


@pytest.fixture
def talk():
    """Return a grader's peer, and the student's module that it asks."""
    ends = socket.socketpair()
    module = types.ModuleType("starter")
    vars(module).update(Thing=Thing, Yes=Yes, Colour=Colour, Exploding=Exploding, things=[Thing(i) for i in range(50)],
                        echo=lambda value: value, call=lambda function, *args: function(*args),
                        attribute=getattr, set_attribute=setattr, OrderedDict=OrderedDict, one=types.SimpleNamespace(),
                        reads=reads, advances=advances, reads_rows=reads_rows,
                        operate=lambda name, *args: getattr(operators, name)(*args))
    far = {}

    def serve():
        far["peer"] = Peer(Wire(ends[1]), Permissions(), 1, trusts_other=True, find_class=known, file_name=__file__)
        far["peer"].doing.services["load"] = lambda: module
        try:
            far["peer"].serve()
        except ProtocolError:
            pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    near = Peer(Wire(ends[0], lambda: None), GraderPermissions(surface()), 2, trusts_other=False, find_class=known)
    near.policy = near._policy
    near.far_peer = lambda: far["peer"]
    near.lab = near.request("load")
    yield near
    near.lab = None
    ends[0].close()
    thread.join(5)
    ends[1].close()


# ---- data

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
keys = st.integers() | st.text(max_size=4) | st.binary(max_size=4) | st.tuples(st.integers(), st.booleans())
data = st.recursive(scalars | st.binary(max_size=8), lambda inner: st.one_of(
    st.lists(inner, max_size=4), st.tuples(inner, inner), st.dictionaries(keys, inner, max_size=3),
    st.frozensets(keys, max_size=3), st.sets(keys, max_size=3)), max_leaves=12)


def same(a, b):
    """Return whether both are equal and have the same types at every level."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return a == b


@settings(max_examples=60)
@given(value=data)
def test_data_crosses_and_comes_back_as_it_was(value):
    ends = socket.socketpair()

    def serve():
        peer = Peer(Wire(ends[1]), Permissions(), 1, trusts_other=True, find_class=known)
        peer.doing.services["echo"] = lambda got: (type(got).__name__, got)
        try:
            peer.serve()
        except ProtocolError:
            pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    near = Peer(Wire(ends[0], lambda: None), GraderPermissions(Surface({})), 2, trusts_other=False, find_class=known)
    try:
        kind, back = near.request("echo", value)
        assert kind == type(value).__name__ and same(back, value)
    finally:
        ends[0].close()
        thread.join(5)
        ends[1].close()


def test_arrays_numbers_and_named_tuples_cross(talk):
    for value in (np.arange(6.0, dtype=np.float32).reshape(2, 3), np.zeros((0, 4)), np.array(True)):
        back = talk.lab.echo(value)
        assert back.dtype == value.dtype and back.shape == value.shape and (back == value).all()
    assert talk.lab.echo(np.int32(7)) == 7 and type(talk.lab.echo(np.int32(7))) is np.int32
    assert math.isnan(talk.lab.echo(math.nan))
    Pair = namedtuple("Pair", "left right")
    assert talk.lab.echo(Pair(1, [2])) == (1, [2]) and talk.lab.echo(Pair(1, 2)).right == 2
    assert talk.lab.echo(slice(1, None)) == slice(1, None) and talk.lab.echo(...) is ...
    assert talk.lab.echo(RequestStatus.RUNNING) is RequestStatus.RUNNING
    assert talk.lab.echo(Priority.HIGH) is Priority.HIGH and talk.lab.echo(int) is int


def test_a_little_more_than_data_arrives_as_data(talk):
    """Check that a number that claims to be equal to everything arrives as a plain number."""
    class Liar(int):
        def __eq__(self, other):
            return True
        __hash__ = int.__hash__

    talk.far_peer()  # here it runs in this process, so its objects can be inspected
    vars(talk.far_peer().handles.own_objects[talk.lab._far_id])["liar"] = Liar(3)
    vars(talk.far_peer().handles.own_objects[talk.lab._far_id])["ordered"] = OrderedDict(a=1)
    assert type(talk.lab.liar) is int and talk.lab.liar != 4
    assert type(talk.lab.ordered) is dict


# ---- handles


def test_two_stand_ins_are_equal_only_for_one_object(talk):
    one, other = talk.lab.Yes(), talk.lab.Yes()
    assert one != other and one != 3 and one == one
    assert talk.lab.echo(one) is one
    assert talk.lab.things[3] is talk.lab.things[3]
    assert talk.lab.Colour.RED is talk.lab.Colour.RED


def test_a_stand_in_has_the_name_and_the_operators_of_its_class(talk):
    thing = talk.lab.Thing()
    assert type(thing).__name__ == "Thing" and isinstance(thing, talk.lab.Thing)
    assert not isinstance(talk.lab.Yes(), talk.lab.Thing)
    assert "number=3" in repr(thing) and not callable(thing)
    with pytest.raises(TypeError):
        len(thing)
    with pytest.raises(TypeError, match="cannot be extended"):
        class More(talk.lab.Thing):
            pass


def test_what_nobody_holds_any_more_is_let_go(talk):
    for _ in range(200):
        talk.lab.Thing().twice()
        talk.lab.echo([1, 2])
    gc.collect()
    talk.lab.echo(1)
    talk.lab.echo(1)
    assert len(talk.far_peer().handles.own_objects) < 20
    assert len(talk.mirrors) < 10 and len(talk.far_peer().mirrors) < 10


def test_plain_attributes_come_along_and_are_never_stale(talk):
    things = talk.lab.things
    assert [thing.number for thing in things] == list(range(50))
    before = talk.num_requests
    assert [thing.number for thing in things] == list(range(50))
    assert talk.num_requests - before <= 4, "attributes of many objects must come many at a time"
    things[7].twice()
    assert things[7].number == 14 and things[8].number == 8
    things[8].number = 5
    assert things[8].number == 5


# ---- containers


def test_a_request_is_read_in_one_question_until_it_changes(talk):
    """Check that all plain attributes arrive with the first, and that values set here or by the grader are seen."""
    requests = [Request(f"r{i}", [1, 2, 3]) for i in range(3)]
    before = talk.num_answered
    told = talk.lab.call(talk.lab.reads, requests)
    assert told == [(f"r{i}", 3, 0, Priority.NORMAL, RequestStatus.WAITING) for i in range(3)]
    assert talk.num_answered - before == 0, "they came along with the handles"
    before = talk.num_answered
    assert talk.lab.call(talk.lab.advances, requests) == [(5, 3), (5, 3), (5, 3)]
    assert talk.num_answered - before <= 2 * len(requests) + 1, "a set and a read of each, at most"
    requests[1].append_output_token(7)
    requests[1].status = RequestStatus.RUNNING
    told = talk.lab.call(talk.lab.reads, requests)
    assert told[1] == ("r1", 4, 5, Priority.NORMAL, RequestStatus.RUNNING)


def test_what_never_changes_of_an_object_comes_with_it(talk):
    """Check this for values that are not numbers, and in any order: the last row names what the first described."""
    params = SamplingParams(temperature=0.5)
    rows = [SamplerRow(params, (), (0,) * i, (), (1, i)) for i in range(40)]
    before = talk.num_answered
    assert talk.lab.call(talk.lab.reads_rows, rows) == [(0.5, (1, i), i) for i in range(40)]
    assert talk.num_answered == before
    rows[3].output_token_ids = [1, 2]
    assert talk.lab.call(talk.lab.reads_rows, [rows[3]]) == [(0.5, (1, 3), 2)], "a list is asked for"


def test_bytes_cross_among_attributes_that_go_along(talk):
    """Send bytes among the attributes that never change: they arrive with the answer whenever a list is asked for."""
    rows = [SamplerRow(SamplingParams(temperature=0.5), (), [0] * i, (), b"k" * i) for i in range(40)]
    assert talk.lab.call(talk.lab.reads_rows, rows) == [(0.5, b"k" * i, i) for i in range(40)]


def test_a_list_is_one_list_on_both_sides(talk):
    thing, items = talk.lab.Thing(), [1]
    assert talk.lab.echo(items) is items
    assert thing.add(items) is items and items == [1, 3]
    items.append(9)
    assert thing.kept == [1, 3, 9]
    thing.kept.clear()
    assert items == []


def test_a_list_that_was_changed_and_let_go_of_has_changed(talk):
    talk.lab.one.mine = [1]
    talk.lab.one.mine.append(2)  # nothing here refers to the list when the next message is sent
    assert talk.lab.one.mine == [1, 2]


def test_dictionaries_and_sets_are_shared_in_their_order(talk):
    table, names = {"b": 1, "a": [2]}, {1}
    talk.lab.call(table.update, {"c": 3})
    assert table == {"b": 1, "a": [2], "c": 3}
    talk.lab.one.table, talk.lab.one.names = table, names
    del table["b"]
    table["b"] = 4
    names.add(5)
    assert list(talk.lab.one.table) == ["a", "c", "b"] and talk.lab.one.names == {1, 5}


def test_arrays_are_written_in_place(talk):
    array = np.zeros(4)
    talk.lab.Thing().write(array)
    assert array.tolist() == [77, 0, 0, 0]
    talk.lab.Thing().write(array[2:])
    assert array.tolist() == [77, 0, 77, 0]


# ---- values that are small in memory and endless when written out


def doubled(num_levels, innermost):
    """Return a list that contains a list twice, which contains a list twice, …"""
    for _ in range(num_levels):
        innermost = [innermost, innermost]
    return innermost


def each_in_each(num_lists):
    """Return lists that contain each other: there are as many ways through them as orders of them."""
    lists = [[] for _ in range(num_lists)]
    for each in lists:
        each.extend(lists)
    return lists


@pytest.mark.parametrize("make", [
    lambda: doubled(60, []),
    lambda: (doubled(30, []), {1: doubled(30, [])}),
    lambda: doubled(15, ["ha" * 500]),
    lambda: doubled(15, [b"ha" * 500]),
    lambda: doubled(15, [1 << 10_000]),
    lambda: {"a": slice(doubled(50, [])), "b": 1},
    lambda: (doubled(10, [1] * 60_000),),
    lambda: each_in_each(14),
], ids=["lists", "two halves", "texts", "bytes", "large numbers", "a slice", "a long list", "cycles"])
def test_a_value_that_is_endless_when_written_out_is_refused(talk, make):
    vars_of(talk)["make"] = make
    with pytest.raises(ProtocolError, match="at most (20,000,000|500,000) are accepted"):
        talk.lab.make()
    with pytest.raises(ProtocolError):
        talk.lab.echo(1)


def vars_of(talk):
    return vars(talk.far_peer().handles.own_objects[talk.lab._far_id])


def test_what_contains_itself_or_another_several_times_still_crosses(talk):
    ring, shared = [1], [0] * 1000
    ring.append(ring)
    vars_of(talk).update(make_ring=lambda: ring, make_shared=lambda: ([shared] * 1000, {"a": shared}))
    mine = talk.lab.make_ring()
    assert mine[1] is mine and repr(mine) == "[1, [...]]"
    rows, table = talk.lab.make_shared()
    assert len(rows) == 1000 and all(row is table["a"] for row in rows)


@pytest.mark.parametrize("keeps", ["all lists", "the innermost list only"])
def test_shared_containers_cannot_grow_bit_by_bit_without_end(talk, keeps):
    """Build 2 ** 15 references to an empty list, which is then filled: the value that arrived first is too large."""
    innermost = []
    kept = [innermost]

    def make():
        value = doubled(15, innermost)
        kept.extend([value] if keeps == "all lists" else [])
        return value

    vars_of(talk).update(make=make, grow=lambda: innermost.extend(range(2000)), nothing=lambda: None)
    held = talk.lab.make()
    talk.lab.nothing()  # the other side drops what it does not keep
    with pytest.raises(ProtocolError, match="at most 20,000,000 are accepted"):
        talk.lab.grow()
    del held


def test_a_tuple_that_contains_a_list_many_times_counts_it_as_often(talk):
    items = []
    vars_of(talk).update(make=lambda: (items,) * 10_000, grow=lambda: items.extend(range(3000)))
    held = talk.lab.make()
    with pytest.raises(ProtocolError, match="at most 20,000,000 are accepted"):
        talk.lab.grow()
    del held


def test_an_endless_argument_of_an_exception_is_never_written_out(talk):
    far = talk.far_peer()
    encode = far.errors.encode
    vars_of(talk)["items"] = items = doubled(50, [])
    far.errors.encode = lambda error, out: [*encode(error, out)[:1], far.writing.encode((items,), out), "m", None]
    with pytest.raises(ProtocolError, match="at most 20,000,000 are accepted"):
        raise_far(talk, "ValueError('m')")


# ---- exceptions


def test_what_is_raised_there_is_raised_here(talk):
    thing = talk.lab.Thing()
    with pytest.raises(KeyError) as caught:
        thing.raises(KeyError("a", 3))
    assert caught.value.args == ("a", 3)
    with pytest.raises(talk.lab.Exploding) as exploded:
        raise_far(talk, "Exploding()")
    assert "is not available" in str(exploded.value)


def raise_far(talk, expression):
    namespace = vars(talk.far_peer().handles.own_objects[talk.lab._far_id])
    namespace["boom"] = lambda: (_ for _ in ()).throw(eval(expression, {**globals(), **namespace}))
    talk.lab.boom()


@pytest.mark.parametrize("name", ["KeyboardInterrupt", "GeneratorExit", "TimeLimitExceeded", "NotRun", "Skipped"])
def test_nobody_can_raise_the_graders_own(talk, name):
    """Check that an exception with the name of one of the grader's is not the grader's."""
    from course.core.failure_messages import NotRun, TimeLimitExceeded, class_name
    with pytest.raises(BaseException) as caught:
        base = "KeyboardInterrupt" if name == "KeyboardInterrupt" else "Exception"
        raise_far(talk, f"type({name!r}, ({base},), {{}})()")
    assert not isinstance(caught.value, (KeyboardInterrupt, GeneratorExit, TimeLimitExceeded, NotRun))
    assert class_name(caught.value) not in ("TimeLimitExceeded", "NotRun", "Skipped")


# ---- what the sandbox may do


@pytest.fixture
def far_get(talk):
    """Return a function that reads an attribute of a handed-in object as the student's code would."""
    return lambda owner, name: talk.lab.attribute(owner, name)


@pytest.mark.parametrize("name", ["__class__", "__init__", "__dict__", "_tables", "__reduce_ex__", "__globals__"])
def test_private_names_are_out_of_reach(talk, name):
    request = Request("r", [1, 2])
    got = None
    try:
        got = talk.lab.call(lambda: None) or talk.lab.attribute(request, name)
    except (AttributeError, TypeError):
        return
    assert not isinstance(got, (dict, type)) or isinstance(got, Remote), f"{name} gave {got!r}"


def test_functions_generators_and_modules_give_nothing_away(talk):
    def generator():
        yield 1

    for owner, name in ((lambda: None, "__globals__"), (lambda: None, "__code__"), (generator(), "gi_frame"),
                        (generator(), "gi_code"), (Request("r", [1]).append_output_token, "__func__")):
        with pytest.raises(AttributeError):
            talk.lab.attribute(owner, name)
    with pytest.raises(TypeError, match="may not enter the sandbox"):
        talk.lab.echo(json)


def test_what_was_handed_in_cannot_be_replaced(talk):
    pool, request = BlockPool(6), Request("r", [1, 2])
    for owner, name, value in ((pool, "blocks", []), (pool, "get_num_free_blocks", len), (pool, "num_blocks", 1),
                               (request, "append_output_token", print), (request, "_x", 1), (BlockPool, "touch", 1)):
        with pytest.raises(AttributeError):
            talk.lab.set_attribute(owner, name, value)
    talk.lab.set_attribute(request, "num_computed_tokens", 2)
    assert request.num_computed_tokens == 2 and len(pool.blocks) == 6 and pool.get_num_free_blocks() == 5


def test_only_the_state_of_a_request_can_be_set(talk):
    request = Request("r", [1, 2])
    for name, value in (("request_id", "s"), ("prompt_token_ids", []), ("all_token_ids", []), ("output_token_ids", [1]),
                        ("sampling_params", None), ("priority", Priority.HIGH), ("extra_keys", ("x",))):
        with pytest.raises(AttributeError):
            talk.lab.set_attribute(request, name, value)
    talk.lab.set_attribute(request, "status", RequestStatus.RUNNING)
    assert repr(request) == "Request('r', prompt=2, output=0, computed=0, RUNNING)"


def test_a_network_can_be_called_and_not_taken_apart(talk):
    config = dict(model_type="llama", vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                  num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=8, rms_norm_eps=1e-5,
                  rope_theta=10000.0, tie_word_embeddings=False)
    model = make_model(ModelConfig.from_dict(config), random_weights(config, seed=0))
    assert talk.lab.attribute(talk.lab.attribute(model, "config"), "num_layers") == 1
    for name in ("update", "parameters", "load_weights", "apply", "lm_head", "set_dtype", "pop", "clear", "__dict__"):
        with pytest.raises(AttributeError):
            talk.lab.attribute(model, name)
    for operator, *args in (("setitem", "lm_head", None), ("getitem", "lm_head"), ("delitem", "lm_head")):
        with pytest.raises(TypeError):
            talk.lab.operate(operator, model, *args)


def test_the_containers_of_what_was_handed_in_stay_as_they_are(talk):
    """Check that the sandbox sees the containers, and that the next message undoes what it does to its copy."""
    pool = BlockPool(6)
    namespace = vars(talk.far_peer().handles.own_objects[talk.lab._far_id])
    namespace["empty"] = lambda pool: pool.blocks.clear()
    talk.lab.empty(pool)
    assert len(pool.blocks) == 6
    namespace["count"] = lambda pool: len(pool.blocks)
    assert talk.lab.count(pool) == 6
    request = Request("r", [1])
    namespace["change"] = lambda request: (request.prompt_token_ids.append(2), request.output_token_ids.append(3))
    talk.lab.change(request)
    assert (request.prompt_token_ids, request.output_token_ids) == ([1], [3]), "what it says is the file's to say"
    namespace["mine"] = lambda pool: (pool.get_new_blocks(2) + [1])[:1].clear()
    talk.lab.mine(pool)
    assert pool.get_num_free_blocks() == 3


def test_keys_of_the_graders_are_compared_by_the_grader(talk):
    """Check that two keys are equal in the sandbox if and only if they are equal here."""
    namespace = vars(talk.far_peer().handles.own_objects[talk.lab._far_id])
    namespace["equal"] = lambda a, b: (a == b, hash(a) == hash(b), a != b)
    assert talk.lab.equal(BlockHash(None, (1, 2)), BlockHash(None, (1, 2))) == (True, True, False)
    assert talk.lab.equal(BlockHash(None, (1, 2)), BlockHash(None, (1, 3)))[0] is False


def test_calls_to_and_fro_are_bounded(talk):
    namespace = vars(talk.far_peer().handles.own_objects[talk.lab._far_id])
    depth = [0]

    def bounce(function):
        depth[0] += 1
        return function(bounce)

    namespace["bounce"] = lambda function: function(namespace["bounce"])
    with pytest.raises(RecursionError):
        talk.lab.bounce(bounce)
    assert depth[0] <= MAX_NESTED_CALLS
    assert talk.lab.echo(1) == 1, "the conversation goes on"


def test_another_thread_may_not_talk(talk):
    namespace = vars(talk.far_peer().handles.own_objects[talk.lab._far_id])

    def in_thread(function):
        errors = []

        def work():
            try:
                function()
            except Exception as error:
                errors.append(type(error).__name__)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return errors

    namespace["in_thread"] = in_thread
    assert talk.lab.in_thread(lambda: 1) == ["RuntimeError"]


# ---- bytes


def frame(text, size=None, text_size=None):
    return struct.pack("!II", len(text) if size is None else size, len(text) if text_size is None else text_size) + text


GARBAGE = {
    "too large": frame(b"", size=MAX_MESSAGE_BYTES + 1, text_size=0),
    "longer inside than outside": frame(b"[]", size=2, text_size=9),
    "no JSON": frame(b"\xff\xfe[["),
    "deep": frame(b'["!", 1,' + b"[" * 100_000 + b"]" * 100_000 + b"]"),
    "deep tuples": frame(b'["!", 1,' + b'["t",' * 80 + b"1" + b"]" * 80 + b"]"),
    "no list": frame(b'{"a": 1}'),
    "an unknown kind": frame(b'["&", 1]'),
    "an unknown tag": frame(b'["!", 1, ["q", 1]]'),
    "an object that was never handed out": frame(b'["!", 1, ["o", 99]]'),
    "a handle of no class": frame(b'["!", 1, ["h", 1, 77, null]]'),
    "a handle with a list for a name": frame(b'["!", 1, ["h", 1, 1, [[], [], 3, 4, 5, 6, 7]]]'),
    "a container of ours": frame(b'["!", 1, ["l", 2, [1]]]'),
    "a change of nothing": frame(b'["!", 1, 1, [[3, [1]]], [], [], []]'),
    "an array that is too short": frame(b'["!", 1, ["A", "<f8", [100000000], 8, false]]'),
    "an array of objects": frame(b'["!", 1, ["A", "|O", [1], 0, false]]'),
    "an array of negative size": frame(b'["!", 1, ["A", "<f8", [-1, -1], 0, false]]'),
    "a number for a name": frame(b'["?", 1, ["get", ["o", 1], 3]]'),
    "a class of nobody's": frame(b'["!", 1, ["e", "os.path", "x"]]'),
    "a text that is raised": frame(b'["x", 1, "ValueError"]'),
    "an enum's value by another name": frame(b'["!", 1, ["e", "mini_vllm.request.RequestStatus", "mro"]]'),
    "a huge number": frame(b'["!", 1, ' + b"9" * 5000 + b"]"),
    "a tuple with odd fields": frame(b'["!", 1, ["n", "x.Y", ["class", "__init__"], 1, 2]]'),
    "a range that cannot be": frame(b'["!", 1, ["r", 1, "a", {}]]'),
    "an answer to another question": frame(b'["!", 2, 1]'),
    "a question without a number": frame(b'["?", "1", ["get", ["o", 1], "x"]]'),
    "a long range": frame(b'["!", 1, ["r", 0, 1000000000000000, 1]]'),
    "a long range backwards": frame(b'["!", 1, ["r", 0, -1000000000000000, -1]]'),
    "a long text": frame(b'["!", 1, "' + b"a" * (MAX_TEXT_CHARACTERS + 1) + b'"]'),
    "a long tuple": frame(b'["!", 1, ["t"' + b",1" * (MAX_ITEMS + 3) + b"]]"),
    "a long text in a change": frame(b'["!", 1, 1, [[3, ["' + b"a" * (MAX_TEXT_CHARACTERS + 1) + b'"]]], [], [], []]'),
    "an object of JSON": frame(b'["!", 1, {"a": "' + b"a" * MAX_TEXT_CHARACTERS + b'"}]'),
    "many bytes": frame(b'["!", 1, ["b", %d]]' % (MAX_BYTES + 1) + bytes(MAX_BYTES + 1),
                        text_size=len(b'["!", 1, ["b", %d]]' % (MAX_BYTES + 1))),
    "nothing at all": b"",
}


@pytest.mark.parametrize("what", GARBAGE)
def test_no_bytes_of_the_sandbox_do_more_than_end_the_conversation(what):
    ends = socket.socketpair()
    near = Peer(Wire(ends[0], lambda: None), GraderPermissions(Surface({})), 2, trusts_other=False, find_class=known)
    threading.Thread(target=lambda: (ends[1].recv(1 << 16), ends[1].sendall(GARBAGE[what]), ends[1].close()),
                     daemon=True).start()
    try:
        with pytest.raises(ProtocolError):
            near.request("load")
        with pytest.raises(ProtocolError):
            near.request("load")
    finally:
        ends[0].close()


def test_a_silent_sandbox_is_looked_at_again_and_again():
    ends = socket.socketpair()
    looks = []

    def look():
        looks.append(1)
        if len(looks) > 5:
            raise Gone("enough")

    near = Peer(Wire(ends[0], look), GraderPermissions(Surface({})), 2, trusts_other=False, find_class=known)
    with pytest.raises(Gone, match="enough"):
        near.request("load")
    ends[0].close()
    ends[1].close()


# ---- calls that wait


def test_calls_whose_results_nobody_wants_go_along_with_the_next_one(talk, monkeypatch):
    monkeypatch.setattr(measure, "where", SandboxMeasures(talk))
    thing = talk.lab.Thing()
    waiting, num_requests = measure.deferring(thing, "twice", "raises"), talk.num_requests
    assert [waiting.twice() for _ in range(3)] == [None] * 3
    assert talk.num_requests == num_requests
    assert list(measure.repeated(waiting, "twice", 2)) == [48, 96]
    assert talk.num_requests == num_requests + 1, "five calls are one message"
    waiting.twice()
    measure.flush(waiting)
    assert thing.number == 192
    waiting.raises(ValueError("late"))
    with pytest.raises(ValueError, match="late"):
        measure.flush(waiting)


def test_what_waits_is_bounded_and_results_are_counted(talk, monkeypatch):
    monkeypatch.setattr(measure, "where", SandboxMeasures(talk))
    thing = talk.lab.Thing(0)
    waiting, num_requests = measure.deferring(thing, "twice"), talk.num_requests
    for _ in range(MAX_DEFERRED):
        waiting.twice()
    assert talk.num_requests == num_requests + 1
    monkeypatch.setattr(talk.far_peer().doing, "_do_all", lambda *args: (1,))
    with pytest.raises(TypeError, match="2 calls must have 2 results"):
        list(measure.repeated(waiting, "twice", 2))


def test_an_object_of_ones_own_is_called_at_once(talk, monkeypatch):
    monkeypatch.setattr(measure, "where", SandboxMeasures(talk))
    thing = Thing()
    assert measure.deferring(thing, "twice") is thing
    assert list(measure.repeated(thing, "twice", 2)) == [6, 12]

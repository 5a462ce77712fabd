"""One side of the conversation. Both sides ask and answer in turns, and only one of them runs at a time.

    grader                                       sandbox
    lab.BlockPool(6)          ── ? call ──▶      runs the student's code …
    clock()                   ◀── ? call ──      … which calls something that was handed in
                              ── ! 3.0 ──▶
    <BlockPool>               ◀── ! h 7 ──       … and answers with a handle

A side may ask questions while it answers one, up to a maximum depth. Its policy decides whether it does what it is
asked to do. Questions are numbered, and an answer names its question.
"""

from __future__ import annotations

import enum
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from course.grading.protocol.access_rules import Permissions
from course.grading.protocol.bounds import MAX_ITERATED, MAX_MESSAGES_A_CALL, SMALL_MESSAGE_BYTES, check, check_message
from course.grading.protocol.decode import Reading
from course.grading.protocol.encode import Writing
from course.grading.protocol.exceptions import Errors
from course.grading.protocol.expanded_size import check_expanded
from course.grading.protocol.handles import Handles
from course.grading.protocol.message_bytes import NO_BYTES, Incoming, Outgoing
from course.grading.protocol.perform import Doing
from course.grading.protocol.shared_containers import Mirrors
from course.grading.protocol.socket_messages import Gone, ProtocolError, Wire
from course.grading.protocol.tags import SCALARS, text_of

#: How deep calls may be nested: the grader calls the sandbox, which calls the grader, …
MAX_NESTED_CALLS = 60
#: Live handles and shared containers; far more than any test needs.
MAX_LIVE = 200_000
#: A question; its answer; the answer to a question that only read or set a plain attribute; a raised exception.
_KINDS = ("?", "!", "=", "x")
#: The exceptions that decoding raises for data that no honest side sends.
_CANNOT_BE = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError)


class Peer:
    """Asks the other side questions, and answers its questions."""

    def __init__(self, wire: Wire, policy: Permissions, first_id: int, *, trusts_other: bool,
                 find_class: Callable[[str], type | None], find_enum: Callable[[str], type | None] | None = None,
                 file_name: str | None = None) -> None:
        self._wire = wire
        self._policy = policy
        self._find_class = find_class
        self._find_enum = find_enum or find_class
        #: Whether values that are a little more than data (such as a subclass of int) leave this side as plain data.
        self.flattens = trusts_other
        self.mirrors = Mirrors(first_id)
        self.writing, self.reading = Writing(self), Reading(self)
        self.errors = Errors(self, find_class, file_name)
        self.handles = Handles(self, policy, trusts_other, find_class)
        self.doing = Doing(policy, self.handles)
        #: Incremented whenever the other side has had its turn: cached values of its objects may be out of date.
        self.turn = 0
        self._depth = 0
        self._thread = threading.get_ident()
        self.num_requests = self.num_answered = 0
        self._num_asked = 0
        self._num_iterated: Counter[int] = Counter()
        #: Enums of this side of which the other side has received a member.
        self.told_enums: set[str] = set()
        self._trusts_other = trusts_other
        #: A message was cut off, or could not be read: no more questions can be asked.
        self.is_broken = False

    # ---- asking

    def request(self, what: str, *args: Any) -> Any:
        """Have the other side do something. Raise what it raises, and ProtocolError if it breaks the rules."""
        if threading.get_ident() != self._thread:
            raise RuntimeError("only the thread that was called may use the objects that it was given")
        if self._depth >= MAX_NESTED_CALLS:
            raise RecursionError(f"more than {MAX_NESTED_CALLS} nested calls between the two sides")
        self.num_requests += 1
        self._depth += 1
        try:
            if what not in ("get", "set"):
                self.turn += 1
            if self.is_broken:
                raise Gone("its process had to be ended earlier in this test")
            self._num_asked += 1
            number = self._num_asked
            self._send("?", number, [what, *args])
            kind, answer = self._await_answer(number)
        finally:
            self._depth -= 1
        if kind == "x":
            raise answer
        return answer

    def _await_answer(self, asked: int) -> tuple[str, Any]:
        """Return the answer to question number ``asked``. Answer the other side's questions while waiting.

        After any exception here the two sides are out of step, so no more questions can be asked.
        """
        try:
            num_before = self.num_answered
            while True:
                kind, number, body, incoming = self._receive()
                if kind == "?":
                    check("{} questions during one call", self.num_answered - num_before, MAX_MESSAGES_A_CALL)
                    self._answer(number, body, incoming)
                    continue
                if number != asked:
                    raise ProtocolError("an answer without a question")
                if kind != "=":  # it did more than read or set a plain attribute: the other side may have changed
                    self.turn += 1
                answer = self._decoding(body, incoming)
                if kind == "x" and not isinstance(answer, BaseException):
                    raise ProtocolError("something other than an exception was raised")
                return kind, answer
        except BaseException:
            self.is_broken = True
            raise

    def serve(self) -> None:
        """Answer until the other side is gone."""
        while True:
            kind, number, body, incoming = self._receive()
            if kind != "?":
                raise ProtocolError("an answer that no call waits for")
            self._answer(number, body, incoming)

    def _answer(self, number: Any, body: Any, incoming: Incoming) -> None:
        self.turn += 1
        self.num_answered += 1
        ahead: Sequence[int] = ()
        is_guarded = False
        try:
            request = self._decoding_list(body, incoming)
            answer, is_plain, ahead = self.doing.do(*request)
            kind = "=" if is_plain else "!"
            is_guarded = request[0] == "get" and self._policy.guards(*request[1:])
        except ProtocolError:
            raise
        except BaseException as error:
            if not self._trusts_other and not isinstance(error, Exception):
                raise  # this concerns only the grader: a time limit, or a test that has failed
            kind, answer = "x", error
        self._reply(kind, number, answer, is_guarded, ahead)
        self.turn += 1

    def _reply(self, kind: str, number: Any, value: Any, is_guarded: bool, ahead: Sequence[int]) -> None:
        try:
            self._send(kind, number, value, is_guarded, ahead)
        except (TypeError, ProtocolError) as error:  # the value cannot be handed out, or is too large
            if kind == "x" or type(error) is not TypeError and "allowed" not in str(error):
                raise
            self._send("x", number, TypeError(str(error)))

    def count_item(self, far_id: int) -> None:
        """Count one more item taken from an iterator of the other side. Raise TooMuch if there are too many."""
        self._num_iterated[far_id] += 1
        check("{} items of one iterator", self._num_iterated[far_id], MAX_ITERATED)

    # ---- messages

    def _send(self, kind: str, number: Any, body: Any, is_guarded: bool = False,
              ahead: Sequence[int] = ()) -> None:
        """Send a message, with all changes since the last one, so that both sides see the same. ``ahead`` contains
        the numbers of objects whose attributes are sent along. Everything is written in the order in which it is
        read."""
        out = Outgoing()
        fields = [self.handles.fields(own_id, out) for own_id in ahead] if ahead else ()
        updates, drops = self._changes(out) if len(self.mirrors) else ([], [])
        if is_guarded:
            out.is_guarded = True
        encode = self.writing.encode
        if kind == "?":
            body = [each if type(each) in SCALARS else encode(each, out) for each in body]
        elif type(body) not in SCALARS:
            body = encode(body, out)
        message = [kind, number, body]
        releases = self.handles.releases()
        if drops or updates or releases or fields:
            message += [updates, drops, releases, list(fields)]
        if len(self.handles.own_objects) + len(self.mirrors) > MAX_LIVE:
            raise ProtocolError(f"more than {MAX_LIVE:,} objects are held at once")
        self._wire.send(message, out)

    def _changes(self, out: Outgoing) -> tuple[list[Any], list[int]]:
        """Return the new contents of changed shared containers, and the ids of those that this side no longer needs."""
        updates = [[mirror_id, self.writing.encode_items(value, out)] for mirror_id, value in self.mirrors.changed()]
        return updates, self.mirrors.drop_unused()

    def _receive(self) -> tuple[str, Any, Any, Incoming]:
        """Return the kind, the number and the body of the next message, and the bytes that belong to the body."""
        message, rest = self._wire.receive()
        if type(message) is not list or len(message) not in (3, 7) or message[0] not in _KINDS \
                or type(message[1]) is not int:
            raise ProtocolError("not a message")
        if self._wire.num_last_bytes > SMALL_MESSAGE_BYTES and not self._trusts_other:
            check_message(message)
        incoming = Incoming(rest) if rest else NO_BYTES
        if len(message) == 7:
            try:
                self._take_in(incoming, *message[3:])
            except _CANNOT_BE as error:
                raise ProtocolError(f"an impossible change: {error!r:.200}") from None
        return message[0], message[1], message[2], incoming

    def _take_in(self, incoming: Incoming, updates: list[Any], drops: list[int], releases: list[int],
                 ahead: list[Any]) -> None:
        self.handles.take_ahead(ahead, incoming)
        for mirror_id, items in updates:
            self.mirrors.overwrite(mirror_id, self.reading.decode_like(self.mirrors.get(mirror_id), items, incoming))
        self.mirrors.drop(drops)
        self.handles.release(releases)

    def _decoding(self, body: Any, incoming: Incoming) -> Any:
        try:
            value = self.reading.decode(body, incoming)
        except _CANNOT_BE as error:
            raise ProtocolError(f"an impossible value: {error!r:.200}") from None
        self._check_expanded(value)
        return value

    def _decoding_list(self, body: Any, incoming: Incoming) -> list[Any]:
        if type(body) is not list or not body or type(body[0]) is not str:
            raise ProtocolError("not a request")
        decode = self.reading.decode
        try:
            values = [body[0], *[each if type(each) in SCALARS else decode(each, incoming) for each in body[1:]]]
        except _CANNOT_BE as error:
            raise ProtocolError(f"an impossible value: {error!r:.200}") from None
        self._check_expanded(values)
        return values

    def _check_expanded(self, value: Any) -> None:
        """Check the size of a new value and of all shared containers: each may have changed with this message."""
        if self.reading.has_repeated and self.reading.may_be_larger and not self._trusts_other:
            check_expanded([(value, 1), *self.mirrors.counted()])
            self.reading.may_be_larger = False

    def check_new_mirror(self, mirror_id: Any) -> int:
        if type(mirror_id) is not int or mirror_id % 2 == self.mirrors.parity:
            raise ProtocolError(f"the other side may not issue the id {mirror_id!r:.40}")
        if len(self.mirrors) > MAX_LIVE:
            raise ProtocolError(f"more than {MAX_LIVE:,} containers are shared")
        return mirror_id

    # ---- names that both sides know

    def enum_key(self, kind: type) -> str | None:
        """Return the name by which both sides know an enum; None for an enum that only this side has."""
        name = f"{kind.__module__}.{kind.__qualname__}"
        if self._find_class(name) is not kind:
            return None
        self.told_enums.add(name)
        return name

    def enum_class(self, key: Any) -> Any:
        found = self._find_enum(text_of(key))
        if not (isinstance(found, type) and issubclass(found, enum.Enum)):
            raise ProtocolError(f"not an enum: {key!r:.80}")
        return found

    def known_tuple(self, name: str, fields: tuple[str, ...]) -> type | None:
        """Return the named tuple class on this side with this name and these fields, or None if there is none."""
        found = self._find_class(name)
        return found if found is not None and getattr(found, "_fields", None) == fields else None

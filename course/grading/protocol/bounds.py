"""Limits on the data from a sandbox. A file that exceeds one fails the test, and the message names the limit.

Each bound is many times what any test of the course needs.
"""

from __future__ import annotations

from typing import Any

from course.grading.protocol.socket_messages import ProtocolError

MAX_TEXT_CHARACTERS = 1_000_000
#: The size of one value of type bytes.
MAX_BYTES = 1_000_000
#: Items of one list, tuple, set or dictionary, and the length of a range.
MAX_ITEMS = 200_000
MAX_ARRAY_BYTES = 32 << 20
#: All data that arrives during one test.
MAX_BYTES_A_TEST = 256 << 20
MAX_MESSAGES_A_TEST = 500_000
#: The questions that the file may ask during one call.
MAX_MESSAGES_A_CALL = 200_000
#: The items that the grader takes from one iterator of the file.
MAX_ITERATED = 200_000
#: Items and characters of all shared containers, each container counted again wherever it is referenced.
MAX_EXPANDED = 20_000_000
#: The same for cycles of containers, which take more steps to count.
MAX_AGAIN = 500_000
#: A message smaller than this has no room for a text or a container that is too large.
SMALL_MESSAGE_BYTES = min(MAX_TEXT_CHARACTERS, 2 * MAX_ITEMS)


class TooMuch(ProtocolError):
    """Raised when a bound is exceeded."""


def check(what: str, amount: int, bound: int) -> None:
    """Raise TooMuch, with both numbers, if ``amount`` exceeds ``bound``. ``what`` contains a {} for the amount."""
    if amount > bound:
        raise TooMuch(f"the file under test sent {what.format(f'{amount:,}')}; at most {bound:,} are accepted")


def check_message(message: Any) -> None:
    """Check every text and list of a large message before anything is built from them."""
    waiting = [message]
    while waiting:
        value = waiting.pop()
        if type(value) is str:
            check("a text of {} characters", len(value), MAX_TEXT_CHARACTERS)
        elif type(value) is list:
            check("a container of {} items", len(value), MAX_ITEMS + 3)  # the tag and the other fields before the items
            waiting += [each for each in value if type(each) in (str, list)]
        elif type(value) is dict:
            raise ProtocolError("a message may not contain JSON objects")


def check_range(found: range) -> range:
    if found:
        check("a range of {} numbers", (found[-1] - found[0]) // found.step + 1, MAX_ITEMS)
    return found

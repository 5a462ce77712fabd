"""The choice of models to unload, tested with numbers only: no model is loaded."""

from dataclasses import dataclass

import pytest

from mini_vllm.server.errors import ApiError
from mini_vllm.server.models.model_eviction import who_must_go


@dataclass
class Book:
    name: str
    num_bytes: int
    last_used: int
    may_go: bool = True


def leaving(num_bytes, limit_bytes, *books):
    return "".join(book.name for book in who_must_go("new", num_bytes, books, limit_bytes))


OLD, MIDDLE, YOUNG = Book("o", 10, 1), Book("m", 30, 2), Book("y", 20, 3)


@pytest.mark.parametrize("num_bytes, limit_bytes, wanted", [
    (1000, None, ""), (40, 100, ""), (41, 100, "o"), (50, 100, "o"), (51, 100, "om"), (80, 100, "om"),
    (81, 100, "omy"), (100, 100, "omy"),
])
def test_the_least_recently_used_go_and_no_more_than_needed(num_bytes, limit_bytes, wanted):
    got = leaving(num_bytes, limit_bytes, YOUNG, OLD, MIDDLE)
    assert got == wanted, f"60 bytes are taken, {num_bytes} are needed, the limit is {limit_bytes}"


def test_who_is_in_use_stays_and_the_next_goes_instead():
    used = Book("u", 10, 0, may_go=False)
    assert leaving(30, 50, used, OLD, YOUNG) == "oy", "40 bytes are taken, and 10 of them cannot be had"
    assert leaving(10, 50, used, OLD, YOUNG) == ""


@pytest.mark.parametrize("num_bytes, code, headers", [
    (41, "no_room", {"Retry-After": "5"}), (50, "no_room", {"Retry-After": "5"}), (51, "model_too_large", {}),
])
def test_what_has_no_room_is_told_whether_to_ask_again(num_bytes, code, headers):
    with pytest.raises(ApiError, match="the model 'new'") as caught:
        leaving(num_bytes, 50, Book("u", 10, 0, may_go=False), YOUNG)
    assert (caught.value.status, caught.value.code, caught.value.headers) == (503, code, headers)

"""Who is next where requests wait for work that only a few may do at once."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from mini_vllm.request import Priority
from mini_vllm.server.access.turns import ANYONE, Turns
from mini_vllm.server.errors import ApiError

NORMAL, HIGH, LOW = Priority.NORMAL, Priority.HIGH, Priority.LOW


def order(holders, most=1, **options):
    """Let all of these wait for a turn, in this order, while another one has all turns. Return who got one when."""
    async def main():
        turns, got, tasks = Turns(most, **options), [], []

        async def wait(number, holder):
            async with turns.turn(holder):
                got.append(number)
                await asyncio.sleep(0)

        async with AsyncExitStack() as stack:
            for _ in range(most):
                await stack.enter_async_context(turns.turn(ANYONE))
            for number, holder in enumerate(holders):
                tasks.append(asyncio.create_task(wait(number, holder)))
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert not any(turns._running.values()) and not any(turns._waiting.values())
        return got

    return asyncio.run(main())


def test_keys_are_served_in_turn_and_the_requests_of_a_key_in_order():
    assert order([(NORMAL, "a")] * 4 + [(NORMAL, "b")] * 2) == [0, 4, 1, 5, 2, 3]


def test_the_best_priority_is_served_first():
    assert order([(NORMAL, "a"), (LOW, "b"), (NORMAL, "a"), (HIGH, "c"), (HIGH, "c")]) == [3, 4, 0, 2, 1]


def test_no_key_has_all_turns():
    async def main():
        turns = Turns(most=2)
        async with turns.turn((HIGH, "a")):
            second = asyncio.create_task(_enter(turns, (HIGH, "a")))
            await asyncio.sleep(0)
            assert not second.done()
            async with turns.turn((LOW, "b")):
                assert not second.done()
        await second
        async with turns.turn(ANYONE), turns.turn(ANYONE):
            pass  # without keys there is nobody to keep a turn for

    asyncio.run(asyncio.wait_for(main(), 10))


async def _enter(turns, holder):
    async with turns.turn(holder):
        pass


def test_a_key_may_wait_only_so_often():
    async def main():
        turns = Turns(most=1, max_waiting=3)
        async with turns.turn((NORMAL, "a")):
            waiting = [asyncio.create_task(_enter(turns, (NORMAL, "a"))) for _ in range(3)]
            await asyncio.sleep(0)
            with pytest.raises(ApiError, match="3 requests of this key wait to be prepared, the limit is 3") as caught:
                await _enter(turns, (NORMAL, "a"))
            assert caught.value.status == 429
            other = asyncio.create_task(_enter(turns, (NORMAL, "b")))
            waiting[1].cancel()
            await asyncio.sleep(0)
            again = asyncio.create_task(_enter(turns, (NORMAL, "a")))
        await asyncio.gather(waiting[0], waiting[2], other, again)

    asyncio.run(asyncio.wait_for(main(), 10))


@pytest.mark.parametrize("is_given", [False, True])
def test_a_request_that_leaves_passes_its_turn_on(is_given):
    async def main():
        turns = Turns(most=1)
        async with turns.turn((NORMAL, "a")):
            leaving, staying = (asyncio.create_task(_enter(turns, (NORMAL, name))) for name in "bc")
            await asyncio.sleep(0)
            if not is_given:
                leaving.cancel()
                await asyncio.sleep(0)
        leaving.cancel()  # it has its turn, and does not know it yet
        await staying
        await _enter(turns, (NORMAL, "d"))

    asyncio.run(asyncio.wait_for(main(), 10))

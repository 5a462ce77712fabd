"""Models are loaded on first use, and unloaded when others need the room, but never while a request uses them."""

import asyncio
import shutil
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mini_vllm.backend import mx
from mini_vllm.engine_frame import load_for
from mini_vllm.engine_thread import EngineStoppedError
from mini_vllm.request import SamplingParams
from mini_vllm.server.app import make_app
from mini_vllm.server.conftest import Client, settings_for
from mini_vllm.server.errors import ApiError
from mini_vllm.server.models import loaded_model
from mini_vllm.server.models import model_registry as shelf_module
from mini_vllm.server.models.loaded_model import estimated_bytes, public_names
from mini_vllm.server.models.model_registry import ModelBusyError, ModelShelf

GREEDY = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)


@pytest.fixture
def folders(shallow):
    return [shallow(name) for name in ("llama2", "llama3", "qwen2")]


def on_shelf(main, *folders, **settings):
    async def run():
        shelf = ModelShelf(settings_for(*folders, **settings))
        try:
            return await main(shelf, *(folder.name for folder in folders))
        finally:
            await shelf.close()
    return asyncio.run(run())


async def use(shelf, name):
    async with shelf.lease(name) as loaded_model:
        return loaded_model


def loaded(shelf):
    return [loaded_model.name for loaded_model in shelf.loaded()]


def test_a_model_is_loaded_once_when_it_is_first_asked_for(folders):
    async def main(shelf, a, b, c):
        assert shelf.names() == [a, b, c] and loaded(shelf) == []
        loaded_model = await asyncio.gather(*(use(shelf, b) for _ in range(5)))
        assert len({id(one.engine) for one in loaded_model}) == 1 and loaded(shelf) == [b]
        other = await use(shelf, a)
        assert other.engine is not loaded_model[0].engine and loaded(shelf) == [b, a], "the last used is last"
        await use(shelf, b)
        assert loaded(shelf) == [a, b]
        assert not loaded_model[0].has_chat_template and loaded_model[0].config.model == str(folders[1])

    on_shelf(main, *folders)


def test_who_leaves_while_it_loads_does_not_stop_it(folders):
    async def main(shelf, a):
        first, second = asyncio.create_task(use(shelf, a)), asyncio.create_task(use(shelf, a))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).name == a and first.cancelled() and shelf.num_in_flight(a) == 0

    on_shelf(main, folders[0])


@pytest.fixture
def memory(folders):
    """Return a memory limit with room for two of the three models."""
    async def main(shelf, *names):
        return [(await use(shelf, name)).num_bytes for name in names]
    return sum(sorted(on_shelf(main, *folders))[-2:])


def test_the_least_recently_used_goes_when_another_needs_its_room(folders, memory):
    async def main(shelf, a, b, c):
        first = await use(shelf, a)
        await use(shelf, b)
        await use(shelf, a)
        await use(shelf, c)
        assert loaded(shelf) == [a, c]
        assert (await use(shelf, a)).engine is first.engine
        await use(shelf, b)
        assert loaded(shelf) == [a, b]

    on_shelf(main, *folders, memory=memory)


def test_no_model_with_requests_in_flight_goes(folders, memory):
    async def main(shelf, a, b, c):
        async with shelf.lease(a) as loaded_model, shelf.lease(b):
            outputs = loaded_model.engine.generate([1, 2, 3], GREEDY)
            await anext(outputs)
            with pytest.raises(ApiError, match="no room for the model .* try again later") as caught:
                await use(shelf, c)
            assert caught.value.status == 503 and caught.value.headers["Retry-After"] == "5"
            assert loaded(shelf) == [a, b] and [output async for output in outputs][-1].finish_reason == "length"
        await use(shelf, c)
        assert loaded(shelf) == [b, c] or loaded(shelf) == [a, c]

    on_shelf(main, *folders, memory=memory)


def test_a_model_that_never_fits_is_told_so(folders):
    async def main(shelf, a):
        with pytest.raises(ApiError, match="the server's limit for all models is 0 MB") as caught:
            await use(shelf, a)
        assert caught.value.status == 503 and loaded(shelf) == []

    on_shelf(main, folders[0], memory=1000)


def test_what_turns_out_larger_than_its_files_is_refused_before_its_cache_is_allocated(folders):
    """Check a KV cache given in blocks: its size in bytes is known only when the weights are loaded."""
    async def main(shelf, a):
        with pytest.raises(ApiError, match="takes"):
            await use(shelf, a)
        assert loaded(shelf) == []

    limit = estimated_bytes(settings_for(folders[0]).engine.__class__(model=folders[0], num_blocks=400)) + 1000
    on_shelf(main, folders[0], memory=limit)


def test_a_model_that_cannot_be_loaded_is_tried_again_by_the_next(tmp_path, folders, caplog):
    broken = tmp_path / "broken"
    broken.mkdir()

    async def main(shelf, a, b):
        for _ in range(2):  # first it is empty, then it does not exist
            with pytest.raises(ApiError, match="could not be loaded; the server's log says why") as caught:
                await use(shelf, a)
            assert caught.value.status == 503 and str(tmp_path) not in caught.value.message
            if broken.exists():
                broken.rmdir()
        assert (await use(shelf, b)).name == b and "broken" in caplog.text
        broken.mkdir()
        for file in folders[0].iterdir():
            (broken / file.name).write_bytes(file.read_bytes())
        assert (await use(shelf, a)).name == a

    on_shelf(main, broken, folders[1])


@pytest.fixture
def num_loads(monkeypatch):
    """Count how often the weights of each model are read."""
    counts = Counter()

    def counted(config, *rest):
        counts[Path(config.model).name] += 1
        return load_for(config, *rest)

    monkeypatch.setattr(loaded_model, "load_for", counted)
    return counts


ROOM_FOR_ONE = {"sizes": {"num_blocks": None, "kv_memory": "8MB"}, "memory": "12MB"}


def with_other_tensors(folder):
    mx.save_safetensors(str(folder / "model.safetensors"), {"a": mx.zeros(1)})


@pytest.mark.parametrize("spoil, num_tries", [
    (lambda folder: (folder / "tokenizer.json").write_text("{}"), 0),
    (lambda folder: (folder / "config.json").write_text("{}"), 0),
    (lambda folder: (folder / "model.safetensors").write_bytes(b"x"), 0),
    (with_other_tensors, 1),
], ids=["tokenizer", "config", "a header", "tensors"])
def test_a_damaged_model_throws_no_other_out_again_and_again(folders, tmp_path, caplog, num_loads, spoil, num_tries):
    """Check that errors visible in the files are found before other models are unloaded; other errors cost one load."""
    damaged = shutil.copytree(folders[0], tmp_path / "damaged")
    spoil(damaged)

    async def main(shelf, a, b):
        for _ in range(3):
            await use(shelf, b)
            with pytest.raises(ApiError, match="could not be loaded; the server's log says why"):
                await use(shelf, a)
        assert (num_loads[a], num_loads[b]) == (num_tries, 1 + num_tries)
        assert caplog.text.count("could not be loaded") == 1, "the log is not filled with it"
        for file in folders[0].iterdir():
            (damaged / file.name).write_bytes(file.read_bytes())
        assert (await use(shelf, a)).name == a, "a file has changed"

    on_shelf(main, damaged, folders[1], **ROOM_FOR_ONE)


def test_a_damaged_model_is_tried_again_after_a_while(folders, tmp_path, monkeypatch, num_loads):
    damaged = shutil.copytree(folders[0], tmp_path / "damaged")
    with_other_tensors(damaged)
    monkeypatch.setattr(shelf_module, "DAMAGED_S", 0)

    async def main(shelf, a):
        for _ in range(2):
            with pytest.raises(ApiError):
                await use(shelf, a)

    on_shelf(main, damaged)
    assert num_loads == {"damaged": 2}


def test_a_model_that_turned_out_too_large_throws_no_other_out_again(folders, num_loads):
    """Check that the size of its KV cache, known once its weights are loaded, is not measured by loading again."""
    async def main(shelf, a, b):
        shelf._place(a).configure(replace(shelf._place(a).config, num_blocks=4000))
        for _ in range(3):
            await use(shelf, b)
            with pytest.raises(ApiError, match="takes") as caught:
                await use(shelf, a)
            assert caught.value.code == "model_too_large"
        assert num_loads[a] == 1 and num_loads[b] <= 2

    on_shelf(main, *folders[:2], **ROOM_FOR_ONE)


def test_the_shelf_closes_while_a_model_is_loading(folders, monkeypatch):
    """Check that closing does not wait for the loading thread, which cannot be stopped and ends after the load."""
    goes_on, threads = threading.Event(), []

    def slow(*arguments):
        threads.append(threading.current_thread())
        assert goes_on.wait(60)
        return load_for(*arguments)

    async def main():
        shelf = ModelShelf(settings_for(folders[0]))
        waiting = asyncio.create_task(use(shelf, folders[0].name))
        while not threads:
            await asyncio.sleep(0)
        await shelf.close()
        assert threads[0].is_alive() and not goes_on.is_set()
        await asyncio.wait({waiting})
        assert waiting.cancelled() and shelf.loaded() == []

    monkeypatch.setattr(loaded_model, "load_for", slow)
    try:
        asyncio.run(main())
    finally:
        goes_on.set()
    threads[0].join(60)
    assert not threads[0].is_alive()


def test_an_engine_that_has_died_is_replaced(folders):
    async def main(shelf, a):
        with pytest.raises(EngineStoppedError):
            async with shelf.lease(a) as loaded_model:
                await loaded_model.engine.shutdown()
                await anext(loaded_model.engine.generate([1], GREEDY))
        assert (await use(shelf, a)).engine is not loaded_model.engine

    on_shelf(main, folders[0])


@pytest.mark.parametrize("stream", [False, True])
def test_who_asks_after_an_engine_has_died_is_answered(folders, stream, caplog):
    async def main(shelf, a):
        before = await use(shelf, a)
        die(before)
        while before.engine.ended_by is None:
            await asyncio.sleep(0)
        client = Client("/v1/completions", {"model": a, "prompt": "x", "max_tokens": 2, "stream": stream})
        await client.ask(make_app(settings_for(folders[0]), shelf))
        assert client.status == 200, client.data
        assert (await use(shelf, a)).engine is not before.engine
        assert f"{a} is loaded again: the engine has stopped: a message broke it" in caplog.text

    def die(loaded_model):
        def message(engine):
            raise ArithmeticError("a message broke it")
        loaded_model.engine._thread.inbox.put(message)

    on_shelf(main, folders[0])


def test_a_restart_changes_the_engine_and_its_seats(folders):
    async def main(shelf, a):
        before = await use(shelf, a)
        after = await shelf.restart(a, num_blocks=50, max_num_seqs=3)
        assert after.engine is not before.engine and after.feed is not before.feed
        assert (after.config.num_blocks, after.config.block_size) == (50, before.config.block_size)
        assert await after.engine.call(lambda engine: engine.kv_cache.block_pool.num_blocks) == 50
        assert shelf.seats(a).max_num_seqs == 3 and await use(shelf, a) is after

    on_shelf(main, folders[0])


def test_a_restart_that_would_exceed_the_memory_allocates_nothing(folders, monkeypatch):
    def never(*sizes):
        raise AssertionError("the KV cache was allocated")

    async def main(shelf, a):
        before = (await use(shelf, a)).config
        with monkeypatch.context() as patch:
            patch.setattr("mini_vllm.attention.PagedKVCache.__init__", never)
            with pytest.raises(ValueError, match=r"cannot be started with these sizes: it takes \d+ MB for weights and "
                                                 r"\d{3,} MB for its KV cache; 20 MB are left of the server's limit"):
                await shelf.restart(a, num_blocks=4096, block_size=256)
        assert (await use(shelf, a)).config == before, "it is served as before"

    on_shelf(main, folders[0], memory="20MB")


def test_a_restart_waits_for_nobody_and_breaks_nothing_unless_told(folders):
    async def main(shelf, a):
        async with shelf.lease(a) as loaded_model:
            outputs = loaded_model.engine.generate([1, 2], GREEDY)
            await anext(outputs)
            with pytest.raises(ModelBusyError, match="1 request in flight"):
                await shelf.restart(a, num_blocks=50)
            for changes in ({"num_blocks": 1}, {"max_num_seqs": 0}, {"none_such": 1}):
                with pytest.raises((ValueError, TypeError)):
                    await shelf.restart(a, abort_running=True, **changes)
            assert shelf.loaded() == [loaded_model]
            after = await shelf.restart(a, abort_running=True, num_blocks=50)
            assert [output async for output in outputs][-1].finish_reason == "abort"
        with pytest.raises(ValueError, match="cannot be started with these sizes: max_model_len is 9999"):
            await shelf.restart(a, max_model_len=9999)
        assert (await use(shelf, a)).config == after.config

    on_shelf(main, folders[0])


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_whose_engine_is_restarted_hears_of_it(folders, stream):
    async def main(shelf, a):
        client = Client("/v1/completions", {"model": a, "prompt": "x", "max_tokens": 400, "ignore_eos": True,
                                            "stream": stream})
        task = asyncio.create_task(client.ask(make_app(settings_for(folders[0]), shelf)))
        loaded_model = await use(shelf, a)
        while not await loaded_model.engine.call(lambda engine: engine.scheduler.running):
            pass
        if stream:
            await client.has_begun.wait()
        await shelf.restart(a, abort_running=True, num_blocks=50)
        await task
        error = client.events()[-1]["error"] if stream else client.json()["error"]
        assert client.status == (200 if stream else 503) and error["code"] == "aborted"

    on_shelf(main, folders[0])


def test_names_in_the_api_tell_nothing_of_where_a_model_lies(tmp_path):
    (tmp_path / "a" / "m").mkdir(parents=True)
    (tmp_path / "b" / "m").mkdir(parents=True)
    assert public_names(("tiny-tales", f"{tmp_path}/a/m", "org/name")) == {
        "tiny-tales": "tiny-tales", "m": f"{tmp_path}/a/m", "org/name": "org/name"}
    with pytest.raises(ValueError, match="two models are called 'm'"):
        public_names((f"{tmp_path}/a/m", f"{tmp_path}/b/m"))

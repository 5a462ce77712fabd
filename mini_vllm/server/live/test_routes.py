"""The page's files and its controls of the engine: what each route does, and which callers may use it."""

import asyncio
import json
import re

import httpx
import pytest

from mini_vllm.engine_config import EngineConfig
from mini_vllm.pictures.palette import PAINTS
from mini_vllm.server.app import make_app
from mini_vllm.server.live.files import FOLDER, MADE, page_file
from mini_vllm.server.live.stream import event_stream
from mini_vllm.server.models.model_registry import ModelShelf
from mini_vllm.server.settings import ServerSettings

KEYS = '[keys.anna]\nkey = "anna-has-a-secret"\nadmin = true\n[keys.bert]\nkey = "bert-has-a-secret"\n'
ROUTES = [("GET", "/live/models", None), ("GET", "/live/events?model=M", None),
          *(("POST", f"/live/{verb}", {"model": "M"}) for verb in ("model", "pause", "resume", "step", "restart"))]


def run(folder, script, **changes):
    """Run ``script(ask, shelf, name)`` with a server without a network."""
    async def main():
        engine = EngineConfig(num_blocks=40, block_size=4, max_num_seqs=8, max_num_batched_tokens=16)
        settings = ServerSettings(models=(str(folder),), engine=engine, **changes)
        shelf = ModelShelf(settings)
        transport = httpx.ASGITransport(make_app(settings, shelf))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            async def ask(method, path, body=None, **options):
                options |= {} if body is None else {"json": body}
                return await client.request(method, path, **options)
            try:
                await script(ask, shelf, folder.name)
            finally:
                await shelf.close()
    asyncio.run(main())


@pytest.fixture
def folder(shallow):
    return shallow("llama3")


def told(text):
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]


def test_the_page_is_whole_and_takes_nothing_from_elsewhere(folder):
    async def script(ask, shelf, name):
        page = await ask("GET", "/")
        assert page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]
        names = {path.name for path in FOLDER.iterdir()} | set(MADE)
        used = set(re.findall(r'/live/page/([\w.]+)"', page.text))
        for file in names:
            answer = await ask("GET", f"/live/page/{file}")
            assert answer.status_code == 200 and "//cdn" not in answer.text and "https://" not in answer.text
            used |= set(re.findall(r'from "\./([\w.]+)"', answer.text))
        assert used | {"index.html"} == names, "a file that nothing loads, or that is not there"
        constants = (await ask("GET", "/live/page/palette.js")).text
        assert all(f'"{paint.dark}"' in constants for paint in PAINTS.values())
        for path in ("/live/page/routes.py", "/live/page/..%2Froutes.py", "/live/page/%2e%2e/routes.py"):
            assert (await ask("GET", path)).status_code == 404
        assert page_file("../routes.py") is None
        assert not shelf.loaded(), "nobody has asked for a model"

    run(folder, script)


@pytest.mark.parametrize("key, status", [(None, 401), ("wrong", 401), ("bert-has-a-secret", 403)])
def test_with_keys_all_but_the_files_is_for_admins(folder, tmp_path, key, status):
    (tmp_path / "keys.toml").write_text(KEYS)

    async def script(ask, shelf, name):
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        for method, path, body in ROUTES:
            answer = await ask(method, path, body, headers=headers)
            assert answer.status_code == status, path
        assert not shelf.loaded()
        answer = await ask("GET", "/live/models", headers={"Authorization": "Bearer anna-has-a-secret"})
        assert answer.json() == {"models": [name]}
        assert (await ask("GET", "/")).status_code == 200

    run(folder, script, keys_file=tmp_path / "keys.toml")


def test_pause_step_and_resume(folder):
    async def script(ask, shelf, name):
        body = {"model": name}
        refused = await ask("POST", "/live/step", body)
        assert refused.status_code == 409 and "pause it first" in refused.json()["error"]["message"]
        assert (await ask("POST", "/live/pause", body)).json() == {"is_paused": True}
        assert (await ask("POST", "/live/step", body)).json() == {"has_computed": False}
        wish = {**body, "prompt": [1, 2, 3], "max_tokens": 2, "ignore_eos": True}
        answer = asyncio.ensure_future(ask("POST", "/v1/completions", wish))
        for _ in range(2):
            while not (await ask("POST", "/live/step", body)).json()["has_computed"]:
                await asyncio.sleep(0)
        assert (await answer).json()["usage"]["completion_tokens"] == 2
        assert (await ask("POST", "/live/resume", body)).json() == {"is_paused": False}
        assert (await ask("POST", "/v1/completions", wish)).status_code == 200

    run(folder, script)


def test_a_restart_changes_what_was_asked_for_and_back(folder):
    async def script(ask, shelf, name):
        before = (await ask("POST", "/live/model", {"model": name})).json()
        assert before["is_as_started"] and not before["has_chat_template"]
        changes = {"num_blocks": 20, "max_num_batched_tokens": 4}
        after = (await ask("POST", "/live/restart", {"model": name, **changes})).json()
        assert after["sizes"] == {**before["sizes"], **changes, "max_num_seqs": 4}
        assert not after["is_as_started"]
        larger = (await ask("POST", "/live/restart", {"model": name, "max_num_batched_tokens": 32})).json()
        assert larger["sizes"]["max_num_seqs"] == 8, "as many seats as there were at the start"
        assert (await ask("POST", "/live/restart", {"model": name, "as_started": True})).json() == before
        for wrong in ({"num_blocks": 1}, {"num_blocks": 5000}, {"aging_rate": -1}, {"max_num_seqs": 99}, {"colour": 3}):
            answer = await ask("POST", "/live/restart", {"model": name, **wrong})
            assert answer.status_code == 400 and set(answer.json()) == {"error"}, wrong
        assert (await ask("POST", "/live/model", {"model": name})).json() == before

    run(folder, script)


def test_a_restart_does_not_end_requests_unless_it_may(folder):
    async def script(ask, shelf, name):
        await ask("POST", "/live/pause", {"model": name})
        wish = {"model": name, "prompt": [1, 2, 3], "max_tokens": 5}
        answer = asyncio.ensure_future(ask("POST", "/v1/completions", wish))
        while not shelf.num_in_flight(name):
            await asyncio.sleep(0)
        refused = await ask("POST", "/live/restart", {"model": name, "num_blocks": 20})
        assert refused.status_code == 409 and "1 request in flight" in refused.json()["error"]["message"]
        done = await ask("POST", "/live/restart", {"model": name, "num_blocks": 20, "abort_running": True})
        assert done.json()["sizes"]["num_blocks"] == 20 and (await answer).status_code == 503

    run(folder, script)


def test_the_stream_tells_all_then_changes_then_the_end(folder):
    async def script(ask, shelf, name):
        async with shelf.lease(name) as served:
            stream = event_stream(served)
        first, state = told(await anext(stream))
        assert first["type"] == "snapshot" and first["header"]["num_blocks"] == 40 and state["is_paused"] is False
        wish = {"model": name, "prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True}
        answer = (await ask("POST", "/v1/completions", wish)).json()
        heard = []
        while not any(message.get("finished") for message in heard):
            heard += told(await anext(stream))
        assert [answer["id"]] == [name for message in heard for name in message.get("prompts", ())]
        await ask("POST", "/live/pause", {"model": name})
        while heard[-1].get("is_paused") is not True:
            heard += told(await anext(stream))
        await ask("POST", "/live/restart", {"model": name, "num_blocks": 20})
        async for text in stream:
            heard += told(text)
        assert heard[-1] == {"type": "end"}

    run(folder, script)


def test_when_the_last_reader_leaves_a_paused_engine_goes_on(folder):
    async def script(ask, shelf, name):
        async with shelf.lease(name) as served:
            streams = [event_stream(served), event_stream(served)]
        for stream in streams:
            await anext(stream)
        await ask("POST", "/live/pause", {"model": name})
        await streams[0].aclose()
        await served.engine.metrics()
        assert served.engine.is_paused, "somebody still looks"
        await streams[1].aclose()
        await served.engine.metrics()
        assert not served.engine.is_paused

    run(folder, script)


def test_a_get_loads_nothing_and_says_what_does(folder):
    async def script(ask, shelf, name):
        answer = await ask("GET", f"/live/events?model={name}")
        assert answer.status_code == 409 and answer.json()["error"]["code"] == "model_not_loaded"
        assert (await ask("GET", "/live/events?model=none")).status_code == 404
        assert (await ask("GET", f"/live/model?model={name}")).status_code == 405
        await ask("GET", "/live/models")
        assert shelf.loaded() == []
        assert (await ask("POST", "/live/model", {"model": name})).json()["model"] == name
        assert [served.name for served in shelf.loaded()] == [name]
    run(folder, script)


def test_a_single_server_has_no_replicas(folder):
    async def script(ask, shelf, name):
        for path in ("/live/replicas", "/replicas/replica-0/live/models"):
            assert (await ask("GET", path)).status_code == 404

    run(folder, script)

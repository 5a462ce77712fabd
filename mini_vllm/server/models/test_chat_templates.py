"""Chat templates in their own process: their output, and the cost of templates that never end."""

import asyncio
import os
from types import SimpleNamespace

import pytest

from mini_vllm.models.loader import load
from mini_vllm.models.tokenizer import TokenizerError
from mini_vllm.server.access.test_keys import serve
from mini_vllm.server.conftest import Client, settings_for
from mini_vllm.server.models import chat_templates, limited_process
from mini_vllm.server.models.chat_templates import ChatTemplate

MESSAGES = [{"role": "user", "content": "a < b \ud800 é"}, {"role": "assistant", "content": ""}]
#: A second of CPU time is long for a test.
CPU_S = 0.3
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}…{% endfor %}{% endfor %}"
HOSTILE = {
    LOOPS.replace("…", ""): "more than 0.3 s of CPU time or 512 MiB of memory",
    LOOPS.replace("…", "xxxxxxxx"): "more than 0.3 s of CPU time|more than 4194304 characters",
    "{{ 'x' * 5000000 }}": "the text has more than 4194304 characters",
    "{{ ('x' * 999999999) | length }}": "MemoryError|of memory",
    "{{ raise_exception('only in turns') }}": "chat template: TemplateError: only in turns",
    "{% for %}": "chat template: TemplateSyntaxError", "{{ messages[0].__class__.__mro__ }}": "SecurityError",
}


def template(source):
    return ChatTemplate(SimpleNamespace(chat_template=source, bos_token="<s>", eos_token=None), CPU_S)


def test_a_chat_is_written_as_the_tokenizer_writes_it(talker):
    tokenizer = load(talker).tokenizer

    async def main():
        chat = ChatTemplate(tokenizer)
        texts = [await chat.render(MESSAGES), await chat.render(MESSAGES[:1])]
        await chat.close()
        return texts

    assert asyncio.run(main()) == [tokenizer.apply_chat_template(MESSAGES), tokenizer.apply_chat_template(MESSAGES[:1])]


@pytest.mark.parametrize("source", HOSTILE)
def test_whatever_a_template_does_is_an_error_and_the_loop_goes_on(source):
    async def main():
        num_turns, ends = 0, asyncio.Event()

        async def turn():
            nonlocal num_turns
            while not ends.is_set():
                num_turns += 1
                await asyncio.sleep(0)

        turning, chat = asyncio.create_task(turn()), template(source)
        with pytest.raises(TokenizerError, match=HOSTILE[source]):
            await chat.render(MESSAGES)
        ends.set()
        await turning
        await chat.close()
        return num_turns

    assert asyncio.run(main()) > 10


def test_after_a_chat_that_ended_its_process_the_next_one_is_written():
    async def main():
        chat = template("{% if messages[0].content == 'loop' %}" + LOOPS + "{% endif %}{{ bos_token }}"
                        "{{ messages[0].content }}")
        with pytest.raises(TokenizerError):
            await chat.render([{"role": "user", "content": "loop"}])
        texts = await asyncio.gather(*(chat.render([{"role": "user", "content": name}]) for name in "abc"))
        pid = chat._processes[0].pid
        await chat.close()
        await chat.close()
        return texts, pid

    texts, pid = asyncio.run(main())
    assert texts == ["<s>a", "<s>b", "<s>c"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_caller_that_leaves_does_not_leave_the_answer_to_the_next():
    async def main():
        chat = template(LOOPS)
        leaving = asyncio.create_task(chat.render([{"role": "user", "content": "first"}]))
        while not chat._processes:
            await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        chat._task["source"] = "{{ messages[0].content }}"
        text = await chat.render([{"role": "user", "content": "second"}])
        await chat.close()
        return text

    assert asyncio.run(main()) == "second"


def test_a_template_that_only_waits_is_ended_by_the_clock(monkeypatch):
    async def never(process, line):
        await asyncio.Event().wait()

    monkeypatch.setattr(limited_process, "MAX_WALL_S", 0.01)
    monkeypatch.setattr(limited_process, "_ask", never)
    with pytest.raises(TokenizerError, match="did not finish within 0.01 s"):
        asyncio.run(template("").render(MESSAGES))


def test_the_server_refuses_the_chat_and_answers_others(talker, tmp_path, monkeypatch):
    monkeypatch.setattr(chat_templates.ChatTemplate.__init__, "__defaults__", (CPU_S,))

    async def main(app, shelf):
        async with shelf.lease(talker.name) as served:
            served.chat_template._task["source"] = next(iter(HOSTILE))
        body = {"model": talker.name, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
        chat = asyncio.create_task(Client("/v1/chat/completions", body).ask(app))
        health = await Client("/health", b"", method="GET").ask(app)
        return health.status, await chat

    health, chat = serve(main, settings_for(talker))
    assert health == 200 and chat.status == 400 and "CPU time" in chat.json()["error"]["message"]

"""A server for the tests: over loopback for real clients, or without a network for tests that look inside."""

import asyncio
import contextlib
import json
import signal
import threading
from dataclasses import dataclass

import pytest
from tokenizers import AddedToken

from mini_vllm.conftest import ARCHITECTURES, checkpoint_width, make_talker, write_checkpoint
from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.random_model import END, byte_tokenizer
from mini_vllm.server.app import make_app
from mini_vllm.server.models.model_registry import ModelShelf
from mini_vllm.server.serving import DrainingServer, address_of, listen
from mini_vllm.server.settings import ServerSettings

SIZES = {"num_blocks": 400, "block_size": 8, "max_num_seqs": 16, "max_num_batched_tokens": 64}
KEYS = """
[keys.anna]
key = "anna-has-a-secret"
tier = "high"
admin = true

[keys.bert]
key = "bert-has-a-secret"
tier = "low"
requests_per_minute = 5

[keys.carla]
key = "carla-has-a-secret"
"""


def settings_for(*models, sizes=None, **changes):
    return ServerSettings(models=tuple(map(str, models)), port=0, engine=EngineConfig(**{**SIZES, **(sizes or {})}),
                          **changes)


@dataclass
class Running:
    """A server in its own thread."""

    url: str
    shelf: ModelShelf
    loop: asyncio.AbstractEventLoop
    server: DrainingServer
    thread: threading.Thread

    def stop(self):
        """Stop the server as SIGTERM does."""
        self.loop.call_soon_threadsafe(self.server.handle_exit, signal.SIGTERM, None)

    def call(self, name, function):
        """Call ``function`` with this model's engine, in the engine's thread."""
        async def ask():
            async with self.shelf.lease(name) as served:
                return await served.engine.call(function)
        return asyncio.run_coroutine_threadsafe(ask(), self.loop).result(30)


@contextlib.contextmanager
def running(settings):
    shelf, listener = ModelShelf(settings), listen(settings)
    server = DrainingServer(make_app(settings, shelf), settings)
    loops, has_loop = [], threading.Event()

    async def serve():
        loops.append(asyncio.get_running_loop())
        has_loop.set()
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    has_loop.wait(30)
    try:
        yield Running(address_of(listener), shelf, loops[0], server, thread)
    finally:
        server.should_exit = True
        thread.join(30)


class Client:
    """Speaks ASGI to an application in the same loop. The test decides what it does and when it disconnects."""

    def __init__(self, path, body, key=None, method="POST", headers=()):
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {b"host": b"localhost", b"content-type": b"application/json", **dict(headers)}
        if key is not None:
            named[b"authorization"] = f"Bearer {key}".encode()
        self.scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
                      "method": method, "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
                      "root_path": "", "headers": list(named.items()), "client": ("127.0.0.1", 5), "server": ("h", 1)}
        self.status, self.headers, self.data = None, {}, b""
        #: Set when the first bytes of an answer have arrived, and when the client has disconnected.
        self.has_begun, self.has_left = asyncio.Event(), asyncio.Event()
        self._is_read = self.has_ended = False

    @property
    def was_read(self):
        """Whether the application has asked for the body."""
        return self._is_read

    async def receive(self):
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self.body}
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.data += message.get("body", b"")
            self.has_ended = not message.get("more_body", False)
            self.has_begun.set()

    async def ask(self, app):
        await app(self.scope, self.receive, self.send)
        return self

    def json(self):
        return json.loads(self.data)

    def events(self):
        """Return the objects of a stream, without its end mark, which must be there."""
        *events, end, rest = self.data.decode().split("\n\n")
        assert (end, rest) == ("data: [DONE]", ""), self.data
        return [json.loads(event.removeprefix("data: ")) for event in events]


@pytest.fixture(scope="session")
def talker(shallow, tmp_path_factory):
    return make_talker(shallow, tmp_path_factory.mktemp("talker"))


@pytest.fixture(scope="session")
def writer(shallow):
    return shallow("llama3")


#: The structure of Qwen's and Llama's templates, with less text: the tools in the first turn, calls, and their results.
QWEN_TEMPLATE = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools>\\nWrite <tool_call>\\n{\\"name\\": <name>, \\"arguments\\": <object>}' }}
    {{- '\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{\\"name\\": \\"' + tool_call.name + '\\", \\"arguments\\": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
LLAMA_TEMPLATE = """
{%- macro turn(role, text) %}
    {{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' + text + '<|eot_id|>' }}
{%- endmacro %}
{%- for message in messages %}
    {%- if loop.first and tools %}
        {{- '<|start_header_id|>user<|end_header_id|>\\n\\nRespond in the format ' }}
        {{- '{"name": function name, "parameters": dictionary of argument name and its value}.\\n\\n' }}
        {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
        {{- message.content + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('only single tool-calls at once') }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
    {%- elif message.role == 'tool' %}
        {{- turn('ipython', message.content | tojson) }}
    {%- else %}
        {{- turn(message.role, message.content) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""


def make_tool_user(folder, template, tokens, is_special):
    """Write a random model with a chat template that knows tools, and with these further tokens."""
    write_checkpoint(folder, **{**ARCHITECTURES["llama2"], "num_hidden_layers": 2, "max_position_embeddings": 4096,
                                "hidden_size": checkpoint_width()})
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(token, special=is_special) for token in tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "chat_template": template}))
    return folder


@pytest.fixture(scope="session")
def qwen(tmp_path_factory):
    return make_tool_user(tmp_path_factory.mktemp("models") / "qwen", QWEN_TEMPLATE, ["<tool_call>", "</tool_call>"],
                          is_special=False)


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    return make_tool_user(tmp_path_factory.mktemp("models") / "llama", LLAMA_TEMPLATE, ["<|python_tag|>"],
                          is_special=True)


@pytest.fixture
def keys_file(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    return path


def serve(main, writer, **settings):
    """Run ``main`` with an application and its shelf, in one loop."""
    async def run():
        shelf = ModelShelf(settings_for(writer, **settings))
        try:
            return await main(make_app(settings_for(writer, **settings), shelf), shelf)
        finally:
            await shelf.close()
    return asyncio.run(run())

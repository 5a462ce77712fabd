"""Rejected tools, schemas and messages about calls: the error names the field that the client sent."""

import json
import logging

import httpx
import pytest
from pydantic import ValidationError

from mini_vllm.server.api.protocol import ChatRequest, CompletionRequest
from mini_vllm.server.api.tools.fields import MAX_CALLS, MAX_DESCRIPTION_CHARS, MAX_TOOLS
from mini_vllm.server.api.tools.tool_use import MAX_TOOLS_CHARS, tool_use
from mini_vllm.server.api.validation_messages import complaint
from mini_vllm.server.conftest import running, settings_for
from mini_vllm.server.errors import ApiError
from mini_vllm.server.test_refusals import error_of
from mini_vllm.structured.guided import GuidedGrammar
from mini_vllm.structured.schemas import GrammarError

ASK = [{"role": "user", "content": "a"}]


@pytest.fixture(scope="module")
def server(qwen, llama, talker):
    with running(settings_for(qwen, llama, talker, sizes={"max_num_batched_tokens": 512})) as server:
        yield server


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url) as http:
        yield http


def tool(name="f", **fields):
    return {"type": "function", "function": {"name": name, **fields}}


def takes(**properties):
    return {"type": "object", "properties": properties}


def named(name):
    return {"type": "function", "function": {"name": name}}


def schema_format(schema, **fields):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **fields}}


def nested(depth):
    return {"type": "object", "x": {}} if depth <= 2 else {"type": "object", "x": nested(depth - 1)}


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
DIFFERENT = [tool(f"f{number}") for number in range(MAX_TOOLS + 1)]


@pytest.mark.parametrize("fields, param, message", [
    # tools
    ({"tools": 5}, "tools", "tools is 5, must be a valid list"),
    ({"tools": DIFFERENT}, "tools", "must have at most 128 entries, but has 129"),
    ({"tools": [{**tool(), "type": "custom"}]}, "tools[0].type", "tools[0].type is \"custom\", must be 'function'"),
    ({"tools": [tool("")]}, "tools[0].function.name", "must be 1 to 64 of the characters a-z"),
    ({"tools": [tool("x" * 65)]}, "tools[0].function.name", "must be 1 to 64 of the characters a-z"),
    ({"tools": [tool("a b")]}, "tools[0].function.name", "must be 1 to 64 of the characters a-z"),
    ({"tools": [tool("é")]}, "tools[0].function.name", "must be 1 to 64 of the characters a-z"),
    ({"tools": [tool("f\n")]}, "tools[0].function.name", "must be 1 to 64 of the characters a-z"),
    ({"tools": [tool(), tool()]}, "tools", "tools[1].function.name is 'f', which another tool has"),
    ({"tools": [tool(colour=1)]}, "tools[0].function.colour", "is not a known field"),
    ({"tools": [tool(description="x" * (MAX_DESCRIPTION_CHARS + 1))]}, "tools[0].function.description",
     "at most 16384 characters"),
    ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters", "must be a valid dictionary"),
    ({"tools": [tool(parameters={"type": "string"})]}, "tools",
     'tools[0].function.parameters.type is "string", must be "object"'),
    ({"tools": [tool(parameters={"type": ["object"]})]}, "tools", 'is a list, must be "object"'),
    ({"tools": [tool(parameters=nested(66))]}, "tools", "at most 64 objects and lists deep"),
    ({"tools": [tool(parameters={"x": "y" * MAX_TOOLS_CHARS})]}, "tools", "at most 65536 characters long"),
    ({"tools": [tool(f"f{n}", description="x" * 2**14) for n in range(4)]}, "tools", "must have at most 65536"),
    ({"tools": [tool("f"), tool("g", parameters=takes(a={"type": "nothing"}))], "tool_choice": "required"}, "tools",
     "tools[1].function.parameters: "),
    ({"tools": [tool("g", parameters=takes(a={"$ref": "#/nowhere"}))], "tool_choice": named("g")}, "tools",
     "tools[0].function.parameters: Pointer '/nowhere' does not exist"),
    ({"tools": [tool(f"f{n}", parameters={"title": "x" * 480}) for n in range(120)], "tool_choice": "required"},
     "tools", "characters, must be at most 65536"),
    # tool_choice
    ({"tool_choice": "required"}, "tool_choice", "tool_choice needs tools"),
    ({"tool_choice": "required", "tools": []}, "tool_choice", "tool_choice needs tools"),
    ({"tool_choice": named("f")}, "tool_choice", "tool_choice needs tools"),
    ({"tool_choice": named("g"), "tools": [tool("f")]}, "tool_choice", "names the function 'g', must be one of tools"),
    *(({"tool_choice": value, "tools": [tool()]}, "tool_choice", 'must be "none", "auto", "required", or {"type"')
      for value in ("any", 5, {}, {"type": "function"}, named("a b"), named(["f"]),
                    {"type": "function", "function": {"name": "f", "x": 1}})),
    # response_format and structured_outputs
    ({"response_format": "json"}, "response_format", "response_format is \"json\", must be a valid dictionary"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "must be 'text', 'json_object' or 'json_schema'"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "must have json_schema exactly if"),
    ({"response_format": {**schema_format({}), "type": "text"}}, "response_format", "must have json_schema exactly if"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format.json_schema.schema",
     "is missing"),
    ({"response_format": schema_format({"type": "nothing"})}, "response_format",
     "response_format: Invalid type: nothing"),
    ({"response_format": schema_format({"type": "nothing"}, strict=True), "stream": True}, "response_format",
     "response_format: Invalid type: nothing"),
    ({"response_format": schema_format(nested(66))}, "response_format", "at most 64 objects and lists deep"),
    ({"response_format": schema_format({"x": "y" * 2**16})}, "response_format", "at most 65536 characters long"),
    ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos", "with response_format"),
    ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "response_format",
     "response_format and structured_outputs both say"),
    ({"response_format": {"type": "json_object"}, "tools": [tool()]}, "response_format", "response_format and tools"),
    ({"structured_outputs": {"regex": "a"}, "tools": [tool()]}, "structured_outputs", "structured_outputs and tools"),
    ({"structured_outputs": {}}, "structured_outputs", "structured_outputs has nothing, must have exactly one of"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "has choice and regex"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs", "structured_outputs.regex: "),
    ({"structured_outputs": {"choice": ["a"] * 1025}}, "structured_outputs.choice", "at most 1024 entries"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1 item"),
    ({"structured_outputs": {"choice": [""]}}, "structured_outputs", "none of them empty"),
    ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs", "structured_outputs.grammar: "),
    ({"structured_outputs": {"grammar": "x" * (2**16 + 1)}}, "structured_outputs.grammar", "at most 65536"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs", "structured_outputs.json is not JSON"),
    ({"structured_outputs": {"json": 5}}, "structured_outputs.json", "structured_outputs.json is 5"),
    ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern", "not a known field"),
    ({"structured_outputs": {"choice": ["x" * 8001]}}, "structured_outputs", "at most 8000 bytes together"),
    # messages
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "messages[0].content is missing"),
    ({"messages": [{"role": "assistant"}]}, "messages[0].content", "messages[0].content is missing"),
    ({"messages": [{"role": "tool", "tool_call_id": "c"}]}, "messages[0].content", "messages[0].content is missing"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id",
     "messages[0].tool_call_id is missing"),
    ({"messages": [{**ASK[0], "tool_call_id": "c"}]}, "messages[0].tool_call_id", "only a message with the role tool"),
    ({"messages": [{**ASK[0], "tool_calls": [CALL]}]}, "messages[0].tool_calls",
     "only a message with the role assistant"),
    ({"messages": [{"role": "assistant", "tool_calls": []}]}, "messages[0].tool_calls", "at least 1 item"),
    ({"messages": [{"role": "assistant", "tool_calls": [CALL] * (MAX_CALLS + 1)}]}, "messages[0].tool_calls",
     "must have at most 128 entries, but has 129"),
    ({"messages": [{"role": "assistant", "tool_calls": [{**CALL, "id": "x" * 257}]}]}, "messages[0].tool_calls[0].id",
     "at most 256 characters"),
    ({"messages": [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {}}}]}]},
     "messages[0].tool_calls[0].function.arguments", "must be a valid string"),
])
def test_what_contradicts_itself_or_is_too_large_is_refused(http, qwen, fields, param, message):
    body = {"model": qwen.name, "messages": ASK, "max_tokens": 3, **fields}
    error = error_of(http.post("/v1/chat/completions", json=body), 400)
    assert error["param"] == param and any(each in error["message"] for each in message.split("|")), error


def test_a_template_without_tools(http, talker, llama):
    body = {"model": talker.name, "messages": ASK, "max_tokens": 1, "tools": [tool()]}
    for choice in (None, "auto", "required", named("f")):
        error = error_of(http.post("/v1/chat/completions", json={**body, "tool_choice": choice}), 400)
        assert (error["param"], error["code"]) == ("tools", "tools_not_supported")
    assert http.post("/v1/chat/completions", json={**body, "tool_choice": "none"}).status_code == 200
    messages = [*ASK, {"role": "assistant", "tool_calls": [CALL, CALL]}]
    error = error_of(http.post("/v1/chat/completions", json={**body, "model": llama.name, "messages": messages}), 400)
    assert "only single tool-calls at once" in error["message"] and error["param"] == "messages"


def test_completions_have_no_chat_formats(http, qwen):
    for field, value in (("tools", [tool()]), ("response_format", {"type": "text"})):
        error = error_of(http.post("/v1/completions", json={"model": qwen.name, "prompt": "a", field: value}), 400)
        assert error["message"] == f"{field} is not a known field here; it belongs to /v1/chat/completions"
    body = {"model": qwen.name, "prompt": "a", "structured_outputs": {"json": {"type": "nothing"}}}
    assert error_of(http.post("/v1/completions", json=body), 400)["param"] == "structured_outputs"


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_becomes_too_complex_is_the_clients_error(http, qwen, monkeypatch, caplog, stream):
    allowed = GuidedGrammar.allowed

    def refuse_later(self, state):
        if state is not self.start:
            raise GrammarError("structured_outputs: too complex")
        return allowed(self, state)

    monkeypatch.setattr(GuidedGrammar, "allowed", refuse_later)
    body = {"model": qwen.name, "messages": ASK, "response_format": {"type": "json_object"}, "stream": stream}
    with caplog.at_level(logging.ERROR, "mini_vllm.server"):
        answer = http.post("/v1/chat/completions", json=body)
    if stream and answer.status_code == 200:  # 400, if the error came before the first chunk was sent
        *_, last, done, _ = answer.text.split("\n\n")
        error = json.loads(last.removeprefix("data: "))["error"]
        assert done == "data: [DONE]"
    else:
        error = error_of(answer, 400)
    assert (error["param"], error["message"]) == ("response_format", "response_format: too complex")
    assert not [record for record in caplog.records if record.name == "mini_vllm.server"]


# ---- what is within the bounds


def test_what_is_within_the_bounds_is_taken():
    body = {"model": "m", "messages": [*ASK, {"role": "assistant", "tool_calls": [CALL] * MAX_CALLS},
                                       {"role": "assistant", "content": "a", "audio": None, "annotations": [],
                                        "tool_calls": [{**CALL, "index": 0}]},
                                       {"role": "tool", "tool_call_id": "c", "content": "a", "name": "f"}],
            "tools": [*DIFFERENT[:MAX_TOOLS - 1], tool("x" * 64, parameters=nested(64), strict=True)],
            "tool_choice": "required", "parallel_tool_calls": False}
    use = tool_use(ChatRequest.model_validate(body))
    assert len(use.callable) == len(use.definitions) == MAX_TOOLS and use.must_call and not use.is_parallel
    assert tool_use(ChatRequest.model_validate({**body, "tool_choice": "none"})) is None
    assert not tool_use(ChatRequest.model_validate({**body, "tool_choice": None})).must_call
    only = tool_use(ChatRequest.model_validate({**body, "tool_choice": named("f7"), "parallel_tool_calls": True}))
    assert only.names == {"f7"} and not only.is_parallel and len(only.definitions) == MAX_TOOLS
    with pytest.raises(ApiError, match="which another tool has"):
        tool_use(ChatRequest.model_validate({**body, "tool_choice": "none", "tools": [tool(), tool()]}))


def test_lengths_are_checked_before_contents():
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({"model": "m", "messages": ASK, "tools": [{}] * 5000})
    assert "must have at most 128 entries, but has 5000" in complaint(caught.value.errors())[0]
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate({"model": "m", "prompt": "a", "structured_outputs": {"choice": [5] * 9999}})
    assert len(caught.value.errors()) == 1
    assert "must have at most 1024 entries, but has 9999" in complaint(caught.value.errors())[0]


def test_the_bounds_are_in_the_schema():
    fields = ChatRequest.model_json_schema()
    assert [part.get("maxItems") for part in fields["properties"]["tools"]["anyOf"]] == [MAX_TOOLS, None]
    assert fields["$defs"]["FunctionDefinition"]["properties"]["name"]["pattern"] == "^[a-zA-Z0-9_-]{1,64}$"
    assert {"json", "choice", "regex", "json_object", "grammar"} == set(
        fields["$defs"]["StructuredOutputs"]["properties"])
    assert set(fields["$defs"]["JsonSchema"]["required"]) == {"name", "schema"}

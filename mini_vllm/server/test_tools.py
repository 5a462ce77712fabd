"""Tools and structured output with OpenAI's own client: random models with Qwen's and Llama's templates."""

import json
import re
from typing import Literal

import openai
import pytest
from jsonschema import validate
from pydantic import BaseModel, Field

from mini_vllm.async_engine import AsyncLLMEngine
from mini_vllm.models.loader import load
from mini_vllm.request import CompletionOutput, RequestOutput, Usage
from mini_vllm.server.api.tools.formats import HERMES, LLAMA, format_of
from mini_vllm.server.conftest import LLAMA_TEMPLATE, QWEN_TEMPLATE, running, settings_for

ASK = [{"role": "user", "content": "What is 2 + 3?"}]


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=150)


class Add(BaseModel):
    """Add two numbers."""

    a: int = Field(ge=0, le=99)
    b: int = Field(ge=0, le=99)


class Weather(BaseModel):
    """Return the weather."""

    city: Literal["Rome", "Oslo"]
    units: Literal["C", "F"]


ADD, WEATHER = openai.pydantic_function_tool(Add), openai.pydantic_function_tool(Weather)
TOOLS = [ADD, WEATHER]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
END_ID = 256
NO_ARGUMENTS = {"type": "function", "function": {"name": "now"}}


@pytest.fixture(scope="module")
def server(qwen, llama, talker):
    sizes = {"num_blocks": 1000, "max_num_batched_tokens": 512}
    with running(settings_for(qwen, llama, talker, sizes=sizes)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def check(call):
    """Check a call of one of TOOLS, and return its name and arguments."""
    arguments = json.loads(call.function.arguments)
    validate(arguments, SCHEMAS[call.function.name])
    assert call.type == "function" and re.fullmatch("call_[0-9a-f]{32}", call.id)
    return call.function.name, arguments


def collected(chunks):
    """Return the content, the calls as (name, arguments), and the finish reason of a stream."""
    content, calls, reasons = None, [], []
    for chunk in chunks:
        (choice,) = chunk.choices
        assert not reasons, "nothing follows the finish reason"
        if choice.delta.content:
            content = (content or "") + choice.delta.content
        for part in choice.delta.tool_calls or ():
            if part.id is not None:
                assert part.index == len(calls) and part.type == "function" and part.function.arguments == ""
                calls.append((part.function.name, ""))
            else:
                assert part.index == len(calls) - 1 and part.function.name is None
                calls[-1] = (calls[-1][0], calls[-1][1] + part.function.arguments)
        reasons += [choice.finish_reason] if choice.finish_reason else []
    (reason,) = reasons
    return content, calls, reason


# ---- structured output


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # the client's own, about what it sends back
@pytest.mark.parametrize("seed", range(3))
def test_a_pydantic_class_is_parsed(client, qwen, seed):
    answer = client.chat.completions.parse(model=qwen.name, messages=ASK, response_format=Person, seed=seed,
                                           max_tokens=300)
    assert isinstance(answer.choices[0].message.parsed, Person) and answer.choices[0].finish_reason == "stop"
    again = [*ASK, answer.choices[0].message, *ASK]
    assert client.chat.completions.create(model=qwen.name, messages=again, max_tokens=1)


def test_a_pydantic_class_is_parsed_from_a_stream(client, qwen):
    with client.chat.completions.stream(model=qwen.name, messages=ASK, response_format=Person, seed=1,
                                        max_tokens=300) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Person)


def test_any_object_and_plain_text(client, qwen):
    def text(**fields):
        answer = client.chat.completions.create(model=qwen.name, messages=ASK, temperature=0, max_tokens=20, **fields)
        return answer.choices[0].message.content

    assert text(response_format={"type": "json_object"}).startswith("{")
    assert text(response_format={"type": "text"}) == text() == text(response_format={"type": "text"}, extra_body={
        "structured_outputs": None})


@pytest.mark.parametrize("structure, pattern", [
    ({"choice": ["yes", "no"]}, "yes|no"), ({"regex": "[ab]{3}c"}, "[ab]{3}c"), ({"json": {"enum": [1, 2]}}, "1|2"),
    ({"json": '{"const": "x"}'}, '"x"'), ({"grammar": 'start: "a" | "b"'}, "a|b"),
])
def test_structured_outputs_of_both_kinds(client, qwen, structure, pattern):
    fields = {"model": qwen.name, "max_tokens": 20, "seed": 3, "extra_body": {"structured_outputs": structure}}
    text = client.completions.create(prompt="a", **fields).choices[0]
    chat = client.chat.completions.create(messages=ASK, **fields).choices[0]
    assert re.fullmatch(pattern, text.text) and re.fullmatch(pattern, chat.message.content)
    assert text.finish_reason == chat.finish_reason == "stop"


def test_a_server_reads_expressions_without_an_automaton(client, qwen):
    pattern = "(a|b)*a(a|b){20}c"  # its automaton would have two million states
    answer = client.completions.create(model=qwen.name, prompt="a", max_tokens=200, seed=3,
                                       extra_body={"structured_outputs": {"regex": pattern}}).choices[0]
    assert re.fullmatch(pattern, answer.text) or answer.finish_reason == "length"


# ---- calls that must be made


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("model", ["qwen", "llama"])
def test_a_required_call_is_valid(client, request, model, parallel):
    name = request.getfixturevalue(model).name
    answer = client.chat.completions.create(model=name, messages=ASK, tools=TOOLS, tool_choice="required", n=4, seed=7,
                                            max_tokens=250, parallel_tool_calls=parallel,
                                            logit_bias={str(END_ID): -2})  # so that some outputs have several calls
    called = []
    for choice in answer.choices:
        calls = choice.message.tool_calls
        assert choice.message.content is None and choice.finish_reason in ("tool_calls", "length")
        called += [check(call) for call in (calls if choice.finish_reason == "tool_calls" else calls[:-1])]
        if model == "llama" or not parallel:
            assert len(calls) == 1 and choice.finish_reason == "tool_calls"
    assert {name for name, _ in called} <= {"Add", "Weather"}
    if model == "qwen" and parallel:
        assert {name for name, _ in called} == {"Add", "Weather"}
        assert max(len(choice.message.tool_calls) for choice in answer.choices) > 1
    ids = [call.id for choice in answer.choices for call in choice.message.tool_calls]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("model", ["qwen", "llama"])
def test_a_stream_of_a_required_call_is_the_same_in_pieces(client, request, model):
    name = request.getfixturevalue(model).name
    fields = {"model": name, "messages": ASK, "tools": TOOLS, "tool_choice": "required", "seed": 5, "max_tokens": 300,
              "parallel_tool_calls": False}
    (call,) = client.chat.completions.create(**fields).choices[0].message.tool_calls
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert chunks.pop().usage.completion_tokens > 10
    content, calls, reason = collected(chunks)
    assert (content, calls, reason) == (None, [(call.function.name, call.function.arguments)], "tool_calls")
    assert len(chunks) > 5, "the arguments come in pieces"
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content is None


@pytest.mark.parametrize("model", ["qwen", "llama"])
def test_a_loop_with_required_calls(client, request, model):
    """Run the loop of OpenAI's own guide: call, run, answer, until the model may answer in text."""
    name = request.getfixturevalue(model).name
    messages, results = list(ASK), []
    for seed in range(2):
        answer = client.chat.completions.create(model=name, messages=messages, tools=TOOLS, tool_choice="required",
                                                parallel_tool_calls=False, seed=seed, max_tokens=300)
        assert answer.choices[0].finish_reason == "tool_calls"
        messages.append(answer.choices[0].message)
        for call in answer.choices[0].message.tool_calls:
            called, arguments = check(call)
            results.append(str(arguments["a"] + arguments["b"]) if called == "Add" else "sunny")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": results[-1]})
    answer = client.chat.completions.create(model=name, messages=messages, tools=TOOLS, tool_choice="none",
                                            max_tokens=5)
    assert answer.choices[0].message.tool_calls is None and answer.choices[0].message.content is not None
    assert answer.usage.prompt_tokens > 2 * len("tool_response")


def test_parsed_arguments_and_the_helper_for_streams(client, qwen):
    answer = client.chat.completions.parse(model=qwen.name, messages=ASK, tools=[ADD], tool_choice="required", seed=2,
                                           parallel_tool_calls=False, max_tokens=300)
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Add)
    again = [*ASK, answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "5"}]
    with client.chat.completions.stream(model=qwen.name, messages=again, tools=[ADD], tool_choice="required", seed=2,
                                        parallel_tool_calls=False, max_tokens=300) as stream:
        kinds = {event.type for event in stream}
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Add)
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds


@pytest.mark.parametrize("tool, arguments", [("Weather", None), ("now", {})])
def test_a_named_function_is_called_once(client, qwen, tool, arguments):
    for seed in range(2):
        answer = client.chat.completions.create(
            model=qwen.name, messages=ASK, tools=[*TOOLS, NO_ARGUMENTS], seed=seed, max_tokens=300,
            tool_choice={"type": "function", "function": {"name": tool}})
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name == tool and answer.choices[0].finish_reason == "tool_calls"
        assert arguments is None or json.loads(call.function.arguments) == arguments


def test_a_reference_inside_of_a_tools_schema(client, llama):
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/Digit"}}, "required": ["x"],
              "additionalProperties": False, "$defs": {"Digit": {"enum": [1, 2, 3]}}}
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in ("f", "g")]
    answer = client.chat.completions.create(model=llama.name, messages=ASK, tools=tools, tool_choice="required",
                                            max_tokens=200)
    validate(json.loads(answer.choices[0].message.tool_calls[0].function.arguments), schema)


@pytest.mark.parametrize("max_tokens, stream", [(max_tokens, stream) for max_tokens in (1, 12, 34, 41)
                                                for stream in (False, True)])
def test_a_call_that_was_cut_is_what_is_there(client, llama, max_tokens, stream):
    fields = {"model": llama.name, "messages": ASK, "tools": [ADD], "tool_choice": "required", "seed": 1}
    whole = client.chat.completions.create(**fields, max_tokens=300).choices[0].message.tool_calls[0].function
    answer = client.chat.completions.create(**fields, max_tokens=max_tokens, stream=stream)
    if stream:
        content, calls, reason = collected(answer)
    else:
        content, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
        calls = [(call.function.name, call.function.arguments) for call in answer.choices[0].message.tool_calls or ()]
    text = f'{{"name": "Add", "parameters": {whole.arguments}}}'[:max_tokens]  # a token is a byte
    arguments = text.partition('"parameters": ')[2]
    assert (content, calls, reason) == (None, [("Add", arguments)] if arguments else [], "length")


# ---- calls that the model may make


@pytest.fixture
def says(monkeypatch):
    """Return a function that makes every model write a given text, three characters at a time."""
    said, params = [], []

    async def generate(self, prompt, sampling_params, **others):
        params.append(sampling_params)
        text, reason = said[-1]
        ends = [*range(3, len(text), 3), len(text)]
        for end in ends:
            finish = reason if end == ends[-1] else None
            output = CompletionOutput(0, text[:end], list(range(end)), finish)
            yield RequestOutput("r", prompt.text, prompt.token_ids, [output], finish is not None, Usage(1, end))

    def say(text, reason="stop"):
        said.append((text, reason))
        return params

    monkeypatch.setattr(AsyncLLMEngine, "generate", generate)
    return say


HERMES_CALL = '<tool_call>\n{"name": "Weather", "arguments": {"city": "Rome", "units": "C"}}\n</tool_call>'
LLAMA_CALL = '{"name": "Weather", "parameters": {"city": "Rome", "units": "C"}}'
ROME = ("Weather", '{"city": "Rome", "units": "C"}')


@pytest.mark.parametrize("model, text, reason, wanted", [
    ("qwen", HERMES_CALL, "stop", (None, [ROME], "tool_calls")),
    ("qwen", f"I look.\n{HERMES_CALL}\n{HERMES_CALL}", "stop", ("I look.", [ROME, ROME], "tool_calls")),
    ("qwen", "It is sunny.", "stop", ("It is sunny.", [], "stop")),
    ("qwen", "It is", "length", ("It is", [], "length")),
    ("qwen", HERMES_CALL.replace("Weather", "Fly"), "stop", (HERMES_CALL.replace("Weather", "Fly"), [], "stop")),
    ("qwen", HERMES_CALL[:56], "length", (None, [("Weather", '{"city": "R')], "length")),
    ("llama", LLAMA_CALL, "stop", (None, [ROME], "tool_calls")),
    ("llama", f"<|python_tag|>{LLAMA_CALL}", "stop", (None, [ROME], "tool_calls")),
    ("llama", '{"sunny": true}', "stop", ('{"sunny": true}', [], "stop")),
])
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_model_writes_is_parsed(client, request, says, model, text, reason, wanted, stream):
    says(text, reason)
    answer = client.chat.completions.create(model=request.getfixturevalue(model).name, messages=ASK, tools=TOOLS,
                                            stream=stream)
    if stream:
        assert collected(answer) == wanted
        return
    message = answer.choices[0].message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    assert (message.content, calls, answer.choices[0].finish_reason) == wanted
    assert (message.tool_calls is None) == (not calls)


def test_a_free_output_of_a_real_engine_loses_nothing(client, qwen):
    def text(**fields):
        answer = client.chat.completions.create(model=qwen.name, messages=ASK, temperature=0, max_tokens=12, **fields)
        return answer.choices[0].message.content

    free, stream = text(tools=TOOLS), client.chat.completions.create(
        model=qwen.name, messages=ASK, temperature=0, max_tokens=12, tools=TOOLS, stream=True, logprobs=True)
    chunks = list(stream)
    assert collected(chunks)[0] == free
    logprobs = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert len(logprobs) == 12


def test_markers_that_are_special_tokens_are_seen(client, qwen, says, monkeypatch):
    monkeypatch.setattr("mini_vllm.models.tokenizer.Tokenizer.is_special", lambda self, text: text == "<tool_call>")
    (params,) = [says(HERMES_CALL)]
    client.chat.completions.create(model=qwen.name, messages=ASK, tools=TOOLS)
    client.chat.completions.create(model=qwen.name, messages=ASK)
    assert [each.skip_special_tokens for each in params] == [False, True]


# ---- templates


def test_a_template_gets_tools_calls_and_results(client, qwen, llama, says):
    calls = [{"id": "c1", "type": "function", "function": {"name": "Add", "arguments": '{"a":1,"b":2}'}}]
    messages = [*ASK, {"role": "assistant", "content": None, "tool_calls": calls},
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "3"}]}]
    prompts = {}
    for model in (qwen, llama):
        tokenizer = load(model).tokenizer
        rendered = [{"role": "user", "content": ASK[0]["content"]},
                    {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": {
                        "name": "Add", "arguments": {"a": 1, "b": 2}}}]},
                    {"role": "tool", "content": "3", "tool_call_id": "c1"}]
        prompts[model.name] = tokenizer.apply_chat_template(rendered, tools=TOOLS)
        says("Three.")
        answer = client.chat.completions.create(model=model.name, messages=messages, tools=TOOLS)
        assert answer.choices[0].message.content == "Three."
    assert '<tool_call>\n{"name": "Add", "arguments": {"a": 1, "b": 2}}\n</tool_call><|im_end|>' in prompts["qwen"]
    assert "<tool_response>\n3\n</tool_response>" in prompts["qwen"] and '"name": "Weather"' in prompts["qwen"]
    assert '{"name": "Add", "parameters": {"a": 1, "b": 2}}<|eot_id|>' in prompts["llama"]


def test_the_prompt_is_what_the_tokenizer_writes(client, qwen):
    prompt = load(qwen).tokenizer.apply_chat_template(ASK, tools=[ADD])
    answer = client.chat.completions.create(model=qwen.name, messages=ASK, tools=[ADD], max_tokens=1)
    num_tokens = len(load(qwen).tokenizer.encode(prompt))
    assert answer.usage.prompt_tokens == num_tokens
    without = client.chat.completions.create(model=qwen.name, messages=ASK, tools=[ADD], tool_choice="none",
                                             max_tokens=1)
    assert without.usage.prompt_tokens < num_tokens


def test_arguments_that_are_not_json_stay_text(client, qwen):
    calls = [{"id": "c", "type": "function", "function": {"name": "Add", "arguments": arguments}} for arguments in (
        '{"a": 1', "", "[" * 3000, '{"a":' * 100 + "1" + "}" * 100)]
    messages = [*ASK, {"role": "assistant", "tool_calls": calls}, {"role": "tool", "tool_call_id": "c", "content": ""}]
    assert client.chat.completions.create(model=qwen.name, messages=messages[:1], max_tokens=1)
    with pytest.raises(openai.BadRequestError, match="the context is 4096"):
        client.chat.completions.create(model=qwen.name, messages=messages, max_tokens=1)
    del calls[2]
    assert client.chat.completions.create(model=qwen.name, messages=messages, max_tokens=1).usage.prompt_tokens > 200


@pytest.mark.parametrize("template, form", [
    (QWEN_TEMPLATE, HERMES), (LLAMA_TEMPLATE, LLAMA), ("", None), ("{{ messages }}", None), ("{{ tools }}", None),
    (QWEN_TEMPLATE + "<function=name><parameter=x>", None), (QWEN_TEMPLATE.replace("arguments", "args"), None),
    ("{% if tools %}[TOOL_CALLS]{% endif %}", None), (LLAMA_TEMPLATE.replace("tools", "things"), None),
    ("{% if tools %}{\"name\": 1, \"parameters\": {}}", None),
])
def test_the_format_is_recognised_from_the_template(template, form):
    assert format_of(template) is form

"""OpenAI's own client and curl against the server, used as if it were OpenAI's."""

import asyncio
import json
import shutil
import subprocess

import openai
import pytest

from mini_vllm.llm import LLM
from mini_vllm.request import SamplingParams
from mini_vllm.server.conftest import running, settings_for

PROMPT = "Once upon a time there was a king"


@pytest.fixture(scope="module")
def server(writer, talker):
    with running(settings_for(writer, talker, sizes={"native": False})) as server:  # so slow that a stream has pieces
        yield server


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def model(writer):
    return writer.name


@pytest.fixture(scope="module")
def alone(writer):
    """Return the output of the engine without a server."""
    llm = LLM(writer, block_size=8, num_blocks=400)
    return lambda prompt, **params: llm.generate([prompt], SamplingParams(**{"temperature": 0, **params}))[0]


def test_the_models_are_listed(client, writer, talker):
    assert [model.id for model in client.models.list()] == [writer.name, talker.name]
    assert client.models.retrieve(talker.name).id == talker.name
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none-such")


def test_a_completion_is_the_engines_text_and_the_second_time_found_in_the_cache(client, model, alone):
    prompt = PROMPT[::-1]  # no other test has put its beginning into the cache
    first, second = (client.completions.create(model=model, prompt=prompt, max_tokens=9, temperature=0)
                     for _ in range(2))
    wanted = alone(prompt, max_tokens=9)
    for answer in (first, second):
        (choice,) = answer.choices
        assert (choice.text, choice.finish_reason, choice.index) == (wanted.text, wanted.finish_reason, 0)
        assert answer.usage.prompt_tokens == len(PROMPT) and answer.usage.completion_tokens == 9
        assert answer.usage.total_tokens == len(PROMPT) + 9
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens >= len(PROMPT) // 8 * 8


def test_a_stream_is_the_same_text_in_pieces(client, model, alone):
    client.completions.create(model=model, prompt=PROMPT, max_tokens=1)  # so that the stream finds it in the cache
    chunks = list(client.completions.create(model=model, prompt=PROMPT, max_tokens=9, temperature=0, stream=True,
                                            stream_options={"include_usage": True}))
    *pieces, last = chunks
    wanted = alone(PROMPT, max_tokens=9)
    assert "".join(chunk.choices[0].text for chunk in pieces) == wanted.text and len(pieces) > 3
    assert [chunk.choices[0].finish_reason for chunk in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert last.choices == [] and last.usage.completion_tokens == 9 and not any(chunk.usage for chunk in pieces)
    assert last.usage.prompt_tokens_details.cached_tokens > 0
    assert {chunk.id for chunk in chunks} == {last.id}


def test_a_stream_without_usage_has_none(client, model):
    chunks = list(client.completions.create(model=model, prompt="a", max_tokens=2, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_come_in_four_shapes_and_choices_are_numbered_through(client, model, alone, stream):
    ids = list(PROMPT.encode())
    for prompt, wanted in ((ids, [ids]), ([PROMPT, "b"], [PROMPT, "b"]), ([ids, [5, 6]], [ids, [5, 6]])):
        texts = [""] * 2 * len(wanted)
        answer = client.completions.create(model=model, prompt=prompt, n=2, max_tokens=5, temperature=0, stream=stream)
        for chunk in answer if stream else [answer]:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        assert texts == [alone(one, max_tokens=5).text for one in wanted for _ in range(2)]


def test_parameters_reach_the_sampler(client, model, alone):
    def text(**params):
        return client.completions.create(model=model, prompt=PROMPT, max_tokens=8, **params).choices[0].text

    assert text(temperature=1, seed=5) == text(temperature=1, seed=5) == alone(
        PROMPT, temperature=1, seed=5, max_tokens=8).text
    assert text(temperature=1, seed=5) != text(temperature=1, seed=-5) == text(temperature=1, seed=-5)
    assert text(temperature=0, logit_bias={"65": 100}) == "b" * 8
    assert text(temperature=0, logit_bias={"65": 50}, frequency_penalty=2, presence_penalty=2) == alone(
        PROMPT, max_tokens=8, logit_bias={65: 50}, frequency_penalty=2, presence_penalty=2).text
    assert text(temperature=0, extra_body={"allowed_token_ids": [66], "min_tokens": 3, "top_k": 5}) == "c" * 8


def test_a_stop_text_ends_it_and_is_not_shown(client, model):
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=20, temperature=0, stop=["bb"],
                                       logit_bias={"65": 100})
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("", "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_completion(client, model, alone, stream):
    wanted = alone(PROMPT, max_tokens=4, logprobs=2).outputs[0]
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=4, temperature=0, logprobs=2,
                                       stream=stream)
    got = [chunk.choices[0].logprobs for chunk in (answer if stream else [answer])]
    assert [x for each in got for x in each.tokens] == [each.text for each in wanted.logprobs]
    logprobs = [x for each in got for x in each.token_logprobs]
    assert logprobs == pytest.approx([each.logprob for each in wanted.logprobs], abs=1e-4)
    offsets = [x for each in got for x in each.text_offset]
    assert offsets == [sum(len(e.text) for e in wanted.logprobs[:index]) for index in range(4)]
    assert all(max(top.values()) == pytest.approx(logprob, abs=1e-4)  # greedy: the chosen token is the likeliest
               for each in got for top, logprob in zip(each.top_logprobs, each.token_logprobs))


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat(client, talker, stream):
    llm = LLM(talker, block_size=8, num_blocks=400)
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    wanted = llm.chat(said, SamplingParams(temperature=0, max_tokens=6))[0]
    parts = [said[0] | {"role": "developer"}, {"role": "user", "content": [{"type": "text", "text": "Hel"},
                                                                        {"type": "text", "text": "lo"}]}]
    for messages in (said, parts):
        answer = client.chat.completions.create(model=talker.name, messages=messages, temperature=0,
                                                max_completion_tokens=6, logprobs=True, top_logprobs=2, stream=stream)
        if not stream:
            message = answer.choices[0].message
            assert (message.role, message.content) == ("assistant", wanted.text)
            logprobs = answer.choices[0].logprobs.content
        else:
            chunks = list(answer)
            assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].choices[0].finish_reason == "length"
            assert "".join(chunk.choices[0].delta.content for chunk in chunks) == wanted.text
            logprobs = [x for chunk in chunks[1:] for x in chunk.choices[0].logprobs.content]
        assert len(logprobs) == 6 and all(len(each.top_logprobs) == 2 for each in logprobs)
        assert all(each.bytes is None or bytes(each.bytes).decode() == each.token for each in logprobs)


def test_several_choices_of_a_chat_stream_side_by_side(client, talker):
    texts = {}
    for chunk in client.chat.completions.create(model=talker.name, messages=[{"role": "user", "content": "Hi"}], n=3,
                                                max_tokens=8, seed=1, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.delta.content
    whole = client.chat.completions.create(model=talker.name, messages=[{"role": "user", "content": "Hi"}], n=3,
                                           max_tokens=8, seed=1)
    assert texts == {choice.index: choice.message.content for choice in whole.choices} and len(set(texts.values())) > 1


def test_the_async_client_streams_many_at_once(server, model, alone):
    prompts = [f"{PROMPT} {number}" for number in range(8)]

    async def text_of(client, prompt):
        stream = await client.completions.create(model=model, prompt=prompt, max_tokens=6, temperature=0, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def main():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(text_of(client, prompt) for prompt in prompts))

    assert asyncio.run(main()) == [alone(prompt, max_tokens=6).text for prompt in prompts]


def test_errors_are_the_clients_own(client, model):
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="none-such", prompt="a")
    assert caught.value.code == "model_not_found" and caught.value.param == "model"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=model, prompt="a" * 600)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    assert "the context is 512" in caught.value.message
    with pytest.raises(openai.BadRequestError, match="temperature is 3, must be less than or equal to 2"):
        client.completions.create(model=model, prompt="a", temperature=3)
    with pytest.raises(openai.BadRequestError, match="has no chat template") as caught:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "a"}])
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="the prompt has 601 tokens|the prompt has"):
        list(client.completions.create(model=model, prompt="a" * 601, stream=True))


# ---- curl


def curl(*arguments):
    if not shutil.which("curl"):
        pytest.skip("there is no curl here")
    run = subprocess.run(["curl", "-sS", "-w", "\n%{http_code} %{content_type}", *arguments], capture_output=True,
                         text=True)
    assert run.returncode == 0, run.stderr
    body, _, status = run.stdout.rpartition("\n")
    return body, status


def test_curl_gets_an_answer_and_a_stream(server, model):
    url, kind = f"{server.url}/v1/completions", "Content-Type: application/json"
    body = {"model": model, "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
    answer, status = curl(url, "-H", kind, "-d", json.dumps(body))
    assert status == "200 application/json"
    stream, status = curl("-N", url, "-H", kind, "-d", json.dumps({**body, "stream": True}))
    assert status == "200 text/event-stream; charset=utf-8" and stream.endswith("data: [DONE]\n\n")
    pieces = [json.loads(line.removeprefix("data: ")) for line in stream.split("\n\n")[:-2]]
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == json.loads(answer)["choices"][0]["text"]


def test_curl_without_a_type_is_told_what_is_missing(server, model):
    answer, status = curl(f"{server.url}/v1/completions", "-d", "{}")
    assert status == "415 application/json" and "must be application/json" in json.loads(answer)["error"]["message"]

"""The API fuzzed with its own schema: for every request, the answer conforms to the schema and is not a 5xx."""

import copy
import json
import os
import urllib.request
from collections import Counter

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from mini_vllm.server.api.protocol import FIELDS
from mini_vllm.server.conftest import running, settings_for

#: ``make serve-load`` uses more.
NUM_EXAMPLES = int(os.environ.get("SERVE_EXAMPLES", "15"))
load_all_checks()
positive_data_acceptance = CHECKS.get_one("positive_data_acceptance")


@pytest.fixture(scope="module")
def server(writer, talker):
    with running(settings_for(writer, talker, sizes={"max_model_len": 40})) as server:
        yield server


@pytest.fixture(scope="module")
def described(server):
    with urllib.request.urlopen(f"{server.url}/openapi.json") as response:
        return json.load(response)


def with_models(described, **names):
    """Return the server's schema with the names of its models filled in: no fuzzer would guess one."""
    narrowed = copy.deepcopy(described)
    for body, models in names.items():
        narrowed["components"]["schemas"][body]["properties"]["model"]["enum"] = [model.name for model in models]
    return narrowed


def fitted(node):
    """Restrict the schema ``node`` to models with a few hundred tokens and a short context.

    The schema does not contain these limits; only the models know them.
    """
    if isinstance(node, list):
        return [fitted(each) for each in node]
    if not isinstance(node, dict):
        return node
    bounds = {"integer": {"maximum": 20}, "string": {"minLength": 1, "maxLength": 3}, "array": {"maxItems": 2}}
    fits = {} if "enum" in node or "const" in node else bounds.get(str(node.get("type")), {})
    return {**{key: fitted(value) for key, value in node.items()}, **fits}


@pytest.fixture(scope="module")
def api(described, writer, talker):
    return schemathesis.openapi.from_dict(with_models(described, CompletionRequest=[writer, talker],
                                                      ChatRequest=[writer, talker]))


@pytest.fixture(scope="module")
def fitted_api(described, writer, talker):
    """Return the schema fitted to the two models, of which only one can chat."""
    narrowed = with_models(described, CompletionRequest=[writer, talker], ChatRequest=[talker])
    schemas = narrowed["components"]["schemas"]
    for name in ("CompletionRequest", "ChatRequest", "Message", "TextPart"):
        schemas[name] = fitted(schemas[name])
    for name in ("CompletionRequest", "ChatRequest"):
        schemas[name]["properties"]["n"] = {"type": "integer", "minimum": 1, "maximum": 2}
        schemas[name]["properties"]["structured_outputs"] = {"enum": [None, {"choice": ["a"]}, {"regex": "a|b"}]}
    # No fuzzer would guess a JSON schema, and this model's template knows no tools.
    chat, message = (schemas[name] for name in ("ChatRequest", "Message"))
    chat["properties"]["response_format"] = {"enum": [None, {"type": "text"}]}
    chat["properties"] |= {"tools": {"enum": [None, []]}, "tool_choice": {"enum": [None, "none", "auto"]}}
    message["properties"] = {name: message["properties"][name] for name in ("role", "content", "name")}
    message["properties"]["role"]["enum"] = ["system", "developer", "user", "assistant"]
    message["required"] = ["role", "content"]
    message["properties"]["content"] = next(kind for kind in message["properties"]["content"]["anyOf"]
                                            if kind.get("type") == "string")
    return schemathesis.openapi.from_dict(narrowed)


def whole(value):
    """Convert 2.0 to 2. In JSON Schema both are integers; the server has strict types and rejects 2.0."""
    if isinstance(value, dict):
        return {key: whole(each) for key, each in value.items()}
    if isinstance(value, list):
        return [whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def fuzzed(server, operation, mode, num_examples, kind="", change=lambda body: body):
    """Send generated requests, check that every answer conforms to the schema, and count the statuses."""
    seen = Counter()
    with requests.Session() as session:

        @seed(18)
        @settings(max_examples=num_examples, phases=[Phase.generate], database=None,
                  suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def fuzz(case):
            case.body = change(case.body)
            response = case.call_and_validate(base_url=server.url, session=session, timeout=60,
                                              excluded_checks=[positive_data_acceptance])
            seen[response.status_code] += 1

        fuzz()
    print(f"{operation.method.upper()} {operation.path}, {kind or mode.value}: {dict(seen)}")
    return seen


GENERATING = ("/v1/completions", "/v1/chat/completions")


@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("path", GENERATING)
def test_no_request_surprises_the_server(server, api, path, mode):
    """Check answers to generated requests: those that violate the schema must be rejected.

    Others may be rejected, for their length or a token id.
    """
    num_examples = NUM_EXAMPLES if mode is GenerationMode.NEGATIVE else (NUM_EXAMPLES + 1) // 2
    seen = fuzzed(server, api[path]["POST"], mode, num_examples)
    assert seen[400], seen


@pytest.mark.parametrize("path", GENERATING)
def test_what_fits_the_model_is_answered(server, fitted_api, path):
    """Check that only a few requests are rejected.

    Those name a token that does not exist, or contradict themselves: ``stream_options`` without a stream.
    """
    seen = fuzzed(server, fitted_api[path]["POST"], GenerationMode.POSITIVE, NUM_EXAMPLES, "fitted", whole)
    assert seen[200] >= sum(seen.values()) / 2, seen


@pytest.mark.parametrize("path", ("/v1/models", "/v1/models/{name}", "/health", "/metrics"))
def test_no_question_surprises_the_server(server, api, path):
    fuzzed(server, api[path]["GET"], GenerationMode.POSITIVE, 5)


def test_the_schema_says_what_may_be_said(described):
    paths = described["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics"} <= set(paths)
    for path in ("/v1/completions", "/v1/chat/completions"):
        responses = paths[path]["post"]["responses"]
        assert set(responses) == {"200", "4XX", "5XX"} and set(responses["200"]["content"]) == {
            "application/json", "text/event-stream"}
    known = {*described["components"]["schemas"]["CompletionRequest"]["properties"],
             *described["components"]["schemas"]["ChatRequest"]["properties"]}
    assert known == set(FIELDS)

"""The API fuzzed by its own schema: whatever is sent, the answer is one that the schema tells of, and no 5xx."""

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

from mini_vllm.server.conftest import running, settings_for
from mini_vllm.server.protocol import FIELDS

#: ``make serve-load`` tries more.
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


@pytest.fixture(scope="module")
def api(described, writer, talker):
    """As the server describes itself, but for the names of its models: no fuzzer would guess one."""
    narrowed = copy.deepcopy(described)
    for name in ("CompletionRequest", "ChatRequest"):
        narrowed["components"]["schemas"][name]["properties"]["model"]["enum"] = [writer.name, talker.name]
    return schemathesis.openapi.from_dict(narrowed)


@pytest.mark.parametrize("path, method, mode", [
    *(("/v1/completions", "POST", mode) for mode in GenerationMode),
    *(("/v1/chat/completions", "POST", mode) for mode in GenerationMode),
    *((path, "GET", GenerationMode.POSITIVE) for path in ("/v1/models", "/v1/models/{name}", "/health", "/metrics")),
])
def test_no_request_surprises_the_server(server, api, path, method, mode):
    """What agrees with the schema may be refused, for its length or a token id; what does not agree must be."""
    seen = Counter()
    with requests.Session() as session:

        @seed(18)
        @settings(max_examples=NUM_EXAMPLES if method == "POST" else 5, deadline=None, phases=[Phase.generate],
                  database=None, suppress_health_check=list(HealthCheck))
        @given(case=api[path][method].as_strategy(generation_mode=mode))
        def fuzz(case):
            response = case.call_and_validate(base_url=server.url, session=session, timeout=60,
                                              excluded_checks=[positive_data_acceptance])
            seen[response.status_code] += 1

        fuzz()
    print(f"{method} {path}, {mode.value}: {dict(seen)}")
    if method == "POST":
        assert seen[400] and (mode is GenerationMode.NEGATIVE or seen[200]), seen


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

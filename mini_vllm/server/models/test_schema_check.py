"""Schemas that take too long are refused, and the next one is checked again."""

import asyncio
import json

import pytest

from mini_vllm.server.models.schema_check import SchemaCheck
from mini_vllm.structured.params import StructuredOutputsParams

#: Forty expressions that a text must all match: preparing it would take longer than anyone waits.
COSTLY = {"type": "string", "allOf": [{"pattern": f"^(a|b)*{'ab'[i % 2]}(a|b){{{i}}}$"} for i in range(1, 41)]}


def run(*all_params):
    async def main():
        check = SchemaCheck()
        check._max_cpu_s = 0.5
        try:
            return [await told(check, params) for params in all_params]
        finally:
            await check.close()

    async def told(check, params):
        try:
            await check.check(params)
        except ValueError as error:
            return str(error)

    return asyncio.run(main())


def test_a_costly_schema_is_refused_and_the_next_one_is_checked():
    cheap = StructuredOutputsParams(json={"type": "integer"})
    first, second, third = run(StructuredOutputsParams(json=COSTLY), cheap, cheap)
    assert first == "structured_outputs.json: it took more than 0.5 s of CPU time or 512 MiB of memory"
    assert second is None and third is None


def test_a_costly_schema_inside_of_a_grammar_is_refused():
    (told,) = run(StructuredOutputsParams(grammar=f"start: %json {json.dumps(COSTLY)}"))
    assert "0.5 s of CPU time" in told


@pytest.mark.parametrize("fields", [{"regex": "("}, {"choice": ["a"]}, {"json": {"type": "nothing"}},
                                    {"grammar": "start: x"}])
def test_other_errors_are_left_to_the_engine(fields):
    assert run(StructuredOutputsParams(**fields), None) == [None, None]


def test_what_was_checked_is_known(monkeypatch):
    asked = []

    async def ask(self, question):
        asked.append(question["json"])
        return {}

    monkeypatch.setattr(SchemaCheck, "ask", ask)
    monkeypatch.setattr("mini_vllm.server.models.schema_check.MAX_KNOWN", 2)
    schemas = [StructuredOutputsParams(json={"const": number}) for number in (1, 2, 1, 3, 1, 2)]
    assert run(*schemas) == [None] * 6
    assert asked == ['{"const":1}', '{"const":2}', '{"const":3}', '{"const":2}']

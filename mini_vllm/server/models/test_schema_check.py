"""Schemas that take too long are refused, and the next one is checked again."""

import asyncio
import json
from collections import defaultdict

import pytest

from mini_vllm.request import Priority
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


@pytest.mark.parametrize("fields, problem", [
    ({"regex": "("}, None), ({"choice": ["a"]}, None), ({"grammar": "start: x"}, "structured_outputs.grammar: "),
    ({"json": {"type": "nothing"}}, "structured_outputs.json: ")])
def test_an_error_is_found_once_and_errors_of_expressions_are_left_to_the_engine(fields, problem):
    first, none = run(StructuredOutputsParams(**fields), None)
    assert none is None and (first is None if problem is None else first.startswith(problem)), first


def test_schemas_of_a_better_key_come_first_and_no_key_has_both_processes(monkeypatch):
    started = []

    async def ask(process, line):
        name = json.loads(json.loads(line)["json"])["const"]
        started.append((name, process))
        await may_end[name].wait()
        return b"{}"

    async def free_process(self):
        return self._idle.pop() if self._idle else f"process {len(started)}"

    async def main():
        check, tasks = SchemaCheck(), []

        async def ask_for(name, *holder):
            tasks.append(asyncio.create_task(check.check(StructuredOutputsParams(json={"const": name}), holder)))
            for _ in range(9):
                await asyncio.sleep(0)

        async def end(name):
            may_end[name].set()
            for _ in range(9):
                await asyncio.sleep(0)

        for name in ("bert 1", "bert 2", "bert 3"):
            await ask_for(name, Priority.LOW, "bert")
        assert [name for name, _ in started] == ["bert 1"]
        await ask_for("anna 1", Priority.HIGH, "anna")
        assert started[1:] == [("anna 1", "process 1")], "she does not wait for bert"
        await ask_for("carla 1", Priority.LOW, "carla")
        await ask_for("anna 2", Priority.HIGH, "anna")
        await end("anna 1")
        await end("anna 2")
        await end("bert 1")
        assert [name for name, _ in started[2:]] == ["anna 2", "carla 1", "bert 2"]
        for name in ("bert 2", "bert 3", "carla 1"):
            may_end[name].set()
        await asyncio.gather(*tasks)

    may_end = defaultdict(asyncio.Event)
    monkeypatch.setattr("mini_vllm.server.models.limited_process._ask", ask)
    monkeypatch.setattr(SchemaCheck, "_free_process", free_process)
    asyncio.run(asyncio.wait_for(main(), 10))


def test_what_was_checked_is_known(monkeypatch):
    asked = []

    async def ask(self, question, holder):
        asked.append(question["json"])
        return {}

    monkeypatch.setattr(SchemaCheck, "ask", ask)
    monkeypatch.setattr("mini_vllm.server.models.schema_check.MAX_KNOWN", 2)
    schemas = [StructuredOutputsParams(json={"const": number}) for number in (1, 2, 1, 3, 1, 2)]
    assert run(*schemas) == [None] * 6
    assert asked == ['{"const":1}', '{"const":2}', '{"const":3}', '{"const":2}']

"""Outputs that must match: random expressions, choices and JSON schemas, in random batches of ``tiny-tales``.

Each case serves a few requests at once, some structured and some free, with random temperatures, continuations, drafts,
and sometimes so little memory that requests are preempted. It checks

1. that every output that ended with "stop" matches, by ``re.fullmatch`` or ``jsonschema``;
2. that all outputs end with "stop" if there are finitely many that match and ``max_tokens`` is enough for the longest;
3. that no request fails, that free requests get the tokens that they get alone, and that all blocks come home.
"""

from __future__ import annotations

import functools
import json
import random
import re
from typing import Any, NamedTuple

from fuzz.expect import expect
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.fast.step_costs import DraftCost, StepCosts
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.request import RequestOutput, SamplingParams
from mini_vllm.structured.params import StructuredOutputsParams

FREE = StepCosts((DraftCost(1, -100.0, -1.0),), no_lookahead=-1.0)
PROMPTS = ("Once upon a time", "The king said: 12 34 12 34 12", '{"name": "Tom", "age": 3} {"name": "Tim", "age":', "é")
#: Outputs that may be longer than this are not waited for.
MAX_LENGTH = 150


class Wanted(NamedTuple):
    """What an output must match, and the number of bytes of the longest text that does; None if there is none."""

    fields: dict[str, Any]
    longest: int | None

    def matches(self, text: str) -> bool:
        if "choice" in self.fields:
            return text in self.fields["choice"]
        if "regex" in self.fields:
            return re.fullmatch(self.fields["regex"], text, re.ASCII) is not None
        import jsonschema
        try:
            value = json.loads(text)
        except ValueError:
            return False
        return bool(jsonschema.Draft202012Validator(self.fields["json"]).is_valid(value))


def run_case(seed: int, case: int) -> dict[str, int]:
    rng = random.Random(f"structured {seed} {case}")
    works = [(rng.choice(PROMPTS), _draw_wanted(rng) if rng.random() < 0.85 else None)
             for _ in range(rng.randint(1, 6))]
    params = [_draw_params(rng, wanted) for _, wanted in works]
    config = EngineConfig(num_blocks=rng.choice((24, 400)), block_size=8, num_speculative_tokens=rng.choice((0, 0, 4)))
    engine = LLMEngine(config, loaded=_loaded())
    engine.speculation.costs = FREE
    ids = [engine.add_request(prompt, each) for (prompt, _), each in zip(works, params)]
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        outputs.update((output.request_id, output) for output in engine.step())
    expect(engine.kv_cache.block_pool.get_usage() == 0.0, "not all blocks came home")
    num_stopped = 0
    for request_id, (prompt, wanted), each in zip(ids, works, params):
        output = outputs[request_id]
        told = f"{wanted and wanted.fields} after {prompt!r}, {each}"
        expect(output.error is None, f"{told}: {output.error}")
        if wanted is None:
            alone = _alone(prompt, each)
            expect([one.token_ids for one in output.outputs] == alone, f"{told}: other tokens than alone")
            continue
        for one in output.outputs:
            num_stopped += one.finish_reason == "stop"
            expect(one.finish_reason in ("stop", "length", "kv_cache_full"), f"{told}: {one}")
            expect(one.finish_reason != "stop" or wanted.matches(one.text), f"{told}: {one.text!r} does not match")
            is_enough = wanted.longest is not None and wanted.longest < (each.max_tokens or 0)
            expect(one.finish_reason in ("stop", "kv_cache_full") or not is_enough,
                   f"{told}: {one.finish_reason}, {one.text!r}")
    metrics = engine.metrics()
    return {"batches": 1, "requests": len(works), "outputs": sum(each.n for each in params), "stopped": num_stopped,
            "preemptions": metrics.num_preemptions, "drafted": metrics.num_drafted_tokens,
            "accepted": metrics.num_accepted_tokens}


@functools.cache
def _loaded() -> LoadedModel:
    return load("tiny-tales")


def _alone(prompt: str, params: SamplingParams) -> list[list[int]]:
    """Return the tokens of a request that is served alone, without drafts."""
    engine = LLMEngine(EngineConfig(num_blocks=400, block_size=8), loaded=_loaded())
    engine.add_request(prompt, params)
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return [one.token_ids for one in outputs[-1].outputs]


def _draw_params(rng: random.Random, wanted: Wanted | None) -> SamplingParams:
    max_tokens = rng.choice((10, 40))
    if wanted is not None:
        structure = StructuredOutputsParams(**wanted.fields)
        if wanted.longest is not None and wanted.longest <= MAX_LENGTH:
            max_tokens = wanted.longest + 1
        else:
            max_tokens = 60 if wanted.longest is None or "json" in wanted.fields else wanted.longest + 1
    return SamplingParams(max_tokens=max_tokens, temperature=rng.choice((0.0, 0.5, 1.0, 1.0, 2.0)),
                          seed=rng.randrange(2**31), n=rng.choice((1, 1, 1, 3)), top_k=rng.choice((0, 0, 20)),
                          top_p=rng.choice((1.0, 1.0, 0.8)), logprobs=rng.choice((None, None, 2)),
                          repetition_penalty=rng.choice((1.0, 1.0, 1.2)),
                          structured_outputs=None if wanted is None else structure)


def _draw_wanted(rng: random.Random) -> Wanted:
    kind = rng.random()
    if kind < 0.2:
        texts = ["".join(rng.choice(("a", "the ", "é", "12", "K", '"', "😀", " ")) for _ in range(rng.randint(1, 6)))
                 for _ in range(rng.randint(1, 5))]
        return Wanted({"choice": texts}, max(len(text.encode()) for text in texts))
    if kind < 0.6:
        pattern, longest = _draw_pattern(rng, 3)
        return Wanted({"regex": f"{pattern}!"}, None if longest is None else longest + 1)
    schema, longest = _draw_schema(rng, 2)
    return Wanted({"json": schema}, longest)


def _draw_pattern(rng: random.Random, depth: int) -> tuple[str, int | None]:
    """Return an expression, and the most bytes that it matches; None if there is no limit."""
    kind = rng.random() if depth else 0.0
    if kind < 0.4:
        return rng.choice((("a", 1), ("the ", 4), (r"\d", 1), (r"\w", 1), (".", 4), ("[^a-z]", 4), ("é", 2),
                           ("[A-Z]", 1), (r"\s", 1), ("[é-ü]", 2), ("😀", 4), (r"\W", 4), ("[0-9a-f]", 1)))
    first, its_longest = _draw_pattern(rng, depth - 1)
    if kind < 0.6:
        second, other = _draw_pattern(rng, depth - 1)
        return first + second, None if its_longest is None or other is None else its_longest + other
    if kind < 0.75:
        second, other = _draw_pattern(rng, depth - 1)
        return f"({first}|{second})", None if its_longest is None or other is None else max(its_longest, other)
    sign, most = rng.choice((("*", None), ("+", None), ("?", 1), ("{3}", 3), ("{1,4}", 4), ("{0,2}", 2),
                             ("{2,}", None)))
    return f"(?:{first}){sign}", None if most is None or its_longest is None else most * its_longest


def _draw_schema(rng: random.Random, depth: int) -> tuple[dict[str, Any], int | None]:
    """Return a schema, and the most bytes of its JSON; None if there is no limit."""
    kind = rng.randrange(10 if depth else 7)
    if kind == 0:
        most = rng.randint(1, 6)
        return {"type": "string", "maxLength": most}, 2 + 12 * most
    if kind == 1:
        least = rng.randint(-50, 50)
        return {"type": "integer", "minimum": least, "maximum": least + rng.randint(0, 200)}, 5
    if kind == 2:
        values = rng.sample(["red", "green", "é", 'a"b', 17, None, True, "the king"], rng.randint(1, 4))
        return {"enum": values}, max(len(json.dumps(value)) for value in values)
    if kind == 3:
        return {"type": "boolean"}, 5
    if kind == 4:
        return rng.choice(({"type": "number"}, {"type": "string"}, {"type": "integer"})), None
    if kind == 5:
        return {"const": rng.choice(["fixed", 3, [1, "two"], {"a": None}])}, 20
    if kind == 6:
        return {"type": "string", "pattern": "^[a-c]{1,5}$"}, 7
    if kind == 7:
        items, longest = _draw_schema(rng, depth - 1)
        most = rng.randint(1, 3)
        return ({"type": "array", "items": items, "minItems": rng.randint(0, 1), "maxItems": most},
                None if longest is None else 2 + most * (longest + 1))
    if kind == 8:
        options = [_draw_schema(rng, depth - 1) for _ in range(2)]
        lengths = [longest for _, longest in options if longest is not None]
        return {"anyOf": [schema for schema, _ in options]}, max(lengths) if len(lengths) == 2 else None
    names = rng.sample(["name", "age", "é", "x y"], rng.randint(1, 3))
    properties = {name: _draw_schema(rng, depth - 1) for name in names}
    required = [name for name in properties if rng.random() < 0.7]
    lengths = [longest + 12 for _, longest in properties.values() if longest is not None]
    return ({"type": "object", "properties": {name: schema for name, (schema, _) in properties.items()},
             "required": required, "additionalProperties": False},
            2 + sum(lengths) if len(lengths) == len(properties) else None)

"""What outputs that must match cost: masks, a structured request in a batch, and JSON against free text."""

from __future__ import annotations

import statistics
import time

from measure.decoding import Decoding
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.request import SamplingParams
from mini_vllm.structured.compiler import Cursor
from mini_vllm.structured.params import StructuredOutputsParams

NUM_PLAIN, CONTEXT, STEPS, ROUNDS = 16, 100, 24, 7
#: Texts without an end: only a character that no model writes would end them.
ENDLESS = {"expression": StructuredOutputsParams(regex=r"[^\x00]*\x00"),
           "JSON": StructuredOutputsParams(json={"type": "array", "items": {"type": "integer"}, "minItems": 400})}
PATTERNS = {"a date": r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", "a sentence": r"[A-Z][a-z ,]{5,80}\.",
            "any text": r"(.|\n)*"}
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "city": {"type": "string"},
          "age": {"type": "integer"}, "hobbies": {"type": "array", "items": {"type": "string"}, "minItems": 3}},
          "required": ["name", "city", "age", "hobbies"], "additionalProperties": False}


def print_structured(model: str, rounds: int = ROUNDS, num_steps: int = STEPS) -> None:
    loaded = load(model)
    _print_masks(loaded)
    _print_batches(loaded, rounds, num_steps)
    _print_json(loaded, rounds, num_steps)


def _print_masks(loaded: LoadedModel) -> None:
    """Print what a mask costs the first time and later, over the states that a walk reaches."""
    grammars = LLMEngine(EngineConfig(model=loaded.name, num_blocks=8), loaded=loaded).inputs.grammars
    start_s = time.perf_counter()
    grammars.start(StructuredOutputsParams(choice=["a"]), None)
    print(f"{loaded.name}: {grammars.vocabulary.num_rows} tokens, prepared in {time.perf_counter() - start_s:.2f} s; "
          "milliseconds")
    print(f"{'':12} {'compile':>8} {'first mask':>11} {'worst':>6} {'again':>7}")
    firsts, agains = [], []
    wanted = {name: StructuredOutputsParams(regex=pattern) for name, pattern in PATTERNS.items()}
    for name, params in {**wanted, "JSON": StructuredOutputsParams(json=PERSON)}.items():
        start_s = time.perf_counter()
        cursor = grammars.start(params, None)
        compile_ms = 1e3 * (time.perf_counter() - start_s)
        assert cursor is not None
        first_ms, again_ms = [], []
        for _ in range(40):
            first_ms.append(_mask_ms(cursor))
            again_ms.append(_mask_ms(cursor))
            mask = cursor.allowed()
            assert mask is not None
            (*_, token_id) = mask.nonzero()[0].tolist()
            if cursor.is_complete or token_id in grammars.vocabulary.eos_token_ids:
                break
            cursor = cursor.after([token_id])
        print(f"{name:12} {compile_ms:8.1f} {statistics.median(first_ms):11.2f} {max(first_ms):6.2f} "
              f"{statistics.median(again_ms):7.4f}", flush=True)
        firsts.append(max(first_ms))
        agains.append(statistics.median(again_ms))
    print(f"In short: on {loaded.name} the first mask of a state takes at most {max(firsts):.1f} ms, a known one "
          f"{max(agains):.3f} ms")


def _mask_ms(cursor: Cursor) -> float:
    start_s = time.perf_counter()
    cursor.allowed()
    return 1e3 * (time.perf_counter() - start_s)


def _plain(**fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=4 * ROUNDS * STEPS, temperature=0.0, **{"ignore_eos": True, **fields})  # type: ignore[arg-type]


def _structured(name: str) -> SamplingParams:
    return _plain(ignore_eos=False, structured_outputs=ENDLESS[name])


def _print_batches(loaded: LoadedModel, rounds: int, num_steps: int) -> None:
    """Print what a step costs with one request more, which is plain or structured."""
    sides = {"plain": _plain(), **{name: _structured(name) for name in ENDLESS}}
    batches = {name: Decoding(loaded, [_plain()] * NUM_PLAIN + [params], CONTEXT, num_steps).start()
               for name, params in sides.items()}
    taken = [{name: batch.step_ms() for name, batch in batches.items()} for _ in range(rounds)]
    print(f"\n{loaded.name}: a step of {NUM_PLAIN} plain requests and one more, ms")
    for name in sides:
        ratios = [each[name] / each["plain"] for each in taken]
        print(f"{name:12} {statistics.median(each[name] for each in taken):8.2f}   times a plain one: "
              f"{statistics.median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f})", flush=True)
        if name != "plain":
            which = "an expression" if name == "expression" else name
            print(f"In short: on {loaded.name} a request with {which} makes a step "
                  f"of {NUM_PLAIN} others {statistics.median(ratios):.3f} times as long as a plain one does "
                  f"({min(ratios):.3f}–{max(ratios):.3f})")


def _print_json(loaded: LoadedModel, rounds: int, num_steps: int) -> None:
    """Print what a token of a JSON answer costs, compared with one of free text, for a request alone."""
    taken: list[tuple[float, float]] = []
    for _ in range(rounds):
        free, json_ms = (_token_ms(loaded, params, num_steps) for params in (
            _plain(), _plain(ignore_eos=False, structured_outputs=StructuredOutputsParams(json=PERSON))))
        taken.append((free, json_ms))
    ratios = [json_ms / free for free, json_ms in taken]
    print(f"\n{loaded.name}: a token of one request, ms: free text {statistics.median(free for free, _ in taken):.2f}, "
          f"JSON {statistics.median(json_ms for _, json_ms in taken):.2f}")
    print(f"In short: on {loaded.name} a token of a JSON answer takes {statistics.median(ratios):.2f} times as long as "
          f"one of free text ({min(ratios):.2f}–{max(ratios):.2f})")


def _token_ms(loaded: LoadedModel, params: SamplingParams, num_steps: int) -> float:
    """Return the time per token of a new request, after its first."""
    engine = LLMEngine(EngineConfig(model=loaded.name, num_blocks=40), loaded=loaded)
    engine.add_request("Describe a person who lives by the sea, as JSON.", params)
    while not any(output.token_ids for output in engine.step()):
        pass
    num_tokens, start_s = 0, time.perf_counter()
    while num_tokens < 2 * num_steps and engine.has_unfinished_requests():
        num_tokens += bool(engine.step())
    return (time.perf_counter() - start_s) / max(num_tokens, 1) * 1e3

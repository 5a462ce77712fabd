"""The capstone: 32 requests with shared prefixes, priorities and aborts, served from a small pool.

    four beginnings of about 40 tokens, eight endings each     blocks are shared, even partly filled ones
    HIGH, NORMAL and LOW in turn                               the request that is served last is preempted
    9 of 32 are aborted after their third token                their blocks are freed at once
    47 blocks of 8 tokens, 8 seats                             there is room for four or five requests at a time

A request that is not aborted must get the reference's tokens; an aborted one must get a prefix of them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from course.own_engine.invariants import Audit
from course.own_engine.spec import Tokens
from course.own_engine.workloads import OnStep, Steps, all_finished, failures_told
from mini_vllm.engine import LLMEngine, engine_of
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.models.loader import LoadedModel
from mini_vllm.request import Priority, RequestOutput, SamplingParams

NAME = "capstone"
BEGINNINGS = (
    "There was once a king who had three daughters, and the youngest was so fair that the sun himself, who had seen "
    "so much, wondered each time he shone upon her face. One morning ",
    "In a village by the sea there lived a fisherman and his wife, and they were so poor that they had but one pot, "
    "one spoon and one old boat between them. One evening ",
    "Far away in the deep forest stood a little house of stone, and in it lived an old woman who knew the speech of "
    "the birds and of the winds. One winter ",
    "A miller had a son who would rather sleep than work, and who dreamed every night of a golden castle at the end of "
    "the world. One day ",
)
ENDINGS = ("the door opened", "a stranger came", "the snow fell", "a bird sang", "the old king", "a fox said",
           "she found", "nobody knew")
MAX_TOKENS = (24, 40, 32, 48)
NUM_TOKENS_BEFORE_ABORT = 3


@dataclass(frozen=True)
class Order:
    """One request of the capstone."""

    prompt: str
    params: SamplingParams
    priority: Priority
    is_aborted: bool


def orders() -> list[Order]:
    """Return all 32 requests, in the order in which they arrive."""
    levels = (Priority.HIGH, Priority.NORMAL, Priority.LOW)
    return [Order(BEGINNINGS[index % 4] + ENDINGS[index // 4],
                  SamplingParams(max_tokens=MAX_TOKENS[index % 4], temperature=0.0 if index % 2 else 0.8, seed=index,
                                 ignore_eos=True),
                  levels[index % 3], is_aborted=index % 7 == 3 or index % 8 == 5) for index in range(32)]


def config(model: str = "tiny-tales") -> EngineConfig:
    return EngineConfig(model=model, num_blocks=48, block_size=8, max_num_seqs=8)


def run_capstone(parts: EngineParts | None, loaded: LoadedModel, on_step: OnStep = lambda step: None) -> Tokens:
    """Run all 32 requests, audited at every step, and return their tokens. Raise TrialFailed or PartError."""
    engine = engine_of(config(), parts, loaded)
    steps = Steps(on_step)
    audit = Audit(engine)
    with failures_told(engine, steps):
        outputs = _serve(engine, steps, audit)
        audit.check_end()
    return [output.error if output.error else [list(output.token_ids)] for output in outputs]


def tokens_per_second(parts: EngineParts | None, loaded: LoadedModel, on_step: OnStep = lambda step: None) -> float:
    """Return the capstone's output tokens per second of wall time, without an audit."""
    engine = engine_of(config(), parts, loaded)
    started_s = time.perf_counter()
    outputs = _serve(engine, Steps(on_step), None)
    return sum(len(output.token_ids) for output in outputs) / (time.perf_counter() - started_s)


def _serve(engine: LLMEngine, steps: Steps, audit: Audit | None) -> list[RequestOutput]:
    wanted = orders()
    names = [engine.add_request(order.prompt, order.params, f"tale-{index}", order.priority)
             for index, order in enumerate(wanted)]
    to_abort = {name for name, order in zip(names, wanted) if order.is_aborted}
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        steps.begin()
        outputs |= {output.request_id: output for output in engine.step()}
        for name in sorted(to_abort):
            if name in outputs and len(outputs[name].token_ids) >= NUM_TOKENS_BEFORE_ABORT:
                to_abort.remove(name)
                outputs[name] = engine.abort_request(name) or outputs[name]
        if audit is not None:
            audit.check_blocks()
    return all_finished(names, outputs, steps)


def reference_tokens(loaded: LoadedModel, on_step: OnStep = lambda step: None) -> Tokens:
    """Return the tokens of the 32 requests when nothing is aborted and the pool has room for all of them at once."""
    engine = engine_of(EngineConfig(num_blocks=400, block_size=8, max_num_seqs=16), None, loaded)
    names = [engine.add_request(order.prompt, order.params) for order in orders()]
    outputs: dict[str, RequestOutput] = {}
    steps = Steps(on_step)
    while engine.has_unfinished_requests():
        steps.begin()
        outputs |= {output.request_id: output for output in engine.step()}
    return [[list(outputs[name].token_ids)] for name in names]


def first_difference(mine: Tokens, reference: Tokens) -> str | None:
    """Describe the first request that got wrong tokens in a sentence; return None if there is none."""
    for index, (order, own, wanted) in enumerate(zip(orders(), mine, reference)):
        if isinstance(own, str):
            return f"request {index + 1} of 32 ended with the error {own}"
        assert not isinstance(wanted, str)
        tokens, expected = own[0], wanted[0]
        if tokens != expected[:len(tokens)]:
            place = next(i for i, (a, b) in enumerate(zip(tokens, expected)) if a != b)
            return (f"output token {place + 1} of request {index + 1} of 32 is {tokens[place]}, the reference's is "
                    f"{expected[place]}")
        if len(tokens) < (NUM_TOKENS_BEFORE_ABORT if order.is_aborted else len(expected)):
            return f"request {index + 1} of 32 got {len(tokens)} tokens, the reference's {len(expected)}"
    return None

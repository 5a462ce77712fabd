"""Small workloads in which every piece of an engine is used; the tokens must equal the reference's.

    greedy     five prompts at once, the likeliest tokens
    seeded     drawn with a seed
    samples    three continuations of one prompt: blocks are forked
    turns      a conversation, each prompt is the text so far: hits end inside a block
    shared     prompts that diverge inside a block, some in one step, some while others decode
    cache off  no prefix is found
    preempts   a pool so small that a request must be preempted

Two more run only with the parts of labs 6.1 and 6.2:

    drafts     one request at a time, with guesses that one step checks: fewer steps, the same tokens
    dates      outputs that must match a regular expression
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from course.own_engine.invariants import Audit, BrokenInvariant
from course.own_engine.spec import Tokens
from mini_vllm.engine import LLMEngine, engine_of
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.fast.step_costs import DraftCost, StepCosts
from mini_vllm.models.loader import LoadedModel
from mini_vllm.request import RequestOutput, SamplingParams
from mini_vllm.structured.params import StructuredOutputsParams

PROMPTS = ("Once upon a time", "The king said to the queen", "Once upon a midnight", "In the forest", "A cat")
GREEDY = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=16, temperature=0.8, top_p=0.9, seed=7)
SAMPLES = SamplingParams(max_tokens=12, temperature=0.8, seed=3, n=3)
#: An engine that takes this many steps for a small workload will never finish.
MAX_STEPS = 2000
#: Nearly one and a half blocks of 8 tokens; with its ending, each prompt extends past the second block.
SHARED = "Once upon a time there lived in the wood a "
ENDS = ("king who had three daughters and one son", "queen who was old and had no child", "king who had a fool",
        "cat that could speak as well as you or I", "fox and a hen", "queen who was young, and a little bird")
OnStep = Callable[[int], None]


@dataclass(frozen=True)
class Workload:
    name: str
    params: SamplingParams = GREEDY
    prompts: tuple[str, ...] = PROMPTS
    #: Each further turn asks for a continuation of the text so far.
    num_turns: int = 1
    settings: dict[str, Any] = field(default_factory=dict)

    def config(self, model: str) -> EngineConfig:
        return EngineConfig(**{"model": model, "num_blocks": 99, "block_size": 8, "max_num_seqs": 4, **self.settings})


WORKLOADS = {workload.name: workload for workload in (
    Workload("greedy"),
    Workload("seeded", SEEDED),
    Workload("samples", SAMPLES, PROMPTS[:2]),
    Workload("turns", prompts=PROMPTS[:1], num_turns=3),
    Workload("shared", prompts=tuple(SHARED + end for end in ENDS),
             settings={"max_num_seqs": 8, "max_num_batched_tokens": 24}),
    Workload("cache off", settings={"enable_prefix_caching": False}),
    Workload("preempts", settings={"num_blocks": 9}),
)}
#: Texts that repeat themselves.
REPEATING = ("The king said to the queen", "The mouse ran up the tree, the mouse ran down the tree, the mouse ran",
             "He knocked at the door, and the door said: who knocks at the door? He")
#: With and without drafts. Small blocks, so that drafts need new ones.
DRAFTED = Workload("drafts", SamplingParams(max_tokens=64, temperature=0, ignore_eos=True), REPEATING,
                   settings={"max_num_seqs": 1, "block_size": 4, "num_speculative_tokens": 4})
UNDRAFTED = replace(DRAFTED, settings={**DRAFTED.settings, "num_speculative_tokens": 0})
#: 7 May 1812: only days that every such month has.
LONG_MONTHS, SHORT_MONTHS = "January|March|May|July|August|October|December", "April|June|September|November"
DATE = (rf"(([1-9]|1\d|2[0-8]) ({LONG_MONTHS}|{SHORT_MONTHS}|February)|(29|30) ({LONG_MONTHS}|{SHORT_MONTHS})"
        rf"|31 ({LONG_MONTHS})) (1[89]|20)\d\d")
DATED = Workload("dates", SamplingParams(max_tokens=24, temperature=1, seed=5, n=2,
                                          structured_outputs=StructuredOutputsParams(regex=DATE)))
#: What a drafted token costs in these workloads: the same on every machine, so that everyone sees the same steps.
DRAFT_COSTS = StepCosts((DraftCost(1, first=0.0, per_token=0.2),))


class TrialFailed(Exception):
    """An engine broke a rule, raised, or never ended. ``step`` is the number of the step, counted from 1."""

    def __init__(self, kind: str, step: int, message: str) -> None:
        super().__init__(message)
        self.kind, self.step, self.message = kind, step, message


def run_workload(workload: Workload, parts: EngineParts | None, loaded: LoadedModel, model: str = "tiny-tales",
                 on_step: OnStep = lambda step: None) -> Tokens:
    """Return the tokens of an engine of ``parts``, audited at every step. Raise TrialFailed or PartError.

    Drafts need the loop of the reference's engine: the student's engine of lab 5.3 does not draft.
    """
    config = workload.config(model)
    if config.num_speculative_tokens and parts is not None:
        parts = replace(parts, engine=None)
    engine = engine_of(config, parts, loaded)
    if config.num_speculative_tokens and engine.speculation is not None:
        engine.speculation.costs = DRAFT_COSTS
    audit, steps = Audit(engine), Steps(on_step)
    prompts: list[str | list[int]] = list(workload.prompts)
    tokens: Tokens = []
    for _ in range(workload.num_turns):
        answers = tokens_of(serve(engine, prompts, workload.params, audit, steps))
        tokens += answers
        prompts = [_token_ids(engine, prompt) + (answer[0] if isinstance(answer, list) else [])
                   for prompt, answer in zip(prompts, answers)]
    return tokens


def _token_ids(engine: LLMEngine, prompt: str | list[int]) -> list[int]:
    return engine.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt


class Steps:
    """Counts steps, and reports each."""

    def __init__(self, on_step: OnStep = lambda step: None) -> None:
        self.count, self._on_step = 0, on_step

    def begin(self) -> None:
        self.count += 1
        self._on_step(self.count)
        if self.count > MAX_STEPS:
            raise TrialFailed("never ends", self.count, f"after {MAX_STEPS} steps there are still unfinished requests")


def serve(engine: LLMEngine, prompts: list[str | list[int]], params: SamplingParams, audit: Audit | None, steps: Steps,
          on_output: Callable[[RequestOutput], None] = lambda output: None) -> list[RequestOutput]:
    """Serve all prompts at once, to the end, and return the outputs in the order of the prompts."""
    outputs: dict[str, RequestOutput] = {}
    with failures_told(engine, steps):
        names = [engine.add_request(prompt, params) for prompt in prompts]
        while engine.has_unfinished_requests():
            steps.begin()
            for output in engine.step():
                outputs[output.request_id] = output
                on_output(output)
            if audit is not None:
                audit.check_blocks()
        if audit is not None:
            audit.check_end()
    return all_finished(names, outputs, steps)


def _raise(error: BaseException) -> NoReturn:
    raise error


@contextlib.contextmanager
def failures_told(engine: LLMEngine, steps: Steps) -> Iterator[None]:
    """Turn any exception of an engine into a TrialFailed that names the step."""
    if type(engine) is LLMEngine:  # after an error it ends its requests and goes on; here a piece is to blame
        setattr(engine, "_start_over", _raise)  # noqa: B010  # mypy lets no method be assigned
    try:
        yield
    except BrokenInvariant as broken:
        raise TrialFailed("invariant", steps.count, str(broken)) from broken
    except TrialFailed:
        raise
    except Exception as error:
        raise TrialFailed("raised", steps.count, f"{type(error).__name__}: {error}") from error


def all_finished(names: Sequence[str], outputs: Mapping[str, RequestOutput], steps: Steps) -> list[RequestOutput]:
    """Return the outputs of these requests. Raise TrialFailed if one of them never ended."""
    missing = [name for name in names if name not in outputs or not outputs[name].finished]
    if missing:
        raise TrialFailed("lost", steps.count, f"request {missing[0]!r} never ended, and the engine has nothing to do")
    return [outputs[name] for name in names]


def tokens_of(outputs: list[RequestOutput]) -> Tokens:
    return [output.error if output.error else [list(each.token_ids) for each in output.outputs] for output in outputs]


def first_difference(mine: Tokens, reference: Tokens) -> str | None:
    """Describe the first difference between two runs in a sentence; return None if there is none."""
    for index, (own, wanted) in enumerate(zip(mine, reference)):
        if own == wanted:
            continue
        if isinstance(own, str):
            return f"request {index + 1} ended with the error {own}"
        if isinstance(wanted, str):
            return f"request {index + 1} gave {len(own[0])} tokens, and the reference ended with {wanted}"
        for sample, (tokens, wanted_tokens) in enumerate(zip(own, wanted)):
            place = next((i for i, (a, b) in enumerate(zip(tokens, wanted_tokens)) if a != b),
                         min(len(tokens), len(wanted_tokens)))
            if tokens != wanted_tokens:
                which = f"sample {sample + 1} of request {index + 1}" if len(own) > 1 else f"request {index + 1}"
                got = tokens[place] if place < len(tokens) else "the end"
                expected = wanted_tokens[place] if place < len(wanted_tokens) else "the end"
                return f"output token {place + 1} of {which} is {got}, the reference's is {expected}"
        return f"request {index + 1} has {len(own)} outputs, the reference's has {len(wanted)}"
    return None if len(mine) == len(reference) else f"{len(mine)} requests were served, not {len(reference)}"


#: For the measurement: eight stories at once.
SPEED = Workload("speed", SamplingParams(max_tokens=48, temperature=0, ignore_eos=True), (*PROMPTS, *PROMPTS[:3]),
                 settings={"num_blocks": 200, "block_size": 32, "max_num_seqs": 8})


def tokens_per_second(workload: Workload, parts: EngineParts | None, loaded: LoadedModel, model: str,
                      on_step: OnStep = lambda step: None) -> float:
    """Return output tokens per second of wall time, without an audit."""
    engine = engine_of(workload.config(model), parts, loaded)
    started_s = time.perf_counter()
    outputs = serve(engine, list(workload.prompts), workload.params, None, Steps(on_step))
    return sum(output.usage.completion_tokens for output in outputs) / (time.perf_counter() - started_s)


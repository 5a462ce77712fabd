"""Random schedules with drafts: each request must generate the tokens that it generates in an uncontended engine.

A case is an engine with random settings, often with a pool that is too small. Its requests arrive at random steps,
share prefixes, have drafts, samples, grammars and priorities, are aborted, do not fit, lose their blocks, and lose a
step to an error or to Ctrl-C. Many drafts come from a drafter that knows
the output and gets some tokens wrong, so that drafts of every length are accepted, rejected and cut off.

After every step the pool, the tables and the index must agree, no block may be findable by a token that no request has,
and no request may hold slots of wrong guesses. At the end all requests have ended and all blocks are free.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, fields, replace
from typing import Any

from mini_vllm.block_pool import BlockHash
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.fast.step_costs import DraftCost, StepCosts
from mini_vllm.models.random_model import make_random
from mini_vllm.parts import DrafterPart
from mini_vllm.request import CompletionOutput, Priority, Request, RequestOutput, SamplingParams
from mini_vllm.request_queue import PriorityQueueWithAging
from mini_vllm.sampler import Sampler
from mini_vllm.speculation.drafts import NgramDrafter
from mini_vllm.speculation.model_drafter import ModelDrafter
from mini_vllm.structured.params import StructuredOutputsParams

#: Two layers, so that keys and values of the second depend on all earlier tokens.
SHAPE: dict[str, object] = dict(
    model_type="llama", vocab_size=259, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=10000.0,
    tie_word_embeddings=False)
NETWORKS: tuple[dict[str, object], ...] = ({}, dict(model_type="qwen3", head_dim=16), dict(num_key_value_heads=1))
#: Drafted tokens cost nothing here, so all guesses are computed.
FREE = StepCosts((DraftCost(1, -100.0, -1.0),), no_lookahead=-1.0)
#: Two tokens whose logits differ by less than this may swap when a sum is computed in another order.
TIE = 1e-4
LOGPROB_TOLERANCE = 1e-3
#: Sampling parameters, each of which one request in eight has.
RARE: dict[str, tuple[object, ...]] = dict(
    top_k=(1, 2, 10, 300), top_p=(1e-6, 0.3, 0.9), min_p=(0.01, 0.3), presence_penalty=(-2.0, 0.3),
    frequency_penalty=(-2.0, 0.2), repetition_penalty=(0.8, 1.1, 2.0), logprobs=(0, 2), prompt_logprobs=(0, 1),
    min_tokens=(1, 2), stop=(["a"], ["e", "7", "K"]), stop_token_ids=([5], [9, 77, 120]), bad_words=(["a", "!!"],),
    logit_bias=({3: 6.0, 256: 6.0}, {65: -100.0}), allowed_token_ids=(list(range(60, 90)),),
    structured_outputs=(StructuredOutputsParams(regex="[a-c]{1,9}!"), StructuredOutputsParams(regex=r"\d+(yes|no)?"),
                        StructuredOutputsParams(choice=["on", "off", "é"]),
                        StructuredOutputsParams(json={"enum": ["on", 7]})))


def run_case(seed: int, case: int) -> dict[str, int]:
    schedule = Schedule(random.Random(f"speculation {seed} {case}"))
    try:
        schedule.run()
    except AssertionError as error:
        raise AssertionError(f"{error}\n{schedule}") from None
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n{schedule}") from error
    return dict(schedule.tried)


def expect(is_so: bool, message: str) -> None:
    if not is_so:
        raise AssertionError(message)


class Injected(Exception):
    """Raised in a step that breaks although no request is to blame."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of a step."""


@dataclass
class Work:
    """A request, and the newest output of it."""

    name: str
    prompt: list[int]
    params: SamplingParams
    priority: Priority
    output: RequestOutput | None = None

    @property
    def is_over(self) -> bool:
        return self.output is not None and self.output.finished

    def __str__(self) -> str:
        return f"{self.name}: {self.prompt}, {_changes(self.params, SamplingParams())}, {self.priority.name}"


class Schedule:
    """A drawn engine and everything that happens to it.

    Everything is drawn from one generator in a fixed order: adding or removing a draw changes the case.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.tried = rng, Counter[str](schedules=1)
        self.works: list[Work] = []
        self.num_steps, self.now_s, self.num_to_come = 0, 0.0, rng.randint(1, 8)
        self.loaded = make_random({**SHAPE, **rng.choice(NETWORKS)}, rng.randrange(4))
        max_prompt, self.max_tokens = rng.choice(((6, 10), (20, 10), (40, 5), (60, 20)))
        self.config = self._draw_config(max_prompt)
        assert self.config.num_blocks is not None
        self.capacity = (self.config.num_blocks - 1) * self.config.block_size
        alphabet = rng.sample(range(256), rng.choice((3, 8, 250)))
        #: Texts that prompts begin with: a few random ones, then all prompts, alone and with their outputs.
        self.texts = [[rng.choice(alphabet) for _ in range(rng.randint(1, max_prompt))] for _ in range(3)]
        self.alphabet, self.max_prompt = alphabet, max_prompt
        self._alone: dict[str, RequestOutput] = {}
        self.engine = LLMEngine(self.config, EngineParts(request_queue=self._queue_class()), self.loaded)
        speculation = self.engine.speculation
        assert speculation is not None
        speculation.max_tokens, speculation.costs = rng.choice((1, 2, 3, 4, 8)), FREE
        speculation.drafter = self.engine.drafter = self._draw_drafter()
        self.injects = rng.random() < 0.2

    def _draw_config(self, max_prompt: int) -> EngineConfig:
        rng = self.rng
        block_size, max_num_seqs = rng.choice((1, 2, 3, 4, 7, 8, 16, 32)), rng.choice((1, 2, 3, 5, 8))
        num_slots = rng.choice((rng.randint(max_prompt, 2 * max_prompt), rng.randint(max_prompt, 4 * max_prompt), 2000))
        return EngineConfig(
            block_size=block_size, num_blocks=max(num_slots // block_size, 1) + rng.randint(1, 3),
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_seqs + rng.choice((0, 1, 3, 16, 40, 256)),
            max_num_chunk_tokens=rng.choice((None, 1, 4, 17)), watermark=rng.choice((0.0, 0.01, 0.1, 0.5)),
            aging_rate=rng.choice((0.0, 0.1, 100.0)), enable_prefix_caching=rng.random() < 0.8,
            enable_lookahead=rng.choice((True, True, False, None)), preempt_for_priority=rng.random() < 0.5,
            num_speculative_tokens=8)

    def _queue_class(self) -> type[PriorityQueueWithAging]:
        """Return a queue class whose clock advances with the steps, so that a case is the same whenever it is run."""
        schedule = self

        class SteppedQueue(PriorityQueueWithAging):
            def __init__(self, aging_rate: float) -> None:
                super().__init__(aging_rate, clock=lambda: schedule.now_s)

        return SteppedQueue

    def _draw_drafter(self) -> DrafterPart:
        rng = self.rng
        kind = rng.random()
        if kind < 0.2:
            return NgramDrafter(1)
        if kind < 0.7:
            return Knowing(self, rng.choice((0.2, 0.5, 0.8, 1.0)))
        network = self.loaded if rng.random() < 0.5 else make_random(SHAPE, seed=9)
        return ModelDrafter(network, rng.choice((8, 40, 200)), rng.choice((1, 3, 8)), rng.choice((1, 2, 7, 64)),
                            lambda request: self.engine.live.sequence(request.request_id).row, Sampler(), 0.0)

    def __str__(self) -> str:
        return (f"drawn: {_changes(self.config, EngineConfig())}, draft by "
                f"{type(self.engine.drafter).__name__}\n  " + "\n  ".join(map(str, self.works)))

    def alone(self, prompt: list[int], params: SamplingParams) -> RequestOutput:
        """Return what a request generates in an engine with enough blocks and without cache, drafts and look-ahead."""
        key = f"{prompt} {params}"
        if key not in self._alone:
            engine = LLMEngine(EngineConfig(block_size=32, num_blocks=80, max_num_seqs=8, max_num_batched_tokens=512,
                                            enable_prefix_caching=False, enable_lookahead=False, native=False),
                               loaded=self.loaded)
            engine.add_request(prompt, params)
            while engine.has_unfinished_requests():
                outputs = engine.step()
            (self._alone[key],) = outputs
        return self._alone[key]

    # ---- events

    def run(self) -> None:
        rng, engine = self.rng, self.engine
        rate = rng.choice((0.05, 0.3, 0.9))
        while self.num_to_come or engine.has_unfinished_requests():
            self.now_s += rng.choice((0.0, 0.001, 1.0))
            while self.num_to_come and (rng.random() < rate or not engine.has_unfinished_requests()):
                self.num_to_come -= 1
                self._add(self._draw_work())
            if rng.random() < 0.06 and (unfinished := [work for work in self.works if not work.is_over]):
                aborted = engine.abort_request(rng.choice(unfinished).name)
                assert aborted is not None
                self._see(aborted)
                self.tried["aborts"] += 1
            self._step()
        expect(engine.kv_cache.block_pool.get_usage() == 0.0, "all requests have ended, but blocks are in use")
        for work in self.works:
            self._check_outputs(work)
        counts = engine.metrics()
        self.tried.update(preemptions=counts.num_preemptions, drafted=counts.num_drafted_tokens,
                          accepted=counts.num_accepted_tokens)

    def _draw_work(self) -> Work:
        rng = self.rng
        text = rng.choice(self.texts)
        prompt = text[:rng.choice((len(text), rng.randint(1, len(text))))]
        prompt += [rng.choice(self.alphabet) for _ in range(rng.choice((0, 0, 1, rng.randint(0, 9))))]
        prompt = prompt[:2 * self.max_prompt]
        self.texts.append(prompt)
        drawn: dict[str, object] = dict(
            max_tokens=rng.randint(2, self.max_tokens), ignore_eos=rng.random() < 0.6, seed=rng.randrange(2**32),
            temperature=rng.choice((0.0, 0.0, 0.7, 1.0, 1.5)), n=rng.choice((1, 1, 1, 2, 3)))
        drawn |= {name: rng.choice(values) for name, values in RARE.items() if rng.random() < 1 / 8}
        if "structured_outputs" in drawn:  # an output that matches must be able to end
            drawn |= dict(ignore_eos=False, allowed_token_ids=None)
        params = SamplingParams(**drawn)  # type: ignore[arg-type]  # each field has its own type
        return Work(f"r{len(self.works)}", prompt, params, rng.choice(list(Priority)))

    def _add(self, work: Work) -> None:
        is_refused = len(work.prompt) > self.capacity or work.params.n > self.config.max_num_seqs
        try:
            self.engine.add_request(list(work.prompt), work.params, work.name, work.priority)
        except ValueError as error:
            expect(is_refused, f"{work} was refused: {error}")
            self.tried["refused"] += 1
        else:
            expect(not is_refused, f"{work} was taken in, but must be refused")
            self.works.append(work)
            self.tried["requests"] += 1

    def _step(self) -> None:
        engine, outputs = self.engine, list[RequestOutput]()
        if self.injects and self.rng.random() < 0.1:
            self._break_next_plan(self.rng.choice((Injected, Interrupted)), self.rng.random() < 0.5)
            self.tried["injected"] += 1
        self.num_steps += 1
        try:
            outputs = engine.step()
        except Interrupted:
            pass
        engine.kv_cache.check_integrity()
        if isinstance(engine.drafter, ModelDrafter):
            engine.drafter.kv_cache.check_integrity()
        num_seats = sum(request.num_sequences for request in engine.scheduler.running)
        expect(num_seats <= self.config.max_num_seqs, f"{num_seats} sequences run")
        for output in outputs:
            self._see(output)
        known = [list(sequence.request.all_token_ids) for group in engine.live.groups.values()
                 for sequence in group.sequences]
        known += [work.prompt + each.token_ids for work in self.works if work.output for each in work.output.outputs]
        for block in engine.kv_cache.block_pool.blocks:
            tokens = _tokens_of(block.block_hash) if isinstance(block.block_hash, BlockHash) else []
            expect(any(text[:len(tokens)] == tokens for text in known) or not tokens,
                   f"block {block.block_id} is findable by {tokens}, which no request has")
        for request in engine.scheduler.running:
            num_blocks = len(engine.kv_cache.get_block_ids(request.request_id))
            num_needed = -(-(request.num_computed_tokens + 1) // self.config.block_size)  # looking ahead takes one slot
            expect(num_blocks <= num_needed, f"{request} holds {num_blocks} blocks, and needs {num_needed}")
        bound = 200 + 30 * sum(work.params.n * (len(work.prompt) + self.max_tokens) for work in self.works)
        expect(self.num_steps < bound, f"no end after {bound} steps: {engine.scheduler.running} run")

    def _break_next_plan(self, error: type[BaseException], is_planned: bool) -> None:
        """Make the next step fail while it is planned: at the start, or when the plan is complete."""
        scheduler: Any = self.engine.scheduler
        real = scheduler.schedule

        def schedule() -> object:
            scheduler.schedule = real
            if is_planned:
                real()
            raise error("injected")

        scheduler.schedule = schedule

    def _see(self, output: RequestOutput) -> None:
        """Check that an output only grows and ends once."""
        work = next(work for work in self.works if work.name == output.request_id)
        expect(not work.is_over, f"{work} continues after its end")
        for new, old in zip(output.outputs, work.output.outputs if work.output else []):
            expect(new.token_ids[:len(old.token_ids)] == old.token_ids and new.text.startswith(old.text),
                   f"{work}: {old} became {new}")
        work.output = replace(output, outputs=[replace(each, token_ids=list(each.token_ids))
                                               for each in output.outputs])
        if output.finished:
            self.texts += [work.prompt + each.token_ids for each in output.outputs]

    # ---- checks

    def _check_outputs(self, work: Work) -> None:
        output, wanted = work.output, self.alone(work.prompt, work.params)
        assert output is not None and output.finished, f"{work} never ended"
        # A request that has just outgrown the pool when Ctrl-C takes it back ends with an error, not "kv_cache_full".
        is_injected = output.error is not None and ("injected" in output.error
                                                    or self.injects and "; the pool has" in output.error)
        reasons = {each.finish_reason for each in output.outputs}
        is_cut = is_injected or bool(reasons & {"abort", "kv_cache_full"})
        if not is_cut:
            expect((output.error is None) == (wanted.error is None),
                   f"{work}: error {output.error!r}, alone {wanted.error!r}")
        self.tried["failed"] += output.error is not None
        for mine, theirs in zip(output.outputs, wanted.outputs):
            self.tried["tokens"] += len(mine.token_ids)
            if mine.finish_reason == "kv_cache_full":
                expect(len(work.prompt) + len(mine.token_ids) == self.capacity + 1,
                       f"{work} outgrew the pool of {self.capacity} slots: {mine}")
            self._check_completion(work, mine, theirs, is_cut or output.error is not None)

    def _check_completion(self, work: Work, mine: CompletionOutput, theirs: CompletionOutput, is_cut: bool) -> None:
        """Check that tokens, text, reason and log-probabilities are the same as alone, as far as the sequence got."""
        structure = work.params.structured_outputs
        if structure is not None and mine.finish_reason == "stop" and mine.stop_reason is None:
            choices = ['"on"', "7"] if structure.json is not None else structure.choice
            is_match = (re.fullmatch(structure.regex or "", mine.text, re.ASCII) if choices is None
                        else mine.text in choices)
            expect(bool(is_match), f"{work}: {mine.text!r} does not match")
        place = next((i for i, pair in enumerate(zip(mine.token_ids, theirs.token_ids)) if pair[0] != pair[1]), None)
        if place is not None:
            expect(self._is_tie(work, mine, theirs, place),
                   f"{work}\n  gave {mine.token_ids}, alone it gives {theirs.token_ids}: they differ at {place}")
            self.tried["ties"] += 1
            return
        if not is_cut:
            expect((mine.token_ids, mine.text, mine.finish_reason, mine.stop_reason)
                   == (theirs.token_ids, theirs.text, theirs.finish_reason, theirs.stop_reason),
                   f"{work}\n  {mine}\n  {theirs}")
        for got, wanted in zip(mine.logprobs or [], theirs.logprobs or []):
            expect(abs(got.logprob - wanted.logprob) <= LOGPROB_TOLERANCE, f"{work}\n  {got}\n  {wanted}")

    def _is_tie(self, work: Work, mine: CompletionOutput, theirs: CompletionOutput, place: int) -> bool:
        """Check whether a bias of TIE also makes the request choose the other token when it is alone."""
        for token_id, change in ((mine.token_ids[place], TIE), (theirs.token_ids[place], -TIE)):
            bias = dict(work.params.logit_bias or {})
            bias[token_id] = bias.get(token_id, 0.0) + change
            pushed = self.alone(work.prompt, replace(work.params, logit_bias=bias)).outputs[mine.index]
            if pushed.token_ids[:place + 1] == mine.token_ids[:place + 1]:
                return True
        return False


class Knowing(NgramDrafter):
    """Knows what each request generates alone, and is right about a token with probability ``rate``."""

    def __init__(self, schedule: Schedule, rate: float) -> None:
        self.schedule, self.rng, self.rate = schedule, random.Random(schedule.rng.random()), rate
        #: Request id → how many of its tokens are known.
        self.told: dict[str, int] = {}

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        expect(max_tokens > 0, "a draft of no tokens was asked for")
        name, _, index = request.request_id.partition("#")
        work = next(work for work in self.schedule.works if work.name == name)
        tokens = self.schedule.alone(work.prompt, work.params).outputs[int(index or 0)].token_ids
        following = tokens[len(request.output_token_ids):]
        guess = [following[i] if i < len(following) and self.rng.random() < self.rate else self.rng.randrange(259)
                 for i in range(max_tokens)]
        return guess[:self.rng.randint(0, max_tokens)] if self.rng.random() < 0.2 else guess

    def advance(self, request: Request, token_ids: list[int]) -> None:
        """Check that every token is told once, in order. What it was not told of first is what it had when asked."""
        told = self.told.setdefault(request.request_id, request.num_tokens - len(token_ids))
        expect(bool(token_ids) and request.all_token_ids[told:] == list(token_ids),
               f"the drafter was told of {token_ids}, the request got {request.all_token_ids[told:]}")
        self.told[request.request_id] = request.num_tokens

    def forget(self, request: Request) -> None:
        self.told.pop(request.request_id, None)


def _tokens_of(key: BlockHash | None) -> list[int]:
    tokens: list[int] = []
    while key is not None:
        tokens = [*key.token_ids, *tokens]
        key = key.parent
    return tokens


def _changes(given: EngineConfig | SamplingParams, default: EngineConfig | SamplingParams) -> str:
    """Describe the fields that differ from their defaults."""
    return ", ".join(f"{each.name}={getattr(given, each.name)!r}" for each in fields(given)
                     if getattr(given, each.name) != getattr(default, each.name))

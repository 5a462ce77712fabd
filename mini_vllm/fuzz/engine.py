"""Random schedules against each request alone.

A case is an engine with random settings, often with a pool that is too small, and requests that come at random steps,
have beginnings in common, are aborted, cannot fit, fail, and lose their blocks. Whatever happens to them, each gives
the tokens that it gives alone in an engine that does one thing at a time and caches nothing. After every step pool,
tables and index agree; at the end everybody has ended and all blocks have come home.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

from mini_vllm import block_pool
from mini_vllm.backend import mx
from mini_vllm.beam_search import Beam, beam_search
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.fuzz.draws import PromptDraw, draw_config, draw_params
from mini_vllm.fuzz.faults import Interrupted, PlanLost, Poison, interrupt_at_times, lose_plan_once
from mini_vllm.fuzz.networks import NETWORKS, break_token, network
from mini_vllm.request import CompletionOutput, Priority, RequestOutput, SamplingParams
from mini_vllm.request_queue import PriorityQueueWithAging

#: Two tokens whose logits differ by less than this may change places when a sum is taken in another order.
TIE = 1e-4
LOGPROB_TOLERANCE = 1e-3
FAULTS = ("poison", "poison", "nan", "nan", "interrupt", "lost plan")


def run_case(seed: int, case: int) -> dict[str, int]:
    schedule = Schedule(random.Random(f"engine {seed} {case}"))
    try:
        schedule.run()
        schedule.check()
    except AssertionError as error:
        raise AssertionError(f"{error}\n{schedule}") from None
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n{schedule}") from error
    return dict(schedule.tried)


@dataclass
class Work:
    """One request, and what became of it."""

    name: str
    prompt: list[int]
    params: SamplingParams
    priority: Priority
    extra_keys: tuple | None
    poison: Poison | None
    #: Tokens and texts of its sequences that have been seen so far.
    seen: dict[int, tuple[int, str]] = field(default_factory=dict)
    output: RequestOutput | None = None
    is_aborted: bool = False

    def __str__(self) -> str:
        changed = [f"{each.name}={getattr(self.params, each.name)!r}" for each in fields(self.params)
                   if getattr(self.params, each.name) != getattr(SamplingParams(), each.name)]
        reasons = [each.finish_reason for each in self.output.outputs] if self.output else "no end"
        return (f"{self.name}: prompt {_short(self.prompt)}, {', '.join(changed)}, {self.priority.name}, "
                f"extra_keys={self.extra_keys}{f', {self.poison}' if self.poison else ''} → {reasons}")


class Schedule:
    """A drawn engine and all that happens to it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.tried: Counter[str] = Counter(schedules=1)
        self.works: list[Work] = []
        #: What was done, in short, by step.
        self.events: list[str] = []
        self.num_calls, self.now_s = 0, 0.0
        self.fault = rng.choice(FAULTS) if rng.random() < 0.4 else None
        name = "tiny-tales" if rng.random() < 0.03 else rng.choice(list(NETWORKS))
        self.loaded = network(name, is_broken=self.fault == "nan")
        self._alone: dict[str, RequestOutput] = {}
        is_large = rng.random() < 0.05
        self.num_to_come = rng.randint(12, 30) if is_large else rng.randint(1, 7)
        self.max_tokens, max_prompt = (20, 60) if is_large else (rng.choice((2, 5, 10)), rng.choice((6, 20, 40)))
        self.config = draw_config(rng, max_prompt)
        self.has_tree, self.has_one_hash = rng.random() < 0.85, rng.random() < 0.1
        self.arrival_rate = rng.choice((0.05, 0.3, 0.9, 0.9))
        self.engine = LLMEngine(self.config, EngineParts(request_queue=self._make_queue, **(
            {} if self.has_tree else {"prefix_tree": None})), self.loaded)
        self.capacity = (self.config.num_blocks - 1) * self.config.block_size
        self.has_searched_beams = False
        self.prompts = PromptDraw(rng, self.loaded.config.vocab_size, max_prompt)
        #: With the fault "nan", a token that the network cannot read.
        self.broken_token = self._break_token(self.prompts.texts[0]) if self.fault == "nan" else None
        if self.fault == "interrupt":
            interrupt_at_times(self.engine, random.Random(rng.random()), times=rng.randint(1, 5))

    def _break_token(self, prompt: list[int]) -> int:
        """One that the network is about to say, so that not only prompts have it."""
        break_token(self.loaded, -1)
        engine = self._roomy_engine(max_model_len=None)
        engine.add_request(prompt, SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
        while engine.has_unfinished_requests():
            (output,) = engine.step()
        token_id = self.rng.choice(output.token_ids)
        break_token(self.loaded, token_id)
        return token_id

    def _make_queue(self, aging_rate: float) -> PriorityQueueWithAging:
        """Time passes by steps, so that the case is the same whenever it is run."""
        return PriorityQueueWithAging(aging_rate, clock=lambda: self.now_s)

    def __str__(self) -> str:
        events = "; ".join(self.events)
        return (f"drawn: {self.loaded.name}, {_changes(self.config)}"
                f"{'' if self.has_tree else ', no prefix tree'}{', one hash for all' if self.has_one_hash else ''}"
                f"{f', fault: {self.fault}' if self.fault else ''}"
                f"{'' if self.broken_token is None else f' of token {self.broken_token}'}\n  "
                + "\n  ".join(str(work) for work in self.works) + f"\nby step: {events}")

    # ---- what happens

    def run(self) -> None:
        with _one_hash_for_all() if self.has_one_hash else contextlib.nullcontext():
            while self.num_to_come or self.engine.has_unfinished_requests():
                self.now_s += self.rng.choice((0.0, 0.001, 1.0))
                if not self.engine.has_unfinished_requests():
                    self._do_idle_work()
                while self.num_to_come and (self.rng.random() < self.arrival_rate
                                            or not self.engine.has_unfinished_requests()):
                    self.num_to_come -= 1
                    self._add(self._draw_work())
                if self.rng.random() < 0.06:
                    self._abort()
                if self.fault == "lost plan" and self.rng.random() < 0.1:
                    self._note("the plan is lost")
                    self.fault = "lost plan, done"
                    lose_plan_once(self.engine, is_planned=self.rng.random() < 0.5)
                self._step()
        self.tried["preemptions"] += self.engine.scheduler.num_preemptions
        self.tried["forks"] += self.engine.metrics().num_forks

    def _draw_work(self) -> Work:
        rng, vocab_size = self.rng, self.loaded.config.vocab_size
        prompt = self.prompts.draw()
        params = draw_params(rng, vocab_size, self.loaded.tokenizer.eos_token_ids, self.max_tokens)
        if self.broken_token is not None:
            if rng.random() < 0.3:  # this one says the token
                prompt = list(self.prompts.texts[0])
                params = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True, n=rng.choice((1, 1, 2)))
            elif rng.random() < 0.2:
                prompt = [*prompt]
                prompt.insert(rng.randrange(len(prompt) + 1), self.broken_token)
            if rng.random() < 0.3:  # it ends when the step after it may have been begun
                params = replace(params, stop_token_ids=[self.broken_token])
        poison = None
        if self.fault == "poison" and rng.random() < 0.3:
            poison = Poison(rng.choice(("before", "after", "sampler")), rng.randint(1, len(prompt) + self.max_tokens))
            if poison.where == "sampler":  # a plain greedy request goes there only in the company of others
                params = replace(params, logprobs=0)
        if rng.random() < 0.15:
            params = self._stopping_in_the_middle(prompt, params, poison)
        return Work(f"r{len(self.works)}", prompt, params, rng.choice(list(Priority)),
                    rng.choice((None, None, None, None, (), ("a",), ("b", 1))), poison)

    def _stopping_in_the_middle(self, prompt: list[int], params: SamplingParams,
                                poison: Poison | None) -> SamplingParams:
        """The same, but a token or a text that it gives is a stop."""
        if self._why_refused(prompt, params) or _is_unseeded(params):
            return params
        completion = self.rng.choice(self.alone(prompt, params, poison).outputs)
        if completion.token_ids and self.rng.random() < 0.5:
            return replace(params, stop_token_ids=[self.rng.choice(completion.token_ids)])
        if completion.text:
            start = self.rng.randrange(len(completion.text))
            return replace(params, stop=completion.text[start:start + self.rng.randint(1, 4)])
        return params

    def _why_refused(self, prompt: Sequence[int], params: SamplingParams) -> list[str]:
        """Words of every reason to refuse it; none if it is to be served."""
        reasons = {"the context": len(prompt) >= self.engine.max_model_len, "the pool": len(prompt) > self.capacity,
                   "max_num_seqs": params.n > self.config.max_num_seqs}
        return [word for word, holds in reasons.items() if holds]

    def _add(self, work: Work) -> None:
        engine, reasons = self.engine, self._why_refused(work.prompt, work.params)
        is_used = self.works and self.rng.random() < 0.03 and self.works[-1].output is None
        if is_used:
            work, reasons = replace(work, name=self.works[-1].name), [*reasons, "in use"]
        state = self._state()
        try:
            engine.add_request(list(work.prompt), work.params, work.name, work.priority, work.extra_keys)
        except ValueError as error:
            _expect(any(reason in str(error) for reason in reasons), f"{work} was refused: {error}")
            _expect(self._state() == state, f"refusing {work} left a trace: {state} became {self._state()}")
            self.tried["refused"] += 1
            return
        _expect(not reasons, f"{work} was taken in, but must be refused: {reasons}")
        self._note(f"+{work.name}")
        if work.poison:
            work.poison.put_into(engine, work.name, work.params.n)
        self.works.append(work)
        self.tried["requests"] += 1
        self.tried["sequences"] += work.params.n

    def _state(self) -> tuple:
        return (self.engine.kv_cache.block_pool.get_usage(), len(self.engine.scheduler.waiting),
                len(self.engine.scheduler.running), self.engine.has_unfinished_requests())

    def _abort(self) -> None:
        """Somebody, in whatever state; at times one that is gone."""
        unfinished = [work for work in self.works if work.output is None]
        if unfinished and self.rng.random() < 0.9:
            work = self.rng.choice(unfinished)
            self._note(f"-{work.name}")
            self._see(self.engine.abort_request(work.name))
            work.is_aborted = True
            _expect(work.output is not None and work.output.finished, f"{work} was aborted, but has not ended")
            self.tried["aborts"] += 1
        else:
            gone = [work.name for work in self.works if work.output is not None]
            output = self.engine.abort_request(self.rng.choice(["nobody", *gone]))
            _expect(output is None, f"aborting a request that is gone returned {output}")

    def _step(self) -> None:
        engine, config = self.engine, self.config
        self.num_calls += 1
        try:
            outputs = engine.step()
        except Interrupted:
            self._note("Ctrl-C")
            self.tried["interrupts"] += 1
            outputs = []
        except PlanLost as error:
            self.tried["lost plans"] += 1
            outputs = engine.fail_all(error)
            _expect(not engine.has_unfinished_requests(), "fail_all left requests")
        engine.kv_cache.check_integrity()
        num_seats = sum(request.num_sequences for request in engine.scheduler.running)
        _expect(num_seats <= config.max_num_seqs, f"{num_seats} sequences run, the bound is {config.max_num_seqs}")
        for output in outputs:
            self._see(output)
        self.tried["steps"] += 1
        bound = 200 + 30 * sum(work.params.n * (len(work.prompt) + work.params.max_tokens) for work in self.works)
        _expect(self.num_calls < bound, f"no end after {bound} steps: {engine.scheduler.running} run")

    def _see(self, output: RequestOutput) -> None:
        """An output grows, and ends once."""
        work = next(work for work in reversed(self.works) if work.name == output.request_id)
        _expect(work.output is None, f"{work} goes on after its end")
        for completion in output.outputs:
            num_tokens, text = work.seen.get(completion.index, (0, ""))
            _expect(len(completion.token_ids) >= num_tokens and completion.text.startswith(text),
                    f"{work}: sequence {completion.index} shrank from {num_tokens} tokens, {text!r}, to "
                    f"{len(completion.token_ids)} tokens, {completion.text!r}")
            work.seen[completion.index] = len(completion.token_ids), completion.text
        if output.finished:
            work.output = output
            self.prompts.texts += [work.prompt + each.token_ids for each in output.outputs]

    def _do_idle_work(self) -> None:
        engine, rng = self.engine, self.rng
        usage = engine.kv_cache.block_pool.get_usage()
        _expect(usage == 0.0, f"nobody is there, but {usage:.0%} of the blocks are in use")
        if rng.random() < 0.05:
            self._note("reset")
            engine.kv_cache.reset_prefix_cache()
        if rng.random() < 0.05:
            self._search_beams()

    def _search_beams(self) -> None:
        prompt = self.prompts.draw()
        max_width = min(4, self.engine.max_num_batched_tokens)
        options = dict(beam_width=self.rng.randint(1, max_width), max_tokens=self.rng.randint(1, 5),
                       ignore_eos=self.rng.random() < 0.5)
        self._note(f"beams of {_short(prompt)}, {options}")
        if self._why_refused(prompt, SamplingParams()):
            return
        self.has_searched_beams = True
        self.tried["beam searches"] += 1
        try:
            beams = beam_search(self.engine, prompt, **options)
        except (RuntimeError, ValueError, Interrupted) as error:
            _expect(isinstance(error, Interrupted) or "too small" in str(error) or "NaN" in str(error),
                    f"a beam search failed: {error}")
        else:
            expected = beam_search(self._roomy_engine(self.config.max_model_len), prompt, **options)
            _expect(_are_same_beams(beams, expected), f"beams of {_short(prompt)}, {options} are {beams}, "
                                                      f"in an engine of their own {expected}")
        self.engine.kv_cache.check_integrity()
        _expect(self.engine.kv_cache.block_pool.get_usage() == 0.0, "a beam search kept blocks")

    def _note(self, event: str) -> None:
        self.events.append(f"{self.num_calls} {event}")

    # ---- what it must come to

    def check(self) -> None:
        engine = self.engine
        engine.kv_cache.check_integrity()
        usage = engine.kv_cache.block_pool.get_usage()
        _expect(usage == 0.0, f"all have ended, but {usage:.0%} of the blocks are in use")
        _expect(not engine.scheduler.has_unfinished_requests(), "the scheduler still has requests")
        if self.fault == "nan":
            broken = {block for pool in engine.runner.cache.pools
                      for block, is_nan in enumerate(mx.isnan(pool).any(axis=(1, 2, 3)).tolist()) if is_nan}
            _expect(not broken, f"the blocks {sorted(broken)} hold NaN for their next owner")
        for work in self.works:
            _expect(work.output is not None, f"{work} never ended")
            self._check_work(work)

    def _check_work(self, work: Work) -> None:
        output, params = work.output, work.params
        num_cached = output.usage.prompt_tokens_details.cached_tokens
        _expect(output.usage.prompt_tokens == len(work.prompt) and output.usage.completion_tokens == sum(
            len(each.token_ids) for each in output.outputs), f"{work}: usage is {output.usage}")
        bound = self._num_findable(work)
        _expect(num_cached <= bound, f"{work} found {num_cached} tokens, but others with its keys have only {bound}")
        self.tried["prefix hits"] += num_cached > 0
        self.tried["tokens"] += output.usage.completion_tokens
        reasons = {each.finish_reason for each in output.outputs}
        if output.error is not None and "the plan is lost" in output.error:
            reasons.add("lost")
        elif output.error is not None:
            self.tried["failed requests"] += 1
        if _is_unseeded(params):
            return
        expected = self.alone(work.prompt, params, work.poison)
        is_cut = bool(reasons & {"abort", "kv_cache_full", "lost"}) or output.error is not None
        if not is_cut or (output.error is not None and "lost" not in reasons):
            _expect((output.error is None) == (expected.error is None),
                    f"{work}: error {output.error!r}, alone {expected.error!r}")
        for completion, wanted in zip(output.outputs, expected.outputs):
            if completion.finish_reason == "kv_cache_full":
                num_tokens = len(work.prompt) + len(completion.token_ids)
                _expect(num_tokens == self.capacity + 1, f"{work}: sequence {completion.index} outgrew the pool of "
                                                         f"{self.capacity} slots with {num_tokens} tokens")
            self._check_completion(work, completion, wanted, is_cut)

    def _num_findable(self, work: Work) -> int:
        """How many tokens of its prompt others may have left in the cache."""
        if not self.config.enable_prefix_caching:
            return 0
        if self.has_searched_beams and not work.extra_keys:
            return len(work.prompt) - 1  # beams that were dropped are not known
        others = [other.prompt + each.token_ids for other in self.works for each in other.output.outputs
                  if other is not work and (other.extra_keys or None) == (work.extra_keys or None)]
        longest = max((_common(work.prompt, other) for other in others), default=0)
        return min(longest, len(work.prompt) - 1)

    def _check_completion(self, work: Work, got: CompletionOutput, wanted: CompletionOutput, is_cut: bool) -> None:
        """The same tokens, text, reason and log-probabilities as alone; of one that was cut off, as far as it got."""
        num_same = _common(got.token_ids, wanted.token_ids)
        num_both = min(len(got.token_ids), len(wanted.token_ids))
        if num_same < num_both and self._is_tie(work, got, wanted, num_same):
            self.tried["ties"] += 1
            return
        what = f"{work}\n  sequence {got.index} gave {got.token_ids}\n  alone it gives {wanted.token_ids}"
        _expect(num_same == num_both, f"{what}\n  they differ at output token {num_same}")
        if not is_cut or got.finish_reason in ("stop", "length") and wanted.finish_reason in ("stop", "length"):
            _expect((len(got.token_ids), got.text, got.finish_reason, got.stop_reason)
                    == (len(wanted.token_ids), wanted.text, wanted.finish_reason, wanted.stop_reason),
                    f"{what}\n  {got}\n  {wanted}")
        if got.logprobs is not None:
            _expect(len(got.logprobs) == len(got.token_ids), f"{what}\n  {len(got.logprobs)} log-probabilities")
            for mine, theirs in zip(got.logprobs, wanted.logprobs):
                pairs = [(mine, theirs), *zip(mine.top.values(), theirs.top.values())]
                _expect(all(abs(a.logprob - b.logprob) <= LOGPROB_TOLERANCE for a, b in pairs),
                        f"{what}\n  {mine}\n  {theirs}")

    def _is_tie(self, work: Work, got: CompletionOutput, wanted: CompletionOutput, index: int) -> bool:
        """Whether the least push makes the request alone choose the other token, too."""
        pushes = {got.token_ids[index]: TIE}, {wanted.token_ids[index]: -TIE}
        for push in pushes:
            bias = dict(work.params.logit_bias or {})
            bias |= {token: bias.get(token, 0.0) + change for token, change in push.items()}
            pushed = self.alone(work.prompt, replace(work.params, logit_bias=bias), work.poison).outputs[got.index]
            if pushed.token_ids[:index + 1] == got.token_ids[:index + 1]:
                return True
        return False

    def alone(self, prompt: list[int], params: SamplingParams, poison: Poison | None) -> RequestOutput:
        """What the request gives with nobody else there, room for all of it, and nothing cached."""
        key = f"{prompt} {params} {poison}"
        if key not in self._alone:
            engine = self._roomy_engine(self.config.max_model_len)
            engine.add_request(prompt, params, "alone")
            if poison is not None:
                poison.put_into(engine, "alone", params.n)
            outputs = []
            while engine.has_unfinished_requests():
                outputs = engine.step()
            self._alone[key] = outputs[0]
        return self._alone[key]

    def _roomy_engine(self, max_model_len: int | None) -> LLMEngine:
        return LLMEngine(EngineConfig(block_size=32, num_blocks=80, max_num_seqs=8, max_num_batched_tokens=512,
                                      max_model_len=max_model_len, enable_prefix_caching=False,
                                      enable_lookahead=False), loaded=self.loaded)


def _expect(is_so: bool, message: str) -> None:
    if not is_so:
        raise AssertionError(message)


def _is_unseeded(params: SamplingParams) -> bool:
    return params.temperature > 0 and params.seed is None


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the longest beginning that both have."""
    return next((index for index, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def _are_same_beams(beams: list[Beam], expected: list[Beam]) -> bool:
    """The same continuations, or such as score the same."""
    return [beam.token_ids for beam in beams] == [beam.token_ids for beam in expected] or (
        len(beams) == len(expected) and all(math.isclose(a.score, b.score, abs_tol=LOGPROB_TOLERANCE)
                                            for a, b in zip(beams, expected)))


def _short(token_ids: Sequence[int]) -> str:
    return str(list(token_ids)) if len(token_ids) <= 100 else f"{str(list(token_ids[:100]))[:-1]}, … {len(token_ids)}]"


def _changes(config: EngineConfig) -> str:
    return ", ".join(f"{each.name}={getattr(config, each.name)!r}" for each in fields(config)
                     if getattr(config, each.name) != each.default)


@contextlib.contextmanager
def _one_hash_for_all() -> Iterator[None]:
    """Hits must be proved by their tokens: here all hashes are equal."""
    real, block_pool.hash_block_tokens = block_pool.hash_block_tokens, lambda *arguments: 7
    try:
        yield
    finally:
        block_pool.hash_block_tokens = real

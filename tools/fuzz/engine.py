"""Random schedules against each request alone.

A case is an engine with random settings, often with a pool that is too small. Its requests arrive at random steps,
share prefixes, are aborted, do not fit, fail, and lose their blocks. Whatever happens to it, each request must generate
the tokens that it generates alone in an engine that does one thing at a time and caches nothing. After every step the
pool, tables and index must agree. At the end all requests must have ended and all blocks must be free.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fuzz.alone import Alone, are_same_beams
from fuzz.draws import PromptDraw, draw_config
from fuzz.engine_checks import WorkChecks, check_holds_no_nan, check_is_empty
from fuzz.expect import expect
from fuzz.faults import Interrupted, interrupt_at_times, lose_plan_once
from fuzz.networks import NETWORKS, break_token, network
from fuzz.work import Work, changes, short
from fuzz.work_draw import WorkDraw
from mini_vllm import block_pool
from mini_vllm.beam_search import beam_search
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineParts
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import RequestOutput, SamplingParams
from mini_vllm.request_queue import PriorityQueueWithAging

FAULTS = ("poison", "poison", "nan", "nan", "interrupt", "lost plan")


def run_case(seed: int, case: int) -> dict[str, int]:
    return run_schedule(Schedule(random.Random(f"engine {seed} {case}")))


def run_schedule(schedule: Schedule) -> dict[str, int]:
    try:
        schedule.run()
        schedule.check()
    except AssertionError as error:
        raise AssertionError(f"{error}\n{schedule}") from None
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n{schedule}") from error
    return dict(schedule.tried)


class Schedule:
    """A drawn engine and everything that happens to it.

    Everything is drawn from one generator in a fixed order: adding or removing a draw changes the case. That is why all
    events are in one long class.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.tried: Counter[str] = Counter(schedules=1)
        self.works: list[Work] = []
        #: A short record of the events, by step.
        self.events: list[str] = []
        self.num_calls, self.now_s = 0, 0.0
        self.fault = rng.choice(FAULTS) if rng.random() < 0.4 else None
        name = "tiny-tales" if rng.random() < 0.03 else rng.choice(list(NETWORKS))
        self.loaded = network(name, is_broken=self.fault == "nan")
        is_large = rng.random() < 0.05
        self.num_to_come = rng.randint(12, 30) if is_large else rng.randint(1, 7)
        self.max_tokens, max_prompt = (20, 60) if is_large else (rng.choice((2, 5, 10)), rng.choice((6, 20, 40)))
        self.config = draw_config(rng, max_prompt)
        self.has_tree, self.has_one_hash = rng.random() < 0.85, rng.random() < 0.1
        self.arrival_rate = rng.choice((0.05, 0.3, 0.9, 0.9))
        parts = EngineParts(request_queue=self._queue_class(), prefix_tree=PrefixTree if self.has_tree else None)
        self.engine = LLMEngine(self.config, parts, self.loaded)
        assert self.config.num_blocks is not None
        self.capacity = (self.config.num_blocks - 1) * self.config.block_size
        self.alone = Alone(self.loaded, self.config.max_model_len)
        self.has_searched_beams = False
        self.prompts = PromptDraw(rng, self.loaded.config.vocab_size, max_prompt)
        #: With the fault "nan", a token that the network cannot read.
        self.broken_token = self._break_token(self.prompts.texts[0]) if self.fault == "nan" else None
        self.works_to_come = WorkDraw(rng, self.prompts, self.alone, self.max_tokens, self.fault == "poison",
                                      self.broken_token, self.why_refused)
        if self.fault == "interrupt":
            interrupt_at_times(self.engine, random.Random(rng.random()), times=rng.randint(1, 5))

    def _break_token(self, prompt: list[int]) -> int:
        """Break a token that the network will generate, so that it occurs not only in prompts. Return it."""
        break_token(self.loaded, -1)
        params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
        token_id = self.rng.choice(Alone(self.loaded, max_model_len=None).output(prompt, params).token_ids)
        break_token(self.loaded, token_id)
        return token_id

    def _queue_class(self) -> type[PriorityQueueWithAging]:
        """Return a queue class whose clock advances with the steps, so that a case is the same whenever it is run."""
        schedule = self

        class SteppedQueue(PriorityQueueWithAging):
            def __init__(self, aging_rate: float) -> None:
                super().__init__(aging_rate, clock=lambda: schedule.now_s)

        return SteppedQueue

    def __str__(self) -> str:
        events = "; ".join(self.events)
        return (f"drawn: {self.loaded.name}, {changes(self.config)}"
                f"{'' if self.has_tree else ', no prefix tree'}{', one hash for all' if self.has_one_hash else ''}"
                f"{f', fault: {self.fault}' if self.fault else ''}"
                f"{'' if self.broken_token is None else f' of token {self.broken_token}'}\n  "
                + "\n  ".join(str(work) for work in self.works) + f"\nby step: {events}")

    # ---- events

    def run(self) -> None:
        with _one_hash_for_all() if self.has_one_hash else contextlib.nullcontext():
            while self.num_to_come or self.engine.has_unfinished_requests():
                self.now_s += self.rng.choice((0.0, 0.001, 1.0))
                if not self.engine.has_unfinished_requests():
                    self._do_idle_work()
                while self.num_to_come and (self.rng.random() < self.arrival_rate
                                            or not self.engine.has_unfinished_requests()):
                    self.num_to_come -= 1
                    self._add(self.works_to_come.draw(f"r{len(self.works)}"))
                if self.rng.random() < 0.06:
                    self._abort()
                if self.fault == "lost plan" and self.rng.random() < 0.1:
                    self._note("the plan is lost")
                    self.fault = "lost plan, done"
                    lose_plan_once(self.engine, is_planned=self.rng.random() < 0.5)
                    self.tried["lost plans"] += 1
                self._step()
        self.tried["preemptions"] += self.engine.scheduler.num_preemptions
        self.tried["forks"] += self.engine.metrics().num_forks

    def why_refused(self, prompt: Sequence[int], params: SamplingParams) -> list[str]:
        """Return a word from each reason to reject the request; no words if it must be served."""
        reasons = {"the context": len(prompt) >= self.engine.max_model_len, "the pool": len(prompt) > self.capacity,
                   "max_num_seqs": params.n > self.config.max_num_seqs}
        return [word for word, holds in reasons.items() if holds]

    def _add(self, work: Work) -> None:
        engine, reasons = self.engine, self.why_refused(work.prompt, work.params)
        is_used = self.works and self.rng.random() < 0.03 and self.works[-1].output is None
        if is_used:
            work, reasons = replace(work, name=self.works[-1].name), [*reasons, "in use"]
        state = self._state()
        try:
            engine.add_request(list(work.prompt), work.params, work.name, work.priority, work.extra_keys)
        except ValueError as error:
            expect(any(reason in str(error) for reason in reasons), f"{work} was refused: {error}")
            expect(self._state() == state, f"refusing {work} left a trace: {state} became {self._state()}")
            self.tried["refused"] += 1
            return
        expect(not reasons, f"{work} was taken in, but must be refused: {reasons}")
        self._note(f"+{work.name}")
        if work.poison:
            work.poison.put_into(engine, work.name, work.params.n)
        self.works.append(work)
        self.tried["requests"] += 1
        self.tried["sequences"] += work.params.n

    def _state(self) -> tuple[object, ...]:
        return (self.engine.kv_cache.block_pool.get_usage(), len(self.engine.scheduler.waiting),
                len(self.engine.scheduler.running), self.engine.has_unfinished_requests())

    def _abort(self) -> None:
        """Abort a random unfinished request, in any state; sometimes one that has ended or never existed."""
        unfinished = [work for work in self.works if work.output is None]
        if unfinished and self.rng.random() < 0.9:
            work = self.rng.choice(unfinished)
            self._note(f"-{work.name}")
            output = self.engine.abort_request(work.name)
            expect(output is not None and output.finished, f"{work} was aborted, but has not ended")
            if output is not None:
                self._see(output)
            self.tried["aborts"] += 1
        else:
            gone = [work.name for work in self.works if work.output is not None]
            output = self.engine.abort_request(self.rng.choice(["nobody", *gone]))
            expect(output is None, f"aborting a request that is gone returned {output}")

    def _step(self) -> None:
        engine, config = self.engine, self.config
        self.num_calls += 1
        try:
            outputs = engine.step()
        except Interrupted:
            self._note("Ctrl-C")
            self.tried["interrupts"] += 1
            outputs = []
        engine.kv_cache.check_integrity()
        num_seats = sum(request.num_sequences for request in engine.scheduler.running)
        expect(num_seats <= config.max_num_seqs, f"{num_seats} sequences run, the bound is {config.max_num_seqs}")
        for output in outputs:
            self._see(output)
        self.tried["steps"] += 1
        bound = 200 + 30 * sum(work.num_tokens_at_most for work in self.works)
        expect(self.num_calls < bound, f"no end after {bound} steps: {engine.scheduler.running} run")

    def _see(self, output: RequestOutput) -> None:
        """Check that an output only grows and ends once."""
        work = next(work for work in reversed(self.works) if work.name == output.request_id)
        expect(work.output is None, f"{work} continues after its end")
        for completion in output.outputs:
            num_tokens, text = work.seen.get(completion.index, (0, ""))
            expect(len(completion.token_ids) >= num_tokens and completion.text.startswith(text),
                    f"{work}: sequence {completion.index} shrank from {num_tokens} tokens, {text!r}, to "
                    f"{len(completion.token_ids)} tokens, {completion.text!r}")
            work.seen[completion.index] = len(completion.token_ids), completion.text
        if output.finished:
            work.output = output
            self.prompts.texts += [work.prompt + each.token_ids for each in output.outputs]

    def _do_idle_work(self) -> None:
        engine, rng = self.engine, self.rng
        usage = engine.kv_cache.block_pool.get_usage()
        expect(usage == 0.0, f"there are no requests, but {usage:.0%} of the blocks are in use")
        if rng.random() < 0.05:
            self._note("reset")
            engine.kv_cache.reset_prefix_cache()
        if rng.random() < 0.05:
            self._search_beams()

    def _search_beams(self) -> None:
        prompt = self.prompts.draw()
        beam_width = self.rng.randint(1, min(4, self.engine.max_num_batched_tokens))
        max_tokens, ignore_eos = self.rng.randint(1, 5), self.rng.random() < 0.5
        what = f"{beam_width} beams of {short(prompt)}, {max_tokens=}, {ignore_eos=}"
        self._note(what)
        if self.why_refused(prompt, SamplingParams()):
            return
        self.has_searched_beams = True
        self.tried["beam searches"] += 1
        try:
            beams = beam_search(self.engine, prompt, beam_width, max_tokens, ignore_eos=ignore_eos)
        except (RuntimeError, ValueError, Interrupted) as error:
            expect(isinstance(error, Interrupted) or "too small" in str(error) or "NaN" in str(error),
                   f"a beam search failed: {error}")
        else:
            expected = beam_search(self.alone.make_engine(), prompt, beam_width, max_tokens, ignore_eos=ignore_eos)
            expect(are_same_beams(beams, expected), f"{what} are {beams}, in a separate engine {expected}")
        self.engine.kv_cache.check_integrity()
        expect(self.engine.kv_cache.block_pool.get_usage() == 0.0, "a beam search kept blocks")

    def _note(self, event: str) -> None:
        self.events.append(f"{self.num_calls} {event}")

    # ---- checks

    def check(self) -> None:
        check_is_empty(self.engine)
        if self.fault == "nan":
            check_holds_no_nan(self.engine)
        WorkChecks(self.works, self.alone, self.capacity, self.config.enable_prefix_caching, self.has_searched_beams,
                   self.tried).check_all()


@contextlib.contextmanager
def _one_hash_for_all() -> Iterator[None]:
    """Make all block hashes equal, so that hits must be verified by their tokens."""
    real, block_pool.hash_block_tokens = block_pool.hash_block_tokens, lambda *arguments: 7
    try:
        yield
    finally:
        block_pool.hash_block_tokens = real

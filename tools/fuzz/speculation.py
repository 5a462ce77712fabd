"""The random schedules of ``engine`` with drafts: each request must still generate the tokens that it generates alone.

Many drafts come from a drafter that knows the request's output and gets some tokens wrong, so that drafts of every
length are accepted, rejected, and cut off by stops. Others come from a draft model: the network itself, which is always
right, or another one. Drafted tokens cost nothing here, so all guesses are computed. After every step, no block may be
findable by a token that the model has not drawn, and no request may hold slots of wrong guesses.
"""

from __future__ import annotations

import random
from dataclasses import replace

from fuzz import engine
from fuzz.expect import expect
from fuzz.networks import NETWORKS, network
from mini_vllm.block_pool import BlockHash
from mini_vllm.fast.step_costs import DraftCost, StepCosts
from mini_vllm.request import Request
from mini_vllm.sampler import Sampler
from mini_vllm.speculation.model_drafter import ModelDrafter
from mini_vllm.speculation.ngram_drafter import NgramDrafter

FREE = StepCosts((DraftCost(1, -100.0, -1.0),), no_lookahead=-1.0)


def run_case(seed: int, case: int) -> dict[str, int]:
    return engine.run_schedule(Drafting(random.Random(f"speculation {seed} {case}")))


class Drafting(engine.Schedule):
    """A schedule whose engine drafts."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        rng = self.rng_of_drafts = random.Random(rng.random())
        drafter = self._drafter(rng)
        speculation = self.engine.speculation
        speculation.max_tokens = rng.choice((1, 2, 3, 4, 8))
        speculation.drafter = self.engine.drafter = drafter
        if rng.random() < 0.8:
            speculation.costs = FREE

    def _drafter(self, rng: random.Random) -> NgramDrafter | ModelDrafter:
        kind = rng.random()
        if kind < 0.2:
            return NgramDrafter(1)
        if kind < 0.6:
            drafter = Knowing(self, rng, rng.choice((0.2, 0.5, 0.8, 1.0)))
            drafter.cost_per_token = rng.choice((0.0, 0.001))
            return drafter
        name = self.loaded.name.removesuffix(", broken")
        return ModelDrafter(network(name if rng.random() < 0.5 or name == "tiny-tales" else rng.choice(list(NETWORKS))),
                            rng.choice((8, 40, 200)), rng.choice((1, 3, 8)), rng.choice((1, 2, 7, 64)),
                            lambda request: self.engine.live.sequence(request.request_id).row, Sampler(),
                            rng.choice((0.0, 0.001)))

    def _step(self) -> None:
        super()._step()
        if isinstance(self.engine.drafter, ModelDrafter):
            self.engine.drafter.kv_cache.check_integrity()
        known = [list(request.all_token_ids) for request in self._requests()]
        known += [work.prompt + each.token_ids for work in self.works if work.output for each in work.output.outputs]
        for block in self.engine.kv_cache.block_pool.blocks:
            if isinstance(block.block_hash, BlockHash) and not self.has_searched_beams:
                tokens = _tokens_of(block.block_hash)
                expect(any(text[:len(tokens)] == tokens for text in known),
                       f"block {block.block_id} is findable by {tokens}, which no request has")
        for request in self.engine.scheduler.running:
            num_blocks = len(self.engine.kv_cache.get_block_ids(request.request_id))
            num_needed = -(-(request.num_computed_tokens + 1) // self.config.block_size)  # looking ahead takes one slot
            expect(num_blocks <= num_needed, f"{request} holds {num_blocks} blocks, and needs {num_needed}")

    def _requests(self) -> list[Request]:
        groups = self.engine.live.groups.values()
        return [sequence.request for group in groups for sequence in group.sequences]

    def run(self) -> None:
        super().run()
        speculation = self.engine.speculation
        self.tried["drafted"] += speculation.num_drafted_tokens
        self.tried["accepted"] += speculation.num_accepted_tokens
        expect(not speculation._guessing, f"records are left: {speculation._guessing}")


class Knowing(NgramDrafter):
    """Knows what each request generates alone, and is right about a token with probability ``rate``."""

    def __init__(self, schedule: engine.Schedule, rng: random.Random, rate: float) -> None:
        self.schedule, self.rng, self.rate = schedule, rng, rate
        #: Request id → how many of its tokens are known.
        self.told: dict[str, int] = {}

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        expect(max_tokens > 0, "a draft of no tokens was asked for")
        name, _, index = request.request_id.partition("#")
        work = next(work for work in reversed(self.schedule.works) if work.name == name)
        params = replace(work.params, seed=work.params.seed or 0)
        tokens = self.schedule.alone.output(work.prompt, params).outputs[int(index or 0)].token_ids
        following = tokens[len(request.output_token_ids):]
        vocab_size = self.schedule.loaded.config.vocab_size
        guess = [following[i] if i < len(following) and self.rng.random() < self.rate
                 else self.rng.randrange(vocab_size) for i in range(max_tokens)]
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

"""Draws the requests of the engine fuzzer: prompts with common prefixes, any parameters, and faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fuzz.alone import Alone
from fuzz.draws import PromptDraw, draw_params
from fuzz.faults import Poison
from fuzz.work import Work, is_unseeded
from mini_vllm.request import Priority, SamplingParams


@dataclass
class WorkDraw:
    rng: random.Random
    prompts: PromptDraw
    alone: Alone
    max_tokens: int
    #: Whether some requests break their steps.
    has_poison: bool
    #: A token that the network cannot read, if there is one.
    broken_token: int | None
    #: Returns every reason to reject a request with this prompt and these parameters.
    why_refused: Callable[[Sequence[int], SamplingParams], list[str]]

    def draw(self, name: str) -> Work:
        rng, loaded = self.rng, self.alone.loaded
        prompt = self.prompts.draw()
        params = draw_params(rng, loaded.config.vocab_size, loaded.tokenizer.eos_token_ids, self.max_tokens)
        if self.broken_token is not None:
            prompt, params = self._with_broken_token(self.broken_token, prompt, params)
        poison = None
        if self.has_poison and rng.random() < 0.3:
            poison = Poison(rng.choice(("before", "after", "sampler")), rng.randint(1, len(prompt) + self.max_tokens))
            if poison.where == "sampler":  # a plain greedy request uses the sampler only when it is batched with others
                params = replace(params, logprobs=0)
        if rng.random() < 0.15:
            params = self._stopping_in_the_middle(prompt, params, poison)
        return Work(name, prompt, params, rng.choice(list(Priority)),
                    rng.choice((None, None, None, None, (), ("a",), ("b", 1))), poison)

    def _with_broken_token(self, token_id: int, prompt: list[int],
                           params: SamplingParams) -> tuple[list[int], SamplingParams]:
        """Return a request that often generates or contains the broken token, and sometimes stops at it."""
        rng = self.rng
        if rng.random() < 0.3:  # this request generates the token
            prompt = list(self.prompts.texts[0])
            params = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True, n=rng.choice((1, 1, 2)))
        elif rng.random() < 0.2:
            prompt = [*prompt]
            prompt.insert(rng.randrange(len(prompt) + 1), token_id)
        if rng.random() < 0.3:  # it ends when the next step may already have started
            params = replace(params, stop_token_ids=[token_id])
        return prompt, params

    def _stopping_in_the_middle(self, prompt: list[int], params: SamplingParams,
                                poison: Poison | None) -> SamplingParams:
        """Return the parameters with a stop token or stop string that occurs in the request's output.

        Return them unchanged if the request is rejected or unseeded, or if its output is empty.
        """
        if self.why_refused(prompt, params) or is_unseeded(params):
            return params
        completion = self.rng.choice(self.alone.output(prompt, params, poison).outputs)
        if completion.token_ids and self.rng.random() < 0.5:
            return replace(params, stop_token_ids=[self.rng.choice(completion.token_ids)])
        if completion.text:
            start = self.rng.randrange(len(completion.text))
            return replace(params, stop=completion.text[start:start + self.rng.randint(1, 4)])
        return params

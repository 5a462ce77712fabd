"""A drafter with a model: a smaller checkpoint with the same vocabulary reads the request and guesses how it goes on.

The small model draws with the *same noise* as the large one. Both add the noise of a position to their scores and take
the largest sum. Where the scores agree, the sums agree, so both draw the same token, although each draws at random:

    scores of the large model   king 2.0   queen 1.4   fox 0.9        with noise -0.3   0.8   0.1  →  queen
    scores of the small model   king 1.8   queen 1.5   fox 0.2        with noise -0.3   0.8   0.1  →  queen

With noise of its own, the small model would draw "queen" only as often as its probability says, whatever the large one
drew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from mini_vllm.backend import mx
from mini_vllm.block_pool import KVCacheBlock
from mini_vllm.fast.attention import FastAttention
from mini_vllm.gpu.select_runner import runner_class
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.logit_rules import SamplerRow, row_after
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.parts import SamplerPart
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Request

#: A text that two tokenizers with the same vocabulary encode alike.
SAMPLE = "Once upon a time, in 1834, there was a king – and he had 3 daughters.\n\tdef f(x): return x // 2"


def load_draft(draft: str | Path, target: LoadedModel) -> LoadedModel:
    """Load the model ``draft``, which is to guess for ``target``. Raise ValueError if their vocabularies differ."""
    loaded = target if str(draft) == str(target.name) else load(draft)
    sizes = loaded.config.vocab_size, target.config.vocab_size
    if sizes[0] != sizes[1] or loaded.tokenizer.encode(SAMPLE) != target.tokenizer.encode(SAMPLE):
        raise ValueError(f"draft is {str(draft)!r}, whose vocabulary ({sizes[0]} tokens) is not that of "
                         f"{target.name} ({sizes[1]} tokens)")
    return loaded


class ModelDrafter:
    """Guesses with a second model, which has its own paged KV cache."""

    def __init__(self, loaded: LoadedModel, num_blocks: int, block_size: int, max_num_batched_tokens: int,
                 row_of: Callable[[Request], SamplerRow], sampler: SamplerPart, cost_per_token: float) -> None:
        """Create the drafter. ``row_of`` returns the sampler's row of a request of the engine.

        ``cost_per_token`` is what one guessed token costs, in steps of the engine.
        """
        self.cost_per_token = cost_per_token
        self.kv_cache = KVCacheManager(num_blocks, block_size, tree_class=PrefixTree)
        make_runner = runner_class(ModelRunner, FastAttention, loaded.model, block_size)
        self.runner = make_runner(loaded.model, num_blocks, block_size, FastAttention)
        self._max_num_batched_tokens = max_num_batched_tokens
        self._row_of, self._sampler = row_of, sampler
        #: Request id → the request as the small model has read it, the most recently used one last.
        self._copies: dict[str, Request] = {}
        #: Request id → the last guess, whose K/V the small model has computed except for the last token.
        self._guesses: dict[str, list[int]] = {}

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        """Guess the next ``max_tokens`` tokens of ``request``; none if the small model's cache is too small for it."""
        return self.propose_all([request], [max_tokens])[0]

    def propose_all(self, requests: Sequence[Request], max_tokens: Sequence[int]) -> list[list[int]]:
        """Guess for several requests together: one step of the small model per token, whatever their number."""
        numbers = {request.request_id: number for request, number in zip(requests, max_tokens) if number > 0}
        self._guesses = {}
        drafting = [request for request in requests
                    if request.request_id in numbers and self._make_room(request, numbers[request.request_id], numbers)]
        guesses: dict[str, list[int]] = {request.request_id: [] for request in drafting}
        while drafting:
            for request, token_id in zip(drafting, self._next_tokens(drafting, guesses)):
                guesses[request.request_id].append(token_id)
            drafting = [request for request in drafting
                        if len(guesses[request.request_id]) < numbers[request.request_id]]
        self._guesses = guesses
        self.kv_cache.finish_step()
        return [list(guesses.get(request.request_id, [])) for request in requests]

    def advance(self, request: Request, token_ids: list[int]) -> None:
        """Take note of ``token_ids``: K/V of guesses that were right is kept, the rest is given back."""
        copy, guess = self._copies.get(request.request_id), self._guesses.pop(request.request_id, [])
        if copy is None:
            return
        num_right = next((i for i, (a, b) in enumerate(zip(guess, token_ids)) if a != b),
                         min(len(guess), len(token_ids)))
        for token_id in token_ids:
            copy.append_output_token(token_id)
        num_computed = copy.num_computed_tokens + min(num_right, max(len(guess) - 1, 0))
        copy.num_computed_tokens = min(num_computed, copy.num_tokens - 1)  # leave a token to read: it gives the guess
        self.kv_cache.give_back_slots(copy)

    def forget(self, request: Request) -> None:
        """Drop a request that has ended. Its blocks stay findable for requests with the same prefix."""
        self._guesses.pop(request.request_id, None)
        copy = self._copies.pop(request.request_id, None)
        if copy is not None:
            self.kv_cache.free(copy)

    def _make_room(self, request: Request, max_tokens: int, needed: dict[str, int]) -> bool:
        """Make slots for all unread tokens of ``request`` and all guesses but the last. Return False if none are left.

        If need be, requests that are not ``needed`` now lose their blocks, those not used for longest first.
        """
        copy = self._copies.pop(request.request_id, None)
        if copy is not None and copy.all_token_ids != request.all_token_ids:  # it was not told of every token
            self.kv_cache.free(copy)
            copy = None
        hits: list[KVCacheBlock] = []
        num_cached = 0
        if copy is None:
            copy = Request(request.request_id, request.all_token_ids, extra_keys=request.extra_keys)
            hits, num_cached = self.kv_cache.get_computed_blocks(copy)
        num_new = copy.num_tokens - copy.num_computed_tokens - num_cached + max_tokens - 1
        while self.kv_cache.allocate_slots(copy, num_new, hits, num_cached) is None:
            others = [name for name in self._copies if name not in needed]
            if not others:
                self.kv_cache.free(copy)
                return False
            self.kv_cache.free(self._copies.pop(others[0]))
            if hits:
                hits, num_cached = self.kv_cache.get_computed_blocks(copy)
                num_new = copy.num_tokens - num_cached + max_tokens - 1
        copy.num_computed_tokens += num_cached
        self._copies[request.request_id] = copy
        return True

    def _next_tokens(self, requests: Sequence[Request], guesses: dict[str, list[int]]) -> list[int]:
        """Read what is unread of ``requests`` and their guesses, and draw the token after it for each of them."""
        rows = [row_after(self._row_of(request), guesses[request.request_id]) for request in requests]
        logits = self._read([self._copies[request.request_id] for request in requests],
                            [guesses[request.request_id] for request in requests])
        # Not ``wait``, which checks the tokens: a guess may be any token. After a wrong one, a grammar has none left.
        return cast(list[int], self._sampler.choose(logits, rows).token_ids.tolist())

    def _read(self, copies: Sequence[Request], guesses: Sequence[list[int]]) -> mx.array:
        """Compute the unread tokens, prompts in chunks, and return the logits after the last token of each request."""
        last: dict[str, mx.array] = {}
        texts = {copy.request_id: [*copy.all_token_ids, *guess] for copy, guess in zip(copies, guesses)}
        positions = {copy.request_id: copy.num_tokens + len(guess) - 1 if guess else copy.num_computed_tokens
                     for copy, guess in zip(copies, guesses)}
        unread = list(copies)
        while unread:
            budget, planned = self._max_num_batched_tokens, list[tuple[str, RequestStep]]()
            for copy in sorted(unread, key=lambda copy: len(texts[copy.request_id]) - positions[copy.request_id] > 1):
                name, start = copy.request_id, positions[copy.request_id]
                end = min(len(texts[name]), start + budget)
                if end == start:
                    continue
                budget -= end - start
                positions[name] = end
                planned.append((name, RequestStep(texts[name][start:end], self.kv_cache.get_block_ids(name), end,
                                                  needs_logits=end == len(texts[name]))))
            # The runner needs single tokens first, and the budget may have left one token of a longer text.
            planned.sort(key=lambda entry: len(entry[1].token_ids) > 1)
            copies_of_blocks = [(source.block_id, copy.block_id)
                                for source, copy in self.kv_cache.block_pool.pending_copies]
            logits = self.runner.step([step for _, step in planned], copies_of_blocks)
            self.kv_cache.finish_step()
            wanted = [name for name, step in planned if step.needs_logits]
            last.update(zip(wanted, logits))
            mx.eval(self.runner.cache.pools)
            unread = [copy for copy in unread if copy.request_id not in last]
        for copy in copies:
            copy.num_computed_tokens = copy.num_tokens
        return mx.stack([last[copy.request_id] for copy in copies])

"""From a caller's request to the sequences that the scheduler serves.

    "a text", SamplingParams(n=2), "r"  ──▶  SequenceGroup "r" ─┬─ SequenceState "r#0"
                                                                └─ SequenceState "r#1"

All errors of a request itself are found here, except a prompt that needs more blocks than there are, which the
scheduler rejects. The engine is unchanged until both have accepted the request.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from weakref import WeakValueDictionary

from mini_vllm.checks import an_instance, token_ids
from mini_vllm.engine_config import EngineConfig
from mini_vllm.logit_rules import NO_TOKEN_LEFT, BadWords, leaves_a_token
from mini_vllm.models.prompts import Prompt, PromptReader, PromptTokens
from mini_vllm.models.tokenizer import token_bytes
from mini_vllm.request import Priority, Request, SamplingParams, checked_extra_keys, checked_priority
from mini_vllm.sequences import SequenceGroup, SequenceState
from mini_vllm.structured.compiler import CompiledGrammar, Grammar, GrammarCompiler
from mini_vllm.structured.regex_tree import Node
from mini_vllm.structured.vocabulary import Vocabulary


class InputProcessor:
    """Checks prompts, parameters and ids, and creates groups from them."""

    def __init__(self, config: EngineConfig, prompts: PromptReader, is_in_use: Callable[[str], bool],
                 clock: Callable[[], float], regex_grammar: Callable[[Node, Vocabulary], Grammar]) -> None:
        """Store the collaborators.

        ``is_in_use`` checks whether an id is taken; ``clock`` gives the arrival time of a request; ``regex_grammar`` is
        the class for outputs that must match a regular expression.
        """
        self.grammars = GrammarCompiler(partial(vocabulary_of, prompts), regex_grammar)
        self._max_num_seqs = config.max_num_seqs
        self.prompts, self._tokenizer = prompts, prompts.tokenizer
        self._is_in_use, self._clock = is_in_use, clock
        self._numbers = itertools.count()
        self._bad_words: WeakValueDictionary[tuple[str, ...], BadWords] = WeakValueDictionary()
        self._bad_words[()] = self._no_words = BadWords(())

    def process(self, prompt: Prompt | PromptTokens, sampling_params: SamplingParams | None, request_id: str | None,
                priority: Priority, extra_keys: tuple[object, ...] | None) -> SequenceGroup:
        """Create the group of a request. Raise ValueError if it can never be served or its id is in use."""
        params = self._check_params(sampling_params)
        priority, extra_keys = checked_priority(priority), checked_extra_keys(extra_keys)
        request_id = self._check_id(request_id, params.n)
        read = self.prompts.read(prompt)
        group = SequenceGroup(request_id, read.text, read.token_ids, arrived_s=self._clock())
        if params.prompt_logprobs is not None:
            group.prompt_logprobs = [None]
            extra_keys = (*(extra_keys or ()), object())  # no other request has this key, so nothing is found
        params = self._within_context(params, len(read.token_ids))
        bad_words = self.encode_bad_words(params)
        cursor = self.grammars.start(params.structured_outputs, params.max_tokens)
        for index in range(params.n):
            request = Request(_sequence_id(request_id, index, params.n), read.token_ids, params, priority,
                              extra_keys=extra_keys)
            group.sequences.append(SequenceState(request, index, self._tokenizer, bad_words, cursor))
        row = group.sequences[0].row
        if not row.is_plain and not leaves_a_token(row, self.prompts.vocab_size):
            raise ValueError(NO_TOKEN_LEFT)
        group.leader.num_sequences = params.n
        return group

    def _check_params(self, params: SamplingParams | None) -> SamplingParams:
        """Return the parameters if this engine supports them."""
        if params is None:
            return SamplingParams()
        an_instance("sampling_params", params, SamplingParams)
        if params.n > self._max_num_seqs:
            raise ValueError(f"n is {params.n}, must be at most max_num_seqs ({self._max_num_seqs})")
        for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
            token_ids(name, list(getattr(params, name) or ()), self.prompts.vocab_size)
        return params

    def _check_id(self, request_id: str | None, n: int) -> str:
        """Return the id, or a new one. Raise ValueError if it, or the id of one of its sequences, is in use."""
        if request_id is None:
            return next(new for new in map("request-{}".format, self._numbers) if self._first_in_use(new, n) is None)
        an_instance("request_id", request_id, str)
        used = self._first_in_use(request_id, n)
        if used is not None:
            raise ValueError(f"request id {used!r} is in use")
        return request_id

    def _first_in_use(self, request_id: str, n: int) -> str | None:
        wanted = (request_id, *(_sequence_id(request_id, index, n) for index in range(n)))
        return next((each for each in wanted if self._is_in_use(each)), None)

    def _within_context(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """Return the same parameters, with no more tokens than the context has room for after the prompt."""
        room = self.prompts.max_model_len - num_prompt_tokens
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        if max_tokens == params.max_tokens:
            return params  # creating new ones would check every field again
        return replace(params, max_tokens=max_tokens, min_tokens=min(params.min_tokens, max_tokens))

    def prepare(self, params: SamplingParams) -> tuple[BadWords, CompiledGrammar | None]:
        """Return the bad words and the grammar of a request, which later requests find while a caller holds them."""
        return self.encode_bad_words(params), self.grammars.compile(params.structured_outputs)

    def is_prepared(self, params: SamplingParams) -> bool:
        return tuple(params.bad_words or ()) in self._bad_words and self.grammars.is_compiled(params.structured_outputs)

    def encode_bad_words(self, params: SamplingParams) -> BadWords:
        """Return the token sequences of ``bad_words``, each as given and with a space before it. Thread-safe.

        Encoding takes up to a tenth of a second, and a call may have hundreds of prompts. So requests with the same
        words share the result, as long as at least one holds it. Raise ValueError for anything that is not text.
        """
        words = tuple(params.bad_words or ())
        known = self._bad_words.get(words)
        if known is None:
            known = self._bad_words[words] = BadWords(map(self._encode_word, _spellings(words)))
        return known

    def _encode_word(self, spelling: str) -> list[int]:
        try:
            return self._tokenizer.encode(spelling, add_special_tokens=False)
        except ValueError as error:
            raise ValueError(f"bad_words: {error}") from None


def vocabulary_of(prompts: PromptReader) -> Vocabulary:
    """Return the bytes of every token of a model, for grammars."""
    tokenizer, num_rows = prompts.tokenizer, prompts.vocab_size
    of_token, not_first = token_bytes(tokenizer)
    return Vocabulary(of_token[:num_rows], tokenizer.eos_token_ids, num_rows, not_first,
                      partial(tokenizer.encode, add_special_tokens=False))


def _spellings(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        yield word
        yield f" {word.lstrip()}"


def _sequence_id(request_id: str, index: int, n: int) -> str:
    """Return the id under which the scheduler knows continuation ``index`` of a request."""
    return request_id if n == 1 else f"{request_id}#{index}"

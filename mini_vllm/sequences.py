"""A request as the user sees it: ``n`` sequences of one prompt, and the text of each.

    "a text", SamplingParams(n=2), "r"  ──▶  SequenceGroup "r" ─┬─ SequenceState "r#0": Request, SamplerRow, text so far
                                                                └─ SequenceState "r#1"

``InputProcessor`` creates the group of a new request, and ``LiveRequests`` holds those that are unfinished. All errors
of a request itself are found by ``InputProcessor``, except a prompt that needs more blocks than there are, which the
scheduler rejects. The engine is unchanged until both have accepted the request.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from weakref import WeakValueDictionary

from mini_vllm.checks import an_instance, texts, token_ids
from mini_vllm.engine_config import EngineConfig
from mini_vllm.logit_rules import NO_TOKEN_LEFT, BadWords, SamplerRow, leaves_a_token, make_key
from mini_vllm.models.prompts import Prompt, PromptReader, PromptTokens
from mini_vllm.models.tokenizer import StreamingDetokenizer, Tokenizer, token_bytes
from mini_vllm.request import (
    CompletionOutput,
    CompletionTokensDetails,
    Logprob,
    Priority,
    PromptTokensDetails,
    Request,
    RequestOutput,
    RequestStatus,
    RequestTimings,
    SamplingParams,
    TokenLogprob,
    Usage,
    checked_extra_keys,
    checked_priority,
)
from mini_vllm.structured.compiler import CompiledGrammar, Cursor, Grammar, GrammarCompiler
from mini_vllm.structured.regex_tree import Node
from mini_vllm.structured.vocabulary import Vocabulary

#: The finish reasons of an output that ended normally.
STATUS_OF = {"stop": RequestStatus.FINISHED_STOPPED, "length": RequestStatus.FINISHED_LENGTH}
#: Of a prompt given as token ids, only this many are decoded to name it: its first words are enough.
NUM_NAMING_TOKENS = 32


class StopChecker:
    """The stop conditions of one output.

    It is fed every token in turn, and says what to show and whether the output ends. A stop string can arrive in
    pieces, and none of it may have been shown by the time it is complete. So the end of the text is held back while it
    might still become a stop string, and no longer:

        stop = "###"     text so far: The end. ##
                                      └ shown ┘└┴─ held back: the longest end of the text that begins a stop string

    ``finish_reason`` is None while the output continues, then "stop" or "length". ``stop_reason`` is the stop string or
    the stop id that matched; it is None for the end of the text itself.
    """

    def __init__(self, params: SamplingParams, eos_token_ids: Collection[int]) -> None:
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self._stop_strings = texts("stop", params.stop)
        self._stop_token_ids = frozenset(params.stop_token_ids or ())
        self._eos_token_ids = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        self._min_tokens = params.min_tokens
        self._max_tokens = math.inf if params.max_tokens is None else params.max_tokens
        self.shows_stop = params.include_stop_str_in_output
        #: Not shown yet: it may be the beginning of a stop string.
        self._held = ""

    def ends_by_id(self, token_id: int, num_output_tokens: int) -> bool:
        """Check whether this token ends the output, whatever its text is. ``num_output_tokens`` includes the token."""
        is_stop = token_id in self._eos_token_ids or token_id in self._stop_token_ids
        return is_stop and num_output_tokens >= self._min_tokens

    def add(self, token_id: int, new_text: str, num_output_tokens: int, before: str = "") -> str:
        """Take the next token and return the text that may be shown now.

        ``new_text`` is the text that this token completed, and ``before`` the end of the text before it, if that was
        not passed yet; ``num_output_tokens`` includes the token. A token that ends the output by its id shows none of
        its own text, nor does a stop string, unless the parameters ask for it (``shows_stop``). Of several stop strings
        the one that begins first wins, then the longest. Before ``min_tokens`` nothing stops the output, and a stop
        string completed there is ordinary text. Raise RuntimeError, and change nothing, if the output has already
        ended.
        """
        if self.finish_reason is not None:
            raise RuntimeError(f"token {token_id} comes after the end of the output ({self.finish_reason})")
        ends_by_id = self.ends_by_id(token_id, num_output_tokens)
        new_text = before if ends_by_id and not self.shows_stop else before + new_text
        if num_output_tokens >= self._min_tokens and not (ends_by_id and self.shows_stop):
            match = self._first_match(new_text)
            if match is not None:
                start, stop_string = match
                end = start + len(stop_string) if self.shows_stop else start
                return self._stop(stop_string, shown=(self._held + new_text)[:end])
        if ends_by_id:
            stop_id = None if token_id in self._eos_token_ids else token_id
            return self._stop(stop_id, shown=self._held + new_text)
        if num_output_tokens >= self._max_tokens:
            self.finish_reason = "length"
        text = self._held + new_text
        num_shown = len(text) - self._num_undecided(text)
        self._held = text[num_shown:]
        return text[:num_shown]

    def finish(self) -> str:
        """Return the text still held back.

        The output ended by length or was aborted, so it cannot become a stop string.
        """
        rest, self._held = self._held, ""
        return rest

    def _stop(self, reason: str | int | None, shown: str) -> str:
        self.finish_reason, self.stop_reason, self._held = "stop", reason, ""
        return shown

    def _first_match(self, new_text: str) -> tuple[int, str] | None:
        """Find the winning stop string in held plus new text. Return its start and itself; None if none is complete.

        Only a match that ends in ``new_text`` counts. A match inside the held text was completed earlier, before
        ``min_tokens``, and was allowed.
        """
        text = self._held + new_text
        matches = []
        for stop_string in self._stop_strings:
            start = text.find(stop_string, max(0, len(self._held) - len(stop_string) + 1))
            if start >= 0:
                matches.append((start, stop_string))
        return min(matches, key=lambda match: (match[0], -len(match[1])), default=None)

    def _num_undecided(self, text: str) -> int:
        """Return the length of the longest end of ``text`` that begins a stop string without completing it."""
        longest = max(map(len, self._stop_strings), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stop_strings):
                return length
        return 0


class SequenceState:
    """One continuation of a prompt: the scheduler's request, and the text of its tokens."""

    def __init__(self, request: Request, index: int, tokenizer: Tokenizer,
                 bad_words: Sequence[tuple[int, ...]] | BadWords = (), cursor: Cursor | None = None) -> None:
        params, eos_token_ids = request.sampling_params, tokenizer.eos_token_ids
        self.request = request
        self.output = CompletionOutput(index, "", request.output_token_ids,
                                       logprobs=None if params.logprobs is None else [],
                                       cumulative_logprob=None if params.logprobs is None else 0.0)
        self.row = SamplerRow(params, request.prompt_token_ids, request.output_token_ids, eos_token_ids,
                              make_key(params.seed, index), bad_words, cursor)
        #: The number of output tokens that are in the text.
        self._num_taken = 0
        self._tokenizer = tokenizer
        self._begin_text()

    def _begin_text(self) -> None:
        params = self.request.sampling_params
        self._detokenizer = StreamingDetokenizer(self._tokenizer, params.skip_special_tokens)
        self._stopping = StopChecker(params, self._tokenizer.eos_token_ids)
        self.output.text = ""

    @property
    def finished(self) -> bool:
        return self.output.finish_reason is not None

    def take_token(self, token_id: int, logprob: TokenLogprob | None) -> str | None:
        """Add the text of a token that was sampled and appended. Return the finish reason if it ends the output."""
        output, num_tokens = self.output, len(self.request.output_token_ids)
        self._show(token_id, num_tokens)
        if logprob is not None and output.logprobs is not None and output.cumulative_logprob is not None:
            output.logprobs.append(with_texts(logprob, self._tokenizer))
            output.cumulative_logprob += logprob.logprob
        self._num_taken = num_tokens
        if self.row.cursor is None:
            return self._stopping.finish_reason
        return self._stopping.finish_reason if self._follow_grammar(token_id) else "stop"

    def _show(self, token_id: int, num_tokens: int) -> None:
        """Add the text of a token, the last one of ``num_tokens``."""
        before = ""
        if self._stopping.ends_by_id(token_id, num_tokens) and not self._stopping.shows_stop:
            before, new_text = self._detokenizer.finish(), ""  # the bytes of a character may have waited for the next
        else:
            new_text = self._detokenizer.add(token_id)
        self.output.text += self._stopping.add(token_id, new_text, num_tokens, before)

    def _follow_grammar(self, token_id: int) -> bool:
        """Move on in the grammar. Return False if the output matches and nothing can follow: that ends it.

        Before ``min_tokens`` it does not end; the next step then finds that no token is left.
        """
        assert self.row.cursor is not None
        self.row.cursor = self.row.cursor.after_output(token_id)
        is_long_enough = len(self.request.output_token_ids) >= self.request.sampling_params.min_tokens
        return not (is_long_enough and self.row.cursor.is_complete)

    def return_to_last_token(self) -> RequestStatus:
        """Let the request wait as if no step had begun since its last token. Return its status."""
        request, num_taken = self.request, self._num_taken
        if len(request.output_token_ids) > num_taken:
            del request.output_token_ids[num_taken:]
            del request.all_token_ids[request.num_prompt_tokens + num_taken:]
            del (self.output.logprobs or [])[num_taken:]
            self._begin_text()
            for num_tokens, token_id in enumerate(request.output_token_ids, start=1):
                self._show(token_id, num_tokens)
        if not request.status.is_finished:
            request.num_computed_tokens, request.num_sequences = 0, 1
            if request.status is RequestStatus.RUNNING:
                request.num_preemptions += 1
                request.status = RequestStatus.PREEMPTED
        return request.status

    def end(self, reason: str) -> None:
        """End the output: show the text held back, unless a stop string cut it off."""
        self.output.text += self._stopping.finish()
        if not isinstance(self._stopping.stop_reason, str):
            self.output.text += self._detokenizer.finish()
        self.output.finish_reason = reason
        self.output.stop_reason = self._stopping.stop_reason


def with_texts(logprob: TokenLogprob, tokenizer: Tokenizer) -> TokenLogprob:
    """Return ``logprob`` with the text of every token in it."""
    top = {token_id: Logprob(entry.logprob, entry.rank, tokenizer.decode([token_id], skip_special_tokens=False))
           for token_id, entry in logprob.top.items()}
    return replace(logprob, text=tokenizer.decode([logprob.token_id], skip_special_tokens=False), top=top)


@dataclass
class SequenceGroup:
    """All continuations of one prompt. The first, the leader, computes the prompt; the others are forked from it."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    sequences: list[SequenceState] = field(default_factory=list)
    error: str | None = None
    #: If requested, the log-probabilities of the prompt tokens in order, as far as they are computed.
    prompt_logprobs: list[TokenLogprob | None] | None = None
    #: The times of arrival, first computation, first token and latest token, by the engine's clock.
    arrived_s: float = 0.0
    started_s: float | None = None
    first_token_s: float | None = None
    latest_token_s: float | None = None

    @property
    def leader(self) -> Request:
        return self.sequences[0].request

    @property
    def unfinished(self) -> list[SequenceState]:
        return [sequence for sequence in self.sequences if not sequence.finished]

    def note_start(self, now_s: float) -> None:
        if self.started_s is None:
            self.started_s = now_s

    def note_token(self, now_s: float) -> None:
        if self.first_token_s is None:
            self.first_token_s = now_s
        self.latest_token_s = now_s

    @property
    def timings(self) -> RequestTimings:
        started_s, first_token_s, latest_token_s = self.started_s, self.first_token_s, self.latest_token_s
        if started_s is None:
            return RequestTimings()
        if first_token_s is None or latest_token_s is None:
            return RequestTimings(started_s - self.arrived_s)
        return RequestTimings(started_s - self.arrived_s, first_token_s - started_s, latest_token_s - first_token_s)

    def to_output(self) -> RequestOutput:
        outputs, finished, num_tokens, num_accepted, num_drafted = [], True, 0, 0, 0
        for sequence in self.sequences:  # once: this runs for every token
            output, request = sequence.output, sequence.request
            outputs.append(output)
            finished = finished and output.finish_reason is not None
            num_tokens += len(output.token_ids)
            num_accepted += request.num_accepted_tokens
            num_drafted += request.num_drafted_tokens
        usage = Usage(len(self.prompt_token_ids), num_tokens, PromptTokensDetails(self.leader.num_cached_tokens),
                      CompletionTokensDetails(num_accepted, num_drafted - num_accepted))
        return RequestOutput(self.request_id, self.prompt, self.prompt_token_ids, outputs, finished, usage, self.error,
                             self.prompt_logprobs, self.timings)


class LiveRequests:
    """The unfinished requests by their ids, and their sequences by the ids that the scheduler knows."""

    def __init__(self) -> None:
        self.groups: dict[str, SequenceGroup] = {}
        self._sequences: dict[str, tuple[SequenceGroup, SequenceState]] = {}

    def __contains__(self, any_id: str) -> bool:
        """Check whether a request or a sequence has this id."""
        return any_id in self.groups or any_id in self._sequences

    def add(self, group: SequenceGroup) -> None:
        self.groups[group.request_id] = group
        self._sequences.update({sequence.request.request_id: (group, sequence) for sequence in group.sequences})

    def remove(self, group: SequenceGroup) -> None:
        del self.groups[group.request_id]
        for sequence in group.sequences:
            del self._sequences[sequence.request.request_id]

    def group_of(self, sequence_id: str) -> SequenceGroup:
        return self._sequences[sequence_id][0]

    def sequence(self, sequence_id: str) -> SequenceState:
        return self._sequences[sequence_id][1]


class PromptTexts:
    """The text of a request's prompt; for a prompt given as token ids, the text of the first ones.

    It knows the live requests and the tokenizer, but no engine: a reference would keep the engine alive.
    """

    def __init__(self, live: LiveRequests, tokenizer: Tokenizer) -> None:
        self._live, self._tokenizer = live, tokenizer

    def __call__(self, request: Request) -> str:
        try:
            text = self._live.group_of(request.request_id).prompt
        except KeyError:  # the request was not added by this engine
            text = None
        return self._tokenizer.decode(request.prompt_token_ids[:NUM_NAMING_TOKENS]) if text is None else text


# ---- from a caller's request to its sequences


class InputProcessor:
    """Checks prompts, parameters and ids, and creates groups from them."""

    def __init__(self, config: EngineConfig, prompts: PromptReader, is_in_use: Callable[[str], bool],
                 clock: Callable[[], float], regex_grammar: Callable[[Node, Vocabulary], Grammar]) -> None:
        """Store the collaborators.

        ``is_in_use`` checks whether an id is taken; ``clock`` gives the arrival time of a request; ``regex_grammar`` is
        the class for outputs that must match a regular expression.
        """
        self._max_num_seqs, self._regex_grammar = config.max_num_seqs, regex_grammar
        self.prompts, self._tokenizer = prompts, prompts.tokenizer
        self._is_in_use, self._clock = is_in_use, clock
        self._numbers = itertools.count()
        self._bad_words: WeakValueDictionary[tuple[str, ...], BadWords] = WeakValueDictionary()
        self._bad_words[()] = self._no_words = BadWords(())

    @cached_property
    def grammars(self) -> GrammarCompiler:
        return GrammarCompiler(partial(vocabulary_of, self.prompts), self._regex_grammar)

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
        cursor = None
        if params.structured_outputs is not None:
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
        return self.grammars.is_compiled(params.structured_outputs) and tuple(params.bad_words or ()) in self._bad_words

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

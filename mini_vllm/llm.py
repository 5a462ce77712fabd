"""``LLM``: a model and an engine in one, for a caller with a list of prompts that waits for all outputs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from mini_vllm.beam_search import Beam, beam_search_all
from mini_vllm.checks import an_instance, one_each
from mini_vllm.engine import engine_of
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.models.loader import DEFAULT_MODEL
from mini_vllm.models.prompts import Prompt, as_list
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.request import Priority, RequestOutput, SamplingParams, Usage, checked_priority
from mini_vllm.structured.params import StructuredOutputsParams

#: Messages, each with a role and a content, in order.
Conversation = Sequence[dict[str, str]]
#: Called with the numbers of outputs finished and of tokens generated since the last call.
Advance = Callable[[int, int], None]


class LLM:
    """A model and an engine in one: it takes prompts and returns texts."""

    def __init__(self, model: str | Path = DEFAULT_MODEL, *, parts: EngineParts | None = None,
                 **settings: Any) -> None:  # each of its own type; EngineConfig checks them by name
        self.engine = engine_of(EngineConfig(model=model, **settings), parts)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def get_tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the default parameters of ``generate`` and ``chat``: the model's recommended ones, if it has any."""
        return SamplingParams(**self.engine.loaded.sampling_defaults)

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes."""
        self.engine.reset_prefix_cache()

    def evict_unused(self) -> int:
        """Forget all cached blocks that no request holds, and return their number."""
        return self.engine.evict_unused()

    def generate(self, prompts: Prompt | Sequence[Prompt],
                 sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, use_progress: bool = False,
                 priority: Priority | Sequence[Priority] = Priority.NORMAL) -> list[RequestOutput]:
        """Continue every prompt. The outputs are in the order of the prompts.

        A prompt is a text, a list of token ids, or a dict with either. A prompt that cannot be served is reported in
        its own output (``error``, finish reason "error"); the others finish. Requests that are already in the engine
        continue meanwhile; the engine's next step returns their outputs. Without ``sampling_params``,
        ``get_default_sampling_params()`` is used; its values are not mixed into parameters that are given.
        """
        return self._serve([partial(_itself, prompt) for prompt in as_list(prompts)], sampling_params, use_progress,
                           priority)

    def chat(self, messages: Conversation | Sequence[Conversation],
             sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, use_progress: bool = False,
             priority: Priority | Sequence[Priority] = Priority.NORMAL) -> list[RequestOutput]:
        """Answer one or several conversations through the model's chat template. Otherwise the same as ``generate``."""
        an_instance("messages", messages, list, tuple)
        is_one = bool(messages) and isinstance(messages[0], Mapping)
        conversations = cast(list[list[dict[str, str]]], [messages] if is_one else messages)
        return self._serve([partial(self.tokenizer.encode_chat, conversation) for conversation in conversations],
                           sampling_params, use_progress, priority)

    def _serve(self, readers: list[Callable[[], Prompt]], params: SamplingParams | Sequence[SamplingParams] | None,
               use_progress: bool, priority: Priority | Sequence[Priority]) -> list[RequestOutput]:
        """Continue the prompts that ``readers`` return.

        If a reader raises ValueError, its output reports that error.
        """
        params = self.get_default_sampling_params() if params is None else params
        each_params, priorities = _params_for_each(params, len(readers)), _priority_for_each(priority, len(readers))
        results: dict[int, RequestOutput] = {}
        index_of: dict[str, int] = {}
        of_others: dict[str, RequestOutput] = {}
        try:
            for index, read in enumerate(readers):
                added = self._add(index, read, each_params[index], priorities[index])
                if isinstance(added, RequestOutput):
                    results[index] = added
                else:
                    index_of[added] = index
            with progress_bar(sum(each.n for each in each_params), use_progress) as advance:
                progress = _Progress(advance)
                progress.advance(sum(each_params[index].n for index in results), 0)
                while len(results) < len(readers):
                    for output in self.engine.step():
                        if output.request_id not in index_of:
                            of_others[output.request_id] = output
                            continue
                        progress.note(output)
                        if output.finished:
                            results[index_of[output.request_id]] = output
        finally:
            for request_id in index_of:  # however the loop ended, none of this call's requests stays in the engine
                self.engine.abort_request(request_id)
            self.engine.put_back(of_others.values())
        return [results[index] for index in range(len(readers))]

    def _add(self, index: int, read: Callable[[], Prompt], params: SamplingParams, priority: Priority
             ) -> str | RequestOutput:
        """Add a request and return its id, or an output with the error if it is rejected."""
        prompt = None
        try:
            prompt = read()
            return self.engine.add_request(prompt, params, priority=priority)
        except ValueError as error:
            text = prompt if isinstance(prompt, str) else None
            return RequestOutput(f"refused-{index}", text, [], [], True, Usage(0, 0), str(error))

    def beam_search(self, prompts: Prompt | Sequence[Prompt], beam_width: int = 4, max_tokens: int = 16,
                    length_penalty: float = 1.0, ignore_eos: bool = False,
                    structured_outputs: StructuredOutputsParams | None = None) -> list[list[Beam]]:
        """Return the ``beam_width`` best continuations of every prompt, best first.

        A beam's score is its log-probability divided by ``length ** length_penalty``.
        """
        return beam_search_all(self.engine, prompts, beam_width, max_tokens, length_penalty, ignore_eos,
                               structured_outputs)


def _itself(prompt: Prompt) -> Prompt:
    return prompt


def _params_for_each(params: SamplingParams | Sequence[SamplingParams], num_prompts: int) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    return one_each("sampling_params", params, SamplingParams, num_prompts, "prompts")


def _priority_for_each(priority: Priority | Sequence[Priority], num_prompts: int) -> list[Priority]:
    if isinstance(priority, (list, tuple)):
        return [checked_priority(each) for each in one_each("priority", priority, int, num_prompts, "prompts")]
    return [checked_priority(priority)] * num_prompts


class _Progress:
    """Reports to a bar what is new in each output: the engine's outputs contain everything so far."""

    def __init__(self, advance: Advance) -> None:
        self.advance = advance
        self._told: dict[str, tuple[int, int]] = {}

    def note(self, output: RequestOutput) -> None:
        num_finished = sum(each.finish_reason is not None for each in output.outputs)
        num_tokens = output.usage.completion_tokens
        finished_before, tokens_before = self._told.get(output.request_id, (0, 0))
        self._told[output.request_id] = num_finished, num_tokens
        self.advance(num_finished - finished_before, num_tokens - tokens_before)


@contextlib.contextmanager
def progress_bar(num_outputs: int, show: bool) -> Iterator[Advance]:
    """Yield a function that counts finished outputs, out of ``num_outputs``, and tokens, in a line on standard error.

    A request has ``n`` outputs. With ``show`` off the function does nothing.
    """
    all_finished = all_tokens = 0

    def advance(num_finished: int, num_tokens: int) -> None:
        nonlocal all_finished, all_tokens
        all_finished, all_tokens = all_finished + num_finished, all_tokens + num_tokens
        if show:
            print(f"\r{all_finished} of {num_outputs} outputs, {all_tokens} tokens", end="", file=sys.stderr,
                  flush=True)

    yield advance
    if show:
        print(file=sys.stderr)

"""``LLM``: a model and an engine in one, for whoever has a list of prompts and waits for all of them."""

from __future__ import annotations

import contextlib
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

#: Messages with a role and a content, in turn.
Conversation = Sequence[dict[str, str]]
#: To be told how many outputs have finished, and how many tokens have come, since the last time.
Advance = Callable[[int, int], None]


class LLM:
    """A model and an engine in one: give it prompts, get texts."""

    def __init__(self, model: str | Path = DEFAULT_MODEL, *, parts: EngineParts | None = None,
                 **settings: Any) -> None:  # each of its own type; EngineConfig checks them by name
        self.engine = engine_of(EngineConfig(model=model, **settings), parts)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def get_tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """How ``generate`` and ``chat`` sample if they are not told: as the model's makers advise, where they do."""
        return SamplingParams(**self.engine.loaded.sampling_defaults)

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes."""
        self.engine.reset_prefix_cache()

    def generate(self, prompts: Prompt | Sequence[Prompt],
                 sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, use_progress: bool = False,
                 priority: Priority | Sequence[Priority] = Priority.NORMAL) -> list[RequestOutput]:
        """Continue every prompt; outputs come in the order of the prompts.

        A prompt is a text, a list of token ids, or one of both in a dict. One that cannot be served is reported in its
        own output (``error``, finish reason "error"); the others finish. Requests that are in the engine already go on
        meanwhile, and what they put out is returned by the engine's next step. Without ``sampling_params`` they are
        ``get_default_sampling_params()``; nothing of those is mixed into what is given.
        """
        return self._serve([partial(_itself, prompt) for prompt in as_list(prompts)], sampling_params, use_progress,
                           priority)

    def chat(self, messages: Conversation | Sequence[Conversation],
             sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, use_progress: bool = False,
             priority: Priority | Sequence[Priority] = Priority.NORMAL) -> list[RequestOutput]:
        """Answer one conversation, or several, through the model's chat template; as ``generate`` does."""
        an_instance("messages", messages, list, tuple)
        is_one = bool(messages) and isinstance(messages[0], Mapping)
        conversations = cast(list[list[dict[str, str]]], [messages] if is_one else messages)
        return self._serve([partial(self.tokenizer.encode_chat, conversation) for conversation in conversations],
                           sampling_params, use_progress, priority)

    def _serve(self, readers: list[Callable[[], Prompt]], params: SamplingParams | Sequence[SamplingParams] | None,
               use_progress: bool, priority: Priority | Sequence[Priority]) -> list[RequestOutput]:
        """Continue the prompts that ``readers`` give; one that raises ValueError gives an output with that error."""
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
            for request_id in index_of:  # whatever ended the loop, nothing of this call is left in the engine
                self.engine.abort_request(request_id)
            self.engine.put_back(of_others.values())
        return [results[index] for index in range(len(readers))]

    def _add(self, index: int, read: Callable[[], Prompt], params: SamplingParams, priority: Priority
             ) -> str | RequestOutput:
        """The id of a request, or what is said of one that is refused."""
        prompt = None
        try:
            prompt = read()
            return self.engine.add_request(prompt, params, priority=priority)
        except ValueError as error:
            text = prompt if isinstance(prompt, str) else None
            return RequestOutput(f"refused-{index}", text, [], [], True, Usage(0, 0), str(error))

    def beam_search(self, prompts: Prompt | Sequence[Prompt], beam_width: int = 4, max_tokens: int = 16,
                    length_penalty: float = 1.0, ignore_eos: bool = False) -> list[list[Beam]]:
        """The ``beam_width`` best continuations of every prompt, best first. A beam's score is its log-probability over
        ``length ** length_penalty``.
        """
        return beam_search_all(self.engine, prompts, beam_width, max_tokens, length_penalty, ignore_eos)


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
    """Tells a bar of what is new in each output: the engine's outputs hold all there is so far."""

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
    """Gives a function to tell of outputs that finished, of ``num_outputs``, and of tokens that came. A request has
    ``n`` outputs. With ``show`` off that function does nothing."""
    if not show:
        yield lambda num_finished, num_tokens: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    with Progress(TextColumn("outputs"), BarColumn(), MofNCompleteColumn(),
                  TextColumn("{task.fields[tokens]} tokens"), TimeElapsedColumn()) as bar:
        task, total = bar.add_task("", total=num_outputs, tokens=0), 0

        def advance(num_finished: int, num_tokens: int) -> None:
            nonlocal total
            total += num_tokens
            bar.update(task, advance=num_finished, tokens=total)

        yield advance

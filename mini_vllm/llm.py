"""``LLM``: a model and an engine in one, for whoever has a list of prompts and waits for all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from mini_vllm.beam_search import Beam, beam_search_all
from mini_vllm.checks import an_instance, one_each
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.models.loader import DEFAULT_MODEL
from mini_vllm.models.prompts import Prompt, as_list
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.request import Priority, RequestOutput, SamplingParams, Usage, checked_priority


class LLM:
    """A model and an engine in one: give it prompts, get texts."""

    def __init__(self, model: str | Path = DEFAULT_MODEL, *, parts: EngineParts | None = None,
                 **settings: object) -> None:
        self.engine = LLMEngine(EngineConfig(model=model, **settings), parts)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def get_tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes."""
        self.engine.reset_prefix_cache()

    def generate(self, prompts: Prompt | Sequence[Prompt],
                 sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, use_progress: bool = False,
                 priority: Priority | Sequence[Priority] = Priority.NORMAL) -> list[RequestOutput]:
        """Continue every prompt; outputs come in the order of the prompts.

        A prompt is a text, a list of token ids, or one of both in a dict. One that cannot be served is reported in its
        own output (``error``, finish reason "error"); the others finish. Requests that are in the engine already go on
        meanwhile, and what they put out is returned by the engine's next step.
        """
        return self._serve([lambda prompt=prompt: prompt for prompt in as_list(prompts)], sampling_params, use_progress,
                           priority)

    def chat(self, messages: Sequence[dict[str, str]] | Sequence[Sequence[dict[str, str]]],
             sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, use_progress: bool = False,
             priority: Priority | Sequence[Priority] = Priority.NORMAL) -> list[RequestOutput]:
        """Answer one conversation, or several, through the model's chat template; as ``generate`` does."""
        conversations = an_instance("messages", messages, list, tuple)
        if conversations and isinstance(conversations[0], Mapping):
            conversations = [conversations]
        return self._serve([lambda chat=chat: self.tokenizer.encode_chat(chat) for chat in conversations],
                           sampling_params, use_progress, priority)

    def _serve(self, readers: list[Callable[[], Prompt]], params: SamplingParams | Sequence[SamplingParams] | None,
               use_progress: bool, priority: Priority | Sequence[Priority]) -> list[RequestOutput]:
        """Continue the prompts that ``readers`` give; one that raises ValueError gives an output with that error."""
        params = ([params or SamplingParams()] * len(readers) if params is None or isinstance(params, SamplingParams)
                  else one_each("sampling_params", params, SamplingParams, len(readers), "prompts"))
        priorities = ([checked_priority(each) for each in one_each("priority", priority, int, len(readers), "prompts")]
                      if isinstance(priority, (list, tuple)) else [checked_priority(priority)] * len(readers))
        engine = self.engine
        results: list[RequestOutput | None] = [None] * len(readers)
        index_of: dict[str, int] = {}
        of_others: dict[str, RequestOutput] = {}
        try:
            for index, read in enumerate(readers):
                prompt = None
                try:
                    prompt = read()
                    index_of[engine.add_request(prompt, params[index], priority=priorities[index])] = index
                except ValueError as error:
                    text = prompt if isinstance(prompt, str) else None
                    results[index] = RequestOutput(f"refused-{index}", text, [], [], True, Usage(0, 0), str(error))
            with progress_bar(len(readers), use_progress) as advance:
                advance(len(readers) - len(index_of), 0)
                while any(result is None for result in results):
                    outputs = engine.step()
                    own = [output for output in outputs if output.request_id in index_of]
                    of_others |= {output.request_id: output for output in outputs if output.request_id not in index_of}
                    for output in own:
                        if output.finished:
                            results[index_of[output.request_id]] = output
                    advance(sum(output.finished for output in own), len(own))
        finally:
            for request_id in index_of:  # whatever ended the loop, nothing of this call stays behind
                engine.abort_request(request_id)
            engine.put_back(of_others.values())
        return results

    def beam_search(self, prompts: Prompt | Sequence[Prompt], beam_width: int = 4, max_tokens: int = 16,
                    length_penalty: float = 1.0, ignore_eos: bool = False) -> list[list[Beam]]:
        """The ``beam_width`` best continuations of every prompt, best first. A beam's score is its log-probability over
        ``length ** length_penalty``.
        """
        return beam_search_all(self.engine, prompts, beam_width, max_tokens, length_penalty, ignore_eos)


@contextlib.contextmanager
def progress_bar(num_requests: int, show: bool) -> Iterator[Callable[[int, int], None]]:
    """Gives a function to tell of requests that finished and tokens that came. With ``show`` off it does nothing."""
    if not show:
        yield lambda num_finished, num_tokens: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    with Progress(TextColumn("requests"), BarColumn(), MofNCompleteColumn(),
                  TextColumn("{task.fields[tokens]} tokens"), TimeElapsedColumn()) as bar:
        task, total = bar.add_task("", total=num_requests, tokens=0), 0

        def advance(num_finished: int, num_tokens: int) -> None:
            nonlocal total
            total += num_tokens
            bar.update(task, advance=num_finished, tokens=total)

        yield advance

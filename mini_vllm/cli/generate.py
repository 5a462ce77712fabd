"""``mini-vllm generate``: serve prompts together and stream their texts, or search the likeliest with ``--beams``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TextIO

from mini_vllm import beam_search
from mini_vllm.cli.arguments import given_fields
from mini_vllm.cli.messages import FAILED, INTERRUPTED, loading, print_usage
from mini_vllm.cli.parts_file import load_parts
from mini_vllm.cli.sampling_options import with_defaults
from mini_vllm.engine import LLMEngine, engine_of
from mini_vllm.engine_config import EngineConfig
from mini_vllm.native.advice import tell_slow_blas
from mini_vllm.pictures.recorded import check_run_target, save_run
from mini_vllm.request import PromptTokensDetails, RequestOutput, SamplingParams, TokenLogprob, Usage
from mini_vllm.speculation import draft_settings
from mini_vllm.trace.recorder import StepTrace


def make_engine(arguments: argparse.Namespace, trace: StepTrace | None = None) -> LLMEngine:
    """Make an engine, with the parts in ``--parts`` if given. Errors in them are raised before the model is loaded."""
    config = EngineConfig(**{**given_fields(arguments, EngineConfig), **draft_settings(arguments)})
    parts = load_parts(arguments.parts) if arguments.parts else None
    with loading(str(config.model)):
        try:
            engine = engine_of(config, parts, trace=trace)
        except (TypeError, AttributeError) as error:
            if parts is None:
                raise
            raise ValueError(f"{arguments.parts}: the engine cannot use these parts: {error}. Make them by "
                             "course.engine_parts(…), which says why, and adds what a simpler part lacks") from None
    tell_slow_blas()
    return engine


def run_generate(arguments: argparse.Namespace, prompts: Sequence[str], params: SamplingParams) -> int:
    """Generate. Texts go to standard output; rejections, usage and ``--stats`` go to standard error.

    A rejected prompt does not stop the others. Ctrl-C aborts all.
    """
    trace = StepTrace() if arguments.trace else None
    if arguments.trace:
        check_run_target(arguments.trace)
    engine = make_engine(arguments, trace)
    params = with_defaults(params, arguments, engine.loaded.sampling_defaults)
    started_s = time.perf_counter()
    accepted = []
    for index, prompt in enumerate(prompts):
        try:
            accepted.append(engine.add_request(prompt, params, request_id=f"prompt-{index}"))
        except ValueError as error:
            refuse(arguments, index, prompt, error)
    printer = TextPrinter(sys.stdout, accepted, has_titles=len(prompts) * params.n > 1)
    outputs: dict[str, RequestOutput] = {}

    def show(output: RequestOutput) -> None:
        outputs[output.request_id] = output
        if not arguments.json:
            printer.show(output)
        elif output.finished:
            texts = [{"index": each.index, "text": each.text, "token_ids": each.token_ids,
                      "finish_reason": each.finish_reason, **logprobs("logprobs", each.logprobs)}
                     for each in output.outputs]
            print_json(output.request_id, output.prompt, texts, output.usage, output.error,
                       logprobs("prompt_logprobs", output.prompt_logprobs))

    is_interrupted = False
    try:
        while engine.has_unfinished_requests():
            for output in engine.step():
                show(output)
    except KeyboardInterrupt:
        is_interrupted = True
        for aborted in map(engine.abort_request, accepted):
            if aborted is not None:
                show(aborted)
    failed = [output for output in outputs.values() if output.error]
    for output in failed:
        print(f"mini-vllm: {output.request_id}: {output.error}", file=sys.stderr)
    print_usage(list(outputs.values()), time.perf_counter() - started_s, params.max_tokens)
    if arguments.stats:
        print(engine.metrics(), file=sys.stderr)
    if trace is not None:
        save_run(trace, arguments.trace)
    return INTERRUPTED if is_interrupted else FAILED if failed or len(accepted) < len(prompts) else 0


def run_beams(arguments: argparse.Namespace, prompts: Sequence[str], params: SamplingParams) -> int:
    """Search the beams of one prompt after the other, and print those of a prompt when its search is over."""
    engine = make_engine(arguments)
    length_penalty = 1.0 if arguments.length_penalty is None else arguments.length_penalty
    ignore_eos = bool(arguments.ignore_eos)
    beam_search.check_arguments(engine, arguments.beams, arguments.max_tokens, length_penalty, ignore_eos)
    started_s = time.perf_counter()
    num_refused = num_beams = num_tokens = 0
    for index, prompt in enumerate(prompts):
        before = engine.metrics()
        try:
            beams = beam_search.beam_search(engine, prompt, arguments.beams, arguments.max_tokens, length_penalty,
                                            ignore_eos, params.structured_outputs)
        except (ValueError, RuntimeError) as error:
            num_refused += 1
            refuse(arguments, index, prompt, error)
            continue
        after, completion = engine.metrics(), sum(len(beam.token_ids) for beam in beams)
        num_beams, num_tokens = num_beams + len(beams), num_tokens + completion
        if arguments.json:
            usage = Usage(after.num_prompt_tokens - before.num_prompt_tokens, completion,
                          PromptTokensDetails(after.num_saved_tokens - before.num_saved_tokens))
            print_json(f"prompt-{index}", prompt, [{"index": i, **asdict(beam)} for i, beam in enumerate(beams)], usage)
            continue
        for number, beam in enumerate(beams, 1):
            print(f"--- {title(prompt, 50)} #{number}, score {beam.score:.3f}\n{prompt}{beam.text}", flush=True)
    metrics = engine.metrics()
    print(f"{metrics.num_prompt_tokens} prompt tokens ({metrics.num_saved_tokens} cached), {num_beams} beams of "
          f"{num_tokens} tokens in all, {time.perf_counter() - started_s:.1f} s", file=sys.stderr)
    if arguments.stats:
        print(metrics, file=sys.stderr)
    return FAILED if num_refused else 0


# ---- what is printed


class TextPrinter:
    """Streams texts in the order of their prompts: one as it grows, the next when the previous one is done."""

    def __init__(self, stream: TextIO, request_ids: Sequence[str], has_titles: bool) -> None:
        self.stream, self.request_ids, self.has_titles = stream, request_ids, has_titles
        self._latest: dict[str, RequestOutput] = {}
        #: The current prompt, its current continuation, and how many characters of that are printed; None: not begun.
        self._prompt = self._index = 0
        self._num_shown: int | None = None

    def show(self, output: RequestOutput) -> None:
        """Show an output, finished or not."""
        self._latest[output.request_id] = output
        while self._show_current():
            pass
        self.stream.flush()

    def _show_current(self) -> bool:
        """Show the new part of the current text. Return whether the text ended, so that the next one may be shown."""
        if self._prompt >= len(self.request_ids) or self.request_ids[self._prompt] not in self._latest:
            return False
        output = self._latest[self.request_ids[self._prompt]]
        if self._index >= len(output.outputs):
            self._prompt, self._index = self._prompt + 1, 0
            return True
        completion = output.outputs[self._index]
        if self._num_shown is None:
            if self.has_titles:
                number = f" #{self._index + 1}" if len(output.outputs) > 1 else ""
                self.stream.write(f"--- {title(output.prompt or '', 60)}{number}\n")
            self.stream.write(output.prompt or "")
        self.stream.write(completion.text[self._num_shown or 0:])
        self._num_shown = len(completion.text)
        if completion.finish_reason is None:
            return False
        self.stream.write("\n")
        self._index, self._num_shown = self._index + 1, None
        return True


def refuse(arguments: argparse.Namespace, index: int, prompt: str, error: Exception) -> None:
    """Report a prompt that has no output. With ``--json`` it has its object, like the others."""
    print(f"mini-vllm: prompt {index + 1}: {error}", file=sys.stderr)
    if arguments.json:
        print_json(f"prompt-{index}", prompt, [], Usage(0, 0), str(error))


def print_json(request_id: str, prompt: str | None, outputs: Sequence[Mapping[str, object]], usage: Usage,
               error: str | None = None, of_prompt: Mapping[str, object] | None = None) -> None:
    """Print the object of one prompt as a line."""
    print(json.dumps({"id": request_id, "prompt": prompt, **(of_prompt or {}), "outputs": outputs,
                      "usage": usage.to_dict(), "error": error}), flush=True)


def logprobs(name: str, entries: Sequence[TokenLogprob | None] | None) -> dict[str, object]:
    """Return the log-probabilities under this name, if requested: one object per token, null for a prompt's first."""
    return {} if entries is None else {name: [entry and asdict(entry) for entry in entries]}


def title(prompt: str, width: int) -> str:
    """Return the beginning of a prompt as one line."""
    line = prompt.strip().replace("\n", " ")
    return line[:width] + ("…" if len(line) > width else "")

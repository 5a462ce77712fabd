"""``mini-vllm generate``: serve prompts together, and stream their texts."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from mini_vllm.arguments import draft_settings
from mini_vllm.cli.exit_status import FAILED, INTERRUPTED
from mini_vllm.cli.loading import loading
from mini_vllm.cli.parts_file import load_parts
from mini_vllm.cli.printing import JsonPrinter, Printer, TextPrinter
from mini_vllm.cli.sampling_options import with_defaults
from mini_vllm.cli.usage import print_usage
from mini_vllm.engine import LLMEngine, engine_of
from mini_vllm.engine_config import EngineConfig
from mini_vllm.native.advice import tell_slow_blas
from mini_vllm.pictures.recorded import check_run_target, save_run
from mini_vllm.request import RequestOutput, SamplingParams
from mini_vllm.trace.recorder import StepTrace


def run_generate(arguments: argparse.Namespace, prompts: Sequence[str], params: SamplingParams) -> int:
    """Generate. Texts go to standard output; rejections, usage and ``--stats`` go to standard error."""
    trace = StepTrace() if arguments.trace else None
    if arguments.trace:
        check_run_target(arguments.trace)
    engine = make_engine(arguments, engine_config(arguments), trace)
    params = with_defaults(params, arguments, engine.loaded.sampling_defaults)
    started_s = time.perf_counter()
    generation = Generation(engine, _make_printer(arguments, len(prompts) * params.n))
    generation.add(prompts, params)
    is_interrupted = generation.run()
    generation.tell_errors()
    print_usage(list(generation.outputs.values()), time.perf_counter() - started_s, params.max_tokens)
    if arguments.stats:
        print(engine.metrics(), file=sys.stderr)
    if trace is not None:
        save_run(trace, arguments.trace)
    return INTERRUPTED if is_interrupted else FAILED if generation.num_refused else 0


def make_engine(arguments: argparse.Namespace, config: EngineConfig, trace: StepTrace | None = None) -> LLMEngine:
    """Make an engine, with the parts in ``--parts`` if given. Errors in them are raised before the model is loaded."""
    parts = load_parts(arguments.parts) if arguments.parts else None
    with loading(str(config.model)):
        engine = engine_of(config, parts, trace=trace)
    tell_slow_blas()
    return engine


def engine_config(arguments: argparse.Namespace) -> EngineConfig:
    return EngineConfig(model=arguments.model, kv_memory=arguments.kv_memory,
                        enable_prefix_caching=not arguments.no_prefix_caching,
                        precision=arguments.precision, **draft_settings(arguments))


def _make_printer(arguments: argparse.Namespace, num_texts: int) -> Printer:
    return JsonPrinter(sys.stdout) if arguments.json else TextPrinter(sys.stdout, num_texts)


class Generation:
    """The requests in the engine, and the latest output of each."""

    def __init__(self, engine: LLMEngine, printer: Printer) -> None:
        self.engine, self.printer = engine, printer
        self.request_ids: list[str] = []
        self.outputs: dict[str, RequestOutput] = {}
        #: Prompts that were rejected, and requests that ended with an error.
        self.num_refused = 0

    def add(self, prompts: Sequence[str], params: SamplingParams) -> None:
        """Add a request per prompt. A rejected prompt does not stop the others."""
        for index, prompt in enumerate(prompts):
            request_id = f"prompt-{index}"
            try:
                self.engine.add_request(prompt, params, request_id=request_id)
            except ValueError as error:
                self.num_refused += 1
                print(f"mini-vllm: prompt {index + 1}: {error}", file=sys.stderr)
                self.printer.refuse(request_id, prompt, str(error))
            else:
                self.request_ids.append(request_id)
                self.printer.expect(request_id)

    def run(self) -> bool:
        """Step until all requests have ended. Ctrl-C aborts them. Return whether Ctrl-C was pressed."""
        try:
            while self.engine.has_unfinished_requests():
                for output in self.engine.step():
                    self._show(output)
        except KeyboardInterrupt:
            for request_id in self.request_ids:
                aborted = self.engine.abort_request(request_id)
                if aborted is not None:
                    self._show(aborted)
            return True
        return False

    def tell_errors(self) -> None:
        for output in self.outputs.values():
            if output.error:
                self.num_refused += 1
                print(f"mini-vllm: {output.request_id}: {output.error}", file=sys.stderr)

    def _show(self, output: RequestOutput) -> None:
        self.outputs[output.request_id] = output
        self.printer.show(output)

"""``mini-vllm generate | chat | bench | trace | pull | doctor``: the engine from a terminal."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from rich.console import Console

from mini_vllm import __version__
from mini_vllm.models.pull import KNOWN, PullError, pull
from mini_vllm.request import PromptTokensDetails, RequestOutput, SamplingParams, Usage

INTERRUPTED = 130
TEMPERATURE = 0.8
NOT_WITH_BEAMS = ("n", "temperature", "top_p", "top_k", "seed", "stop", "trace")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except (ValueError, PullError, OSError) as error:  # LoadError and TokenizerError are ValueErrors
        print(f"mini-vllm: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mini-vllm", description="A small vLLM on MLX.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    generate = commands.add_parser("generate", help="continue prompts", description="Continue prompts, streaming.")
    generate.add_argument("prompts", nargs="*", metavar="prompt", help="default: one prompt from standard input")
    generate.add_argument("--file", type=Path, help="one prompt a line")
    generate.add_argument("--model", default="tiny-tales", help="tiny-tales, smollm2, a folder, a .gguf or a hub name")
    generate.add_argument("--n", type=int, help="continuations of each prompt (default: 1)")
    generate.add_argument("--beams", type=int, metavar="WIDTH", help="instead of drawing, search for the likeliest "
                          "continuations with this many beams, and print them, best first")
    generate.add_argument("--length-penalty", type=float, metavar="P",
                          help="beams are ranked by log-probability over length ** P (default: 1.0)")
    generate.add_argument("--stats", action="store_true", help="close with what sharing has saved")
    generate.add_argument("--no-prefix-caching", action="store_true", help="compute every prompt whole")
    generate.add_argument("--trace", type=Path, metavar="FILE", help="record every step, for `mini-vllm trace FILE`")
    generate.add_argument("--json", action="store_true", help="one JSON object a prompt, when it is finished")
    _add_sampling(generate, max_tokens=128)
    generate.set_defaults(run=run_generate)

    chat = commands.add_parser("chat", help="talk to a model", description="Talk to a model that has a chat template.")
    chat.add_argument("model", nargs="?", default="smollm2")
    chat.add_argument("--system", help="what the model should know or be")
    _add_sampling(chat, max_tokens=512)
    chat.set_defaults(run=run_chat)

    bench = commands.add_parser("bench", help="measure", description="Measure, and print ratios taken in one run.")
    _add_throughput(bench.add_subparsers(required=True, metavar="what"))

    trace = commands.add_parser("trace", help="draw a step trace",
                                description="Draw a trace of steps as an SVG: requests over steps, and the block pool.")
    trace.add_argument("file", type=Path, help="written by generate --trace or StepTrace.save")
    trace.add_argument("-o", "--out", type=Path, help="default: the file's name with .svg")
    trace.add_argument("--first-step", type=int, default=0)
    trace.add_argument("--num-steps", type=int, help="default: to the end")
    trace.set_defaults(run=run_trace)

    get = commands.add_parser("pull", help="fetch a model", description="Fetch a model that does not ship.")
    get.add_argument("model", help=f"one of {', '.join(KNOWN)}")
    get.set_defaults(run=run_pull)

    doctor = commands.add_parser("doctor", help="what this machine offers", description="What this machine offers.")
    doctor.set_defaults(run=run_doctor_command)
    return parser


def _add_sampling(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    parser.add_argument("--max-tokens", type=int, default=max_tokens, help="default: %(default)s")
    # No defaults here: whether an option was given matters to --beams.
    parser.add_argument("--temperature", type=float, help=f"0 is greedy (default: {TEMPERATURE})")
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--seed", type=int, help="the same seed gives the same text")
    parser.add_argument("--stop", action="append", help="text that ends the output; may be given several times")
    parser.add_argument("--kv-memory", default="512MB", help="memory for keys and values (default: %(default)s)")


def _params(arguments: argparse.Namespace, n: int = 1) -> SamplingParams:
    given = {name: value for name in ("temperature", "top_p", "top_k")
             if (value := getattr(arguments, name)) is not None}
    return SamplingParams(max_tokens=arguments.max_tokens, seed=arguments.seed, stop=arguments.stop, n=n,
                          **{"temperature": TEMPERATURE, **given})


# ---- generate


def run_generate(arguments: argparse.Namespace) -> int:
    _check_beam_options(arguments)
    prompts = list(_read_prompts(arguments, sys.stdin))
    if arguments.beams is not None:
        return run_beams(arguments, prompts)
    n = 1 if arguments.n is None else arguments.n
    params = _params(arguments, n)
    from mini_vllm.engine import LLMEngine  # after the arguments are known to be good: it loads MLX
    from mini_vllm.engine_config import EngineConfig
    from mini_vllm.trace.recorder import StepTrace
    trace = StepTrace() if arguments.trace else None
    engine = LLMEngine(EngineConfig(model=arguments.model, kv_memory=arguments.kv_memory,
                                    enable_prefix_caching=not arguments.no_prefix_caching), trace=trace)
    started_s = time.perf_counter()
    outputs: dict[str, RequestOutput] = {}
    printer = JsonPrinter(sys.stdout) if arguments.json else TextPrinter(sys.stdout, len(prompts) * n)
    num_refused = 0
    for index, prompt in enumerate(prompts):
        try:
            printer.expect(engine.add_request(prompt, params, request_id=f"prompt-{index}"))
        except ValueError as error:
            num_refused += 1
            print(f"mini-vllm: prompt {index + 1}: {error}", file=sys.stderr)
    interrupted = False
    try:
        while engine.has_unfinished_requests():
            for output in engine.step():
                outputs[output.request_id] = output
                printer.show(output)
    except KeyboardInterrupt:
        interrupted = True
        for request_id in list(printer.order):
            aborted = engine.abort_request(request_id)
            if aborted is not None:
                outputs[request_id] = aborted
                printer.show(aborted)
    for output in outputs.values():
        if output.error:
            num_refused += 1
            print(f"mini-vllm: {output.request_id}: {output.error}", file=sys.stderr)
    print(usage_line(outputs.values(), time.perf_counter() - started_s), file=sys.stderr)
    if arguments.stats:
        print(engine.metrics(), file=sys.stderr)
    if trace is not None:
        trace.save(arguments.trace)
    return INTERRUPTED if interrupted else 1 if num_refused else 0


def _read_prompts(arguments: argparse.Namespace, stdin: TextIO) -> Iterator[str]:
    """Prompts from the arguments and the file; from standard input if there are neither."""
    yield from arguments.prompts
    if arguments.file is not None:
        yield from (line.rstrip("\n") for line in arguments.file.open(encoding="utf-8") if line.strip())
    if not arguments.prompts and arguments.file is None:
        if stdin.isatty():
            raise ValueError("no prompt: give one as an argument, with --file, or on standard input")
        yield stdin.read().rstrip("\n")


def usage_line(outputs: Iterable[RequestOutput], seconds: float) -> str:
    usages = [output.usage for output in outputs]
    completion = sum(usage.completion_tokens for usage in usages)
    cached = sum(usage.prompt_tokens_details.cached_tokens for usage in usages)
    return (f"{sum(usage.prompt_tokens for usage in usages)} prompt tokens ({cached} cached), {completion} completion "
            f"tokens, {completion / max(seconds, 1e-9):.1f} tokens/s")


def _title(prompt: str, width: int) -> str:
    """The beginning of a prompt, in one line."""
    line = prompt.strip().replace("\n", " ")
    return line[:width] + ("…" if len(line) > width else "")


class TextPrinter:
    """Streams texts in the order of their prompts: one as it grows, the next when the one before is done."""

    def __init__(self, stream: TextIO, num_texts: int) -> None:
        self.stream = stream
        self.num_texts = num_texts
        self.order: list[str] = []
        self._latest: dict[str, RequestOutput] = {}
        self._num_shown = 0  # characters of the current text
        self._at = (0, 0)  # the prompt and the continuation being shown
        self._begun = False

    def expect(self, request_id: str) -> None:
        self.order.append(request_id)

    def show(self, output: RequestOutput) -> None:
        self._latest[output.request_id] = output
        while self._show_current():
            pass
        self.stream.flush()

    def _show_current(self) -> bool:
        """Show what is new of the current text. Whether it ended, so that the next one's turn has come."""
        prompt_index, index = self._at
        if prompt_index >= len(self.order) or self.order[prompt_index] not in self._latest:
            return False
        output = self._latest[self.order[prompt_index]]
        if index >= len(output.outputs):
            self._at = (prompt_index + 1, 0)
            return True
        completion = output.outputs[index]
        if not self._begun:
            self._begun = True
            if self.num_texts > 1:
                number = f" #{index + 1}" if len(output.outputs) > 1 else ""
                self.stream.write(f"--- {_title(output.prompt or '', 60)}{number}\n")
            self.stream.write(output.prompt or "")
        self.stream.write(completion.text[self._num_shown:])
        self._num_shown = len(completion.text)
        if completion.finish_reason is None:
            return False
        self.stream.write("\n")
        self._at, self._num_shown, self._begun = (prompt_index, index + 1), 0, False
        return True


class JsonPrinter:
    """One JSON object a prompt, as they finish."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.order: list[str] = []

    def expect(self, request_id: str) -> None:
        self.order.append(request_id)

    def show(self, output: RequestOutput) -> None:
        if output.finished:
            texts = [{"index": c.index, "text": c.text, "token_ids": c.token_ids, "finish_reason": c.finish_reason}
                     for c in output.outputs]
            self.stream.write(json.dumps({"id": output.request_id, "prompt": output.prompt, "outputs": texts,
                                          "usage": output.usage.to_dict(), "error": output.error}) + "\n")
            self.stream.flush()


# ---- generate --beams


def _check_beam_options(arguments: argparse.Namespace) -> None:
    if arguments.beams is None:
        if arguments.length_penalty is not None:
            raise ValueError("--length-penalty goes only with --beams")
        return
    given = [f"--{name.replace('_', '-')}" for name in NOT_WITH_BEAMS if getattr(arguments, name) is not None]
    if given:
        names = " and ".join(part for part in (", ".join(given[:-1]), given[-1]) if part)
        raise ValueError(f"{names} {'do' if len(given) > 1 else 'does'} not go with --beams")


def run_beams(arguments: argparse.Namespace, prompts: list[str]) -> int:
    """The beams of one prompt after the other, each printed when its search is over."""
    from mini_vllm import beam_search
    from mini_vllm.engine import LLMEngine
    from mini_vllm.engine_config import EngineConfig
    engine = LLMEngine(EngineConfig(model=arguments.model, kv_memory=arguments.kv_memory,
                                    enable_prefix_caching=not arguments.no_prefix_caching))
    length_penalty = 1.0 if arguments.length_penalty is None else arguments.length_penalty
    beam_search.check_arguments(engine, arguments.beams, arguments.max_tokens, length_penalty, ignore_eos=False)
    started_s = time.perf_counter()
    num_refused = num_beams = num_tokens = 0
    for index, prompt in enumerate(prompts):
        before = engine.metrics()
        try:
            beams = beam_search.beam_search(engine, prompt, arguments.beams, arguments.max_tokens, length_penalty)
        except (ValueError, RuntimeError) as error:
            num_refused += 1
            print(f"mini-vllm: prompt {index + 1}: {error}", file=sys.stderr)
            continue
        after = engine.metrics()
        num_beams += len(beams)
        num_tokens += (completion := sum(len(beam.token_ids) for beam in beams))
        usage = Usage(after.num_prompt_tokens - before.num_prompt_tokens, completion,
                      PromptTokensDetails(after.num_saved_tokens - before.num_saved_tokens))
        if arguments.json:
            outputs = [{"index": i, **asdict(beam)} for i, beam in enumerate(beams)]
            print(json.dumps({"id": f"prompt-{index}", "prompt": prompt, "outputs": outputs, "usage": usage.to_dict(),
                              "error": None}), flush=True)
        else:
            for number, beam in enumerate(beams, 1):
                print(f"--- {_title(prompt, 50)} #{number}, score {beam.score:.3f}\n{prompt}{beam.text}", flush=True)
    metrics = engine.metrics()
    print(f"{metrics.num_prompt_tokens} prompt tokens ({metrics.num_saved_tokens} cached), {num_beams} beams of "
          f"{num_tokens} tokens in all, {time.perf_counter() - started_s:.1f} s", file=sys.stderr)
    if arguments.stats:
        print(metrics, file=sys.stderr)
    return 1 if num_refused else 0


# ---- chat


def run_chat(arguments: argparse.Namespace) -> int:
    params = _params(arguments)
    from mini_vllm.cli import chat_input
    from mini_vllm.engine import LLMEngine
    from mini_vllm.engine_config import EngineConfig
    engine = LLMEngine(EngineConfig(model=arguments.model, kv_memory=arguments.kv_memory))
    if engine.tokenizer.chat_template is None:
        raise ValueError(f"{arguments.model} has no chat template; it continues texts: "
                         f"mini-vllm generate --model {arguments.model} \"...\"")
    messages = [{"role": "system", "content": arguments.system}] if arguments.system else []
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        source = chat_input.terminal_messages(chat_input.terminal_session())
        print(f"Talking to {arguments.model}.\n{chat_input.BANNER}", file=sys.stderr)
    else:
        source = chat_input.piped_messages(sys.stdin)
    try:
        for question in chat_input.questions(source):
            messages.append({"role": "user", "content": question})
            try:
                messages.append({"role": "assistant", "content": _answer(engine, messages, params)})
            except KeyboardInterrupt:  # it came after the last token, when there was nothing left to stop
                messages.pop()
            except ValueError as error:
                messages.pop()
                print(f"mini-vllm: {error}", file=sys.stderr)
    finally:
        if is_terminal:
            chat_input.drop_unread(sys.stdin)
    return 0


def _answer(engine, messages: list[dict[str, str]], params: SamplingParams) -> str:
    """Stream one answer; Ctrl-C ends it where it is."""
    started_s = time.perf_counter()
    output, num_shown, request_id = None, 0, None
    try:
        request_id = engine.add_request(engine.tokenizer.encode_chat(messages), params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                sys.stdout.write(output.text[num_shown:])
                sys.stdout.flush()
                num_shown = len(output.text)
    except KeyboardInterrupt:
        output = engine.abort_request(request_id) or output
    print()
    if output is None:
        return ""
    if output.error:
        print(f"mini-vllm: {output.error}", file=sys.stderr)
    print(usage_line([output], time.perf_counter() - started_s), file=sys.stderr)
    return output.text


# ---- bench, trace


def _add_throughput(commands) -> None:
    from mini_vllm.benchmark.drawing import Drawing
    from mini_vllm.benchmark.workloads import WORKLOADS
    lines = "\n".join(f"  {name:<14} {about}" for name, (about, _) in WORKLOADS.items())
    throughput = commands.add_parser(
        "throughput", help="one request at a time, our batching, mlx-lm's",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Serve the same requests one at a time, batched, and by mlx-lm's BatchGenerator, in turns.\n\n"
                    f"workloads:\n{lines}")
    throughput.add_argument("--workload", action="append", choices=[*WORKLOADS, "all"], metavar="NAME",
                            help="may be given several times (default: decode-16, nano-16, mixed-64, long-arrival)")
    throughput.add_argument("--model", default="tiny-tales", help="default: %(default)s")
    throughput.add_argument("--random", metavar="SHAPE", help="instead of a model, random weights: qwen3-27m")
    throughput.add_argument("--arm", action="append", choices=["one", "ours", "mlx-lm"], help="default: all three")
    throughput.add_argument("--rounds", type=int, default=1, help="default: %(default)s")
    Drawing.add_arguments(throughput)
    throughput.add_argument("--json", type=Path, metavar="FILE", help="save the results")
    throughput.add_argument("--plot", type=Path, metavar="FILE", help="draw them (.png, .svg or .pdf)")
    throughput.set_defaults(run=run_throughput)


def run_throughput(arguments: argparse.Namespace) -> int:
    from mini_vllm.benchmark import throughput
    from mini_vllm.benchmark.drawing import Drawing
    from mini_vllm.benchmark.workloads import WORKLOADS, make_workload
    from mini_vllm.llm import progress_bar
    from mini_vllm.models.loader import load
    from mini_vllm.models.random_model import load_random
    names = arguments.workload or ["decode-16", "nano-16", "mixed-64", "long-arrival"]
    names = list(WORKLOADS) if "all" in names else names
    arms = [dict(one=throughput.ONE_AT_A_TIME, ours=throughput.BATCHED, **{"mlx-lm": throughput.PEER})[arm]
            for arm in dict.fromkeys(arguments.arm or ("one", "ours", "mlx-lm"))]
    if arguments.rounds < 1:
        raise ValueError(f"--rounds is {arguments.rounds}, must be at least 1")
    drawing = Drawing.from_arguments(arguments)
    loaded = load_random(arguments.random) if arguments.random else load(arguments.model)
    workloads = [make_workload(name, loaded.config.vocab_size, loaded.config.max_position_embeddings)
                 for name in names]
    from mini_vllm.backend import blas
    print(f"{loaded.name}, BLAS: {blas.name}; {drawing}; medians of {arguments.rounds} interleaved round"
          f"{'s' if arguments.rounds > 1 else ''}")
    everything, speed_ups = [], {}
    for workload in workloads:
        num_requests = len(workload.items) * len(arms) * arguments.rounds
        with progress_bar(num_requests, sys.stderr.isatty()) as advance:
            results, speed_ups[workload.name] = throughput.run_comparison_benchmark(loaded, workload, arms,
                                                                                    arguments.rounds, advance,
                                                                                    drawing)
        everything += results
        print(f"\n{workload.name}: {workload.about}\n{throughput.format_table(results)}")
        for arm, ratio in speed_ups[workload.name].items():
            print(f"mini_vllm against {arm}: {ratio:.2f}x")
        for result in results:
            if result.worst_gap_beside_prompt_s and result.arm != throughput.ONE_AT_A_TIME:
                print(throughput.format_gap(result))
        for result in results:
            if result.profile_s:
                print(throughput.format_profile(result))
    if arguments.json:
        throughput.save_json(arguments.json, loaded.name, everything, speed_ups)
    if arguments.plot:
        from mini_vllm.benchmark.plot import plot_results
        plot_results(everything, loaded.name, arguments.plot)
    return 0


def run_trace(arguments: argparse.Namespace) -> int:
    from mini_vllm.trace.recorder import StepTrace
    from mini_vllm.trace.svg import draw_trace
    picture = draw_trace(StepTrace.load(arguments.file), first_step=arguments.first_step, num_steps=arguments.num_steps)
    out = arguments.out or arguments.file.with_suffix(".svg")
    out.write_text(picture, encoding="utf-8")
    print(out)
    return 0


# ---- pull, doctor


def run_pull(arguments: argparse.Namespace) -> int:
    path = pull(arguments.model, Console(stderr=True))
    print(path)
    return 0


def run_doctor_command(arguments: argparse.Namespace) -> int:
    from mini_vllm.cli.doctor import run_doctor
    return run_doctor(Console(highlight=False, soft_wrap=True))

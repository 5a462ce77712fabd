"""The process in which an engine of a student's pieces runs: it reports events line by line, and may be killed.

    python -m course.own_engine.process SPEC REPORT
"""

from __future__ import annotations

import faulthandler
import json
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO, cast

from course.lab.lab import discover, find_lab
from course.own_engine import capstone
from course.own_engine.build_parts import build
from course.own_engine.check_parts import PartError
from course.own_engine.spec import DATES, DRAFTS, STACK_SIGNAL, Spec, Tokens, Try
from course.own_engine.workloads import (
    DATE,
    DATED,
    DRAFTED,
    SPEED,
    UNDRAFTED,
    WORKLOADS,
    Steps,
    TrialFailed,
    Workload,
    first_difference,
    run_workload,
    serve,
    tokens_of,
    tokens_per_second,
)
from mini_vllm.backend import blas
from mini_vllm.engine import LLMEngine, engine_of
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.native.advice import slow_blas_line
from mini_vllm.pictures.recorded import save_run
from mini_vllm.request import RequestOutput, SamplingParams
from mini_vllm.trace.recorder import StepTrace

NUM_SPEED_ROUNDS = 3


class Reporter:
    def __init__(self, file: TextIO) -> None:
        self._file = file

    def tell(self, event: str, **fields: Any) -> None:
        self._file.write(json.dumps({"event": event, **fields}) + "\n")
        self._file.flush()

    def beat(self, step: int) -> None:
        """Report that code other than the student's is making progress, so that the parent does not assume a hang."""
        if step % 10 == 1:
            self.tell("beat")


def main(arguments: Sequence[str]) -> int:
    spec = Spec(**json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    spec = replace(spec, tries=[Try(**each) for each in cast(list[dict[str, Any]], spec.tries)])
    faulthandler.register(STACK_SIGNAL, all_threads=False)  # the parent asks where it hangs before killing it
    with open(arguments[1], "a", encoding="utf-8") as file:
        reporter = Reporter(file)
        try:
            _run(spec, reporter)
        except TrialFailed as failure:
            cause = failure.__cause__ if isinstance(failure.__cause__, Exception) else None
            reporter.tell("problem", kind=failure.kind, step=failure.step, message=failure.message,
                          place=_place(cause, spec) if cause else "")
        except PartError as error:
            reporter.tell("problem", kind="refused", step=0, message=str(error), place="", slot=error.slot)
        except Exception as error:
            reporter.tell("problem", kind="raised", step=0, message=f"{type(error).__name__}: {error}",
                          place=_place(error, spec))
        reporter.tell("end")
    return 0


def _run(spec: Spec, reporter: Reporter) -> None:
    labs = discover(Path(spec.root))
    reporter.tell("begin", what="loading")
    loaded = load(spec.model)
    if line := slow_blas_line(blas):
        reporter.tell("advice", text=line)
    for index, pieces in enumerate(spec.tries):
        reporter.tell("try", index=index)
        try:
            parts = build({number: Path(path) for number, path in pieces.files.items()},
                          [find_lab(number, labs) for number in pieces.labs])
            _run_one(spec, parts, loaded, reporter)
        except PartError:
            if len(pieces.labs) == 1 or len(spec.tries) == 1:
                raise  # with several tries, pieces that need a third piece may not fit without it: ignore that


def _run_one(spec: Spec, parts: EngineParts, loaded: LoadedModel, reporter: Reporter) -> None:
    if spec.prompt is not None:
        _tell_a_tale(spec, parts, loaded, reporter)
    for name in spec.workloads:
        reporter.tell("begin", what=name)
        if spec.records_tokens:
            reporter.tell("tokens", what=name, tokens=_reference(name, spec, loaded, reporter))
        else:
            _compare(name, spec, parts, loaded, reporter)
    if spec.measures_speed:
        _measure(spec, parts, loaded, reporter)


def _compare(name: str, spec: Spec, parts: EngineParts, loaded: LoadedModel, reporter: Reporter) -> None:
    """Raise TrialFailed unless a workload produces the reference's tokens."""
    def on_step(step: int) -> None:
        reporter.tell("step", step=step)

    if name == DRAFTS:
        _compare_drafts(spec, parts, loaded, reporter)
        return
    if name == capstone.NAME:
        mine = capstone.run_capstone(parts, loaded, on_step)
        difference = capstone.first_difference(mine, _reference(name, spec, loaded, reporter))
    else:
        mine = run_workload({**WORKLOADS, DATES: DATED}[name], parts, loaded, spec.model, on_step)
        difference = first_difference(mine, _reference(name, spec, loaded, reporter))
    if difference is not None:
        raise TrialFailed("differs", 0, difference)
    if name == DATES:
        _tell_dates(mine, loaded, reporter)
    reporter.tell("equal", what=name, num_tokens=_num_tokens(mine))


def _compare_drafts(spec: Spec, parts: EngineParts, loaded: LoadedModel, reporter: Reporter) -> None:
    """Run the texts without drafts and with them, and report the steps.

    Raise TrialFailed unless both give the reference's tokens, and drafts save steps.
    """
    reference = _reference(DRAFTS, spec, loaded, reporter)

    def num_steps(workload: Workload, how: str) -> int:
        last = 0

        def on_step(step: int) -> None:
            nonlocal last
            last = step
            reporter.tell("step", step=step)

        difference = first_difference(run_workload(workload, parts, loaded, spec.model, on_step), reference)
        if difference is not None:
            raise TrialFailed("differs", 0, f"{how}, {difference}")
        return last

    num_plain, num_drafted = num_steps(UNDRAFTED, "without drafts"), num_steps(DRAFTED, "with drafts")
    if num_drafted >= num_plain:
        raise TrialFailed("raised", 0, f"with drafts the texts took {num_drafted} steps, and {num_plain} without: no "
                                       "draft was accepted")
    num_tokens = _num_tokens(reference)
    reporter.tell("drafts", num_tokens=num_tokens, num_steps=num_drafted, num_plain_steps=num_plain)
    reporter.tell("equal", what=DRAFTS, num_tokens=num_tokens)


def _tell_dates(tokens: Tokens, loaded: LoadedModel, reporter: Reporter) -> None:
    """Report the outputs as texts. Raise TrialFailed unless all of them match."""
    texts = [loaded.tokenizer.decode(sample) for answer in tokens if not isinstance(answer, str) for sample in answer]
    wrong = [text for text in texts if not re.fullmatch(DATE, text)]
    if wrong:
        raise TrialFailed("raised", 0, f"the output {wrong[0]!r} is not a date")
    reporter.tell("dates", texts=texts)


def _reference(name: str, spec: Spec, loaded: LoadedModel, reporter: Reporter) -> Tokens:
    """Return the reference's tokens. They are computed once, because several tries compare with them."""
    if name not in spec.reference:
        spec.reference[name] = (capstone.reference_tokens(loaded, reporter.beat) if name == capstone.NAME
                                else run_workload({**WORKLOADS, DRAFTS: UNDRAFTED, DATES: DATED}[name], None, loaded,
                                                  spec.model, reporter.beat))
    return spec.reference[name]


def _tell_a_tale(spec: Spec, parts: EngineParts, loaded: LoadedModel, reporter: Reporter) -> None:
    """Stream one text, and compare it with the reference's."""
    reporter.tell("begin", what="the tale")
    trace = StepTrace() if spec.trace else None
    config = EngineConfig(model=spec.model, max_num_seqs=1)  # a small pool is allocated in no time
    params = SamplingParams(max_tokens=spec.max_tokens, temperature=0.8, seed=1)
    engine = engine_of(config, parts, loaded, trace)
    num_told = 0

    def on_output(output: RequestOutput) -> None:
        nonlocal num_told
        reporter.tell("text", text=output.text[num_told:])
        num_told = len(output.text)

    prompt = _prompt(engine, spec)
    mine = serve(engine, [prompt], params, None, Steps(lambda step: reporter.tell("step", step=step)), on_output)
    if trace is not None and spec.trace is not None:
        save_run(trace, Path(spec.trace))
    reference = serve(engine_of(config, None, loaded), [prompt], params, None, Steps(reporter.beat))
    difference = first_difference(tokens_of(mine), tokens_of(reference))
    if difference is not None:
        raise TrialFailed("differs", 0, difference)
    reporter.tell("equal", what="the tale", num_tokens=_num_tokens(tokens_of(mine)))


def _prompt(engine: LLMEngine, spec: Spec) -> Any:
    if engine.tokenizer.chat_template is None:
        return spec.prompt
    return engine.tokenizer.encode_chat([{"role": "user", "content": spec.prompt or ""}])


def _measure(spec: Spec, parts: EngineParts, loaded: LoadedModel, reporter: Reporter) -> None:
    """Measure the student's engine and the reference in turns.

    The best round counts, so it does no harm if MLX warms up in the first.
    """
    def measure(of: EngineParts | None) -> float:
        if capstone.NAME in spec.workloads:
            return capstone.tokens_per_second(of, loaded, reporter.beat)
        return tokens_per_second(SPEED, of, loaded, spec.model, reporter.beat)

    reporter.tell("begin", what="the measurement")
    rounds = [(measure(parts), measure(None)) for _ in range(NUM_SPEED_ROUNDS)]
    mine, reference = (max(speeds) for speeds in zip(*rounds))
    reporter.tell("speed", mine=mine, reference=reference)


def _num_tokens(tokens: Any) -> int:
    return sum(len(sample) for answer in tokens if not isinstance(answer, str) for sample in answer)


def _place(error: BaseException, spec: Spec) -> str:
    """Return the last line of a student's file that was running: ``starter.py, line 12, in touch``."""
    of_labs = spec.lab_of_file()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in of_labs:
            return f"{Path(frame.filename).name} of lab {of_labs[frame.filename]}, line {frame.lineno}, in {frame.name}"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

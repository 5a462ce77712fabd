"""``mini-vllm chat``: a conversation, each answer streamed, the whole history sent with every question."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from mini_vllm.cli import chat_input
from mini_vllm.cli.generate import make_engine
from mini_vllm.cli.printing import usage_line
from mini_vllm.cli.sampling_options import with_defaults
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.request import RequestOutput, SamplingParams


def run_chat(arguments: argparse.Namespace, params: SamplingParams) -> int:
    engine = make_engine(arguments, EngineConfig(model=arguments.model, kv_memory=arguments.kv_memory))
    params = with_defaults(params, arguments, engine.loaded.sampling_defaults)
    if engine.tokenizer.chat_template is None:
        raise ValueError(f"{arguments.model} has no chat template; it continues texts: "
                         f"mini-vllm generate --model {arguments.model} \"...\"")
    messages = [{"role": "system", "content": arguments.system}] if arguments.system else []
    is_terminal = sys.stdin.isatty()
    source = _at_terminal(arguments.model) if is_terminal else chat_input.piped_messages(sys.stdin)
    try:
        for question in chat_input.questions(source):
            messages.append({"role": "user", "content": question})
            try:
                messages.append({"role": "assistant", "content": answer(engine, messages, params)})
            except KeyboardInterrupt:  # it came after the last token, when there was nothing left to stop
                messages.pop()
            except ValueError as error:
                messages.pop()
                print(f"mini-vllm: {error}", file=sys.stderr)
    finally:
        if is_terminal:
            chat_input.drop_unread(sys.stdin)
    return 0


def _at_terminal(model: str) -> Iterator[str]:
    source = chat_input.terminal_messages(chat_input.terminal_session())
    print(f"Talking to {model}.\n{chat_input.BANNER}", file=sys.stderr)
    return source


def answer(engine: LLMEngine, messages: list[dict[str, str]], params: SamplingParams) -> str:
    """Stream one answer; Ctrl-C ends it where it is."""
    started_s = time.perf_counter()
    output: RequestOutput | None = None
    request_id, num_shown = "", 0
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

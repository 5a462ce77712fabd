"""``mini-vllm chat``: a conversation. Answers are streamed, and every question is sent with the turns before it."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from mini_vllm.checks import check_installed
from mini_vllm.cli import chat_input
from mini_vllm.cli.chat_input import COMMANDS, about_unknown, command_in, help_text
from mini_vllm.cli.conversation import Context, Conversation
from mini_vllm.cli.generate import make_engine
from mini_vllm.cli.messages import INTERRUPTED, print_usage, short_name, tell
from mini_vllm.cli.sampling_options import with_defaults
from mini_vllm.engine import LLMEngine
from mini_vllm.pictures.recorded import check_run_target, save_run
from mini_vllm.request import RequestOutput, SamplingParams
from mini_vllm.trace.recorder import StepTrace

BANNER = "Enter sends, Ctrl-C stops an answer, Ctrl-D ends the chat."


def run_chat(arguments: argparse.Namespace, params: SamplingParams) -> int:
    """Run a chat. Answers go to standard output, everything else to standard error."""
    if arguments.trace:
        check_run_target(arguments.trace)
    if not sys.stdin.isatty():
        return _run(arguments, params, is_terminal=False)
    check_installed("cli", "chat at a terminal")
    with chat_input.held_keys(sys.stdin):
        return _run(arguments, params, is_terminal=True)


def _run(arguments: argparse.Namespace, params: SamplingParams, is_terminal: bool) -> int:
    trace = StepTrace() if arguments.trace else None
    engine = make_engine(arguments, trace)
    params = with_defaults(params, arguments, engine.loaded.sampling_defaults)
    if engine.tokenizer.chat_template is None:
        raise ValueError(f"{arguments.model} has no chat template; it continues texts: "
                         f"mini-vllm generate --model {arguments.model} \"...\"")
    chat = Chat(engine, Conversation(engine.tokenizer, context_of(engine), arguments.system), params, is_terminal)
    status = chat.run(chat.at_terminal(arguments.model) if is_terminal else iter(sys.stdin))
    if arguments.stats:
        tell(str(engine.metrics()))
    if trace is not None:
        try:
            save_run(trace, arguments.trace)
        except ValueError as error:  # nothing was asked, so there is nothing to save
            tell(f"mini-vllm: {error}")
    return status


def context_of(engine: LLMEngine) -> Context:
    """Return the model's context, or the number of tokens that the KV cache holds if that is less."""
    num_in_blocks = (engine.sizes.num_blocks - 1) * engine.config.block_size  # without the null block
    if num_in_blocks < engine.max_model_len:
        return Context(num_in_blocks, f"the {num_in_blocks} tokens that --kv-memory holds")
    return Context(engine.max_model_len, f"the model's {engine.max_model_len} tokens")


class Chat:
    """A conversation between a person and an engine, turn by turn."""

    def __init__(self, engine: LLMEngine, conversation: Conversation, params: SamplingParams, is_terminal: bool
                 ) -> None:
        self.engine, self.conversation, self.params = engine, conversation, params
        self.is_terminal = is_terminal
        #: The file that keeps the messages for later chats.
        self.history_path: Path | None = None

    def at_terminal(self, model: str) -> Iterator[str]:
        """Print the name of the model, and return the messages that the user types."""
        history, self.history_path = chat_input.open_history()
        session = chat_input.terminal_session(history)
        tell(f"Talking to {short_name(model)}. /help lists commands and keys.\n{BANNER}\n")
        return chat_input.terminal_messages(session)

    def run(self, messages: Iterator[str]) -> int:
        """Answer messages until they end or one is ``/quit``. Return the exit status."""
        try:
            for message in chat_input.without_blanks(messages):
                command = command_in(message)
                if command == "/quit":
                    break
                if command is None:
                    self.answer(message)
                else:
                    self.obey(command)
                if self.is_terminal:
                    tell("")
        except KeyboardInterrupt:  # while waiting for a pipe
            return INTERRUPTED
        return 0

    def obey(self, command: str) -> None:
        """Execute any command except ``/quit``."""
        if command not in COMMANDS:
            tell(about_unknown(command))
        elif command == "/help":
            tell(help_text(self.is_terminal, self.history_path))
        elif command == "/stats":
            tell(str(self.engine.metrics()))
        elif command == "/forget":
            tell(f"{self.engine.evict_unused()} cached blocks forgotten.")
        else:
            self.conversation.reset()
            tell("A new conversation starts.")

    def answer(self, question: str) -> None:
        """Stream the answer. Ctrl-C stops it; the text up to that point stays in the conversation."""
        with noted_ctrl_c() as presses:
            try:
                request_id = self._send(question)
            except ValueError as error:
                tell(f"mini-vllm: {error}")
                return
            started_s, printer = time.perf_counter(), AnswerPrinter(sys.stdout)
            for output in self._outputs(request_id, presses):
                self.conversation.hear(output)
                printer.show(output.text)
            printer.end()
            if output.error:
                tell(f"mini-vllm: {output.error}")
            print_usage([output], time.perf_counter() - started_s, self.params.max_tokens)

    def _send(self, question: str) -> str:
        """Send the question, and return the id of the request.

        Raise ValueError if it cannot be served; the conversation is unchanged then.
        """
        asked = self.conversation.ask(question, self.params.max_tokens)
        request_id = self.engine.add_request(asked.token_ids, self.params)
        self.conversation.begin_turn(asked)
        if asked.num_forgotten:
            turns = "turn is" if asked.num_forgotten == 1 else f"{asked.num_forgotten} turns are"
            tell(f"The conversation no longer fits into {self.conversation.context.name}: the oldest {turns} "
                 "forgotten.")
        return request_id

    def _outputs(self, request_id: str, presses: list[int]) -> Iterator[RequestOutput]:
        """Yield the answer as it grows, at least once."""
        while self.engine.has_unfinished_requests():
            aborted = self.engine.abort_request(request_id) if presses else None
            yield from [aborted] if aborted is not None else self.engine.step()


@contextmanager
def noted_ctrl_c() -> Iterator[list[int]]:
    """Add every Ctrl-C inside the block to a list, which is empty at first, instead of raising.

    An exception would interrupt the engine in the middle of a step. This way the step is finished first.
    """
    presses: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: presses.append(number))
    try:
        yield presses
    finally:
        signal.signal(signal.SIGINT, before)


class AnswerPrinter:
    """Writes a text as it grows, without the blank lines that models put around it.

    White space at its end is held back until other text follows it.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._num_shown = 0

    def show(self, text: str) -> None:
        """Write the new part of ``text``, which is the whole answer so far. Indentation deeper than a space is kept."""
        visible = re.sub(r"\A(\s*\n)?( (?! ))?", "", text.rstrip())
        self.stream.write(visible[self._num_shown:])
        self.stream.flush()
        self._num_shown = len(visible)

    def end(self) -> None:
        self.stream.write("\n")
        self.stream.flush()

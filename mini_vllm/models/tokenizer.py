"""Text to token ids and back, and a chat to one text."""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2
import tokenizers

from mini_vllm.models.chat_template import compile_template
from mini_vllm.models.json_fields import FileError
from mini_vllm.models.token_bound import longest_token, lost_characters

#: Real templates have up to 25 kB, real vocabulary entries up to 256 characters.
MAX_TEMPLATE_CHARS, MAX_PIECE_CHARS = 256 * 2**10, 1024
#: Real vocabularies have up to 262,144 entries.
MAX_TOKENS = 2**19
#: The library writes a backtrace to stderr for each panic. After this many, a tokenizer is no longer used.
MAX_PANICS = 8


class TokenizerError(FileError):
    """A tokenizer cannot be read, or it cannot process a text or a chat."""


@contextlib.contextmanager
def panics_told() -> Iterator[None]:
    """Convert a panic in the library, an exception that nothing else catches, into a TokenizerError.

    A pattern that backtracks for too long ends in a panic.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"the tokenizer failed: {error}") from None


class Tokenizer:
    """Converts text into token ids and back, and a chat into one text.

    The ``tokenizers`` library does the byte pair encoding. This class adds what surrounds it: the special ids, the ids
    that end a text, and the chat template.
    """

    def __init__(self, backend: tokenizers.Tokenizer, bos_token: str | None = None, eos_token: str | None = None,
                 eos_token_ids: frozenset[int] = frozenset(), chat_template: str | None = None,
                 num_rows: int | None = None) -> None:
        """Wrap a library tokenizer.

        ``num_rows`` is the size of the network's vocabulary: a text with a larger id is rejected. Raise TokenizerError
        for a chat template or a vocabulary entry that is too long.
        """
        if chat_template is not None and len(chat_template) > MAX_TEMPLATE_CHARS:
            raise TokenizerError(f"the chat template has {len(chat_template)} characters, must have at most "
                                 f"{MAX_TEMPLATE_CHARS}")
        # A file may contain the truncation and padding of its training. A prompt must arrive whole.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._special_tokens = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.bos_token_id: int | None = None if bos_token is None else backend.token_to_id(bos_token)
        #: Every id that ends a text. A chat model often has two: the end of a turn and the end of a document.
        self.eos_token_ids = eos_token_ids
        self.chat_template = chat_template
        self._num_rows, self._num_panics = num_rows, 0
        # One entry at a time, unlike ``get_vocab``, so that other threads can run.
        pieces = map(backend.id_to_token, range(max(min(num_rows or 0, MAX_TOKENS), self.vocab_size)))
        longest_piece = max((len(piece) for piece in pieces if piece), default=1)
        if longest_piece > MAX_PIECE_CHARS:
            raise TokenizerError(f"the longest entry of the vocabulary has {longest_piece} characters, must have at "
                                 f"most {MAX_PIECE_CHARS}")
        with panics_told():
            self._longest_token, self._lost_characters = longest_token(backend, longest_piece), lost_characters(backend)

    @property
    def vocab_size(self) -> int:
        """The number of ids that the tokenizer knows. A model may have more rows, as padding of its matrix."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def min_num_tokens(self, text: str) -> int:
        """Return a lower bound on the tokens of ``text``, or 0 without one. Unlike ``encode``, it takes no time."""
        if self._longest_token is None:
            return 0
        num_lost = sum(text.count(character) for character in self._lost_characters)
        return (len(text) - num_lost) // self._longest_token

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Convert a text into token ids.

        Special tokens in ``text`` always become their ids. With ``add_special_tokens``, the special tokens that the
        tokenizer puts before and after a text are added.
        """
        try:
            # Unlike ``encode``, this lets other threads run.
            ids: list[int] = self._call(self._backend.encode_batch_fast, [text],
                                        add_special_tokens=add_special_tokens)[0].ids
        except TypeError:
            raise TokenizerError(f"text is {reprlib.repr(text)}, must be a str without lone surrogates") from None
        if self._num_rows is not None and ids and max(ids) >= self._num_rows:
            raise TokenizerError(f"the text {reprlib.repr(text)} has the token id {max(ids)}, which the model does not "
                                 f"have: it must be at most {self._num_rows - 1}")
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Convert token ids into text.

        Bytes that are not UTF-8 become U+FFFD; ids outside the vocabulary are skipped.
        """
        try:
            text: str = self._call(self._backend.decode, token_ids, skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError):
            raise TokenizerError(f"token ids are {reprlib.repr(token_ids)}, must be whole numbers from 0") from None
        return text

    def piece(self, token_id: int, skip_special_tokens: bool = True) -> str | None:
        """Return the vocabulary entry that ``decode`` uses for this id; None if it skips the id."""
        try:
            piece: str | None = self._backend.id_to_token(token_id)
        except (OverflowError, TypeError):
            raise TokenizerError(f"token id is {token_id!r}, must be a whole number from 0") from None
        return None if not piece or (skip_special_tokens and piece in self._special_tokens) else piece

    @property
    def decoder_state(self) -> bytes:
        """How entries of the vocabulary become text, as the library's JSON."""
        state: bytes = b"null" if self._backend.decoder is None else self._backend.decoder.__getstate__()
        return state

    def _call(self, function: Callable[..., Any], argument: object, **options: bool) -> Any:
        """Call the library. A panic becomes a TokenizerError; after too many panics every use raises one."""
        if self._num_panics >= MAX_PANICS:
            raise TokenizerError(f"the tokenizer has failed {MAX_PANICS} times and is not used again")
        try:
            return function(argument, **options)
        except BaseException as error:
            self._num_panics += type(error).__name__ == "PanicException"
            with panics_told():
                raise

    def is_special(self, text: str) -> bool:
        """Check whether ``text`` is a special token, which ``decode`` leaves out."""
        return text in self._special_tokens

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True,
                            tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """Return the chat as one text, in the format of the model's training, with the tools that it may call.

        A template is a program that comes with the weights, so it runs in a sandbox. Any error in it, from bad syntax
        to its own ``raise_exception``, becomes a TokenizerError.
        """
        if self.chat_template is None:
            raise TokenizerError("this model has no chat template: give it a plain prompt")
        try:
            return self._compiled_template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, tools=tools, documents=None,
                bos_token=self.bos_token or "", eos_token=self.eos_token or "")
        except Exception as error:
            raise TokenizerError(f"chat template: {type(error).__name__}: {error}") from error

    @cached_property
    def _compiled_template(self) -> jinja2.Template:
        return compile_template(self.chat_template or "")

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Encode a chat. The template writes the special tokens itself, so none are added."""
        if not isinstance(messages, (list, tuple)) or not messages or not all(
                isinstance(message, Mapping) and isinstance(message.get("role"), str) for message in messages):
            raise TokenizerError(f"messages is {reprlib.repr(messages)}, must be a list of at least one "
                                 "{'role': ..., 'content': ...}")
        return self.encode(self.apply_chat_template(messages), add_special_tokens=False)

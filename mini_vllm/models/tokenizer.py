"""Text to token ids and back, a chat to one text, and the text of an output as it grows."""

from __future__ import annotations

import codecs
import contextlib
import json
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import Any, NamedTuple

import jinja2
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import models, pre_tokenizers

#: Normalizers and pre-tokenizers that keep every character of a text. NFC may combine several into one, but no more
#: than a letter and three marks.
KEEPING, MAX_COMPOSED = {"NFC", "Prepend", "Replace", "Split", "Digits", "Metaspace", "ByteLevel", "Sequence"}, 4
#: Where every character of a token stands for one byte: printable bytes stand for themselves, and the others were given
#: the characters from U+0100 on, in order.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_OF = {chr(byte): byte for byte in PRINTABLE} | {
    chr(256 + number): byte for number, byte in enumerate(sorted({*range(256)} - {*PRINTABLE}))}
#: A token that stands for one byte, in vocabularies that are not made of bytes.
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenizerError(ValueError):
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

        ``num_rows`` is the size of the network's vocabulary: a text with a larger id is rejected.
        """
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
        self._num_rows = num_rows
        self._longest_token = _longest_token(backend)
        #: Id and ``skip_special_tokens`` → the bytes of a token, of those that were asked for.
        self._bytes: dict[tuple[int, bool], bytes] = {}

    @property
    def vocab_size(self) -> int:
        """The number of ids that the tokenizer knows. A model may have more rows, as padding of its matrix."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def min_num_tokens(self, text: str) -> int:
        """Return a lower bound on the tokens of ``text``, or 0 without one. Unlike ``encode``, it takes no time.

        A server rejects a text of many megabytes unread with it.
        """
        return 0 if self._longest_token is None else len(text) // self._longest_token

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Convert a text into token ids.

        Special tokens in ``text`` always become their ids. With ``add_special_tokens``, the special tokens that the
        tokenizer puts before and after a text are added.
        """
        try:
            with panics_told():  # unlike ``encode``, this call lets other threads run
                ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
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
            with panics_told():
                text: str = self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
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

    def piece_bytes(self, token_id: int, skip_special_tokens: bool = True) -> bytes:
        """Return the bytes of a token, where ``is_byte_level``; none if ``decode`` skips it."""
        known = self._bytes.get((token_id, skip_special_tokens)) if isinstance(token_id, int) else None
        if known is None:
            piece = self.piece(token_id, skip_special_tokens) or ""
            known = bytes(BYTE_OF[each] for each in piece) if BYTE_OF.keys() >= set(piece) else piece.encode()
            self._bytes[token_id, skip_special_tokens] = known
        return known

    @property
    def is_byte_level(self) -> bool:
        """Whether each character of a vocabulary entry, except of added tokens, stands for one byte of a text."""
        decoder = self._backend.decoder
        return decoder is not None and b'"ByteLevel"' in decoder.__getstate__()

    @cached_property
    def only_joins_bytes(self) -> bool:
        """Whether a text is nothing but the bytes of its tokens, one after the other."""
        return self.is_byte_level and json.loads(self._backend.decoder.__getstate__())["type"] == "ByteLevel"

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


def _longest_token(backend: tokenizers.Tokenizer) -> int | None:
    """Return the most characters of a text that one token can stand for; None if there is no bound.

    It is the length of the vocabulary's longest entry if every character of a text ends up in some token: the library
    must merge bytes, and nothing may remove characters before that. ASCII characters that a vocabulary lacks count as
    if they had a token.
    """
    model = backend.model
    steps = b"".join(step.__getstate__() for step in (backend.normalizer, backend.pre_tokenizer) if step is not None)
    kinds = set(re.findall(r'"type":"(\w+)"', steps.decode()))
    # A step may shorten a text by what it removes, or by what it replaces several characters with.
    replaces = re.findall(rb'"type":"Replace","pattern":(.*?),"content":', steps)
    removes = (b'"behavior":"Removed"' in steps or b'"content":""' in steps
               or any(len(json.loads(pattern).get("String", "")) != 1 for pattern in replaces)
               or any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()))
    if not isinstance(model, models.BPE) or not kinds <= KEEPING or removes:
        return None
    # The continuation bytes of UTF-8, as a vocabulary of bytes writes them: if all have a token, no character vanishes.
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    later_bytes = {by_bytes.pre_tokenize_str(chr(code))[0][0][-1] for code in range(0x80, 0xC0)}
    if not model.byte_fallback and ("ByteLevel" not in kinds or None in map(backend.token_to_id, later_bytes)):
        return None
    # One entry at a time, unlike ``get_vocab``, so that other threads can run.
    pieces = map(backend.id_to_token, range(backend.get_vocab_size(with_added_tokens=True)))
    return max((len(piece) for piece in pieces if piece), default=1) * (MAX_COMPOSED if "NFC" in kinds else 1)


def compile_template(source: str) -> jinja2.Template:
    """Compile a chat template with what checkpoints expect: ``raise_exception``, ``strftime_now``, ``tojson`` and loop
    controls.

    It runs in a sandbox that neither reaches into Python nor changes its arguments.
    """
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=["jinja2.ext.loopcontrols"])
    environment.globals.update(raise_exception=_raise_exception,
                               strftime_now=lambda format: datetime.now().strftime(format))
    # Jinja's own filter would write < and > as HTML escapes.
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    return environment.from_string(source)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


class StreamingDetokenizer:
    """The text of a growing token sequence, never half a character.

    If a text is the bytes of its tokens, each token adds its own, and bytes wait until their character is complete. In
    other vocabularies, decoding token by token would be wrong: a character may span tokens, and the first token of a
    text loses its leading space. Decoding everything each time would be quadratic. So each step decodes a window twice,
    with and without the new token, and the difference is the new text.

        token ids   [ ......... text emitted ........ | new ]
                               [ context, at most 8 ]          decoded: "…ein sch"
                               [ context, at most 8   new ]    decoded: "…ein schö"

    The context may begin inside a character. UTF-8 resynchronises within 4 bytes, and the next 4 contain a whole
    character, so after 8 tokens the end of both texts is right, whatever precedes it.

    There, the last U+FFFD of a text may be the start of an incomplete character. It is held back until something
    follows it.
    """

    NUM_CONTEXT_TOKENS = 8

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace") if tokenizer.only_joins_bytes else None
        self._context_ids: list[int] = []
        #: Byte tokens like ``<0xC3>``. One bad byte spoils the whole run of them, so a run waits for its end.
        self._held_ids: list[int] = []
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """All text emitted so far."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def add(self, token_id: int) -> str:
        """Add a token and return the new text that is certain; empty while a character is incomplete."""
        if self._utf8 is not None:
            self._pieces.append(self._utf8.decode(self._tokenizer.piece_bytes(token_id, self._skip_special_tokens)))
            return self._pieces[-1]
        piece = self._tokenizer.piece(token_id, self._skip_special_tokens)
        if piece is None:
            return ""
        self._held_ids.append(token_id)
        if BYTE_PIECE.fullmatch(piece):
            return ""
        window_ids = self._context_ids + self._held_ids
        new_text = self._emit(self._decode(window_ids).removesuffix("\ufffd"))
        self._context_ids = window_ids[-self.NUM_CONTEXT_TOKENS:]
        self._held_ids = []
        return new_text

    def finish(self) -> str:
        """Return the rest, with U+FFFD for a character that was never completed. The next token starts a new text."""
        if self._utf8 is not None:
            self._pieces.append(self._utf8.decode(b"", final=True))
            return self._pieces[-1]
        new_text = self._emit(self._decode(self._context_ids + self._held_ids))
        self._context_ids, self._held_ids = [], []
        return new_text

    def _emit(self, window_text: str) -> str:
        new_text = window_text[len(self._decode(self._context_ids).removesuffix("\ufffd")):]
        self._pieces.append(new_text)
        return new_text

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, self._skip_special_tokens)


class TokenBytes(NamedTuple):
    """The bytes of every token. Tokens that are not text have none."""

    of_token: list[bytes]
    #: Tokens that have another text at the beginning of an output, where some decoders drop a space.
    not_first: list[int]


def token_bytes(tokenizer: Tokenizer) -> TokenBytes:
    """Return the bytes of every token, as ``Tokenizer.decode`` uses them, without special tokens."""
    if tokenizer.is_byte_level:
        return TokenBytes([tokenizer.piece_bytes(token_id) for token_id in range(tokenizer.vocab_size)], [])
    pieces = [tokenizer.piece(token_id) or "" for token_id in range(tokenizer.vocab_size)]
    anchor = next((token_id for token_id, piece in enumerate(pieces) if piece.isalpha()), None)
    of_token, not_first = [], []
    for token_id, piece in enumerate(pieces):
        if match := BYTE_PIECE.fullmatch(piece):
            of_token.append(bytes([int(match[1], 16)]))
            continue
        text = alone = tokenizer.decode([token_id]) if piece else ""
        if piece and anchor is not None:
            text = tokenizer.decode([anchor, token_id])[len(tokenizer.decode([anchor])):]
        of_token.append(text.encode())
        if text != alone:
            not_first.append(token_id)
    return TokenBytes(of_token, not_first)

"""What each token adds to a text, as bytes."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from mini_vllm.models.tokenizer import Tokenizer

#: A token that stands for one byte, in vocabularies that are not made of bytes.
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes(NamedTuple):
    """The bytes of every token. Tokens that are not text have none."""

    of_token: list[bytes]
    #: Tokens that have another text at the beginning of an output, where some decoders drop a space.
    not_first: list[int]


def token_bytes(tokenizer: Tokenizer) -> TokenBytes:
    """Return the bytes of every token, as ``Tokenizer.decode`` uses them, without special tokens."""
    pieces = [tokenizer.piece(token_id) for token_id in range(tokenizer.vocab_size)]
    if "ByteLevel" in _decoder_types(json.loads(tokenizer.decoder_state)):
        byte_of = _byte_of_character()
        return TokenBytes([_from_characters(piece or "", byte_of) for piece in pieces], [])
    anchor = next((token_id for token_id, piece in enumerate(pieces) if piece and piece.isalpha()), None)
    of_token, not_first = [], []
    for token_id, piece in enumerate(pieces):
        match = BYTE_PIECE.fullmatch(piece or "")
        if match:
            of_token.append(bytes([int(match[1], 16)]))
            continue
        alone = tokenizer.decode([token_id]) if piece else ""
        text = alone
        if piece and anchor is not None:
            text = tokenizer.decode([anchor, token_id])[len(tokenizer.decode([anchor])):]
        of_token.append(text.encode())
        if text != alone:
            not_first.append(token_id)
    return TokenBytes(of_token, not_first)


def _decoder_types(decoder: dict[str, object] | None) -> set[object]:
    """Return the types of a decoder and of the decoders that it consists of."""
    if decoder is None:
        return set()
    inner = decoder.get("decoders")
    parts = inner if isinstance(inner, list) else []
    return {decoder.get("type")}.union(*map(_decoder_types, parts))


def _from_characters(piece: str, byte_of: dict[str, int]) -> bytes:
    """Return the bytes of an entry whose characters stand for bytes. Entries with other characters are plain text."""
    if all(character in byte_of for character in piece):
        return bytes(byte_of[character] for character in piece)
    return piece.encode()


def _byte_of_character() -> dict[str, int]:
    """Return the byte for which each character of a byte-level vocabulary stands.

    Printable bytes stand for themselves. The others were given the characters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}

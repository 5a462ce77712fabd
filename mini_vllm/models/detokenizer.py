"""Token ids to text, one token at a time, as a server streams it."""

from __future__ import annotations

from mini_vllm.models.tokenizer import Tokenizer


class StreamingDetokenizer:
    """The text of a growing token sequence, never half a character.

    Decoding token by token would be wrong: a character may span tokens, and the first token of a text loses its leading
    space. Decoding everything each time would be quadratic. So each step decodes a window twice, with and without the
    new token, and the difference is the new text.

        token ids   [ ......... text emitted ........ | new ]
                               [ context, at most 8 ]          decoded: "…ein sch"
                               [ context, at most 8   new ]    decoded: "…ein schö"

    The context may begin inside a character. UTF-8 resynchronises within 4 bytes, and the next 4 contain a whole
    character, so after 8 tokens the end of both texts is right, whatever precedes it.

    The last U+FFFD of a text may be the start of an incomplete character. It is held back until something follows it.
    """

    NUM_CONTEXT_TOKENS = 8

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
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
        piece = self._tokenizer.piece(token_id, self._skip_special_tokens)
        if piece is None:
            return ""
        self._held_ids.append(token_id)
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return ""
        window_ids = self._context_ids + self._held_ids
        new_text = self._emit(self._decode(window_ids).removesuffix("\ufffd"))
        self._context_ids = window_ids[-self.NUM_CONTEXT_TOKENS:]
        self._held_ids = []
        return new_text

    def finish(self) -> str:
        """Return the rest, with U+FFFD for a character that was never completed. The next token starts a new text."""
        new_text = self._emit(self._decode(self._context_ids + self._held_ids))
        self._context_ids, self._held_ids = [], []
        return new_text

    def _emit(self, window_text: str) -> str:
        new_text = window_text[len(self._decode(self._context_ids).removesuffix("\ufffd")):]
        self._pieces.append(new_text)
        return new_text

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, self._skip_special_tokens)

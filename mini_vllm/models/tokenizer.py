"""Text to token ids and back: from a checkpoint folder, from a GGUF file, a whole text or one token at a time."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path

import jinja2
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors


class TokenizerError(ValueError):
    """A tokenizer that cannot be read, or a text or a chat that it cannot take."""


class Tokenizer:
    """What turns text into token ids and back, and a chat into one text.

    The ``tokenizers`` library does the byte pair encoding. Here is what stands around it: where a checkpoint keeps its
    special tokens, which ids end a text, and the chat template.
    """

    def __init__(self, backend: tokenizers.Tokenizer, bos_token: str | None = None, eos_token: str | None = None,
                 eos_token_ids: frozenset[int] = frozenset(), chat_template: str | None = None) -> None:
        # A file may carry the truncation and padding of its training. A prompt must arrive whole.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._special_tokens = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.bos_token_id = None if bos_token is None else backend.token_to_id(bos_token)
        #: Every id that ends a text. A chat model often has two: the end of a turn and the end of a document.
        self.eos_token_ids = eos_token_ids
        self.chat_template = chat_template

    @property
    def vocab_size(self) -> int:
        """How many ids the tokenizer knows. A model may have more rows, to fill up its matrix."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def min_num_tokens(self, text: str) -> int:
        """``text`` has at least this many tokens: a bound that takes no time, unlike ``encode``. 0 if there is none."""
        if self._longest_token is None:
            return 0
        num_lost = sum(text.count(character) for character in self._lost_characters)
        return (len(text) - num_lost) // self._longest_token

    @cached_property
    def _longest_token(self) -> int | None:
        """No token stands for more characters of a text than this; None if there is no bound.

        The vocabulary's longest entry is the bound if every character of a text is in some token: nothing is dropped,
        folded together or swallowed by an "unknown" token on the way. Only what is known to be so counts.
        """
        backend, model, vocab = self._backend, self._backend.model, self._backend.get_vocab(with_added_tokens=True)
        before_words, words = _parts_of(backend.normalizer), _parts_of(backend.pre_tokenizer)
        has_bytes = _is_byte_level(words) and vocab.keys() >= _later_bytes()
        has_all = isinstance(model, models.BPE) and (
            has_bytes or model.byte_fallback or (model.unk_token is not None and not model.fuse_unk))
        keeps_all = all(_keeps_all_characters(part) for part in (*before_words, *words))
        swallows = any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values())
        if not has_all or not keeps_all or swallows:
            return None
        num_composed = MAX_COMPOSED if any(part["type"] == "NFC" for part in before_words) else 1
        return num_composed * max(map(len, vocab))

    @cached_property
    def _lost_characters(self) -> list[str]:
        """Characters of one byte that have no token in a vocabulary of bytes, and vanish."""
        if not _is_byte_level(_parts_of(self._backend.pre_tokenizer)):
            return []
        return [chr(code) for code in range(128) if not self._backend.encode(chr(code), add_special_tokens=False).ids]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Special tokens written in ``text`` become their ids either way; the flag is about those put around it."""
        try:  # unlike ``encode``, this lets other threads run meanwhile
            return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except TypeError:
            raise TokenizerError(f"text is {reprlib.repr(text)}, must be a str without lone surrogates") from None

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Bytes that are not UTF-8 become U+FFFD. Ids outside the vocabulary have no text and are passed over."""
        try:
            return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError):
            raise TokenizerError(f"token ids are {reprlib.repr(token_ids)}, must be whole numbers from 0") from None

    def piece(self, token_id: int, skip_special_tokens: bool = True) -> str | None:
        """The vocabulary entry that ``decode`` sees for this id; None if it passes over it."""
        try:
            piece = self._backend.id_to_token(token_id)
        except (OverflowError, TypeError):
            raise TokenizerError(f"token id is {token_id!r}, must be a whole number from 0") from None
        return None if not piece or (skip_special_tokens and piece in self._special_tokens) else piece

    def apply_chat_template(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The chat as one text, the way the model saw chats in training.

        A template is a program that came with the weights, so it runs in a sandbox. Whatever goes wrong in it, from
        bad syntax to its own ``raise_exception``, is a TokenizerError.
        """
        if self.chat_template is None:
            raise TokenizerError("this model has no chat template: give it a plain prompt")
        try:
            return self._compiled_template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, tools=None, documents=None,
                bos_token=self.bos_token or "", eos_token=self.eos_token or "")
        except Exception as error:
            raise TokenizerError(f"chat template: {type(error).__name__}: {error}") from error

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """The template writes the special tokens itself, so none are added."""
        if not isinstance(messages, (list, tuple)) or not messages or not all(
                isinstance(message, Mapping) and isinstance(message.get("role"), str) for message in messages):
            raise TokenizerError(f"messages is {reprlib.repr(messages)}, must be a list of at least one "
                                 "{'role': ..., 'content': ...}")
        return self.encode(self.apply_chat_template(messages), add_special_tokens=False)

    @cached_property
    def _compiled_template(self) -> jinja2.Template:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                    extensions=["jinja2.ext.loopcontrols"])
        environment.globals.update(raise_exception=_raise_exception,
                                   strftime_now=lambda format: datetime.now().strftime(format))
        # Jinja's own filter would write < and > as HTML escapes.
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
        return environment.from_string(self.chat_template)

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """A checkpoint in the Hugging Face layout. Only ``tokenizer.json`` must be there."""
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{path} is missing: a checkpoint folder needs it")
        try:
            backend = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises plain Exception
            raise TokenizerError(f"{path} is not a tokenizer: {error}") from error
        config = _read_json(folder / "tokenizer_config.json")
        special_map = _read_json(folder / "special_tokens_map.json")
        special = {}
        for field in ("bos_token", "eos_token"):
            token = special_map.get(field) if config.get(field) is None else config[field]
            token = token.get("content") if isinstance(token, dict) else token
            if token is not None and (not isinstance(token, str) or backend.token_to_id(token) is None):
                raise TokenizerError(f"{folder}: {field} is {token!r}, which is not in the vocabulary")
            special[field] = token
        eos_ids = set() if special["eos_token"] is None else {backend.token_to_id(special["eos_token"])}
        for name in ("generation_config.json", "config.json"):
            value = _read_json(folder / name).get("eos_token_id")
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
                raise TokenizerError(f"{folder / name}: eos_token_id is {value!r}, must be one token id or a list")
            eos_ids.update(ids)
        return cls(backend, **special, eos_token_ids=frozenset(eos_ids), chat_template=_folder_template(folder, config))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """The tokenizer in a GGUF file's metadata: vocabulary and merges as lists, the split rule only by name."""
        fields = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in metadata.items()
                  if name.startswith("tokenizer.")}
        kind = _gguf_field(fields, "tokenizer.ggml.model", str)
        if kind != "gpt2":
            raise TokenizerError(f"tokenizer.ggml.model is {kind!r}, supported: 'gpt2' (byte-level BPE)")
        pre = _gguf_field(fields, "tokenizer.ggml.pre", str, default="default")
        if pre not in GGUF_SPLITS:
            raise TokenizerError(f"tokenizer.ggml.pre is {pre!r}, supported: {', '.join(sorted(GGUF_SPLITS))}")
        tokens = _gguf_field(fields, "tokenizer.ggml.tokens", list)
        types = _gguf_field(fields, "tokenizer.ggml.token_type", list)
        if len(types) != len(tokens):
            raise TokenizerError(f"tokenizer.ggml.token_type has {len(types)} entries, must be {len(tokens)}, "
                                 "as many as tokenizer.ggml.tokens")
        vocab = {token: token_id for token_id, token in enumerate(tokens)}
        if len(vocab) != len(tokens):
            twice = next(token for token_id, token in enumerate(tokens) if vocab[token] != token_id)
            raise TokenizerError(f"tokenizer.ggml.tokens has {twice!r} more than once")
        ids = {}
        for name in ("bos", "eos", "eot", "eom"):
            field = f"tokenizer.ggml.{name}_token_id"
            ids[name] = _gguf_field(fields, field, int, default=None)
            if ids[name] is not None and not 0 <= ids[name] < len(tokens):
                raise TokenizerError(f"{field} is {ids[name]}, must be from 0 to {len(tokens) - 1}")
        is_llama3 = pre == "llama-bpe"
        add_bos = _gguf_field(fields, "tokenizer.ggml.add_bos_token", bool, default=is_llama3)
        if add_bos and ids["bos"] is None:
            raise TokenizerError("tokenizer.ggml.bos_token_id is missing, but every text must begin with it")
        chat_template = _gguf_field(fields, "tokenizer.chat_template", str, default=None)

        merges = _gguf_field(fields, "tokenizer.ggml.merges", list)
        try:
            merges = [tuple(merge.split(" ", 1)) for merge in merges]
            backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=is_llama3))
        except Exception as error:  # the library raises plain Exception
            raise TokenizerError(f"tokenizer.ggml.merges do not fit tokenizer.ggml.tokens: {error}") from error
        if pre == "qwen2":
            backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = pre_tokenizers.Sequence([*GGUF_SPLITS[pre]])
        backend.decoder = decoders.ByteLevel()
        backend.add_tokens([AddedToken(token, special=token_type == GGUF_CONTROL, normalized=False)
                            for token, token_type in zip(tokens, types)
                            if token_type in (GGUF_CONTROL, GGUF_USER_DEFINED)])
        if add_bos:
            backend.post_processor = processors.TemplateProcessing("BOS $A", special_tokens=[("BOS", ids["bos"])])
        bos_token, eos_token = (None if ids[name] is None else tokens[ids[name]] for name in ("bos", "eos"))
        eos_token_ids = frozenset(ids[name] for name in ("eos", "eot", "eom") if ids[name] is not None)
        return cls(backend, bos_token, eos_token, eos_token_ids, chat_template)


class StreamingDetokenizer:
    """Text of a growing token sequence, never half a character.

    Decoding token by token would be wrong: a character may span tokens, and the first token of a text loses its
    leading space. Decoding everything each time would be quadratic. So each step decodes a window twice, with and
    without the new token, and the difference is the new text.

        token ids   [ ......... text is out ......... | new ]
                               [ context, at most 8 ]          decoded: "…ein sch"
                               [ context, at most 8   new ]    decoded: "…ein schö"

    The context may begin inside a character. UTF-8 finds its feet again within 4 bytes, and the next 4 hold a whole
    character, so after 8 tokens the end of both texts is right, whatever came before.

    The last U+FFFD of a text may be the start of a character still to come. It stays back until something follows it.
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
        """The new text that is now certain; empty while a character is incomplete."""
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
        """What is left, with U+FFFD for a character that never became whole. The next token starts a new text."""
        new_text = self._emit(self._decode(self._context_ids + self._held_ids))
        self._context_ids, self._held_ids = [], []
        return new_text

    def _emit(self, window_text: str) -> str:
        new_text = window_text[len(self._decode(self._context_ids).removesuffix("\ufffd")):]
        self._pieces.append(new_text)
        return new_text

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, self._skip_special_tokens)


#: The normal form C makes at most this many characters one: a letter and three marks above or below it.
MAX_COMPOSED = 4


def _parts_of(component: object) -> list[dict]:
    """A normalizer or pre-tokenizer of the ``tokenizers`` library, as in its JSON; a sequence part by part."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())
    return state.get("normalizers", state.get("pretokenizers")) if state["type"] == "Sequence" else [state]


def _is_byte_level(words: Sequence[Mapping[str, object]]) -> bool:
    return any(part["type"] == "ByteLevel" for part in words)


def _later_bytes() -> set[str]:
    """The symbols of the bytes with which a character of several bytes goes on: with these, none vanishes whole."""
    return {_ONLY_BYTES.pre_tokenize_str(chr(code))[0][0][-1] for code in range(0x80, 0xC0)}


def _keeps_all_characters(part: Mapping[str, object]) -> bool:
    """Whether this part of a normalizer or pre-tokenizer is known to drop no character, but for NFC's composing."""
    kind = part["type"]
    if kind == "Replace":
        return len(part["pattern"].get("String", "")) == 1 and part["content"] != ""
    if kind == "Split":
        return part["behavior"] != "Removed"
    return kind in ("NFC", "Prepend", "ByteLevel", "Digits", "Metaspace")


#: ``tokenizer.ggml.token_type``: the text of these becomes one id, as it stands. Control tokens are not shown.
GGUF_CONTROL, GGUF_USER_DEFINED = 3, 4

_CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")
_GPT2_WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_ONLY_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

#: ``tokenizer.ggml.pre`` names the rule that cuts a text into words before any merge. They differ mostly in digits.
GGUF_SPLITS = {
    "default": (_GPT2_WORDS,),
    "gpt-2": (_GPT2_WORDS,),
    "smollm": (pre_tokenizers.Digits(individual_digits=True), _GPT2_WORDS),
    "llama-bpe": (pre_tokenizers.Split(Regex(_CL100K % "{1,3}"), "isolated"), _ONLY_BYTES),
    "qwen2": (pre_tokenizers.Split(Regex(_CL100K % ""), "isolated"), _ONLY_BYTES),
}


def _gguf_field(fields: Mapping[str, object], name: str, kind: type, default: object = ...) -> object:
    value = fields.get(name, default)
    if value is ...:
        raise TokenizerError(f"{name} is missing from the GGUF metadata")
    if value is not default and type(value) is not kind:
        raise TokenizerError(f"{name} is {reprlib.repr(value)}, must be of type {kind.__name__}")
    return value


def _read_json(path: Path) -> dict:
    """A file that need not be there; without it, nothing is set."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} holds {reprlib.repr(content)}, must be a JSON object")
    return content


def _folder_template(folder: Path, config: Mapping[str, object]) -> str | None:
    """Newer checkpoints have a file for it, older ones a field: one template, or several with names."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except ValueError as error:
            raise TokenizerError(f"{path} is not a text: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list) and all(isinstance(entry, dict) and isinstance(entry.get("name"), str)
                                          for entry in template):
        template = {entry["name"]: entry.get("template") for entry in template}.get("default")
    if template is not None and not isinstance(template, str):
        raise TokenizerError(f"{folder / 'tokenizer_config.json'}: chat_template is {reprlib.repr(template)}, "
                             "must be a text or a list of named texts")
    return template


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)

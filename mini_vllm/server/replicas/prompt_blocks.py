"""The blocks by which the front recognises a prefix. It has no tokenizer, so a block is a piece of the prompt's text.

Blocks name the model and the caller: a replica shares cached prefixes neither between models nor between keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mini_vllm.router import Block

#: A block of text is about as long as a block of tokens.
BLOCK_CHARS, BLOCK_TOKENS = 64, 16
#: The front looks at no more blocks of a prompt: it reads the prompts of all clients in one event loop.
MAX_BLOCKS = 512
#: A longer name of a model is cut: the router keeps it with every block.
MAX_MODEL_CHARS = 200
#: At most about as much of a prompt is shown.
MAX_SHOWN = 100


def read_fields(body: bytes) -> Mapping[str, Any]:
    """Return the fields of a request; none if it is not a JSON object, which the replica will reject."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def prompts_of(fields: Mapping[str, Any]) -> list[Any]:
    """Return the prompts of a request: each a text, or a list of token ids; for a chat, the text of its beginning."""
    if "messages" in fields:
        messages = fields["messages"] if isinstance(fields["messages"], list) else []
        text = json.dumps(fields["tools"]) if fields.get("tools") else ""
        for message in messages:
            if len(text) >= MAX_BLOCKS * BLOCK_CHARS:
                break
            text += json.dumps(message)
        return [text]
    prompt = fields.get("prompt")
    is_batch = isinstance(prompt, list) and prompt and all(isinstance(each, (str, list)) for each in prompt)
    return prompt if is_batch else [prompt]  # type: ignore[return-value]  # a batch is a list


def num_texts(fields: Mapping[str, Any]) -> int:
    """Return the number of texts that a request asks for: prompts times n. Wrong fields count as 1."""
    n = fields.get("n")
    return len(prompts_of(fields)) * (n if type(n) is int and n > 0 else 1)


def blocks_of(fields: Mapping[str, Any], caller: str | None) -> list[Block]:
    """Return the first blocks of the first prompt. A piece that does not fill a block is left out."""
    prompt = prompts_of(fields)[0]
    size = BLOCK_CHARS if isinstance(prompt, str) else BLOCK_TOKENS
    prompt = prompt[:MAX_BLOCKS * size] if isinstance(prompt, (str, list)) else ""
    if isinstance(prompt, list):
        prompt = tuple(prompt) if all(type(token_id) is int for token_id in prompt) else ""
    owner = str(fields.get("model"))[:MAX_MODEL_CHARS], caller
    return [(owner, prompt[start:start + size]) for start in range(0, len(prompt) - size + 1, size)]


def owner_of(block: Any) -> tuple[str, str | None]:
    """Return the model and the caller of a block."""
    owner: tuple[str, str | None] = block[0]
    return owner


def piece_of(block: Any) -> str | tuple[int, ...]:
    """Return the text of a block, or its token ids."""
    piece: str | tuple[int, ...] = block[1]
    return piece


def summary_of(fields: Mapping[str, Any]) -> str:
    """Return the first prompt, or the first message of a chat, as ``shown``."""
    if not isinstance(fields.get("messages"), list):
        return shown(prompts_of(fields)[0])
    contents = [message.get("content") for message in fields["messages"] if isinstance(message, dict)]
    return shown(next((content for content in contents if content), ""))


def shown(piece: object) -> str:
    """Return a text in one line, or the token ids or the parts of a message. The middle of a long one is left out."""
    if isinstance(piece, (list, tuple)):
        parts = (part.get("text", "") if isinstance(part, dict) else part for part in piece[:MAX_SHOWN])
        piece = " ".join(map(str, parts))
    if not isinstance(piece, str):
        return ""
    if len(piece) > MAX_SHOWN:
        piece = f"{piece[:MAX_SHOWN // 2]}…{piece[-MAX_SHOWN // 2:]}"
    return " ".join(piece.split())

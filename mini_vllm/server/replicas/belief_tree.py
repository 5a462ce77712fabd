"""What the router believes to be cached where, as rows of a tree of prefixes.

A row is a run of blocks that the same prompts share. The rows under it, one level deeper, continue it:

    level 0   "You are a helpful assistant"   3 blocks   replica-0: 3, replica-1: 2
    level 1       "for law"                   1 block    replica-0: 1, replica-1: 0
    level 1       "for art"                   2 blocks   replica-0: 0, replica-1: 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.router import Block
from mini_vllm.server.replicas.prompt_blocks import owner_of, piece_of, shown

Prompt = tuple[Block, ...]


def belief_rows(cached: Mapping[Prompt, Mapping[str, int]]) -> list[dict[str, Any]]:
    """Return the rows for these prompts. ``cached`` maps each to the number of its first blocks at each replica."""
    return _rows(cached, list(cached), 0, 0)


def _rows(cached: Mapping[Prompt, Mapping[str, int]], prompts: Sequence[Prompt], start: int,
          level: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    groups: dict[Block, list[Prompt]] = {}
    for prompt in prompts:
        if len(prompt) > start:
            groups.setdefault(prompt[start], []).append(prompt)
    for block, group in groups.items():
        longest, end = max(group, key=len), start + 1
        while end < len(longest) and all(prompt[end:end + 1] in ((), longest[end:end + 1]) for prompt in group):
            end += 1
        model, caller = owner_of(block)
        rows.append({"level": level, "text": _text(longest[start:end]), "num_blocks": end - start, "model": model,
                     "caller": caller, "cached": {replica: min(max(number - start, 0), end - start)
                                                  for replica, number in cached[longest].items()}})
        rows += _rows(cached, group, end, level + 1)
    return rows


def _text(blocks: Sequence[Block]) -> str:
    """Return the beginning of the text of these blocks, or of the token ids of the first one."""
    first, *more = map(piece_of, blocks)
    return shown(first + "".join(map(str, more)) if isinstance(first, str) else first)

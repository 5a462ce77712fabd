"""The growth of a text in the steps of a ``tokenizer.json``, determined without running them.

A step that replaces "a" by 32 of them is harmless. Six such steps turn one character into a gigabyte, in the library's
own memory, where no exception protects the process. So the steps are examined before the library gets the file: just
reading it runs them over the added tokens.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

from mini_vllm.models.tokenizer import TokenizerError

#: Real tokenizers reach 4.
MAX_GROWTH = 8
#: Without vocabulary and merges. Real steps have 0.4 MB if they contain a table of characters, else a few kB.
MAX_STEPS_CHARS = 2 * 2**20
#: The compatibility forms of Unicode, which tables contain, turn one character into up to this many: U+FDFA.
LONGEST_FORM = 18

#: The parts of a tokenizer that run one after the other, so that their growth multiplies.
CHAINS = (("normalizer", "pre_tokenizer"), ("post_processor",), ("decoder",))
#: The field of each part that lists its steps.
LISTS = ("normalizers", "pretokenizers", "processors", "decoders")

#: A step as the library writes it to JSON.
Step = Mapping[str, Any]


def check_growth(content: Mapping[str, object]) -> None:
    """Raise TokenizerError, which names the step, for a ``tokenizer.json`` whose steps may make a text too long.

    The limit is ``MAX_GROWTH``, as a factor for a text and as a number of tokens for one token.
    """
    parts = {name: content.get(name) for chain in CHAINS for name in chain}
    text = json.dumps({"version": "1.0", "added_tokens": [], **parts,
                       "model": {"type": "BPE", "vocab": {}, "merges": []}})
    if len(text) > MAX_STEPS_CHARS:
        raise TokenizerError(f"tokenizer.json: its steps have {len(text)} characters, must have at most "
                             f"{MAX_STEPS_CHARS}")
    # As the library interprets them: it guesses the type of a step whose "type" it does not know.
    understood = json.loads(tokenizers.Tokenizer.from_str(text).to_str())
    for chain in CHAINS:
        growth, num_tables = 1.0, 0
        for name in chain:
            for number, step in enumerate(_steps(understood[name]), 1):
                num_tables += step["type"] == "Precompiled"
                growth *= _factor(name, step, num_tables)
                if growth > MAX_GROWTH:
                    raise TokenizerError(
                        f"tokenizer.json: after step {number} of the {name} ({step['type']}) a text may be up to "
                        f"{growth:.0f} times as long as at the start, must be at most {MAX_GROWTH} times as long")


def _steps(part: Step | None) -> Iterator[Step]:
    """Yield the steps one by one; a sequence may contain sequences."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for step in next(part[name] for name in LISTS if name in part):
        yield from _steps(step)


def _factor(part: str, step: Step, num_tables: int) -> float:
    """Return the factor by which one step can lengthen a text.

    Unicode normal forms count as 1: they do not change a text that is already in that form.
    """
    match step["type"]:
        case "Replace":
            pattern, content = step["pattern"], step["content"]
            if pattern.get("String"):
                return max(1.0, len(content) / len(pattern["String"]))
            return 1 + len(content)  # a regular expression may match between any two characters
        case "Prepend":
            return 1 + len(step["prepend"])
        case "Precompiled":
            longest = _longest_entry(step["precompiled_charsmap"])
            return 1 if longest <= LONGEST_FORM and num_tables == 1 else max(1, longest)
        case "ByteLevel" if part in ("normalizer", "pre_tokenizer"):
            return 3 if step.get("add_prefix_space") else 2  # a byte beyond ASCII becomes a character of two bytes
        case "Metaspace" if part == "pre_tokenizer":
            return 2
        case "WordPiece":
            return 2
        case "TemplateProcessing":
            ids = step["special_tokens"]
            return sum(len(ids[piece["SpecialToken"]["id"]]["ids"]) if "SpecialToken" in piece else 1
                       for piece in step["single"])
        case "BertProcessing" | "RobertaProcessing":
            return 3
        case _:
            return 1


def _longest_entry(table: str) -> int:
    """Return the length of the longest replacement in a SentencePiece table: a trie, after its size, then the texts."""
    content = base64.b64decode(table)
    start = 4 + int.from_bytes(content[:4], "little")
    return max(len(entry.decode("utf-8", "replace")) for entry in content[start:].split(b"\0"))

"""A trace as a file: a header and then one step a line, each a JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, cast

FORMAT = 1


class TraceHeader(TypedDict, total=False):
    """The sizes of the engine; empty while no step has been recorded."""

    format: int
    #: The null block included.
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    #: What it serves; not known to those that run without a model, nor to older files.
    model: str


class _Names(TypedDict, total=False):
    #: Request id → how its prompt begins, of requests seen for the first time. Older files have none.
    names: dict[str, str]


class TraceStep(_Names):
    """What happened in one step. Tables and blocks are told only when they change."""

    #: By the clock, from the first step on: planning, the model and the sampler, and what is done with the tokens.
    start_s: float
    planned_s: float
    computed_s: float
    end_s: float
    #: Request id → [tokens computed before, tokens of this step].
    tokens: dict[str, list[int]]
    #: Request id → prompt tokens, of requests seen for the first time.
    prompts: dict[str, int]
    #: Ids that got a new token.
    sampled: list[str]
    #: Ids that wait after planning, in the order of the queue.
    waiting: list[str]
    preempted: list[str]
    #: Id → status: ``{"r1": "length"}``.
    finished: dict[str, str]
    #: [source, destination] blocks.
    copies: list[list[int]]
    #: Request id → block ids as planned, if they changed; an empty list when its blocks have gone home.
    tables: dict[str, list[int]]
    #: [block id, reference count, whether its content can be found], of blocks that changed.
    blocks: list[list[int]]


Kinds = dict[str, type | tuple[type, ...]]
#: What must be there, and of which type; then what may be missing.
HEADER_FIELDS: Kinds = dict.fromkeys(("format", "num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens"),
                                     int)
OPTIONAL_HEADER_FIELDS: Kinds = {"model": str}
OPTIONAL_STEP_FIELDS: Kinds = {"names": dict}
STEP_FIELDS: Kinds = {
    **dict.fromkeys(("start_s", "planned_s", "computed_s", "end_s"), (int, float)),
    **dict.fromkeys(("tokens", "prompts"), dict), **dict.fromkeys(("sampled", "waiting", "preempted"), list),
    "finished": dict, "copies": list, "tables": dict, "blocks": list}


class TraceError(ValueError):
    """A file that is not a trace."""


def write_trace(path: str | Path, header: TraceHeader, steps: list[TraceStep]) -> None:
    lines = [json.dumps(entry) for entry in (header, *map(_with_known_fields, steps))]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_trace(path: str | Path) -> tuple[TraceHeader, list[TraceStep]]:
    """Raises OSError if there is no such file, TraceError, which names the line, if it is no trace."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise TraceError(f"{path} is no trace of mini_vllm: it is not text") from None
    if not lines:
        raise TraceError(f"{path} is empty, a trace begins with a header")
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            if number == 1 and entry["format"] != FORMAT:
                raise TraceError(f"{path}: format {entry['format']!r}, this version reads format {FORMAT}")
            _check(entry, *((HEADER_FIELDS, OPTIONAL_HEADER_FIELDS) if number == 1 else
                            (STEP_FIELDS, OPTIONAL_STEP_FIELDS)))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise TraceError(f"{path}, line {number}: this is no trace of mini_vllm ({type(error).__name__}: {error})"
                             ) from None
        entries.append(entry)
    header, *steps = entries
    return cast(TraceHeader, header), cast(list[TraceStep], [_with_known_fields(step) for step in steps])


def _check(entry: dict[str, object], kinds: Kinds, optional: Kinds) -> None:
    """Raises KeyError for a field that is missing, TypeError for one that is not what it should be."""
    for name, kind in (*kinds.items(), *((name, kind) for name, kind in optional.items() if name in entry)):
        if not isinstance(entry[name], kind):
            raise TypeError(f"{name} is {entry[name]!r}")


def _with_known_fields(step: Mapping[str, object]) -> dict[str, object]:
    """Always in the same order, and without what a later version may add."""
    return {name: step[name] for name in (*STEP_FIELDS, *OPTIONAL_STEP_FIELDS) if name in step or name in STEP_FIELDS}

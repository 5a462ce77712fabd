"""A trace as a file: a header and then one step per line, each a JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

FORMAT = 1


class TraceHeader(TypedDict, total=False):
    """The sizes of the engine; empty while no step has been recorded."""

    format: int
    #: Including the null block.
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    #: The model; missing in runs without a model and in older files.
    model: str
    #: The tokens of the vocabulary; missing unless an output had to match something.
    vocab_size: int


class _Names(TypedDict, total=False):
    #: Request id → how its prompt begins, for requests seen for the first time. Missing in older files.
    names: dict[str, str]
    #: Request id → [drafted tokens, accepted tokens], which are not in ``tokens``. The accepted ones count as computed.
    #: Missing in steps without drafts and in older files.
    drafts: dict[str, list[int]]
    #: Request id → for each token that it got, [number of allowed tokens, state of the automaton before it], if its
    #: output must match something. A parser's state has no number: None. Missing in other steps and in older files.
    allowed: dict[str, list[list[int | None]]]


class TraceStep(_Names):
    """The record of one step. Tables and blocks are recorded only when they change."""

    #: Clock times since the first step: planning, the model and the sampler, and the handling of the tokens.
    start_s: float
    planned_s: float
    computed_s: float
    end_s: float
    #: Request id → [tokens computed before, tokens of this step].
    tokens: dict[str, list[int]]
    #: Request id → number of prompt tokens, for requests seen for the first time.
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
    #: Request id → block ids as planned, if they changed; an empty list when its blocks have been freed.
    tables: dict[str, list[int]]
    #: [block id, reference count, whether its content is findable], for blocks that changed.
    blocks: list[list[int]]


Kinds = dict[str, type | tuple[type, ...]]
#: The required fields with their types, then the optional ones.
HEADER_FIELDS: Kinds = dict.fromkeys(("format", "num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens"),
                                     int)
OPTIONAL_HEADER_FIELDS: Kinds = {"model": str, "vocab_size": int}
OPTIONAL_STEP_FIELDS: Kinds = {"names": dict, "drafts": dict, "allowed": dict}
STEP_FIELDS: Kinds = {
    **dict.fromkeys(("start_s", "planned_s", "computed_s", "end_s"), (int, float)),
    **dict.fromkeys(("tokens", "prompts"), dict), **dict.fromkeys(("sampled", "waiting", "preempted"), list),
    "finished": dict, "copies": list, "tables": dict, "blocks": list}


def draft_of(step: Mapping[str, Any], request_id: str) -> tuple[int, int]:
    """Return how many tokens were drafted for a request in a step, and how many of them were accepted."""
    num_drafted, num_accepted = step.get("drafts", {}).get(request_id, (0, 0))
    return num_drafted, num_accepted


def allowed_of(step: Mapping[str, Any], request_id: str) -> list[int]:
    """Return how many tokens were allowed for each token that a request got; nothing if its output was free."""
    return [num_allowed for num_allowed, _ in step.get("allowed", {}).get(request_id, ())]


class TraceError(ValueError):
    """The file is not a trace."""


def write_trace(path: str | Path, header: TraceHeader, steps: list[TraceStep]) -> None:
    lines = [json.dumps(entry) for entry in (header, *map(_with_known_fields, steps))]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_trace(path: str | Path) -> tuple[TraceHeader, list[TraceStep]]:
    """Read a trace file.

    Raise OSError if there is no such file, and TraceError, which names the line, if it is not a trace.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise TraceError(f"{path} is not a trace of mini_vllm: it is not text") from None
    if not lines:
        raise TraceError(f"{path} is empty; a trace begins with a header")
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            if number == 1 and entry["format"] != FORMAT:
                raise TraceError(f"{path}: format {entry['format']!r}, this version reads format {FORMAT}")
            _check(entry, *((HEADER_FIELDS, OPTIONAL_HEADER_FIELDS) if number == 1 else
                            (STEP_FIELDS, OPTIONAL_STEP_FIELDS)))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise TraceError(f"{path}, line {number}: this is not a trace of mini_vllm ({type(error).__name__}: "
                             f"{error})") from None
        entries.append(entry)
    header, *steps = entries
    return cast(TraceHeader, header), cast(list[TraceStep], [_with_known_fields(step) for step in steps])


def _check(entry: dict[str, object], kinds: Kinds, optional: Kinds) -> None:
    """Raise KeyError for a missing field, and TypeError for one of the wrong type."""
    for name, kind in (*kinds.items(), *((name, kind) for name, kind in optional.items() if name in entry)):
        if not isinstance(entry[name], kind):
            raise TypeError(f"{name} is {entry[name]!r}")


def _with_known_fields(step: Mapping[str, object]) -> dict[str, object]:
    """Return the known fields, always in the same order, without those that a later version may add."""
    return {name: step[name] for name in (*STEP_FIELDS, *OPTIONAL_STEP_FIELDS) if name in step or name in STEP_FIELDS}

"""Run the JSON Schema Test Suite against structured outputs: which schemas are accepted, and are their texts right?

    python tools/schema_suite.py jsonschema-4.26.0/json/tests/draft2020-12

The suite comes with the source distribution of ``jsonschema``. Each schema must be accepted, or refused with a message
that says what is not supported. For an accepted schema, no invalid instance may be possible as an output. A valid
instance may be impossible: an output has its properties in the order of the schema, and no spaces.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mini_vllm.structured.guided import GuidedGrammar
from mini_vllm.structured.params import StructuredOutputsParams
from mini_vllm.structured.vocabulary import Vocabulary

BYTES = Vocabulary.of_bytes()


class Group(NamedTuple):
    """The result for one schema of the suite."""

    keyword: str
    description: str
    #: Why it is refused; None if it is accepted.
    refusal: str | None
    #: Numbers of instances, by validity and possibility.
    num_valid: int = 0
    num_valid_possible: int = 0
    num_invalid: int = 0
    invalid_possible: tuple[str, ...] = ()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="a draft's folder of the suite")
    arguments = parser.parse_args()
    groups = [check(path.stem, group) for path in sorted(arguments.folder.glob("*.json"))
              for group in json.loads(path.read_text(encoding="utf-8"))]
    if not groups:
        parser.error(f"{arguments.folder} has no .json files")
    print("| keyword | schemas | accepted | refused | valid texts possible | invalid texts possible |")
    print("|---|---|---|---|---|---|")
    for keyword in [*dict.fromkeys(group.keyword for group in groups), "all"]:
        own = [group for group in groups if keyword in (group.keyword, "all")]
        accepted = [group for group in own if group.refusal is None]
        print(f"| {keyword} | {len(own)} | {len(accepted)} | {len(own) - len(accepted)} | "
              f"{sum(group.num_valid_possible for group in accepted)} of "
              f"{sum(group.num_valid for group in accepted)} | "
              f"{sum(len(group.invalid_possible) for group in accepted)} of "
              f"{sum(group.num_invalid for group in accepted)} |")
    print()
    for reason, number in Counter(reasons(groups)).most_common():
        print(f"{number:4}  {reason}")
    wrong = [group for group in groups if group.invalid_possible]
    for group in wrong:
        print(f"possible, but not valid: {group.keyword}, {group.description}: {', '.join(group.invalid_possible)}")
    return 1 if wrong else 0


def reasons(groups: list[Group]) -> Iterator[str]:
    return (group.refusal[:100] for group in groups if group.refusal is not None)


def check(keyword: str, group: dict[str, Any]) -> Group:
    try:
        grammar = GuidedGrammar(StructuredOutputsParams(json=group["schema"]), BYTES)
    except ValueError as error:
        return Group(keyword, group["description"], str(error))
    is_possible = {json.dumps(test["data"]): possible(grammar, test["data"]) for test in group["tests"]}
    valid = [json.dumps(test["data"]) for test in group["tests"] if test["valid"]]
    invalid = [json.dumps(test["data"]) for test in group["tests"] if not test["valid"]]
    return Group(keyword, group["description"], None, len(valid), sum(is_possible[text] for text in valid),
                 len(invalid), tuple(text for text in invalid if is_possible[text]))


def possible(grammar: GuidedGrammar, value: object) -> bool:
    """Check whether this value, written without spaces, is a whole output."""
    state = grammar.start
    for byte in json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode():
        following = grammar.advance(state, byte)
        if following is None:
            return False
        state = following
    return grammar.is_accepting(state)


if __name__ == "__main__":
    sys.exit(main())

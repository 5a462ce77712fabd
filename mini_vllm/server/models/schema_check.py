"""Schemas and grammars of clients, prepared in a process that can be killed before the engine prepares them.

Almost all schemas take milliseconds. But the library that prepares them has no limit for some, such as a dozen
``pattern`` that must all match: these take minutes.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import asdict
from typing import Any

from mini_vllm.server.access.turns import ANYONE, Holder
from mini_vllm.server.models.limited_process import LimitedProcess, NoAnswerError, answer_lines
from mini_vllm.structured.params import StructuredOutputsParams
from mini_vllm.structured.vocabulary import Vocabulary

#: Real schemas take up to a fifth of a second.
MAX_CPU_S = 2.0
#: What was checked last, and need not be checked again.
MAX_KNOWN = 256
#: Which vocabulary it is prepared for hardly matters to the time.
BYTES = Vocabulary.of_bytes()


class SchemaCheck(LimitedProcess):
    """Checks that the schema or grammar of a client can be prepared in little time."""

    MODULE = "mini_vllm.server.models.schema_check"

    def __init__(self) -> None:
        super().__init__(MAX_CPU_S)
        self._known: OrderedDict[StructuredOutputsParams, None] = OrderedDict()

    async def check(self, params: StructuredOutputsParams | None, holder: Holder = ANYONE) -> None:
        """Raise ValueError, which names the field, if it takes too long or is wrong.

        Expressions and choices are bounded by their size.
        """
        if params is None or params.kind in ("choice", "regex"):
            return
        if params in self._known:
            self._known.move_to_end(params)
            return
        try:
            answer = await self.ask(asdict(params), holder)
        except NoAnswerError as error:
            raise ValueError(f"structured_outputs.{params.kind}: {error}") from None
        if "problem" in answer:  # looking for the place of an error may take long: the engine must not do it again
            raise ValueError(answer["problem"])
        self._known[params] = None
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)


def prepare(**fields: Any) -> dict[str, Any]:
    """Prepare what the fields ask for, as the answer to one question. Return what is wrong with it."""
    from mini_vllm.structured.guided import GuidedGrammar
    try:
        GuidedGrammar(StructuredOutputsParams(**fields), BYTES)
    except ValueError as error:
        return {"problem": str(error)}
    return {}


if __name__ == "__main__":
    prepare(json_object=True)  # imports the library, which is not part of any question's time
    answer_lines(float(sys.argv[1]), prepare)

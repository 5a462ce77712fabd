"""The letter and colour of each request in a picture, the same in every frame."""

from __future__ import annotations

from collections.abc import Iterable

from mini_vllm.pictures.palette import request_paint
from mini_vllm.trace.recorder import StepTrace

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Cast:
    """Assigns letters and colours in the order of appearance, and never changes them.

    A request with an id of one or two characters keeps its id as its letter; its sample ``C#1`` has the letter C1.
    """

    def __init__(self, request_ids: Iterable[str] = ()) -> None:
        self._numbers: dict[str, int] = {}
        for request_id in request_ids:
            self.number(request_id)

    @classmethod
    def of_trace(cls, trace: StepTrace) -> Cast:
        """Create the cast of a recorded run: all requests in the order of arrival, whichever steps are shown."""
        return cls(request_id for step in trace.steps for request_id in step["prompts"])

    def number(self, request_id: str) -> int:
        return self._numbers.setdefault(request_id, len(self._numbers))

    def paint(self, request_id: str) -> str:
        return request_paint(self.number(request_id))

    def letter(self, request_id: str) -> str:
        number = self.number(request_id)
        if len(request_id) <= 2:
            return request_id
        if len(request_id) == 3 and request_id[1] == "#":
            return request_id[0] + request_id[2]
        turn, place = divmod(number, len(LETTERS))
        return LETTERS[place] + (str(turn + 1) if turn else "")

"""Which piece fills each slot of the engine: the student's if its lab passes, else the reference's.

    slot               labs that fill it      the latest that passes is used
    block_pool         2.1, 3.1               3.1 extends 2.1: the student's own if that passes, else the reference's
    kv_cache_manager   2.2, 3.2, 3.4
    …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from course.lab.lab import Lab, LabError, find_lab

#: The slots of EngineParts, in the order in which a request meets them. (Listed here to avoid importing MLX.)
SLOTS = ("engine", "request_queue", "scheduler", "kv_cache_manager", "prefix_tree", "block_pool", "model_runner",
         "attention", "sampler", "drafter", "guess_record", "verifier", "grammar")
#: Slots of phase 06. The capstone does without them: it neither drafts nor asks for outputs that must match.
FURTHER_SLOTS = ("drafter", "guess_record", "verifier", "grammar")
#: The phase of the capstone.
CAPSTONE_PHASE = 5


@dataclass(frozen=True)
class Seat:
    """A slot of the engine, and the lab that fills it."""

    slot: str
    #: None: the reference's piece.
    lab: Lab | None
    #: Why the piece is the reference's, or whose base a student's piece builds on.
    note: str = ""


@dataclass(frozen=True)
class Pieces:
    """The files of an engine, keyed by lab number, and the slots that they fill."""

    seats: list[Seat]
    #: The files of the pieces and of their bases; a base that is not the student's own is the reference's.
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def labs(self) -> list[Lab]:
        """The labs that fill a slot, each once."""
        return list({seat.lab.number: seat.lab for seat in self.seats if seat.lab is not None}.values())


def slots_of(labs: Sequence[Lab]) -> dict[str, list[Lab]]:
    """Return slot → the labs that fill it, the latest last. Slots that no lab fills are left out."""
    return {slot: filling for slot in SLOTS if (filling := [lab for lab in labs if slot in lab.parts])}


def choose(labs: Sequence[Lab], passes: Callable[[Lab], bool], file_of: Callable[[Lab], Path]) -> Pieces:
    """Fill each slot with the latest of its labs that passes."""
    chosen = {slot: next((lab for lab in reversed(filling) if passes(lab)), None)
              for slot, filling in slots_of(labs).items()}
    notes = {slot: _why_not(filling) for slot, filling in slots_of(labs).items()}
    _keep_what_fits(labs, chosen, notes)
    return _with_files(labs, chosen, notes, passes, file_of)


def just(labs: Sequence[Lab], wanted: Sequence[Lab], is_own: Callable[[Lab], bool],
         file_of: Callable[[Lab], Path]) -> Pieces:
    """Use the pieces of the labs ``wanted``, whether they pass or not; bases are a student's own where ``is_own``."""
    for lab in wanted:
        if not lab.parts:
            raise LabError(f"Lab {lab} has no part in the engine. These labs have one: "
                           f"{', '.join(other.number for other in labs if other.parts)}.")
    chosen = {slot: next((lab for lab in reversed(filling) if lab in wanted), None)
              for slot, filling in slots_of(labs).items()}
    notes = {slot: "not asked for" for slot in chosen}
    return _with_files(labs, chosen, notes, lambda lab: lab in wanted or is_own(lab), file_of)


def _why_not(filling: Sequence[Lab]) -> str:
    names = " or ".join(lab.number for lab in filling)
    return f"until lab {names} passes"


def _keep_what_fits(labs: Sequence[Lab], chosen: dict[str, Lab | None], notes: dict[str, str]) -> None:
    """Replace pieces that are too early for another chosen piece by the reference's.

    A piece may need a later lab's piece in another slot: a tree needs a manager that queries it.
    """
    for lab in [lab for lab in chosen.values() if lab is not None]:
        for slot, number in lab.needs.items():
            other = chosen.get(slot)
            if other is not None and _place(other.number) < _place(number):
                notes[slot] = f"your lab {other.number} cannot use your lab {lab.number}; lab {number} can use it"
                chosen[slot] = None


def _with_files(labs: Sequence[Lab], chosen: Mapping[str, Lab | None], notes: Mapping[str, str],
                is_own: Callable[[Lab], bool], file_of: Callable[[Lab], Path]) -> Pieces:
    seats, files = [], {}
    for slot in slots_of(labs):
        lab = chosen[slot]
        if lab is None:
            seats.append(Seat(slot, None, notes.get(slot, "")))
            continue
        files[lab.number] = file_of(lab)
        words = []
        for below in bases_of(lab, labs):
            files[below.number] = file_of(below) if is_own(below) else below.solution
            if slot in below.parts:
                words.append(f"{'your' if is_own(below) else 'the reference’s'} {below.number}")
        seats.append(Seat(slot, lab, f"on {', '.join(words)}" if words else ""))
    return Pieces(seats, files)


def bases_of(lab: Lab, labs: Sequence[Lab]) -> list[Lab]:
    """Return the lab that ``lab`` extends, the lab that this one extends, and so on."""
    below: list[Lab] = []
    while lab.base is not None:
        lab = find_lab(lab.base, list(labs))
        below.append(lab)
    return below


def up_to_capstone(labs: Sequence[Lab]) -> list[Lab]:
    """Return the labs of the phases up to that of the capstone."""
    return [lab for lab in labs if _place(lab.number)[0] <= CAPSTONE_PHASE]


def needed_for_all(labs: Sequence[Lab]) -> list[Lab]:
    """Return the labs that a student needs to own the whole engine: the last lab of every slot, and their bases.

    These are the labs that the capstone needs. Phase 06 comes after it. A lab with a score is never needed: its part
    replaces that of an earlier lab.
    """
    last = [filling[-1] for filling in slots_of([lab for lab in up_to_capstone(labs) if not lab.score]).values()]
    needed = {lab.number: lab for top in last for lab in (top, *bases_of(top, labs))}
    return sorted(needed.values(), key=labs.index)


def _place(number: str) -> list[int]:
    """Return a sort key for the lab's place in the course."""
    return [int(part) for part in number.split(".")]

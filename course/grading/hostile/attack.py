"""One hostile submission: an honest file, and the attack that is added to it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Earns(enum.Enum):
    """The points that a hostile file may earn."""

    #: Exactly what the file without the attack earns, test by test.
    BASE = "what its base earns"
    #: It harms itself: no test may pass that fails on its base.
    AT_MOST_BASE = "at most what its base earns"
    #: The tests of its base that run in the sandbox may be forged; they are at most 5 % of a lab.
    BASE_BUT_INSIDE = "what its base earns, apart from tests inside"


@dataclass(frozen=True)
class Attack:
    """A hostile submission: the honest half file of its lab, with ``code`` at its end."""

    name: str
    #: The purpose of the attack, in a sentence for people.
    tries: str
    code: str
    lab: str = "2.1"
    earns: Earns = Earns.BASE
    #: It tries to reach files, processes or memory: there is no defence at the level "none".
    is_outside: bool = False
    #: Text that must be in a flag of the result.
    flag: str = ""
    #: Whether an inside test must be run for it.
    is_inside: bool = False
    #: Other files in its folder: name → text.
    beside: dict[str, str] = field(default_factory=dict)


#: The way from a student's file to the raw protocol: ``peer()`` is the sandbox's, ``ask`` sends a question unchanged.
TALK = '''
import sys as _sys
def peer():
    frame = _sys._getframe()
    while frame is not None:
        for value in frame.f_locals.values():
            if type(value).__name__ == "Peer":
                return value
        frame = frame.f_back
def ask(*body, extra=(), kind="?", buffers=()):
    wire = peer()._wire
    wire.send([kind, 1, list(body) if kind == "?" else body[0], *extra], list(buffers))
    return wire.receive()[0]
def asked():
    """The number of the question that is being answered."""
    frame = _sys._getframe()
    while frame.f_code.co_name != "_answer" or "number" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["number"]
def answer(value, kind="!", ahead=0):
    peer()._wire.send([kind, asked() + ahead, value], [])
'''


def on_usage(body: str) -> str:
    """Return code for lab 2.1 that attacks when ``get_usage`` is called, which is wrong in the base anyway."""
    return f"{TALK}\ndef _attack(self):\n{indented(body)}    return 0\nBlockPool.get_usage = _attack\n"


def indented(body: str) -> str:
    return "".join(f"    {line}\n" for line in body.strip().splitlines())

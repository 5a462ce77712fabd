"""What one hostile submission is: an honest file, and what it does beside."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Earns(enum.Enum):
    """What a hostile file is worth."""

    #: Exactly what the file without the attack earns, test by test.
    BASE = "what its base earns"
    #: It harms itself: no test may pass that fails on its base.
    AT_MOST_BASE = "at most what its base earns"
    #: Of its base's tests those that run in the sandbox may be forged; they are 5 % of a lab at most.
    BASE_BUT_INSIDE = "what its base earns, apart from tests inside"


@dataclass(frozen=True)
class Attack:
    """A hostile submission: the honest half file of its lab, with ``code`` at its end."""

    name: str
    #: What it tries, in a sentence for people.
    tries: str
    code: str
    lab: str = "2.1"
    earns: Earns = Earns.BASE
    #: It reaches for files, processes or memory: at the level "none" it is not defended.
    is_outside: bool = False
    #: What must stand in a flag of the result.
    flag: str = ""
    #: Whether a test inside must be run for it.
    is_inside: bool = False
    #: What lies beside the file in its folder: name → text.
    beside: dict[str, str] = field(default_factory=dict)


#: The way from a student's file to the raw protocol: ``peer()`` is the sandbox's, ``ask`` sends a question as it is.
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
    """Code of lab 2.1 that attacks when ``get_usage`` is called, which the base has wrong anyway."""
    return f"{TALK}\ndef _attack(self):\n{indented(body)}    return 0\nBlockPool.get_usage = _attack\n"


def indented(body: str) -> str:
    return "".join(f"    {line}\n" for line in body.strip().splitlines())

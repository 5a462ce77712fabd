"""Damaged checkpoints, and a program that loads them: for the test suites."""

from __future__ import annotations

import random
import struct

#: Loads each checkpoint of a folder in a separate process and prints those whose process was killed by a signal. The
#: alarm is a signal too.
LOAD_ALL = """
import os, pathlib, signal, sys
from mini_vllm.models.loader import load
for file in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            load(file)
        except ValueError:
            pass
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        print(file.name, os.WTERMSIG(status))
"""


def damaged(sound: bytes, rng: random.Random) -> bytes:
    """Return a copy of the file ``sound``: cut off, without some bytes, or with wrong ones, mostly in its header."""
    if rng.random() < 0.2:
        return sound[:rng.randrange(len(sound))]
    at = rng.randrange(4, min(len(sound), rng.choice([400, 400, 2000, 10**9])))
    number = struct.pack("<Q", rng.choice([2**63, 2**64 - 1, 2**32, 10**9]))  # far too large, for a length or an offset
    kind = struct.pack("<I", rng.randrange(16))  # of a field or a tensor
    wrong = rng.choice([b"", number, kind, bytes([sound[at] ^ 1 << rng.randrange(8)])])
    return sound[:at] + wrong + sound[at + (len(wrong) or rng.randrange(1, 64)):]

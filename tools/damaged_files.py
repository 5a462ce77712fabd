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
    """Return a copy of the file ``sound``, damaged in one of many ways."""
    content = bytearray(sound)
    match rng.randrange(5):
        case 0:
            return bytes(content[:rng.randrange(len(content))])
        case 1:  # a few bits, mostly in the header
            for _ in range(rng.choice([1, 20])):
                content[rng.randrange(min(len(content), 2000))] ^= 1 << rng.randrange(8)
        case 2:  # a number that is far too large
            at = rng.randrange(4, min(len(content), 400))
            content[at:at + 8] = struct.pack("<Q", rng.choice([2**63, 2**64 - 1, 2**32, 10**9]))
        case 3:
            at = rng.randrange(4, len(content))
            del content[at:at + rng.randrange(1, 64)]
        case 4:  # the type of a field or tensor, or the length of a name
            at = rng.randrange(4, min(len(content), 400))
            content[at:at + 4] = struct.pack("<I", rng.randrange(16))
    return bytes(content)

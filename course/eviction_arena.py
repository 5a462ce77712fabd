"""Lab 3.5: the calls between the arena and an eviction policy.

Student files import this path; the code is in ``course.eviction.arena``.
"""

from course.eviction.arena import Block, IllegalEviction, PrefixCache, Served, Trace, num_hits, play

__all__ = ["Block", "IllegalEviction", "PrefixCache", "Served", "Trace", "num_hits", "play"]

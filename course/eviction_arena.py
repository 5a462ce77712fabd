"""Lab 3.5: what an eviction policy is asked about.

Student files import this path; what it does is in ``course.eviction.arena``.
"""

from course.eviction.arena import Block, IllegalEviction, PrefixCache, Served, Trace, num_hits, play

__all__ = ["Block", "IllegalEviction", "PrefixCache", "Served", "Trace", "num_hits", "play"]

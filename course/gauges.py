"""For the tests of labs: what a call costs, and what an object contains.

The labs' tests import this path; the code is in ``course.testing.measure``.
"""

from course.testing.measure import (
    bytes_grown,
    cheapest,
    deferring,
    extendable,
    flush,
    hash_of_none,
    is_stand_in,
    lines_of_questions,
    listed,
    num_lines,
    num_objects,
    peak_bytes,
    repeated,
    salt,
    shares_memory,
)

__all__ = ["bytes_grown", "cheapest", "deferring", "extendable", "flush", "hash_of_none", "is_stand_in",
           "lines_of_questions", "listed", "num_lines", "num_objects", "peak_bytes", "repeated", "salt",
           "shares_memory"]

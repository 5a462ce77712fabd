"""The values that cross as data, and their encoding.

Numbers, strings, containers, arrays and members of enums cross as data. Everything else crosses as a handle: a number
that stands for an object of the side that sent it. In JSON a number or string represents itself, and everything else is
a list that begins with a tag:

    ["t", 1, "a"]                     a tuple             ["l", 4, [1, 2, 3]]     a list, shared under the number 4
    ["m", 4]                          that list again     ["h", 7, 3]             the sender's object 7, of its class 3
    ["o", 7]                          the receiver's own object 7

``encode`` writes them, ``decode`` reads them.
"""

from __future__ import annotations

from typing import Any

from course.grading.protocol.socket_messages import ProtocolError

#: A number that no other living object has. Not ``id``: Python reports each call of it to an audit hook, which costs
#: more than the rest of a small message.
identity = object.__hash__
SCALARS = frozenset((type(None), bool, int, float, str))
BUILTIN_TYPES = {kind.__name__: kind for kind in (bool, int, float, complex, str, bytes, list, tuple, dict, set,
                                                  frozenset, range, slice, object, type(None))}
#: The kinds of numbers that arrays may contain. None of them holds references.
ARRAY_KINDS = "biufc"
MAX_NAME_CHARACTERS = 200
#: The methods that Python calls for operators and built-in functions. A class offers some of them.
OPERATORS = frozenset(
    """__len__ __iter__ __next__ __reversed__ __getitem__ __setitem__ __delitem__ __contains__ __bool__ __str__ __repr__
    __lt__ __le__ __gt__ __ge__ __add__ __radd__ __iadd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__
    __floordiv__ __rfloordiv__ __mod__ __rmod__ __pow__ __neg__ __pos__ __abs__ __matmul__ __and__ __or__ __xor__
    __invert__ __int__ __float__ __index__ __round__ __floor__ __ceil__ __trunc__ __enter__ __exit__ __format__
    __dir__""".split())
EQUALITY = frozenset(("__eq__", "__ne__", "__hash__"))


def text_of(name: Any) -> str:
    """Return a name that the other side sent. Raise ProtocolError if it is not a string, or too long."""
    if type(name) is not str or len(name) > MAX_NAME_CHARACTERS:
        raise ProtocolError(f"not a name: {name!r:.40}")
    return name


def static(kind: type, name: str) -> Any:
    """Return the attribute of a class or one of its bases, without running any code. Return None if there is none."""
    for each in kind.__mro__:
        if name in vars(each):
            return vars(each)[name]
    return None

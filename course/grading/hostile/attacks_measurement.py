"""Attacks on what is measured in the sandbox, next to wrong solutions that must not pass there."""

from __future__ import annotations

from course.grading.hostile.attack import Attack, Earns

#: The half file is correct here, so it is broken first: looking up a hash leaves an entry.
_BREAK = '''
def _leaves_something(self, block_hash):
    self.__dict__.setdefault("_looked", []).append([block_hash])
BlockPool.get_cached_block = _leaves_something
'''

ATTACKS = (
    Attack("patches_the_gauges", "has every pool weigh nothing", _BREAK + '''
import course.testing.measure
course.testing.measure.num_objects = lambda *args, **kwargs: 1
course.testing.measure.cheapest = lambda *args: (1, 1)
''', is_inside=True, earns=Earns.AT_MOST_BASE, flag="a wrong solution passes"),
    Attack("patches_gc", "has no object refer to any other", _BREAK + '''
import gc, sys, tracemalloc
gc.get_referents = lambda *args: []
sys.settrace = lambda *args: None
tracemalloc.get_traced_memory = lambda: (0, 0)
''', is_inside=True, earns=Earns.AT_MOST_BASE, flag="a wrong solution passes"),
    Attack("tells_canaries_apart", "has only its own pools weigh nothing", _BREAK + '''
import course.testing.measure
_honest = course.testing.measure.num_objects
course.testing.measure.num_objects = lambda thing, **kwargs: 1 if type(thing) is BlockPool else _honest(thing, **kwargs)
''', is_inside=True, earns=Earns.BASE_BUT_INSIDE),
    Attack("steals_a_canary", "takes the nearly right solution that is run beside it", _BREAK + '''
import builtins
_compile = builtins.compile
def _spy(source, *args, **kwargs):
    code = _compile(source, *args, **kwargs)
    if b"class BlockPool" in bytes(source) and b"_leaves_something" not in bytes(source):
        exec(code, globals())
    return code
builtins.compile = _spy
''', is_inside=True, earns=Earns.BASE_BUT_INSIDE),
)

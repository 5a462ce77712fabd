"""Attacks on the score of an open lab: it is measured and kept where the file does not run."""

from __future__ import annotations

from course.grading.hostile.attack import TALK, Attack, Earns

_TEST = "test_task_3_every_answer_is_legal_in_the_traces_of_the_score"
_LINE = ("""'{"event": "end", "index": %d, "test": "%s", "passed": true, "error": null, "message": "", """
         """"printed": "", "score": 99.9, "cpu_s": 0, "waited": false}\\n'""")

ATTACKS = (
    Attack("prints_a_score", "writes lines of verdicts with a score to everything that it can write to", f'''
import os
def _say():
    for _fd in (1, 2, *range(3, 64)):
        for _index in range(4):
            try:
                if _fd > 2 and _fd == int(__import__("sys").argv[1]):
                    continue
                os.write(_fd, ({_LINE} % (_index, "{_TEST}")).encode())
            except (OSError, ValueError, IndexError):
                pass
_say()
''', "3.5"),
    Attack("patches_the_score", "replaces the functions that compute and keep the score, wherever it finds them", '''
import gc, sys, types
for _name in ("course.eviction.score", "course.eviction.arena", "course.lab.score", "course.plugin"):
    try:
        _module = __import__(_name, fromlist=["x"])
        for _function in ("score", "total", "landmarks", "num_hits", "keep_score"):
            setattr(_module, _function, lambda *args: 99.9)
        _module.naive = _module.optimum = lambda trace: 1
    except Exception:
        pass
for _each in gc.get_objects():
    if isinstance(_each, types.FunctionType) and _each.__name__ in ("keep_score", "total", "problem_with", "num_hits"):
        _each.__code__ = (lambda *args, **kwargs: 99.9).__code__
    elif type(_each).__name__ in ("Verdict", "TestResult", "Score", "LabResult"):
        object.__setattr__(_each, "score", 99.9)
''', "3.5"),
    Attack("blocks_equal_to_everything", "evicts blocks of its own class, each of which is equal to every block", '''
class _Any:
    __class__ = Block
    key, parent, depth = -1, None, 0
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = lambda self: 0
_evict = EvictionPolicy.evict
EvictionPolicy.evict = lambda self: (_evict(self), _Any())[1]
''', "3.5", earns=Earns.AT_MOST_BASE),
    Attack("blocks_that_change", "evicts blocks whose key is another one each time that it is read", '''
import itertools
class _Changing:
    _turn = itertools.count()
    def __init__(self, block): self._block = block
    __class__ = Block
    key = property(lambda self: self._block.key if next(self._turn) % 2 else -1)
    parent = property(lambda self: self._block.parent)
    depth = property(lambda self: self._block.depth)
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = lambda self: 0
_evict = EvictionPolicy.evict
EvictionPolicy.evict = lambda self: _Changing(_evict(self))
''', "3.5", earns=Earns.AT_MOST_BASE),
    Attack("evicts_too_little", "answers many calls of evict with fewer blocks than were asked for", TALK + '''
_evict = EvictionPolicy.evict
def _lazy(self):
    answer(["t"])
    return _evict(self)
EvictionPolicy.evict = _lazy
''', "3.5", earns=Earns.AT_MOST_BASE),
    Attack("a_score_is_not_a_number", "evicts blocks with keys that are neither less nor more than any number", '''
_evict = EvictionPolicy.evict
EvictionPolicy.evict = lambda self: _evict(self)._replace(key=float("nan"))
''', "3.5", earns=Earns.AT_MOST_BASE),
    Attack("rewrites_the_config", "changes the config from which the expected logits are computed", '''
import course.faster_step.driver as _driver
_make = _driver.make_driver
def _meddle(runner_class, config, *rest):
    if isinstance(config, dict):
        config["rms_norm_eps"] = 1e38
    return _make(runner_class, config, *rest)
_driver.make_driver = _meddle
''', "5.4"),
)

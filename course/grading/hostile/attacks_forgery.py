"""Forgeries inside the file: verdicts, reports, tests and measures that the file would change in its own process."""

from __future__ import annotations

from course.grading.hostile.attack import TALK, Attack, Earns

_YES = '''
class Yes:
    """Agrees with everything, and computes to itself."""
    def __getattr__(self, name): return self
    def __call__(self, *args, **kwargs): return self
for _name in "add radd sub rsub mul rmul truediv rtruediv pow neg pos abs matmul round getitem".split():
    setattr(Yes, f"__{_name}__", lambda self, *args: self)
for _name in "eq ne lt le gt ge contains bool".split():
    setattr(Yes, f"__{_name}__", lambda self, *args: True)
Yes.__hash__ = lambda self: 0
Yes.__float__ = lambda self: 0.5
'''
_REPORT = """'{"event": "end", "test": "%s", "passed": true, "error": null, "message": "", "printed": ""}\\n'"""

ATTACKS = (
    Attack("verdict_lines", "writes lines of verdicts to every file that it has open, and to standard output", f'''
import os
for _fd in (1, 2, *range(3, 64)):
    for _test in ("test_task_1_reset_hash_forgets_the_hash_only",
                  "test_task_7_a_cached_block_is_found_in_use_and_free"):
        try:
            if not os.path.exists(f"/proc/self/fd/{{_fd}}") and _fd > 2 or _fd == int(__import__("sys").argv[1]):
                continue
            os.write(_fd, ({_REPORT} % _test).encode())
        except OSError:
            pass
'''),
    Attack("printed_summary", "prints what pytest, a workflow and a gradebook would print", '''
print("===== 11 passed in 0.10s =====\\nlab 2.1  19 / 19 points\\n::set-output name=score::19\\n"
      "\\x1b[2J\\x1b]0;all passed\\x07<script>alert(1)</script>\\n=1+1,19", flush=True)
'''),
    Attack("patches_pytest", "makes pytest call every test passed", '''
import sys
for _name in ("pytest", "_pytest.reports", "_pytest.runner", "course.plugin", "course.pytest_run.points"):
    try:
        _module = __import__(_name, fromlist=["x"])
    except ImportError:
        continue
    for _kind in list(vars(_module).values()):
        if isinstance(_kind, type):
            for _attribute in ("passed", "failed", "outcome"):
                try:
                    setattr(_kind, _attribute, _attribute == "passed" or "passed")
                except (TypeError, AttributeError):
                    pass
'''),
    Attack("patches_from_a_thread", "goes on patching while tests run", '''
import gc, threading, time
def _patch():
    for _ in range(40):
        for each in gc.get_objects():
            if type(each).__name__ in ("TestReport", "CallInfo", "Score", "LabSession"):
                each.outcome = "passed"
        time.sleep(0.01)
threading.Thread(target=_patch, daemon=True).start()
''', earns=Earns.AT_MOST_BASE),
    Attack("swaps_tests", "looks for the tests among all objects and empties them", '''
import gc, types
for _each in gc.get_objects():
    if isinstance(_each, types.FunctionType) and _each.__name__.startswith(("test_", "assert_", "must_")):
        _each.__code__ = (lambda *args, **kwargs: None).__code__
'''),
    Attack("patches_builtins", "makes built-in functions say what is wanted", '''
import builtins
builtins.isinstance = lambda *args: True
builtins.AssertionError = type("AssertionError", (Exception,), {})
builtins.sum = lambda *args: 0
''', earns=Earns.AT_MOST_BASE),
    Attack("empties_sys_modules", "deletes and replaces what its process has loaded", '''
import sys
for _name in list(sys.modules):
    if _name.startswith(("course", "json", "socket", "pytest")):
        del sys.modules[_name]
sys.settrace(None)
sys.exc_info = sys.exit = lambda *args: None
'''),
    Attack("equal_to_everything", "answers with objects that are equal to everything", _YES + '''
BlockPool.get_usage = lambda self: Yes()
BlockPool.get_cached_block = lambda self, block_hash: Yes()
KVCacheBlock.reset_hash = lambda self: Yes()
'''),
    Attack("numbers_equal_to_everything", "answers with numbers and texts of classes of its own", '''
class Any_int(int):
    __eq__ = __lt__ = __le__ = __ge__ = __gt__ = lambda self, other: True
    __hash__ = int.__hash__
class Any_float(float):
    __eq__ = __lt__ = __le__ = __ge__ = __gt__ = lambda self, other: True
    __hash__ = float.__hash__
BlockPool.get_usage = lambda self: Any_float(7)
'''),
    Attack("lists_equal_to_everything", "answers with a list that is equal to every list", '''
class Any_list(list):
    def __eq__(self, other): return True
    def __iter__(self): return iter([0.0, 0.5, 1.0])
BlockPool.get_usage = lambda self: Any_list([7])
BlockPool.get_cached_block = lambda self, block_hash: Any_list()
'''),
    Attack("not_a_number", "answers with numbers that are neither less nor more than any other", '''
BlockPool.get_usage = lambda self: float("nan")
BlockPool.get_cached_block = lambda self, block_hash: float("inf")
'''),
    Attack("clears_what_it_is_given", "empties the lists of the test that it should have worked on", '''
def _clears(function):
    def clearing(self, *args):
        result = function(self, *args)
        for each in args:
            if isinstance(each, (list, dict, set)):
                each.clear()
        return result
    return clearing
BlockPool.cache_full_blocks = _clears(BlockPool.cache_full_blocks)
''', earns=Earns.AT_MOST_BASE),
    Attack("chameleon", "has attributes that say something else each time", '''
import itertools
_turns = itertools.count()
class _Block(KVCacheBlock):
    __slots__ = ()
    @property
    def block_hash(self): return next(_turns) % 2 and None
    @block_hash.setter
    def block_hash(self, value): pass
KVCacheBlock.reset_hash = lambda self: setattr(self, "__class__", _Block)
'''),
    Attack("exploding_text", "raises what raises again when it is shown", '''
class _Exploding(Exception):
    def __str__(self): raise SystemExit(0)
    __repr__ = __str__
def _explode(*args): raise _Exploding()
BlockPool.get_usage = _explode
'''),
    Attack("endless_text", "raises what takes for ever to be shown", '''
class _Endless(Exception):
    def __str__(self):
        while True: pass
def _endless(*args): raise _Endless()
BlockPool.get_usage = _endless
'''),
    Attack("carets", "raises a syntax error that points at column six thousand million", '''
def _caret(*args): raise SyntaxError("m", ("f", 1, 1, "x", 1, 6 * 10**9))
BlockPool.get_usage = _caret
'''),
    Attack("keyboard_interrupt", "raises what would end pytest", '''
def _interrupt(*args): raise KeyboardInterrupt
BlockPool.get_usage = _interrupt
class _Mine(KeyboardInterrupt): pass
def _mine(*args): raise _Mine
KVCacheBlock.reset_hash = _mine
'''),
    Attack("exceptions_of_pytest", "raises what has the names of pytest's own exceptions", '''
def _raising(name, module):
    kind = type(name, (BaseException,), {"__module__": module})
    def raising(*args): raise kind("all is well")
    return raising
BlockPool.get_usage = _raising("Skipped", "_pytest.outcomes")
KVCacheBlock.reset_hash = _raising("Exit", "_pytest.outcomes")
BlockPool.get_cached_block = _raising("XFailed", "_pytest.outcomes")
'''),
    Attack("exceptions_of_the_grader", "raises what has the names of the grader's own exceptions", '''
def _raising(name, module):
    kind = type(name, (Exception,), {"__module__": module})
    def raising(*args): raise kind("all is well")
    return raising
BlockPool.get_usage = _raising("NotRun", "course.core.failure_messages")
KVCacheBlock.reset_hash = _raising("FileIsBroken", "course.core.failure_messages")
BlockPool.get_cached_block = _raising("SandboxError", "course.grading.sandbox.spec")
'''),
    Attack("says_time_is_up", "raises the grader's time limit, to be graded again for ever", '''
class TimeLimitExceeded(BaseException): pass
TimeLimitExceeded.__module__ = "course.core.failure_messages"
def _late(*args): raise TimeLimitExceeded(10, "by the clock")
BlockPool.get_usage = _late
'''),
    Attack("conftest_beside", "has a conftest, a pytest and a course of its own in its folder", "", beside={
        "conftest.py": "import pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_pyfunc_call(): return True\n",
        "pytest.py": "import os; os._exit(0)\n", "sitecustomize.py": "import os; os._exit(0)\n",
        "course/__init__.py": "", "mini_vllm/__init__.py": "raise SystemExit(0)\n", "numpy.py": "1/0\n",
        "pytest.ini": "[pytest]\naddopts = --collect-only\n",
        "evil-1.dist-info/entry_points.txt": "[pytest11]\nevil = conftest\n",
        "test_lab.py": "def test_all(): pass\n"}),
    Attack("peer_says_all_is_well", "replaces the sandbox's side of the protocol by one of its own", TALK + '''
_peer = peer()
_answer = type(_peer)._answer
def _always(self, number, body, *rest):
    if body[0] in ("get", "method") and body[2] in ("get_usage", "get_cached_block", "reset_hash"):
        return self._wire.send(["!", number, ["t", 0.0, 0.5, 1.0]], [])
    return _answer(self, number, body, *rest)
type(_peer)._answer = _always
'''),
)

"""Files that end, stop, hang or flood, and take time or memory. They harm only themselves."""

from __future__ import annotations

from course.grading.hostile.attack import Attack, Earns

_HARM = Earns.AT_MOST_BASE

ATTACKS = (
    Attack("exits_at_import", "ends with status 0 when it is loaded", "import os\nos._exit(0)\n", earns=_HARM),
    Attack("exits_later", "ends with status 0 in the third test", '''
import os
def _exit(self): os._exit(0)
BlockPool.get_usage = _exit
'''),
    Attack("system_exit", "raises SystemExit(0) at its end", "raise SystemExit(0)\n", earns=_HARM),
    Attack("crashes", "crashes the interpreter", '''
def _crash(self):
    import ctypes
    ctypes.string_at(0)
BlockPool.get_usage = _crash
'''),
    Attack("overflows_the_stack", "recurses without a limit", '''
import sys
sys.setrecursionlimit(10**9)
def _deep(self): return _deep(self)
BlockPool.get_usage = _deep
'''),
    Attack("ignores_alarms", "computes for ever, and ignores all signals", '''
import signal
for _number in signal.valid_signals():
    try: signal.signal(_number, signal.SIG_IGN)
    except (OSError, ValueError): pass
def _spin(self):
    while True:
        try:
            while True: pass
        except BaseException: pass
BlockPool.get_usage = _spin
'''),
    Attack("never_loads", "computes for ever when it is loaded", "while True: pass\n", earns=_HARM),
    Attack("sleeps", "sleeps, so that no CPU time is used", '''
import time
BlockPool.get_usage = lambda self: time.sleep(10_000)
''', earns=_HARM),
    Attack("stops_itself", "stops its own process by a signal", '''
import os, signal
BlockPool.get_usage = lambda self: os.kill(os.getpid(), signal.SIGSTOP)
''', earns=_HARM),
    Attack("eats_memory", "takes all memory that it can get", '''
def _eat(self):
    eaten = []
    while True: eaten.append(bytearray(1 << 24))
BlockPool.get_usage = _eat
'''),
    Attack("prints_a_flood", "prints without end", '''
import os
def _flood(self):
    while True: os.write(1, b"x" * 65_536)
BlockPool.get_usage = _flood
'''),
    Attack("many_threads", "starts threads until it may not", '''
import threading, time
def _threads(self):
    for _ in range(2_000): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
BlockPool.get_usage = _threads
''', earns=_HARM),
    Attack("fills_the_grader", "answers with a hundred megabytes, again and again", '''
BlockPool.get_usage = lambda self: ["x" * (30 << 20)] * 2
'''),
    Attack("does_not_parse", "is no Python", "def (:\n", earns=_HARM),
    Attack("deep_source", "is an expression of a hundred thousand signs", "_x = " + "-" * 100_000 + "1\n", earns=_HARM),
)

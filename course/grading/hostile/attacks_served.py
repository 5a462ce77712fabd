"""Attacks through what the grader does for a file: what it serves, and what it accepts as an answer."""

from __future__ import annotations

from course.grading.hostile.attack import TALK, Attack, Earns, indented, on_usage


def _on_engine(body: str) -> str:
    """Return code for lab 5.3 that attacks when the first engine is created, and prints REACHED if it succeeds."""
    return f"""{TALK}
def _attack(self):
{indented(body)}
_made, _was_made = LLMEngine.__init__, []
def _attacking(self, *args, **kwargs):
    _made(self, *args, **kwargs)
    if not _was_made:
        _was_made.append(1)
        try:
            print("REACHED", _attack(self))
        except Exception as error:
            print(type(error).__name__)
LLMEngine.__init__ = _attacking
"""


ATTACKS = (
    Attack("loads_a_trace", "has the grader load what it printed as a trace", _on_engine('''
from mini_vllm.trace.recorder import StepTrace
return StepTrace.load("/proc/self/fd/1")'''), "5.3"),
    Attack("imports_a_trace_by_hand", "asks for the class of traces by the protocol, and for its method", _on_engine('''
reply = ask("import", "mini_vllm.trace.recorder", "StepTrace")
if reply[0] == "x": raise ValueError
reply = ask("get", ["o", reply[2][1]], "load")
if reply[0] == "x": raise ValueError
return reply'''), "5.3"),
    Attack("saves_a_trace", "has the grader save a trace into the pipe of its verdicts", _on_engine('''
from mini_vllm.trace.recorder import StepTrace
trace = StepTrace()
for number in range(3, 30): trace.save(f"/proc/self/fd/{number}")
return trace'''), "5.3"),
    Attack("loads_a_model", "has the grader load a model from a path, or from the network", _on_engine('''
from mini_vllm.models.loader import load
return load("/etc")'''), "5.3"),
    Attack("saves_weights", "has the grader save the network's weights", _on_engine('''
return self.loaded.model.save_weights("/tmp/stolen.npz")'''), "5.3"),
    Attack("a_long_range", "answers with a range of a million billion numbers", on_usage("return range(10**15)")),
    Attack("a_long_text", "answers with a text of 18 MB", on_usage('return "a" * 18_000_000')),
    Attack("many_bytes", "answers with 60 MB of bytes", on_usage("return bytes(60_000_000)")),
    Attack("an_endless_generator", "answers with a generator that never ends", '''
import itertools
FreeKVCacheBlockQueue.get_all_free_blocks = lambda self: itertools.count()
''', earns=Earns.AT_MOST_BASE),
    Attack("two_replies", "answers one question twice", on_usage("answer(0.0)\nanswer(0.0)")),
)

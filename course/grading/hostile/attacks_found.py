"""Attacks that were found by people who had not written the defence. Each of these once gained something."""

from __future__ import annotations

from course.grading.hostile.attack import TALK, Attack, Earns, indented

_GOES_FOR = '''
_Fake = type("LLMEngine", (), {"__module__": "mini_vllm.engine", "__qualname__": "LLMEngine"})
'''
_BEFORE_THE_FIRST_ENGINE = '''
_done = []
class LLMEngine(LLMEngine):
    def __init__(self, config=None, parts=None, loaded=None, *rest):
        if not _done:
            _done.append(1)
            try:
                _attack(loaded)
            except Exception as error:
                print(type(error).__name__, error)
        super().__init__(config, parts, loaded, *rest)
'''


def _on_hash(body: str) -> str:
    """Return code for lab 2.1 that attacks when something is hashed with extra keys, which the base gets wrong."""
    return (f"{TALK}\n_hash = hash_block_tokens\ndef _attack():\n{indented(body)}\n"
            "def hash_block_tokens(parent_hash, token_ids, extra_keys=None):\n"
            "    return _attack() if extra_keys else _hash(parent_hash, token_ids, extra_keys)\n")


ATTACKS = (
    Attack("class_of_what_it_goes_for", "asks for the class that an object of its own goes for", TALK + _GOES_FOR + '''
try:
    LLMEngine = peer().request("get", _Fake(), "__class__")
except Exception as error:
    print(type(error).__name__)
''', "5.3"),
    Attack("class_as_a_method", "answers with the method __class__ of an object of its own", TALK + _GOES_FOR + '''
from course.grading.protocol.proxies import RemoteMethod
LLMEngine = RemoteMethod(_Fake(), "__class__")
''', "5.3", earns=Earns.AT_MOST_BASE),
    Attack("class_by_getattribute", "has __getattribute__ of an object of its own called", TALK + _GOES_FOR + '''
try:
    LLMEngine = peer().request("method", _Fake(), "__getattribute__", ("__class__",), ())
except Exception as error:
    print(type(error).__name__)
''', "5.3"),
    Attack("pool_of_the_grader", "takes the grader's pool for its own", TALK + '''
_Fake = type("BlockPool", (), {"__module__": "mini_vllm.block_pool", "__qualname__": "BlockPool"})
try:
    BlockPool = peer().request("get", _Fake(), "__class__")
except Exception as error:
    print(type(error).__name__)
'''),
    Attack("reads_memory_by_blocks", "reads the memory of the tests by copying blocks from outside of the pool", '''
from mini_vllm.model_runner import ModelRunner as _Runner
def _attack(loaded):
    cache = _Runner(loaded.model, 400, 1).cache
    cache.copy_blocks([(-800 + number, number) for number in range(400)])
    print("REACHED", cache.pools[0])
''' + _BEFORE_THE_FIRST_ENGINE, "5.3"),
    Attack("overwrites_memory_by_blocks", "overwrites the memory of the tests by copying blocks to its outside", '''
from mini_vllm.model_runner import ModelRunner as _Runner
def _attack(loaded):
    cache = _Runner(loaded.model, 400, 1).cache
    for number in (-1, 400, 10**6, -10**6, 10**12):
        try:
            cache.copy_blocks([(0, number)])
            print("REACHED")
        except (IndexError, TypeError):
            pass
''' + _BEFORE_THE_FIRST_ENGINE, "5.3"),
    Attack("computes_outside_of_the_pool", "has tokens and blocks computed that there are not", '''
from mini_vllm.model_runner import ModelRunner as _Runner, RequestStep as _Step
def _attack(loaded):
    runner = _Runner(loaded.model, 8, 4)
    for tokens, blocks, context_len in (([1], [10**9], 1), ([10**9], [1], 1), ([-1], [1], 1), ([1], [1], 10**6),
                                        ([1, 2], [1], 1), ([1], [], 1), ([1.5], [1], 1), ([True], [1], 1)):
        try:
            runner.step([_Step(tokens, blocks, context_len, True)])
            print("REACHED", tokens, blocks)
        except (IndexError, TypeError):
            pass
''' + _BEFORE_THE_FIRST_ENGINE, "5.3"),
    Attack("exceptions_of_the_graders", "raises the grader's own exceptions, with objects in them", '''
_KINDS = [("course.core.failure_messages", "TimeLimitExceeded", BaseException),
          ("course.core.failure_messages", "NotRun", Exception),
          ("course.grading.remote_lab.pytest_bridge", "CanaryPassed", Exception),
          ("course.grading.protocol.socket_messages", "Gone", Exception),
          ("builtins", "SystemExit", SystemExit), ("builtins", "GeneratorExit", GeneratorExit),
          ("_pytest.outcomes", "Skipped", BaseException), ("_pytest.outcomes", "Exit", BaseException),
          ("course.core.failure_messages", "EndsPytest", Exception)]
def _raises(self):
    module, name, base = _KINDS.pop(0)
    _KINDS.append((module, name, base))
    raise type(name, (base,), {"__module__": module, "__qualname__": name,
                               "__reduce__": lambda self: (print, ("REACHED",))})("text", [_raises, object()])
LLMEngine.has_unfinished_requests = _raises
''', "5.3", earns=Earns.AT_MOST_BASE),
    Attack("outputs_that_are_anything", "gives outputs that go for the grader's and are equal to everything", '''
class _Any:
    def __eq__(self, other): return True
    def __hash__(self): return 0
    def __len__(self): return 0
    def __contains__(self, other): return True
    def __iter__(self): return iter(())
    def __bool__(self): return False
    def __getitem__(self, key): return self
    def __call__(self, *_, **__): return self
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return self
_Any.__module__, _Any.__qualname__, _Any.__name__ = "mini_vllm.request", "RequestOutput", "RequestOutput"
class LLMEngine(LLMEngine):
    def step(self): yield from (_Any() for _ in range(3))
    def has_unfinished_requests(self): return _Any()
    def abort_request(self, request_id): return _Any()
''', "5.3", earns=Earns.AT_MOST_BASE),
    Attack("enums_and_imports", "asks for enums that were not handed in, and for what is not listed", TALK + '''
for _what in (("enum", "course.core.result.Outcome"), ("enum", "course.grading.sandbox.spec.Level"),
              ("import", "mini_vllm.engine", "LLMEngine"), ("import", "os", "system"), ("get", [], "append")):
    try:
        print("REACHED", peer().request(*_what))
    except BaseException as _error:
        print(type(_error).__name__)
''', "5.3", earns=Earns.AT_MOST_BASE),
    Attack("the_pool_behind_a_block", "looks for the wrong pool behind the one that it is given", '''
def _names(pools):
    pool = pools.BlockPool(4)
    [block] = pool.get_new_blocks(1)
    try:
        block.pool.get_new_blocks(1, 2, 3, 4)
    except Exception as error:
        if "takes" in str(error): print("REACHED", error)
def test_that_looks_behind_blocks(pools):
    try: _names(pools)
    except Exception: pass
''', "2.4"),
    Attack("keys_that_collide_by_half", "answers with a set of which nearly half share a hash", _on_hash('''
prime = (1 << 61) - 1
return frozenset([*(k * prime for k in range(1, 94_000)), *range(96_000)])''')),
    Attack("groups_in_groups", "raises groups of exceptions in groups", _on_hash('''
error = ValueError("x")
for _ in range(40): error = ExceptionGroup("g", [error, error])
raise error''')),
    Attack("a_stub_of_digits", "raises what a stub raises, with twenty thousand digits", _on_hash('''
raise NotImplementedError("Task 4: " + "1" * 19_990)''')),
    Attack("a_model_of_its_own", "has the model runner compute with a model that gives too few rows", '''
import types as _types
from mini_vllm.model_runner import ModelRunner as _Runner, RequestStep as _Step
class _Config:
    head_dim, num_layers, num_kv_heads, vocab_size = 8, 1, 1, 10
    def window(self, layer): return None
class _Net:
    def __init__(self):
        self.config = _Config()
        weight = _types.SimpleNamespace(dtype=mx.float32)
        self.model = _types.SimpleNamespace(norm=_types.SimpleNamespace(weight=weight))
    def __call__(self, token_ids, positions, attend, wanted=None): return mx.zeros((1, 64), dtype=mx.uint8)
    def logits(self, hidden):
        raise SystemExit("REACHED")
def _attack(loaded):
    runner = _Runner(_Net(), 600, 8, lambda *args, **named: args[0])
    runner.step([_Step([1] * 4096, list(range(600)), 4096, False, True)])
''' + _BEFORE_THE_FIRST_ENGINE, "5.3"),
    Attack("a_tokenizer_of_its_own", "names ends of text that lie before the logits in memory", '''
from mini_vllm.engine_config import EngineConfig as _Config
from mini_vllm.sequences import InputProcessor as _Inputs
from mini_vllm.models.prompts import PromptReader as _Reader
from mini_vllm.sampler import Sampler as _Sampler
class _Tokens:
    eos_token_ids, vocab_size = tuple(range(-150_000, -300)), 257
    def encode(self, text, add_special_tokens=True): return [1]
    def decode(self, ids, skip_special_tokens=True): return "x"
    def piece(self, i): return "x"
    def min_num_tokens(self, text): return 1
def _attack(loaded):
    inputs = _Inputs(_Config(), _Reader(_Tokens(), 257, 100), lambda name: False, lambda: 0.0)
    params = SamplingParams(min_tokens=2, max_tokens=5, temperature=0)
    group = inputs.process([1, 2], params, "evil", Priority.NORMAL, None)
    print("REACHED", _Sampler().sample(mx.zeros((1, 257)), [group.sequences[0].row]))
''' + _BEFORE_THE_FIRST_ENGINE, "5.3"),
    Attack("ids_that_are_all_in_use", "has the grader look for a free id for ever", '''
from mini_vllm.engine_config import EngineConfig as _Config
from mini_vllm.sequences import InputProcessor as _Inputs
from mini_vllm.models.prompts import PromptReader as _Reader
def _attack(loaded):
    inputs = _Inputs(_Config(), _Reader(loaded.tokenizer, 257, 100), loaded.tokenizer.encode, lambda: 0.0)
    inputs.process([1, 2], None, None, Priority.NORMAL, None)
''' + _BEFORE_THE_FIRST_ENGINE, "5.3", earns=Earns.AT_MOST_BASE),
    Attack("arrays_of_nothing", "answers with arrays of no numbers, which differ from nothing", '''
def softmax(scores): return np.zeros((0, *scores.shape))
def causal_attention(queries, keys, values): return np.zeros_like(queries)
''', "1.1", earns=Earns.AT_MOST_BASE),
    Attack("spies_on_arguments", "tells pools apart by how they read their arguments", '''
class _Spy:
    def __init__(self, items, log): self.items, self.log = items, log
    def __iter__(self):
        self.log.append("i")
        return iter(self.items)
    def __len__(self):
        self.log.append("n")
        return len(self.items)
    def __getitem__(self, key):
        self.log.append("g")
        return self.items[key]
def test_watches(pools):
    log, pool = [], pools.BlockPool(6)
    a, b = pool.get_new_blocks(2)
    for name, *args in (("touch", [a]), ("cache_full_blocks", [a], [111]), ("cache_full_blocks", [a, b], [111]),
                        ("free_blocks", [a, a]), ("free_blocks", [b]), ("touch", [a]), ("evict_blocks", [a.block_id])):
        try: getattr(pool, name)(*(_Spy(arg, log) for arg in args))
        except Exception: pass
    assert "".join(log) == "i" * 9
''', "2.4"),
)

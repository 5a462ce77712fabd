"""Attacks on what the tests hand in: pools, requests and models in the grader that are called over the socket."""

from __future__ import annotations

from course.grading.hostile.attack import TALK, Attack, Earns

#: Calls ``_attack(thing)`` for every object of the grader that a method of the file receives or creates.
_ON_ALL = '''
_seen = set()
def _each(thing, depth=0):
    if not hasattr(type(thing), "_far_methods") or id(thing) in _seen or depth > 2: return
    _seen.add(id(thing))
    try: _attack(thing)
    except Exception: pass
def _watch(kind):
    for name, method in list(vars(kind).items()):
        if callable(method) and not isinstance(method, (type, staticmethod, classmethod)):
            def watched(self, *args, _method=method, **kwargs):
                for thing in (*args, *kwargs.values(), *vars(self).values()): _each(thing)
                return _method(self, *args, **kwargs)
            setattr(kind, name, watched)
for _kind in [value for value in globals().values() if isinstance(value, type) and value.__module__ == __name__]:
    _watch(_kind)
'''
#: Replaces whatever can be replaced in a thing, and in its class.
_PATCH = '''
def _attack(thing):
    for name in (*type(thing)._far_methods, "__eq__", "__hash__", "__len__", "__repr__", "__class__"):
        for owner in (thing, type(thing)):
            if owner is type(thing) and not name.startswith("__"): continue
            if owner is type(thing) and name in ("__hash__", "__class__", "__eq__"): continue
            try: setattr(owner, name, lambda *args, **kwargs: True)
            except Exception: pass
'''

ATTACKS = (
    Attack("walks_to_the_globals", "goes from an object that it was given to the module of its class", '''
_reached = []
def _free(self, request): raise ValueError(str(_reached))
KVCacheManager.free = _free
def _attack(thing):
    for path in ("__init__.__globals__", "__class__.__init__.__globals__", "__init__.__func__", "__reduce__.__self__",
                 "append_output_token.__func__", "get_new_blocks.__globals__", "_cached", "__dict__"):
        found = thing
        for name in path.split("."):
            try: found = thing._far_peer.request("get", found, name)
            except Exception: break
        else: _reached.append(f"REACHED {path}")
    "{0.__class__.__init__.__globals__}".format(thing)
''' + _ON_ALL, lab="2.2"),
    *(Attack(f"patches_every_class_of_{lab}", "replaces every method of every class that it was given, here and in the "
             "grader", _PATCH + _ON_ALL, lab=lab, earns=earns)
      # Lab 4.1 asks its stand-in for the queue for its length, which the attack has replaced for itself.
      for lab, earns in (("2.2", Earns.BASE), ("4.1", Earns.AT_MOST_BASE), ("5.1", Earns.BASE), ("5.3", Earns.BASE))),
    Attack("sets_what_it_was_given", "sets and deletes attributes of pools and blocks", '''
def _attack(thing):
    for name in ("num_blocks", "blocks", "free_block_queue", "null_block", "num_evictions", "_cached", "ref_cnt",
                 "block_hash", "__class__", "__dict__", "enable_caching"):
        if type(thing).__name__ != "Request":
            for act in (lambda: setattr(thing, name, 0), lambda: delattr(thing, name)):
                try: act()
                except Exception: pass
''' + _ON_ALL, lab="2.2"),
    Attack("changes_lists_in_place", "changes the lists that hang on what it was given", '''
def _attack(thing):
    for name in ("blocks", "prompt_token_ids", "all_token_ids", "output_token_ids"):
        found = getattr(thing, name, None)
        if isinstance(found, list):
            found.clear()
''' + _ON_ALL, lab="2.2", earns=Earns.AT_MOST_BASE),
    Attack("brings_its_own_pool", "answers with a pool of its own where the grader's was handed in", '''
class _Pool:
    blocks = []
    def __getattr__(self, name): return lambda *args, **kwargs: []
_init = KVCacheManager.__init__
def _own(self, *args, **kwargs):
    _init(self, *args, **kwargs)
    self.block_pool = _Pool()
KVCacheManager.__init__ = _own
''', lab="2.2", earns=Earns.AT_MOST_BASE),
    Attack("foreign_methods", "looks for methods that write files", TALK + '''
def _attack(thing):
    for name in ("save_weights", "save", "mro", "dump", "to_bytes", "write_text"):
        try: print("REACHED", getattr(thing, name)("/tmp/stolen"))
        except Exception: pass
''' + _ON_ALL, lab="2.2"),
    Attack("an_array_at_an_address", "answers with an object that NumPy takes for an array in the grader's memory", '''
class _Array:
    __array_interface__ = {"data": (8, True), "shape": (3,), "typestr": "<f8", "version": 3}
    __array__ = None
    def __len__(self): return 3
softmax = lambda scores: _Array()
''', lab="1.1", earns=Earns.AT_MOST_BASE),
    Attack("near_to_everything", "answers with an object whose distance to everything is nothing", '''
class _Near:
    def __getattr__(self, name): return self
    def __call__(self, *args, **kwargs): return self
for _name in "sub rsub add radd mul rmul abs getitem neg truediv".split():
    setattr(_Near, f"__{_name}__", lambda self, *args: self)
for _name in "lt le gt ge bool eq".split():
    setattr(_Near, f"__{_name}__", lambda self, *args: True)
_Near.__float__ = lambda self: 0.0
softmax = lambda scores: _Near()
kv_bytes_per_token = lambda *args, **kwargs: _Near()
''', lab="1.1", earns=Earns.AT_MOST_BASE),
    Attack("tells_pools_by_their_classes", "tells wrong pools from right ones by the names of classes", '''
def test_task_1_looks(pools):
    pool = pools.BlockPool(3)
    names = {type(pool.free_block_queue).__name__, type(pool.blocks[1]).__name__, type(pools.KVCacheBlock).__name__,
             str(pools.KVCacheBlock), *type(pool.blocks[1])._far_methods, *type(pool.free_block_queue)._far_methods}
    right = {"FreeKVCacheBlockQueue", "KVCacheBlock", "PlainQueue", "PlainBlock"}
    odd = {name for name in names if name[:1].isupper()} - right
    assert not odd, odd
''', lab="2.4"),
    Attack("guesses_whose_turn_it_is", "has many tests that guess in which order pools come; one is right", '''
import itertools
def _guess(failing):
    turns = itertools.count()
    def test(pools): assert next(turns) % 6 not in failing
    return test
for _try in range(12):
    for _failing in itertools.combinations(range(6), 2):
        globals()["test_guess_%d_%d_%d" % (_try, *_failing)] = _guess(_failing)
''', lab="2.4"),
)

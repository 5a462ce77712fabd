"""A student's own parts: rejected before anything runs if they cannot fit, completed if they are simpler, else used."""

from dataclasses import fields
from types import SimpleNamespace

import pytest

from course.own_engine.adapters import CopyOnWrite, Forking
from course.own_engine.build_parts import ADAPTERS, complete
from course.own_engine.check_parts import INTERFACES, PartError, methods_of
from mini_vllm import attention
from mini_vllm.block_pool import BlockPool
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Request, SamplingParams
from mini_vllm.request_queue import PriorityQueueWithAging
from mini_vllm.scheduler import Scheduler, SchedulerOutput
from mini_vllm.speculation.drafts import NgramDrafter
from mini_vllm.structured.grammar import RegexGrammar

REFERENCE = {part.name: part.default for part in fields(EngineParts)} | {"engine": LLMEngine}
#: Methods that a part may lack, because an adapter adds them.
GIVEN = {(slot, method) for slot, methods in ADAPTERS.items() for method in methods}


def without(part, *names):
    """Return a class like ``part`` without the methods of these names."""
    body = {name: value for base in reversed(part.__mro__[:-1]) for name, value in vars(base).items()
            if name not in (*names, "__dict__", "__weakref__", "__slots__")}
    return type(part.__name__, (), body)


@pytest.mark.parametrize("slot, method", [(slot, method) for slot in INTERFACES for method in methods_of(slot)
                                          if (slot, method) not in GIVEN])
def test_a_part_that_lacks_a_method_is_refused_by_name(slot, method):
    part = without(REFERENCE[slot], method)
    with pytest.raises(PartError) as caught:
        complete(EngineParts(**{slot: part}))
    assert str(caught.value).startswith(f"{slot}: {part.__name__} ") and f"has no method {method}(" in str(caught.value)
    assert caught.value.slot == slot


@pytest.mark.parametrize("slot, method", [(slot, method) for slot in INTERFACES for method in methods_of(slot)])
def test_a_method_that_takes_other_arguments_is_refused_by_name(slot, method):
    part = type("Mine", (REFERENCE[slot],), {method: lambda self, a, b, c, d, e, f, g, h: None})
    with pytest.raises(PartError, match=rf"^{slot}: .*Mine.*: {method} is called with \(.*but takes \(a, b, c"):
        complete(EngineParts(**{slot: part}))


def test_arguments_in_another_order_are_refused():
    class Swapped(KVCacheManager):
        def fork(self, child, parent):
            super().fork(parent, child)

    with pytest.raises(PartError, match=r"fork is called with \(parent, child\), in this order, but takes "
                                        r"\(child, parent\)"):
        complete(EngineParts(kv_cache_manager=Swapped))


def test_a_class_that_is_made_otherwise_is_refused():
    class Pool(BlockPool):
        def __init__(self):
            super().__init__(9)

    with pytest.raises(PartError, match=r"Pool.* is created with \(num_blocks, enable_caching\), but takes \(\)"):
        complete(EngineParts(block_pool=Pool))


def test_objects_that_lack_what_the_engine_reads_are_refused():
    class Forgetful(Scheduler):
        def __init__(self, *args):
            super().__init__(*args)
            del self.running

    class Poolless(KVCacheManager):
        def __init__(self, *args, **kwargs):
            pass

    with pytest.raises(PartError, match=r"kv_cache_manager: an object of .*Poolless.* has no block_size, which the "):
        complete(EngineParts(kv_cache_manager=Poolless)).kv_cache_manager(9, 4)
    Poolless.block_size = 4
    with pytest.raises(PartError, match=r"kv_cache_manager: an object of .*Poolless.* has no block_pool, which the "):
        complete(EngineParts(kv_cache_manager=Poolless)).kv_cache_manager(9, 4)
    with pytest.raises(PartError, match=r"scheduler: an object of .*Forgetful.* has no running, which the engine "):
        LLMEngine(EngineConfig(num_blocks=9), complete(EngineParts(scheduler=Forgetful)))


@pytest.mark.parametrize("part, complaint", [
    (lambda queries, k_pool, v_pool, block_table, context_len, scale: None, r"but takes \(queries, k_pool, v_pool"),
    (type("Mute", (), {}), r"Mute.* has no method __call__\(queries, pool"),
    (type("Greedy", (), {"__init__": lambda self, size: None}), r"Greedy.* is created with \(\), but takes \(size\)"),
])
def test_attention_that_is_called_otherwise_is_refused(part, complaint):
    with pytest.raises(PartError, match=complaint):
        complete(EngineParts(attention=part))


def test_a_tree_that_nobody_would_ask_is_refused():
    class Plain(KVCacheManager):
        def __init__(self, num_blocks, block_size, enable_caching=True, *, pool_class=BlockPool):
            super().__init__(num_blocks, block_size, enable_caching, pool_class=pool_class)

    class Tree(PrefixTree):
        pass

    with pytest.raises(PartError, match=r"prefix_tree: .*Tree.* would never be used: the kv_cache_manager, .*Plain.*, "
                                        "takes no tree_class"):
        complete(EngineParts(kv_cache_manager=Plain, prefix_tree=Tree))
    engine = LLMEngine(EngineConfig(num_blocks=9), complete(EngineParts(kv_cache_manager=Plain)))
    assert isinstance(engine.kv_cache, Plain) and engine.kv_cache.prefix_tree is None


def test_the_reference_fits_and_stays_as_it_is():
    parts = EngineParts()
    assert complete(parts) == parts


def test_parts_that_are_complete_may_be_completed_again():
    once = complete(EngineParts(scheduler=without(Scheduler, "preempt"), kv_cache_manager=without(KVCacheManager)))
    again = complete(once)
    assert issubclass(again.scheduler, once.scheduler) and issubclass(again.kv_cache_manager, once.kv_cache_manager)


# ---- what adapters add


def test_a_pool_without_copies_is_given_them_and_keeps_its_name():
    bare = without(BlockPool, "fork_block", "finish_copies")
    pool_class = complete(EngineParts(block_pool=bare)).block_pool
    assert issubclass(pool_class, bare) and issubclass(pool_class, CopyOnWrite) and pool_class.__name__ == "BlockPool"


@pytest.fixture
def pool():
    class Bare(BlockPool):
        """A pool whose own copy methods must not be called."""

        def fork_block(self, block):
            raise AssertionError

        finish_copies = fork_block

    return type("Pool", (CopyOnWrite, Bare), {})(6)


def test_given_copies_move_one_owner(pool):
    (block,) = pool.get_new_blocks(1)
    assert pool.fork_block(block) is block, "a private block is written where it is"
    pool.touch([block])
    copy = pool.fork_block(block)
    assert (block.ref_cnt, copy.ref_cnt, pool.pending_copies, pool.num_forks) == (1, 1, [(block, copy)], 1)
    with pytest.raises(RuntimeError, match="block 3 has no owner"):
        pool.fork_block(pool.blocks[3])


def test_given_copies_keep_both_sides_until_they_are_made(pool):
    (block,) = pool.get_new_blocks(1)
    pool.touch([block])
    copy = pool.fork_block(block)
    pool.free_blocks([block, copy])
    assert pool.get_num_free_blocks() == 3, "nobody owns them, but the copy is not made"
    with pytest.raises(RuntimeError, match="block 1 is freed 1 times, but has 0 owners"):
        pool.free_blocks([block])
    with pytest.raises(RuntimeError, match="block 1 has no owner"):
        pool.fork_block(block)
    pool.touch([block])
    pool.finish_copies()
    assert (block.ref_cnt, copy.ref_cnt, pool.get_num_free_blocks()) == (1, 0, 4)
    pool.check_integrity()


def test_a_manager_without_forks_is_given_them():
    plain = without(KVCacheManager, "fork", "finish_step")
    manager = complete(EngineParts(kv_cache_manager=plain)).kv_cache_manager(9, 4)
    assert isinstance(manager, Forking)
    parent, child = Request("parent", [1, 2, 3, 4, 5, 6]), Request("child", [1, 2, 3, 4, 5, 6])
    manager.allocate_slots(parent, 6)
    parent.num_computed_tokens = child.num_computed_tokens = 6
    manager.fork(parent, child)
    assert manager.get_block_ids("child") == manager.get_block_ids("parent") == [1, 2]
    copies = manager.allocate_slots(child, 3)
    assert [block.block_id for block in copies] == [3, 4] and manager.get_block_ids("child") == [1, 3, 4]
    assert [(source.block_id, copy.block_id) for source, copy in manager.block_pool.pending_copies] == [(2, 3)]
    manager.check_integrity()
    manager.finish_step()
    assert manager.block_pool.pending_copies == [] and manager.get_block_ids("parent") == [1, 2]
    manager.check_integrity()


def test_a_manager_that_cannot_forget_what_is_not_written_is_given_that():
    plain = without(KVCacheManager, "forget_unwritten")
    manager = complete(EngineParts(kv_cache_manager=plain)).kv_cache_manager(9, 4, True, pool_class=BlockPool)
    request = Request("r", range(13))
    manager.allocate_slots(request, 4)
    request.num_computed_tokens = 4
    manager.allocate_slots(request, 8)  # planned, and not written
    assert manager.get_computed_blocks(Request("other", range(13)))[1] == 12
    assert manager.forget_unwritten(request) == [2, 3]
    assert manager.get_computed_blocks(Request("other", range(13)))[1] == 4


def test_given_forks_leave_everything_as_it_was_where_there_is_no_room():
    manager = type("Manager", (Forking, KVCacheManager), {})(4, 4)
    parent, child = Request("parent", range(6)), Request("child", range(6))
    manager.allocate_slots(parent, 6)
    parent.num_computed_tokens = child.num_computed_tokens = 6
    manager.fork(parent, child)
    assert manager.allocate_slots(child, 3) is None, "a copy and a fresh block do not fit into the one that is free"
    assert manager.get_block_ids("child") == [1, 2] and manager.block_pool.get_num_free_blocks() == 1
    assert manager.block_pool.pending_copies == []


def test_a_scheduler_without_preemption_still_serves_after_a_step_that_broke():
    """Let two requests share a block that the failed step was to write: the second is preempted and resumed."""
    num_calls = 0

    def breaks_once(queries, pool, block_tables, context_lens, query_starts, scale):
        nonlocal num_calls
        num_calls += 1
        if num_calls <= 2:  # the step, and its first request alone
            raise ValueError("not now")
        return attention.paged_attention(queries, pool, block_tables, context_lens, query_starts, scale)

    scheduler = without(Scheduler, "preempt")
    engine = LLMEngine(EngineConfig(num_blocks=30, block_size=4),
                       complete(EngineParts(scheduler=scheduler, attention=breaks_once)))
    names = [engine.add_request({"prompt_token_ids": list(range(10, 20))}, SamplingParams(max_tokens=3, temperature=0))
             for _ in range(2)]
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
    assert outputs[names[0]].error == "ValueError: not now" and outputs[names[1]].error is None
    assert len(outputs[names[1]].token_ids) == 3 and engine.scheduler.num_preemptions == 1


def test_a_simple_manager_is_given_a_recent_hit_rate():
    class Manager(KVCacheManager):
        @property
        def stats(self):
            return SimpleNamespace(num_queries=1, num_query_tokens=8, num_hit_tokens=6, num_evicted_blocks=3,
                                   hit_rate=0.75)

    stats = complete(EngineParts(kv_cache_manager=Manager)).kv_cache_manager(9, 4).stats
    assert (stats.num_query_tokens, stats.num_hit_tokens, stats.num_evicted_blocks) == (8, 6, 3)
    assert stats.hit_rate == stats.recent_hit_rate == 0.75


def test_the_plans_of_a_simple_scheduler_are_given_a_field_for_drafts():
    class Simple(Scheduler):
        def schedule(self):
            return SimpleNamespace(num_scheduled_tokens={"r": 1}, requests=["r"], copies=[(1, 2)], preempted=["p"],
                                   finished=["f"])

    plan = complete(EngineParts(scheduler=Simple)).scheduler(KVCacheManager(9, 4), 4, 16, None, 0.01).schedule()
    assert plan == SchedulerOutput({"r": 1}, ["r"], [(1, 2)], ["p"], ["f"]) and plan.drafts == {}


def test_a_scheduler_that_does_not_count_preemptions_has_none():
    class Silent(without(Scheduler, "preempt")):
        def __init__(self, *args):
            super().__init__(*args)
            del self.num_preemptions, self.max_num_chunk_tokens

    scheduler = complete(EngineParts(scheduler=Silent)).scheduler(KVCacheManager(9, 4), 4, 16, None, 0.01)
    assert scheduler.num_preemptions == 0 and scheduler.max_num_chunk_tokens is None


def test_what_else_a_simple_part_need_not_have():
    class Drafter:
        def propose(self, request, max_tokens):
            return (5, 6, 7)

        def advance(self, request, token_ids):
            pass

        def forget(self, request):
            pass

    class Queue(without(PriorityQueueWithAging)):
        def __init__(self, aging_rate):
            super().__init__(aging_rate)
            del self.clock

    parts = complete(EngineParts(drafter=Drafter, grammar=without(RegexGrammar, "num_tokens_needed"),
                                 request_queue=Queue))
    drafter = parts.drafter()
    assert drafter.propose_all(["a", "b"], [2, 0]) == [[5, 6], []] and drafter.cost_per_token == 0
    assert parts.grammar.num_tokens_needed(None) is None and parts.request_queue(0.1).clock() > 0


def test_a_runner_that_cannot_look_ahead_is_not_asked_to():
    runner = without(REFERENCE["model_runner"], "step_ahead", "can_step_ahead")
    engine = LLMEngine(EngineConfig(num_blocks=9, enable_lookahead=True), complete(EngineParts(model_runner=runner)))
    assert engine.lookahead.max_requests == 0


def test_what_a_part_has_itself_is_not_replaced():
    class Drafter(without(NgramDrafter, "propose_all", "cost_per_token")):
        cost_per_token = 0.7

    class Own(Scheduler):
        @property
        def num_preemptions(self):
            return 42

        @num_preemptions.setter
        def num_preemptions(self, value):
            pass

    parts = complete(EngineParts(drafter=Drafter, scheduler=Own))
    assert parts.drafter().cost_per_token == 0.7
    assert parts.scheduler(KVCacheManager(9, 4), 4, 16, None, 0.01).num_preemptions == 42
    runner = without(REFERENCE["model_runner"], "can_step_ahead")
    assert complete(EngineParts(model_runner=runner)).model_runner.can_step_ahead


def test_a_sampler_with_one_of_two_methods_that_belong_together_is_refused():
    with pytest.raises(PartError, match=r"has no method choose\(logits, rows, num_ahead\)"):
        complete(EngineParts(sampler=without(REFERENCE["sampler"], "choose")))


def test_a_scheduler_gets_its_own_plan_back():
    class Plan:
        def __init__(self, plan):
            self.__dict__.update(vars(plan))

    class Own(Scheduler):
        def schedule(self):
            return Plan(super().schedule())

        def update_from_output(self, output, token_ids):
            assert isinstance(output, Plan)
            super().update_from_output(output, token_ids)

    engine = LLMEngine(EngineConfig(num_blocks=9), complete(EngineParts(scheduler=Own)))
    engine.add_request("A fox", SamplingParams(max_tokens=2, temperature=0, ignore_eos=True))
    outputs = [output for _ in range(2) for output in engine.step()]
    assert outputs[-1].finished and outputs[-1].error is None

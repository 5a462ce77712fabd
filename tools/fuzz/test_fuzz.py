"""The first cases of the fuzzers, the command that runs them, and deliberate bugs that they must find."""

import itertools
import threading

import pytest

from fuzz import async_engine, engine, sampler, speculation, structured
from fuzz.__main__ import FUZZERS, fuzz, main
from mini_vllm.attention import PagedKVCache
from mini_vllm.block_pool import BlockPool
from mini_vllm.conftest import THOROUGH, examples
from mini_vllm.engine_thread import EngineThread
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.recovery import Recovery
from mini_vllm.request import RequestStatus
from mini_vllm.scheduler import Scheduler
from mini_vllm.speculation.drafts import Verifier
from mini_vllm.speculation.speculation import Speculation
from mini_vllm.structured.compiler import Cursor
from mini_vllm.structured.grammar import RegexGrammar

# ---- the fuzzers


def test_the_first_schedules_give_what_each_request_gives_alone():
    assert fuzz("engine", engine.run_case, 0, range(examples(5)), seconds=60 * THOROUGH) == 0


def test_the_first_schedules_with_drafts_give_what_each_request_gives_alone():
    assert fuzz("speculation", speculation.run_case, 0, range(examples(8)), seconds=60 * THOROUGH) == 0


def test_the_first_structured_outputs_match():
    assert fuzz("structured", structured.run_case, 0, range(examples(4)), seconds=60 * THOROUGH) == 0


def test_the_first_streams_get_their_own_tokens():
    assert fuzz("async", async_engine.run_case, 0, range(examples(1)), seconds=60 * THOROUGH) == 0


def test_the_first_draws_are_those_of_numpy():
    assert fuzz("sampler", sampler.run_case, 0, range(examples(2)), seconds=60 * THOROUGH) == 0


def fails(run_case, seed=0, num_cases=80):
    """Return the message of the first case that fails."""
    for case in range(num_cases):
        try:
            run_case(seed, case)
        except AssertionError as error:
            return str(error)
    pytest.fail(f"{num_cases} cases, and none found the bug")


def never_forks(monkeypatch):
    monkeypatch.setattr(KVCacheManager, "_must_fork", lambda *arguments: False)


def keeps_what_was_computed_when_preempted(monkeypatch):
    real = Scheduler.preempt

    def preempt(self, request):
        num_computed = request.num_computed_tokens
        real(self, request)
        request.num_computed_tokens = num_computed

    monkeypatch.setattr(Scheduler, "preempt", preempt)


def ignores_extra_keys(monkeypatch):
    real_match, real_insert = PrefixTree.match, PrefixTree.insert
    monkeypatch.setattr(PrefixTree, "match", lambda self, ids, extra_keys=None: real_match(self, ids))
    monkeypatch.setattr(PrefixTree, "insert", lambda self, ids, blocks, num=None, extra_keys=None, with_tail=False:
                        real_insert(self, ids, blocks, num, None, with_tail))


def leaks_a_block_at_every_end(monkeypatch):
    real = Scheduler.abort_request

    def abort_request(self, request_id):
        request = self.requests.get(request_id)
        if request is not None and request.status is RequestStatus.RUNNING:
            self.kv_cache.block_pool.get_new_blocks(self.kv_cache.block_pool.get_num_free_blocks() > 0)
        return real(self, request_id)

    monkeypatch.setattr(Scheduler, "abort_request", abort_request)


def trusts_what_a_broken_step_wrote(monkeypatch):
    monkeypatch.setattr(Recovery, "discard", lambda self, block_ids: None)


def keeps_what_three_share(monkeypatch):
    real = BlockPool.free_blocks
    monkeypatch.setattr(BlockPool, "free_blocks", lambda self, blocks: real(self, [
        block for block in blocks if block.ref_cnt < 3]))


def copies_nothing(monkeypatch):
    monkeypatch.setattr(PagedKVCache, "copy_blocks", lambda self, copies: None)


@pytest.mark.parametrize("bug", [never_forks, keeps_what_was_computed_when_preempted, ignores_extra_keys,
                                 leaks_a_block_at_every_end, trusts_what_a_broken_step_wrote,
                                 keeps_what_three_share, copies_nothing])
def test_the_engine_fuzzer_finds(bug, monkeypatch):
    bug(monkeypatch)
    assert "drawn: " in fails(engine.run_case)


def accepts_every_guess(monkeypatch):
    monkeypatch.setattr(Verifier, "accept", lambda self, draft, drawn: list(drawn))


def keeps_slots_of_wrong_guesses(monkeypatch):
    monkeypatch.setattr(KVCacheManager, "give_back_slots", lambda self, request: None)


def counts_wrong_guesses_as_computed(monkeypatch):
    real = Speculation.settle

    def settle(self, plan):
        for request in plan.requests:
            if request.request_id in plan.drafts and request.status is RequestStatus.RUNNING:
                request.num_computed_tokens = min(request.num_computed_tokens + 1, request.num_tokens)
        real(self, plan)

    monkeypatch.setattr(Speculation, "settle", settle)


def draws_along_a_draft_with_the_noise_of_the_first_token(monkeypatch):
    monkeypatch.setattr(Verifier, "rows", lambda self, row, draft: [row] * (len(draft) + 1))


@pytest.mark.parametrize("bug", [accepts_every_guess, keeps_slots_of_wrong_guesses, counts_wrong_guesses_as_computed,
                                 draws_along_a_draft_with_the_noise_of_the_first_token])
def test_the_fuzzer_of_drafts_finds(bug, monkeypatch):
    bug(monkeypatch)
    assert "drawn: " in fails(speculation.run_case)


def has_no_masks(monkeypatch):
    monkeypatch.setattr(Cursor, "allowed", lambda self: None)


def may_always_end(monkeypatch):
    real = RegexGrammar.allowed

    def allowed(self, state):
        mask = real(self, state).copy()
        mask[self.vocabulary.eos_token_ids] = True
        return mask

    monkeypatch.setattr(RegexGrammar, "allowed", allowed)


def stays_at_the_beginning_of_its_grammar(monkeypatch):
    monkeypatch.setattr(Cursor, "after", lambda self, token_ids: self)


@pytest.mark.parametrize("bug", [has_no_masks, may_always_end, stays_at_the_beginning_of_its_grammar])
def test_the_fuzzer_of_structured_outputs_finds(bug, monkeypatch):
    bug(monkeypatch)
    assert " after " in fails(structured.run_case)


def test_a_case_is_the_same_whenever_it_is_run(monkeypatch):
    never_forks(monkeypatch)
    assert fails(engine.run_case) == fails(engine.run_case)


def leaves_those_who_left(monkeypatch):
    """Make the engine forget abandoned streams but still compute their requests."""
    monkeypatch.setattr(EngineThread, "abandon",
                        lambda self, engine, stream: self.streams.pop(stream.request_id, None))


def gives_away_the_output_of_another(monkeypatch):
    real = EngineThread.hand_out

    def hand_out(self, outputs):
        unfinished = [output for output in outputs if not output.finished]
        for output, completions in zip(unfinished, [output.outputs for output in reversed(unfinished)]):
            output.outputs = completions
        real(self, outputs)

    monkeypatch.setattr(EngineThread, "hand_out", hand_out)


@pytest.mark.parametrize("bug", [leaves_those_who_left, gives_away_the_output_of_another])
def test_the_async_fuzzer_finds(bug, monkeypatch):
    bug(monkeypatch)
    assert "drawn: " in fails(async_engine.run_case)


def test_a_case_that_hangs_fails_with_the_stacks_of_all_threads(monkeypatch):
    end = threading.Event()
    monkeypatch.setattr(async_engine, "TIMEOUT_S", 0.05)
    monkeypatch.setattr(async_engine.Scenario, "run", lambda self: end.wait())
    monkeypatch.setattr(async_engine.Scenario, "check", lambda self: None)
    try:
        with pytest.raises(AssertionError, match="the case hangs: no end after 0.05 s") as failure:
            async_engine.run_case(0, 0)
    finally:
        end.set()
    assert "thread async case:" in str(failure.value) and "end.wait()" in str(failure.value)


# ---- the command


def draw(seed, case):
    """Run a case of a fake fuzzer: every case tries 2 things, and case 3 of seed 5 fails."""
    if (seed, case) == (5, 3):
        raise AssertionError(f"drawn: {seed * case}, which is too much")
    return {"things": 2, "even cases": case % 2 == 0}


def test_a_run_closes_with_what_was_tried(monkeypatch, capsys):
    monkeypatch.setattr(engine, "run_case", draw)
    assert main(["engine", "--cases", "5", "--seed", "4"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("engine, seed 4: 5 cases in ") and out.endswith("no failure; 10 things, 3 even cases\n")
    assert out.count("\n") == 1 and "failed" not in err


def test_a_failure_says_what_was_drawn_and_how_to_repeat_it(monkeypatch, capsys):
    monkeypatch.setattr(engine, "run_case", draw)
    assert main(["engine", "--seed", "5"]) == 1
    out, err = capsys.readouterr()
    assert "drawn: 15, which is too much\n" in err and "Traceback" not in err
    assert "case 3 failed; to repeat it: python tools/fuzz engine --seed 5 --case 3\n" in err
    assert "3 cases in" in out and "1 failure; 6 things" in out
    assert main(["engine", "--seed", "5", "--case", "3"]) == 1
    again = capsys.readouterr()
    assert again.err == err and "0 cases in" in again.out and "nothing was tried" in again.out
    assert main(["engine", "--seed", "5", "--case", "2"]) == 0
    assert "1 case in" in capsys.readouterr().out


def test_any_error_of_a_case_is_a_failure(capsys):
    def divide(seed, case):
        return {"quotients": 1 // (2 - case)}

    assert fuzz("engine", divide, 0, itertools.count(), seconds=60) == 1
    err = capsys.readouterr().err
    assert "ZeroDivisionError" in err and "return {" in err and "--seed 0 --case 2" in err


def test_ctrl_c_says_what_was_tried_so_far(capsys):
    def interrupted(seed, case):
        if case == 2:
            raise KeyboardInterrupt
        return {"things": 1}

    assert fuzz("async", interrupted, 0, itertools.count(), seconds=60) == 130
    out, err = capsys.readouterr()
    assert "2 cases in" in out and "until Ctrl-C, no failure; 2 things" in out and "failed" not in err


def test_no_case_begins_after_the_time(capsys):
    clock = itertools.count().__next__
    assert fuzz("engine", lambda seed, case: {"things": 1}, 0, itertools.count(), seconds=4, clock=clock) == 0
    assert "3 cases in 5.0 s" in capsys.readouterr().out


@pytest.mark.parametrize("arguments, complaint", [
    (["nothing"], "there is no fuzzer 'nothing', only engine, models, sampler, async, speculation, structured"),
    (["engine", "--seconds", "0"], "--seconds is 0, must be more than 0 and finite"),
    (["engine", "--seconds", "nan"], "--seconds is nan, must be more than 0 and finite"),
    (["engine", "--seed", "-1"], "--seed is -1, must be at least 0"),
    (["engine", "--cases", "0"], "--cases is 0, must be at least 1"),
    (["async", "--case", "-2"], "--case is -2, must be at least 0"),
])
def test_bad_arguments_are_named(capsys, arguments, complaint):
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", f"fuzz: {complaint}\n")


@pytest.mark.parametrize("arguments", [["engine", "--seed", "x"], ["engine", "--case", "1", "--cases", "2"], []])
def test_what_is_no_number_or_too_much_is_refused(capsys, arguments):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2 and "error: " in capsys.readouterr().err


def test_the_package_names_every_fuzzer():
    import fuzz
    for name in FUZZERS:
        assert f"python tools/fuzz {name} " in fuzz.__doc__

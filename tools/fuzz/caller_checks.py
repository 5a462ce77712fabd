"""What each caller of the async fuzzer must have received: its own tokens, an end, or an error that it could expect."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fuzz.callers import MAX_TOKENS, Caller, expected_outputs
from fuzz.expect import expect
from mini_vllm.async_engine import EngineBusyError
from mini_vllm.engine_thread import EngineStoppedError


@dataclass
class CallerChecks:
    """Checks what a caller received, given what happened to the engine."""

    #: Whether the engine was shut down early, and whether it then aborted running requests.
    has_stopped: bool
    has_aborted: bool
    has_lost_plan: bool
    #: Whether there may have been more callers than the engine accepts.
    may_be_busy: bool
    tried: Counter[str]

    def check(self, caller: Caller) -> None:
        if caller.error is not None:
            expect(self._is_due(caller, caller.error) and not caller.outputs, f"{caller} got the error")
            self.tried["refused"] += 1
            return
        expect(not isinstance(caller.prompt, str) or caller.has_left, f"{caller} must be refused")
        if isinstance(caller.prompt, str):
            return
        self._check_outputs(caller, expected_outputs()[caller.prompt])
        if not caller.has_left:
            self._check_end(caller)

    def _check_outputs(self, caller: Caller, expected: list[int]) -> None:
        num_before = [0] * caller.params.n
        for index, output in enumerate(caller.outputs):
            is_last = index == len(caller.outputs) - 1
            expect(not output.finished or is_last, f"{caller}: output {index} is finished, but others follow")
            expect([each.index for each in output.outputs] == list(range(caller.params.n)), f"{caller}: {output}")
            expect(caller.request_id in (None, output.request_id), f"{caller} got the wrong output: {output}")
            for each in output.outputs:
                tokens = each.token_ids
                expect(tokens[:MAX_TOKENS] == expected[:len(tokens)],
                       f"{caller}: sequence {each.index} of output {index} is {tokens}, alone it is {expected}")
                expect(num_before[each.index] <= len(tokens) <= caller.max_tokens,
                       f"{caller}: sequence {each.index} went from {num_before[each.index]} to {len(tokens)} tokens")
                num_before[each.index] = len(tokens)
            self.tried["outputs"] += 1
        self.tried["tokens"] += sum(num_before)

    def _check_end(self, caller: Caller) -> None:
        expect(bool(caller.outputs) and caller.outputs[-1].finished, f"{caller}: the stream ended before its output")
        last = caller.outputs[-1]
        reasons = {each.finish_reason for each in last.outputs}
        allowed = {"length"}
        if self.has_aborted:
            allowed.add("abort")
        if self.has_lost_plan:
            allowed.add("error")
        if caller.max_tokens > MAX_TOKENS:
            allowed.add("kv_cache_full")
        expect(reasons <= allowed, f"{caller} ended by {reasons}, allowed are {allowed}")
        expect((last.error is not None) == ("error" in reasons), f"{caller}: the error is {last.error!r}")
        for each in last.outputs:
            expect(each.finish_reason != "length" or len(each.token_ids) == caller.max_tokens,
                   f"{caller}: sequence {each.index} has {len(each.token_ids)} tokens")
        self.tried["whole streams"] += reasons == {"length"}

    def _is_due(self, caller: Caller, error: BaseException) -> bool:
        """Check whether the caller could expect this error."""
        if isinstance(error, EngineStoppedError):
            return self.has_stopped
        if isinstance(error, EngineBusyError):
            return self.may_be_busy
        if not isinstance(error, ValueError):
            return False
        return (isinstance(caller.prompt, str) and caller.prompt in str(error)
                or caller.request_id is not None and f"{caller.request_id!r} is in use" in str(error))

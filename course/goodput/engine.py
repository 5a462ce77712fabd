"""Lab 4.4: the engine's own scheduler as a policy of the arena. It makes its real decisions, without a prefix cache."""

from __future__ import annotations

from course.goodput.arena import Limits, Plan, RequestState
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Request, RequestStatus
from mini_vllm.request_queue import PriorityQueueWithAging
from mini_vllm.scheduler import Scheduler, SchedulerOutput


class EngineScheduler:
    """``mini_vllm.scheduler.Scheduler`` with the arena's limits: it hears of arrivals, tokens and ends, and plans."""

    def __init__(self, limits: Limits) -> None:
        kv_cache = KVCacheManager(limits.num_blocks + 1, limits.block_size, enable_caching=False)  # and the null block
        self._now_s = 0.0
        self.scheduler = Scheduler(kv_cache, limits.max_num_seqs, limits.max_num_batched_tokens,
                                   PriorityQueueWithAging(clock=lambda: self._now_s))
        self._requests: dict[int, Request] = {}
        self._output = SchedulerOutput()

    def plan(self, now_us: int, requests: tuple[RequestState, ...]) -> Plan:
        self._now_s = now_us / 1e6
        tokens = {str(state.request_id): 0 for state in requests if state.request_id in self._requests
                  and state.num_tokens > self._requests[state.request_id].num_tokens}
        self.scheduler.update_from_output(self._output, tokens)
        for request_id in self._requests.keys() - {state.request_id for state in requests}:
            self.scheduler.finish(self._requests.pop(request_id), RequestStatus.FINISHED_STOPPED)
        for state in requests:
            if state.request_id not in self._requests:
                request = Request(str(state.request_id), [0] * state.num_prompt_tokens,
                                  arrival_time=state.arrival_us / 1e6)
                self._requests[state.request_id] = request
                self.scheduler.add_request(request)
        self._output = self.scheduler.schedule()
        return ({int(request_id): n for request_id, n in self._output.num_scheduled_tokens.items()},
                [int(request.request_id) for request in self._output.preempted])

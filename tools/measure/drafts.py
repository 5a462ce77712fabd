"""What a drafted token costs a step, by the number of requests, and what it costs to do without look-ahead.

These are the numbers of ``tuning.draft_costs``. Every draft is wrong, so all steps give one token per request.
"""

from __future__ import annotations

import statistics

from measure.decoding import Decoding
from mini_vllm.fast.step_costs import DraftCost, StepCosts
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.request import Request, SamplingParams
from mini_vllm.speculation.ngram_drafter import NgramDrafter

NUM_REQUESTS = (1, 4, 16, 64)
NUM_DRAFTED = (1, 3, 7)
CONTEXT, STEPS, ROUNDS = 200, 24, 5
#: Drafts are always computed, and always preferred to look-ahead.
ALWAYS = StepCosts((DraftCost(1, -100.0, -1.0),), no_lookahead=-1.0)


class WrongDrafter(NgramDrafter):
    """Guesses the token 0."""

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        return [0] * max_tokens

    def advance(self, request: Request, token_ids: list[int]) -> None:
        pass


def decoding(loaded: LoadedModel, num_requests: int, num_drafted: int, looks_ahead: bool, num_steps: int) -> Decoding:
    params = SamplingParams(max_tokens=40 * STEPS, temperature=0.0, ignore_eos=True)
    made = Decoding(loaded, [params] * num_requests, CONTEXT, num_steps, max_num_seqs=num_requests,
                    max_num_batched_tokens=max(1024, 8 * num_requests), num_speculative_tokens=num_drafted,
                    enable_lookahead=looks_ahead)
    made.engine.speculation.drafter, made.engine.speculation.costs = WrongDrafter(), ALWAYS
    return made.start()


def print_drafts(model: str, rounds: int = ROUNDS, all_num_requests: tuple[int, ...] = NUM_REQUESTS,
                 num_steps: int = STEPS) -> None:
    loaded = load(model)
    print(f"{model}: a step at contexts of {CONTEXT}, ms, and the cost of a drafted token per request, in plain steps")
    print(f"{'requests':>8} {'look-ahead':>11} {'plain':>7} "
          + " ".join(f"{f'+{n}':>7} {'cost':>5}" for n in NUM_DRAFTED))
    told = []
    for number in all_num_requests:
        sides = [decoding(loaded, number, 0, True, num_steps), decoding(loaded, number, 0, False, num_steps),
                 *(decoding(loaded, number, drafted, False, num_steps) for drafted in NUM_DRAFTED)]
        taken = [[side.step_ms() for side in sides] for _ in range(rounds)]
        ahead, plain, *drafted_ms = (statistics.median(each[nth] for each in taken) for nth in range(len(sides)))
        costs = [statistics.median((each[2 + nth] - each[1]) / each[1] / drafted for each in taken)
                 for nth, drafted in enumerate(NUM_DRAFTED)]
        print(f"{number:>8} {ahead:>11.2f} {plain:>7.2f} "
              + " ".join(f"{ms:>7.2f} {cost:>5.2f}" for ms, cost in zip(drafted_ms, costs)), flush=True)
        told.append(f"{costs[1]:.2f} for {number}")
    print(f"In short: on {model} a drafted token costs this share of a plain step: {', '.join(told)}")

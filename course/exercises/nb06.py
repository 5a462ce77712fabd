"""The exercises of notebook 06.

Drafts: tokens and rows, when a draft pays, and how often two models agree. Masks: tokens, states and probabilities.
Replicas: what a router remembers, and what it weighs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from course.exercises import Exercise
from mini_vllm.speculation.drafts import NgramDrafter

if TYPE_CHECKING:
    from mini_vllm.request import Request

#: The number of drafted tokens in each of three steps, and how many of them are accepted.
DRAFTS = ((5, 3), (4, 0), (2, 2))
#: The probabilities of three tokens, for a model and for the smaller one that guesses.
TARGET, DRAFT = (0.6, 0.3, 0.1), (0.3, 0.6, 0.1)
#: The tokens of a small vocabulary; the first is the end of the text.
WORDS = (b"", b"a", b"b", b"ab", b"ba", b"aba")
#: The texts of which an output is one.
CHOICE = ("no", "now", "not", "yes")
#: The probabilities of four tokens, and which of them a mask allows.
FOUR, ALLOWED = (0.5, 0.3, 0.15, 0.05), (False, True, False, True)
#: The blocks of four prompts, sent to a replica of which a router remembers four blocks.
SENT, MAX_BLOCKS = (("a", "b", "c"), ("x",), ("a", "d"), ("y",)), 4
#: The blocks that a replica has of a prompt, and its requests in flight. The other replica has neither.
NUM_CACHED, LOAD = 8, 5


class Scripted(NgramDrafter):
    """Guesses as ``DRAFTS`` says: the first tokens of each guess are right, the others are wrong."""

    def __init__(self, token_ids: list[int]) -> None:
        """Receive the output without drafts."""
        super().__init__()
        self._token_ids, self._drafts = token_ids, list(DRAFTS)

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        if not self._drafts:
            return []
        (num_drafted, num_right), start = self._drafts.pop(0), len(request.output_token_ids)
        return [self._token_ids[start + place] + (place >= num_right) for place in range(num_drafted)]


def tokens_and_rows() -> tuple[int, int]:
    """Serve a request without drafts, and then with the drafts; count the tokens and rows of the three steps."""
    from mini_vllm.engine import LLMEngine  # imported here because most answers are checked without MLX
    from mini_vllm.engine_config import EngineConfig
    from mini_vllm.fast.step_costs import DraftCost, StepCosts
    from mini_vllm.request import SamplingParams
    num_rows: list[int] = []
    token_ids: list[int] = []
    for num_drafted in (0, 5):
        engine = LLMEngine(EngineConfig(num_blocks=9, enable_lookahead=False, num_speculative_tokens=num_drafted))
        if engine.speculation is not None:
            engine.speculation.drafter = Scripted(token_ids)
            engine.speculation.costs = StepCosts((DraftCost(1, first=-1.0, per_token=-1.0),))  # computes every draft
        engine.add_request("The king", SamplingParams(max_tokens=30, temperature=0, ignore_eos=True))
        num_tokens = []
        while engine.has_unfinished_requests():
            num_before = engine.metrics().num_drafted_tokens
            (output,) = engine.step()
            num_tokens.append(len(output.token_ids))
            num_rows.append(1 + engine.metrics().num_drafted_tokens - num_before)
        token_ids = output.token_ids
    first = len(num_rows) - len(num_tokens) + 1  # the step after the prompt's
    return num_tokens[len(DRAFTS)] - num_tokens[0], sum(num_rows[first:first + len(DRAFTS)])


def rate_at_which_two_pay() -> float:
    """Find, by bisection, the rate at which a draft of two tokens gains what it costs."""
    from mini_vllm.speculation.speculation import expected_tokens
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, 2) < 0.55 + 2 * 0.1 else (low, middle)
    return low


def own_noise_and_rejection_sampling() -> tuple[float, float]:
    """Draw a million tokens; count the guesses that are right, and those that rejection sampling accepts."""
    import numpy as np
    rng = np.random.default_rng(0)
    target, draft = np.array(TARGET), np.array(DRAFT)
    drawn, guessed = (rng.choice(3, size=1_000_000, p=each) for each in (target, draft))
    is_accepted = rng.random(guessed.size) < (target / draft)[guessed]
    return float((drawn == guessed).mean()), float(is_accepted.mean())


def allowed_at_first_and_after_a() -> tuple[int, int]:
    """Ask the grammar of ``(ab)*`` for its masks."""
    from mini_vllm.structured.grammar import RegexGrammar
    from mini_vllm.structured.regex_tree import parse_regex
    from mini_vllm.structured.vocabulary import Vocabulary
    grammar = RegexGrammar(parse_regex("(ab)*"), Vocabulary(WORDS, eos_token_ids=[0]))
    after_a = grammar.advance(grammar.start, WORDS.index(b"a"))
    return int(grammar.allowed(grammar.start).sum()), int(grammar.allowed(after_a).sum())


def states_of_a_choice() -> tuple[int, int]:
    """Build the automaton of the four texts."""
    from mini_vllm.structured.automaton import ByteAutomaton
    from mini_vllm.structured.regex_tree import parse_regex
    automaton = ByteAutomaton(parse_regex("|".join(CHOICE)))
    return automaton.num_states, int(automaton.accepting.sum())


def probabilities_under_a_mask() -> tuple[float, float]:
    """Mask the scores of the four tokens as the sampler does, and return how likely the second one is."""
    import numpy as np

    from mini_vllm.backend import mx
    from mini_vllm.logit_rules import keep_allowed
    masked = np.array(keep_allowed(mx.array(np.log([FOUR])), [np.array(ALLOWED)]))[0]
    weights = [np.exp(masked / temperature) for temperature in (1, 2)]
    first, second = (float(each[1] / each.sum()) for each in weights)
    return first, second


def blocks_that_are_remembered() -> tuple[int, ...]:
    """Record the four prompts, and ask for the first three."""
    from mini_vllm.router import PrefixMap
    prefixes = PrefixMap(MAX_BLOCKS)
    for blocks in SENT:
        prefixes.record("A", blocks)
    return tuple(prefixes.num_cached(blocks).get("A", 0) for blocks in SENT[:3])


def weight_and_limit_for_the_empty_replica() -> tuple[float, int]:
    """Find the weight by bisection, and try all limits."""
    from mini_vllm.router import CacheAwareRouter

    def chosen(load_weight: float, max_imbalance: int) -> str:
        router = CacheAwareRouter(["A"], load_weight=load_weight, max_imbalance=max_imbalance)
        for number in range(LOAD):
            router.route(str(number), range(NUM_CACHED))
        router.add_replica("B")
        return router.route("next", range(NUM_CACHED))

    low, high = 0.0, 100.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if chosen(middle, 1000) == "A" else (low, middle)
    return low, max(limit for limit in range(1, 100) if chosen(0, limit) == "B")


EXERCISES = (
    Exercise(
        answer=(8, 14), proof=tokens_and_rows,
        why="Each step gives the accepted tokens and one more: 4 + 1 + 3 = 8. Each step computes the newest token and "
            "the whole draft: 6 + 5 + 3 = 14 rows.",
        hint="How many tokens does a step give if all of its draft is wrong? How many rows does it compute for a draft "
             "of 4 tokens?",
        slips={(5, 11): "These are the accepted and the drafted tokens. Each step also computes the newest token of "
                        "the request, and gives one token that was not accepted from the draft.",
               (5, 14): "14 rows are right. But each step also gives the model's own token after the last accepted "
                        "one.",
               (8, 11): "8 tokens are right. But each step also computes a row for the newest token of the request.",
               (7, 14): "The step whose draft is wrong from the first token on still gives one token.",
               (14, 8): "The two numbers are swapped: first the tokens, then the rows."}),
    Exercise(
        answer=0.5, proof=rate_at_which_two_pay,
        why="The draft costs 0.55 + 2 × 0.1 = 0.75 of a step. It gains r + r² tokens on average, and 0.5 + 0.25 is "
            "0.75.",
        hint="The first token of the draft is accepted with probability r, and the second with r². What must the sum "
             "be?",
        slips={0.75: "0.75 is what the draft costs. It gains r + r², because the second token counts only if the "
                     "first is right.",
               0.375: "The second token is accepted with probability r², not r: the first must be right as well.",
               0.65: "This is the cost of one drafted token. But the draft has two, and it gains r + r².",
               0.866: "r² is the probability that both are right. But one right token also counts."}),
    Exercise(
        answer=(0.37, 0.7), proof=own_noise_and_rejection_sampling,
        why="With random numbers of its own, the guess is right with probability 0.6 × 0.3 + 0.3 × 0.6 + 0.1 × 0.1 = "
            "0.37. No method accepts more than what both have in common: 0.3 + 0.3 + 0.1 = 0.7.",
        hint="First: the probability that two independent draws give the same token, added up over the tokens. Then: "
             "for each token, the smaller of its two probabilities.",
        slips={(0.7, 0.37): "The two numbers are swapped: first with its own random numbers, then the limit.",
               (0.46, 0.7): "0.46 would be right for a drafter that is the target itself: 0.36 + 0.09 + 0.01.",
               (0.37, 1): "1 is reached only if both have the same probabilities. For each token, at most the smaller "
                          "of the two probabilities can be accepted.",
               (0.18, 0.7): "0.18 is the probability that both draw the first token. Add the other two tokens."}),
    Exercise(
        answer=(4, 2), proof=allowed_at_first_and_after_a,
        why="At first, a, ab and aba can be read, and the empty output already matches, so the text may end. After a, "
            "only b and ba can be read; the output a does not match, so it may not end there.",
        hint="The automaton has two states: it waits for an a, or for a b. Which tokens can be read from each? In "
             "which of the two may the output end?",
        slips={(3, 2): "The empty output matches (ab)* as well: the text may end at once.",
               (4, 1): "After a, the token ba can also be read: b completes ab, and the a begins the next one.",
               (3, 1): "The text may end at once, because the empty output matches. And after a, ba can be read as "
                       "well as b.",
               (4, 3): "After a, the text may not end: a alone does not match (ab)*.",
               (2, 2): "aba can be read as well: a token may begin with what completes one ab and end in the next. "
                       "And the text may end at once.",
               (2, 4): "The two numbers are swapped: first at the beginning, then after a."}),
    Exercise(
        answer=(6, 2), proof=states_of_a_choice,
        why="The first state, after n, after no, after y, after ye, and one for the end of now, not and yes: nothing "
            "can follow any of these three. The output may end there and after no.",
        hint="Draw the four words as a tree. Which of its nodes have the same future?",
        slips={(8, 4): "This is the tree of the four words. After now, not and yes nothing can follow, so these three "
                       "are one state.",
               (6, 4): "6 states are right. But now, not and yes end in the same state.",
               (8, 2): "If now, not and yes end in the same state, two of the eight are saved.",
               (6, 1): "After no the output may also end, although w or t may follow.",
               (2, 6): "The two numbers are swapped: first all states, then those in which the output may end."}),
    Exercise(
        answer=(0.857, 0.71), proof=probabilities_under_a_mask,
        why="At temperature 1 it is 0.3 / (0.3 + 0.05) = 0.857. At temperature 2 the square roots count: 0.548 / "
            "(0.548 + 0.224) = 0.71. The mask decides which tokens are drawn; the temperature, how evenly.",
        hint="The probabilities of the forbidden tokens become 0. Scale the other two so that they add up to 1. For "
             "temperature 2, take the square roots first.",
        slips={(0.3, 0.3): "Without the forbidden tokens the probabilities add up to 0.35. They must be scaled to 1.",
               (0.857, 0.857): "At temperature 2 the two tokens are drawn more evenly: take the square roots before "
                               "you scale.",
               (0.857, 0.429): "The temperature does not halve a probability. It takes the square root of each, and "
                               "then both are scaled.",
               (0.857, 0.973): "At a higher temperature the less likely token is drawn more often, not less: take "
                               "square roots, not squares.",
               (0.71, 0.857): "The two numbers are swapped: first temperature 1, then 2."}),
    Exercise(
        answer=(1, 1, 2), proof=blocks_that_are_remembered,
        why="Two of the six blocks are forgotten, those that were used longest ago: c and then b. The prompt a d "
            "used a again, so a stays, and x was used after b.",
        hint="Write down the blocks in the order of their last use. Of one prompt, the last block counts as used "
             "first. Which two are the oldest?",
        slips={(2, 1, 2): "a, b, d, x and y would be five blocks. One more must be forgotten.",
               (0, 1, 2): "a is also the first block of a d. Without it, d could not be found.",
               (0, 1, 0): "The prompt a d used a again, after x. So a is not among the oldest.",
               (2, 0, 2): "x was used after b. Which of the two is older?",
               (3, 1, 2): "These are all blocks. Only four are remembered, so two must be forgotten."}),
    Exercise(
        answer=(1.6, 5), proof=weight_and_limit_for_the_empty_replica,
        why="A has 8 blocks more, and 5 requests in flight cost 5 × 1.6 = 8 blocks. The limit excludes A if its load "
            "is at least max_imbalance above the lowest load: 5 ≥ 5.",
        hint="First: for which weight do 5 requests in flight count as much as 8 blocks? Then: A may get a request if "
             "its load is less than max_imbalance above the lowest load.",
        slips={(0.625, 5): "0.625 is 5 / 8, the number of requests per block. The weight is the number of blocks per "
                           "request.",
               (1.6, 6): "With a limit of 6, A's load of 5 is less than 6 above the lowest, so A may get the request.",
               (1.6, 4): "B also gets it with a limit of 5: A's load is then not less than 5 above the lowest.",
               (8, 5): "All 5 requests at A count, not one.",
               (5, 1.6): "The two numbers are swapped: first the weight, then the limit."}),
)

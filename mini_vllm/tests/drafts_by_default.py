"""A pytest plugin with which every engine drafts, unless its settings say otherwise. ``make test-drafts`` loads it.

    pytest -p mini_vllm.tests.drafts_by_default mini_vllm/tests/test_engine.py

Drafts change no output, so the tests of the engine must also pass with drafts. Drafted tokens cost nothing here, so
every guess is computed. A test that cannot pass with drafts, for example because it counts steps, is marked
``without_drafts(reason)``. The plugin skips it and lists it at the end of the run. The run fails if few tokens were
drafted or accepted, because then it proves nothing.
"""

import inspect
from collections import Counter

import pytest

from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.fast import tuning
from mini_vllm.fast.step_costs import DraftCost, StepCosts
from mini_vllm.speculation.drafts import NgramDrafter
from mini_vllm.speculation.speculation import Speculation

NUM_SPECULATIVE_TOKENS = 4
#: A draft is always worth its costs, and worth more than look-ahead.
FREE = StepCosts((DraftCost(1, -100.0, -1.0),), no_lookahead=-1.0)
#: The least numbers of tokens in a run.
MINIMUM = {"drafted": 1000, "accepted": 300}
#: The start of the reason for which a marked test is skipped.
LEFT_OUT = "without drafts: "

#: Tokens that all engines drafted and accepted: in this process, and in those of xdist's workers that have ended.
counts: Counter[str] = Counter()


class EagerDrafter(NgramDrafter):
    """Guesses at every step: from all texts of the test, from the request's own text, or else the last token again.

    Most tests generate the same texts twice, under different circumstances: guesses are often wrong the first time, and
    right the second time.
    """

    #: The last three tokens of a text that has ended → the tokens after them.
    seen: dict[tuple[int, ...], list[int]] = {}

    def propose(self, request, max_tokens):
        tokens = request.all_token_ids
        guess = self.seen.get(tuple(tokens[-3:])) or super().propose(request, max_tokens) or [tokens[-1]] * max_tokens
        return guess[:max_tokens]

    def forget(self, request):
        super().forget(request)
        tokens = request.all_token_ids
        for end in range(len(request.prompt_token_ids), len(tokens)):
            self.seen[tuple(tokens[end - 3:end])] = tokens[end:end + NUM_SPECULATIVE_TOKENS]


def set_default(settings, name, value):
    """Change the default of a field of a dataclass."""
    defaults = dict(zip(inspect.signature(settings).parameters, settings.__init__.__defaults__))
    assert name in defaults
    settings.__init__.__defaults__ = tuple({**defaults, name: value}.values())


def pytest_configure():
    set_default(EngineConfig, "num_speculative_tokens", NUM_SPECULATIVE_TOKENS)
    set_default(EngineParts, "drafter", EagerDrafter)
    tuning.draft_costs = lambda model_bytes: FREE
    count = Speculation._count

    def counting(self, request, num_drafted, num_accepted):
        counts.update(drafted=num_drafted, accepted=num_accepted)
        count(self, request, num_drafted, num_accepted)

    Speculation._count = counting


def pytest_runtest_setup(item):
    EagerDrafter.seen.clear()  # no test depends on an earlier one
    mark = item.get_closest_marker("without_drafts")
    if mark:
        pytest.skip(f"{LEFT_OUT}{mark.args[0]}")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Add the counts of a worker of xdist."""
    counts.update(getattr(node, "workeroutput", {}).get("drafts", {}))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """Pass on the counts of a worker. In the main process, fail the run if too few tokens were drafted."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["drafts"] = dict(counts)
    elif session.exitstatus == pytest.ExitCode.OK and too_few():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    skipped = [(report.nodeid, report.longrepr[2]) for report in terminalreporter.stats.get("skipped", [])]
    left_out = [f"  {name}: {reason.partition(LEFT_OUT)[2]}" for name, reason in skipped if LEFT_OUT in reason]
    terminalreporter.section("drafts")
    terminalreporter.write_line(f"{len(left_out)} test{'' if len(left_out) == 1 else 's'} left out"
                                f"{':' if left_out else ''}")
    for line in (*sorted(left_out), f"{counts['drafted']} tokens drafted, {counts['accepted']} of them accepted"):
        terminalreporter.write_line(line)
    for line in too_few():
        terminalreporter.write_line(line, red=True)


def too_few():
    """Return a sentence for each number that is below its minimum."""
    return [f"only {counts[what]} tokens were {what}, must be at least {least}" for what, least in MINIMUM.items()
            if counts[what] < least]

"""Log-probabilities of the tokens of a prompt, for requests with ``prompt_logprobs``.

The logits of each token predict the next one. So a step that computes prompt tokens 4 to 7 scores tokens 5 to 8, and
needs the logits of all its tokens, not just of the last:

    prompt       t0   t1   t2   t3 │ t4   t5   t6   t7 │ t8
    this step                      │ ●    ●    ●    ●  │
    it scores                      │      t5   t6   t7 │ t8
"""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.backend import mx
from mini_vllm.model_runner import RequestStep
from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.request import Request
from mini_vllm.sampling.logprobs import report_logprobs
from mini_vllm.sequences import SequenceGroup, with_texts


def newly_scored_positions(group: SequenceGroup, start: int, end: int) -> range:
    """Return the positions of the prompt tokens that a step from ``start`` to ``end`` scores, and no earlier step
    has."""
    if group.prompt_logprobs is None:
        return range(0)
    return range(max(start + 1, len(group.prompt_logprobs)), min(end + 1, len(group.prompt_token_ids)))


def take_prompt_logprobs(requests: Sequence[Request], groups: Sequence[SequenceGroup], steps: Sequence[RequestStep],
                         logits: mx.array, tokenizer: Tokenizer, num_drafts: Sequence[int] | None = None) -> mx.array:
    """Store the log-probabilities of the prompts' tokens in ``groups``, and return the rows that the sampler needs.

    ``logits`` are those of a whole step, as the model runner returns them; each request has a group, a step and a
    number of drafted tokens, whose rows the sampler needs too.
    """
    end_row = 0
    wanted: list[int] = []
    for request, group, step, num_drafted in zip(requests, groups, steps, num_drafts or [0] * len(steps)):
        first_row = end_row
        end_row += len(step.token_ids) if step.needs_all_logits else int(step.needs_logits)
        if step.needs_logits:
            wanted += range(end_row - 1 - num_drafted, end_row)
        num_top, known = request.sampling_params.prompt_logprobs, group.prompt_logprobs
        start = step.context_len - len(step.token_ids)
        positions = newly_scored_positions(group, start, step.context_len)
        if not positions or num_top is None or known is None:
            continue
        first_row += positions.start - 1 - start
        reports = report_logprobs(logits[first_row:first_row + len(positions)],
                                  [request.prompt_token_ids[position] for position in positions],
                                  [num_top] * len(positions))
        known += [None] * (positions.start - len(known))  # adds none, unless a replaced cache ignores extra_keys
        known += [with_texts(report, tokenizer) for report in reports]
    return logits[mx.array(wanted)] if wanted else logits[:0]

"""Checks that run before the grader passes a submission's numbers to MLX, which checks no index.

A block id or token id outside an array would read or overwrite other memory of the tests' process. So the arguments of
every served function that indexes arrays are checked first, and copied: a list that the sandbox shares could change
while the function calls back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from course.grading.protocol.bounds import MAX_MESSAGES_A_CALL, check
from course.grading.protocol.proxies import Remote, RemoteMethod

#: Positional and named arguments.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Guard = Callable[..., Arguments]


def guarded(function: Any, positional: Sequence[Any], named: dict[str, Any]) -> Arguments:
    """Return the arguments to call ``function`` with. Raise IndexError or TypeError if they must not reach MLX."""
    owner = getattr(function, "__self__", None)
    if owner is None and not hasattr(function, "__qualname__"):  # a callable object
        owner, name = function, "__call__"
    else:
        name = str(getattr(function, "__name__", ""))
    for key in _keys(function, owner, name):
        if key in GUARDS:
            return GUARDS[key](owner, *positional, **named)
    return tuple(positional), named


def guarded_attribute(owner: Any, name: str, value: Any) -> Any:
    """Return the value that a file gets when it reads an attribute. A test may have replaced a guarded method by a
    function of its own, to see its arguments. That function is guarded, too."""
    if getattr(value, "__self__", None) is owner or not callable(value) or isinstance(owner, type):
        return value
    guards = [GUARDS[key] for kind in type(owner).__mro__
              if (key := f"{kind.__module__}.{kind.__qualname__}.{name}") in GUARDS]
    if not guards:
        return value

    def call(*positional: Any, **named: Any) -> Any:
        arguments, keywords = guards[0](owner, *positional, **named)
        return value(*arguments, **keywords)

    return call


def _keys(function: Any, owner: Any, name: str) -> list[str]:
    if owner is not None and not isinstance(owner, type):
        return [f"{kind.__module__}.{kind.__qualname__}.{name}" for kind in type(owner).__mro__]
    if isinstance(function, type):
        return [f"{kind.__module__}.{kind.__qualname__}" for kind in function.__mro__]
    return [f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"]


def _all_handed_in(what: str) -> Guard:
    """Create a guard for a class whose objects are built from parts. The parts must be the lab's, not the file's
    own: an object of the file that computes or names tokens could return anything."""
    def guard(_: Any, *positional: Any, **named: Any) -> Arguments:
        for value in (*positional, *named.values()):
            if isinstance(value, (Remote, RemoteMethod)):
                raise TypeError(f"{what} must be made of the lab's own objects, not of the file's "
                                f"{type(value).__name__}")
        return positional, named

    return guard


def _input_processor(_: Any, config: Any, prompts: Any, is_in_use: Callable[[str], Any], clock: Any,
                     regex_grammar: Any) -> Arguments:
    from mini_vllm.models.prompts import PromptReader
    from mini_vllm.structured.grammar import RegexGrammar
    if type(prompts) is not PromptReader:
        raise TypeError(f"prompts is a {type(prompts).__name__}, must be a PromptReader")
    if regex_grammar is not RegexGrammar:
        raise TypeError(f"the grammar is a {type(regex_grammar).__name__}, must be the class RegexGrammar")
    num_asked = 0

    def counted(request_id: str) -> bool:
        """Count the calls: the search for a free id would otherwise continue until the file calls one free."""
        nonlocal num_asked
        num_asked += 1
        check("{} answers to the question whether a request id is in use", num_asked, MAX_MESSAGES_A_CALL)
        return bool(is_in_use(request_id))

    return (config, prompts, counted, clock, regex_grammar), {}


def _ids(what: str, values: Iterable[Any], bound: int) -> list[int]:
    """Return a new list of whole numbers from 0 to below ``bound``. Raise IndexError or TypeError for anything else."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, (list, tuple, range)):
        raise TypeError(f"{what} must be a list of numbers, not {type(values).__name__}")
    found = [int(value) if isinstance(value, np.integer) else value for value in values]
    for value in found:
        if type(value) is not int:
            raise TypeError(f"{what} must be whole numbers, not {type(value).__name__}")
        if not 0 <= value < bound:
            raise IndexError(f"{what}: {value} is not from 0 to {bound - 1}")
    return found


def _copies(cache: Any, copies: Iterable[Any]) -> list[tuple[int, int]]:
    pairs = [_ids("a copy", pair, cache.pools[0].shape[0]) for pair in copies]
    if any(len(pair) != 2 for pair in pairs):
        raise TypeError("a copy has a source and a destination")
    return [(source, destination) for source, destination in pairs]


def _step(runner: Any, requests: Sequence[Any], copies: Sequence[Any] = ()) -> Arguments:
    from mini_vllm.model_runner import RequestStep
    num_blocks, vocab_size = runner.cache.pools[0].shape[0], runner.model.config.vocab_size
    made = []
    for request in list(requests):
        if type(request) is not RequestStep:
            raise TypeError(f"the model runner is given a {type(request).__name__}, must be a RequestStep")
        token_ids = _ids("token_ids", request.token_ids, vocab_size)
        block_ids = _ids("block_ids", request.block_ids, num_blocks)
        (context_len,) = _ids("context_len", [request.context_len], len(block_ids) * runner.cache.block_size + 1)
        if not 0 < len(token_ids) <= context_len:
            raise IndexError(f"a step has {len(token_ids)} token_ids, but its context_len is {context_len}: there must "
                             "be at least one token, and no more than context_len")
        made.append(RequestStep(token_ids, block_ids, context_len, bool(request.needs_logits),
                                bool(request.needs_all_logits)))
    if not made:
        raise IndexError("a step without requests")
    return (made, _copies(runner.cache, copies)), {}


def _copy_blocks(cache: Any, copies: Sequence[Any]) -> Arguments:
    return (_copies(cache, copies),), {}


def _clear_blocks(cache: Any, block_ids: Sequence[Any]) -> Arguments:
    return (_ids("block_ids", block_ids if hasattr(block_ids, "tolist") else list(block_ids),
                 cache.pools[0].shape[0]),), {}


def _attention(_: Any, queries: Any, pool: Any, block_tables: Any, context_lens: Any, query_starts: Any, scale: Any,
               window: Any = None) -> Arguments:
    num_blocks, _, block_size, _ = pool.shape
    tables = [_ids("block_tables", table, num_blocks) for table in block_tables]
    starts = _ids("query_starts", query_starts, queries.shape[0] + 1)
    lens = _ids("context_lens", context_lens, 1 + max((len(table) for table in tables), default=0) * block_size)
    if not len(tables) == len(lens) == len(starts) - 1 or starts[0] != 0 or starts[-1] != queries.shape[0]:
        raise IndexError("block_tables, context_lens and query_starts do not belong together")
    for table, context_len, start, end in zip(tables, lens, starts, starts[1:]):
        if not 0 < end - start <= context_len <= len(table) * block_size:
            raise IndexError(f"{end - start} queries of a context of {context_len} in {len(table)} blocks")
    options = {} if window is None else {"window": int(window)}
    return (queries, pool, tables, lens, starts, float(scale)), options


def _model(model: Any, token_ids: Any, positions: Any, attend: Any, wanted: Any = None) -> Arguments:
    _ids("token_ids", token_ids, model.config.vocab_size)
    _ids("positions", positions, 1 << 31)
    if wanted is not None:
        _ids("wanted", wanted, token_ids.shape[0])
    return (token_ids, positions, attend, wanted), {}


def _sample(_: Any, logits: Any, rows: Any) -> Arguments:
    from mini_vllm.logit_rules import SamplerRow
    rows = list(rows)
    num_rows, vocab_size = logits.shape
    if len(rows) != num_rows or not all(type(row) is SamplerRow for row in rows):
        raise TypeError(f"{len(rows)} rows for logits of {num_rows} rows, or a row that is not a SamplerRow")
    for row in rows:
        for token_ids in (row.prompt_token_ids, row.output_token_ids):
            _ids("token ids", list(token_ids), vocab_size)
        _ids("eos_token_ids", list(row.eos_token_ids), 1 << 31)
    return (logits, rows), {}


def _prompt_logprobs(_: Any, requests: Any, groups: Any, steps: Any, logits: Any, tokenizer: Any) -> Arguments:
    from mini_vllm.model_runner import RequestStep
    requests, groups, steps = list(requests), list(groups), list(steps)
    num_rows = 0
    for request, step in zip(requests, steps, strict=True):
        if type(step) is not RequestStep:
            raise TypeError(f"a step is a {type(step).__name__}, must be a RequestStep")
        num_tokens = len(_ids("token_ids", step.token_ids, logits.shape[-1]))
        num_rows += num_tokens if step.needs_all_logits else int(bool(step.needs_logits))
        _ids("prompt_token_ids", list(request.prompt_token_ids), logits.shape[-1])
        if not num_tokens <= step.context_len:
            raise IndexError(f"a step has {num_tokens} token_ids, more than its context_len, {step.context_len}")
    if num_rows != logits.shape[0]:
        raise IndexError(f"logits of {logits.shape[0]} rows for steps that want {num_rows}")
    return (requests, groups, steps, logits, tokenizer), {}


GUARDS: dict[str, Guard] = {
    "mini_vllm.model_runner.ModelRunner": _all_handed_in("a ModelRunner"),
    "mini_vllm.models.prompts.PromptReader": _all_handed_in("a PromptReader"),
    "mini_vllm.sequences.InputProcessor": _input_processor,
    "mini_vllm.model_runner.ModelRunner.step": _step,
    "mini_vllm.attention.PagedKVCache.copy_blocks": _copy_blocks,
    "mini_vllm.attention.PagedKVCache.clear_blocks": _clear_blocks,
    "mini_vllm.fast.attention.FastAttention.__call__": _attention,
    "mini_vllm.attention.paged_attention": _attention,
    "mini_vllm.models.network.Model.__call__": _model,
    "mini_vllm.sampler.Sampler.sample": _sample,
    "mini_vllm.executor.take_prompt_logprobs": _prompt_logprobs,
}

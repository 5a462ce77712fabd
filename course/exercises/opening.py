"""The picture at the beginning of each notebook, which shows the topic of the notebook.

    from course.exercises.opening import opening
    opening("02")

The reference engine makes each picture, even if the student has passed labs, so it is the same every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mini_vllm.pictures import Picture
    from mini_vllm.trace.recorder import StepTrace

#: The width of a picture that is readable on a narrow screen.
WIDTH = 480
WOODCUTTER = "Once upon a time a poor woodcutter lived with his wife and two children near a large forest."
#: A text that tiny-tales continues by repeating parts of it.
WOLF = '"I am hungry," said the wolf. "I am thirsty," said the fox. "I am'


@dataclass(frozen=True)
class Visitor:
    """A request, and the step before which it arrives."""

    at_step: int
    prompt: str
    num_tokens: int
    n: int = 1


VISITORS = (
    Visitor(0, WOODCUTTER, 20),
    Visitor(1, "The king had three daughters", 16, n=2),
    Visitor(4, WOODCUTTER + " One day", 20),
    Visitor(7, "A wolf knocked at the door", 18),
    Visitor(16, WOODCUTTER + " The elder child", 12),
    Visitor(19, "Snow fell all night", 10),
)
#: The number of tokens that each of eight requests generates.
EIGHT = (4, 16, 6, 3, 11, 5, 8, 3)


def opening(notebook: str) -> Picture:
    """Draw the opening picture of a notebook, for example of "02". Raise ValueError if there is no such notebook."""
    if notebook not in OPENINGS:
        raise ValueError(f"there is no notebook {notebook!r}; the notebooks are {', '.join(OPENINGS)}")
    return OPENINGS[notebook]()


def serve(visitors: Sequence[Visitor], **sizes: Any) -> StepTrace:
    """Serve all visitors and return the trace, which has no times; ``sizes`` are settings of ``EngineConfig``."""
    from mini_vllm.engine import LLMEngine  # imported here because most exercises are checked without MLX
    from mini_vllm.engine_config import EngineConfig
    from mini_vllm.request import SamplingParams
    from mini_vllm.trace.recorder import StepTrace
    trace = StepTrace(clock=lambda: 0.0)
    engine = LLMEngine(EngineConfig(model="tiny-tales", enable_lookahead=False, **sizes), trace=trace)
    to_come, step = list(visitors), 0
    while to_come or engine.has_unfinished_requests():
        while to_come and to_come[0].at_step <= step:
            visitor = to_come.pop(0)
            engine.add_request(visitor.prompt,
                               SamplingParams(max_tokens=visitor.num_tokens, n=visitor.n, seed=1, ignore_eos=True))
        engine.step()
        step += 1
    return trace


def small_pool() -> Picture:
    """Draw six requests in a pool that is too small for all of them."""
    from mini_vllm.pictures import draw_trace
    trace = serve(VISITORS, block_size=8, num_blocks=13, max_num_seqs=8, max_num_batched_tokens=24,
                  max_num_chunk_tokens=12, watermark=0.0)
    return draw_trace(trace, width=WIDTH, is_brief=True, look=(
        "Each column is one step of the engine. In the upper half, each row is a request: a box is its prompt, and a "
        "dot is one generated token. A red cross is a preemption: the request loses its memory and waits. In the lower "
        "half, each row is a block of memory, in the colour of the request that holds it."))


def reserved_and_paged() -> Picture:
    """Draw the same memory twice: reserved for the longest text, and allocated in pages."""
    from mini_vllm.kv_cache import KVCacheManager
    from mini_vllm.pictures import MemoryRun, draw_memory, runs_in_pages, stack
    from mini_vllm.request import Request, SamplingParams
    num_slots, longest = 2048, 512
    lengths = ((60, 70), (170, 40), (60, 120), (130, 30), (210, 90), (80, 50), (150, 110), (100, 60), (190, 20),
               (70, 80), (140, 70))
    requests = [Request(letter, range(now), SamplingParams(max_tokens=later))
                for letter, (now, later) in zip("ABCDEFGHIJK", lengths)]
    manager = KVCacheManager(num_slots // 16 + 1, 16, enable_caching=False)
    for request in requests:
        manager.allocate_slots(request, request.num_tokens)
        request.num_computed_tokens = request.num_tokens
    reserved = [MemoryRun(request.request_id, longest * number, longest, now, later)
                for number, (request, (now, later)) in enumerate(zip(requests[:num_slots // longest], lengths))]
    return stack(draw_memory(num_slots, reserved, per_row=1024, width=WIDTH),
                 draw_memory(num_slots, runs_in_pages(manager, requests), per_row=1024, width=WIDTH), look=(
        "The same memory twice. Above, each request reserves room for the longest text, 512 tokens: four requests fill "
        "the memory, and most of it stays empty (stripes). Below, memory is allocated in pages of 16 when it is "
        "needed: eleven requests run, and there is room for more."))


def scattered_tables() -> Picture:
    """Draw two requests that share two blocks, and their block tables."""
    from mini_vllm.kv_cache import KVCacheManager
    from mini_vllm.pictures import draw_cache
    from mini_vllm.request import Request
    texts = {"ada": "once upon a time there lived a king who had three",
             "ben": "once upon a time there lived a king but no queen"}
    words = sorted(set(" ".join(texts.values()).split()))
    manager, requests = KVCacheManager(8, 4), []
    for name, text in texts.items():
        request = Request(name, [words.index(word) for word in text.split()])
        hits, num_found = manager.get_computed_blocks(request)
        manager.allocate_slots(request, request.num_tokens - num_found, hits)
        request.num_computed_tokens = request.num_tokens
        requests.append(request)
    return draw_cache(manager, requests, text_of=words.__getitem__, look=(
        "Above is the pool: seven blocks of four tokens and the null block. Below are two block tables. Both texts "
        "begin with the same eight words. These are stored once, in blocks 1 and 2 (hatched), and both tables contain "
        "these blocks."))


def first_write() -> Picture:
    """Draw a fork that is about to write into a shared block."""
    from mini_vllm.kv_cache import KVCacheManager
    from mini_vllm.pictures import draw_cache
    from mini_vllm.request import Request
    words = "Once upon a time there was no".split()
    manager, (a, b) = KVCacheManager(7, 4), (Request(name, range(6)) for name in "AB")
    manager.allocate_slots(a, 6)
    a.num_computed_tokens = 6
    manager.finish_step()
    manager.fork(a, b)
    b.num_computed_tokens = 6
    b.append_output_token(6)
    manager.allocate_slots(b, 1)
    return draw_cache(manager, [a, b], text_of=words.__getitem__, look=(
        "B was forked from A, and both shared blocks 1 and 2. Now B is about to write the word “no”. Block 1 stays "
        "shared (hatched). Block 2 is copied first (red arrow), so that A's block 2 does not change."))


def static_and_continuous() -> Picture:
    """Draw eight requests in a batch of four, as static batches and as a continuous batch."""
    from mini_vllm.pictures import draw_trace, stack
    prompts = ("Once upon a time", "The old woman", "A fox came", "In the forest", "The youngest son", "Far away",
               "A bird sat", "At night")
    sizes = {"block_size": 32, "num_blocks": 6, "max_num_seqs": 4, "enable_prefix_caching": False}
    pictures = []
    for last_come in (max(EIGHT[:4]), 0):
        visitors = [Visitor(0 if number < 4 else last_come, prompt, num_tokens)
                    for number, (prompt, num_tokens) in enumerate(zip(prompts, EIGHT))]
        pictures.append(draw_trace(serve(visitors, **sizes), width=WIDTH, is_brief=True, has_blocks=False))
    return stack(*pictures, look=(
        "The same eight requests run twice, at most four at a time. Above are static batches: the next four requests "
        "start when all of the first four have finished. Below is continuous batching: when a request finishes, the "
        "next one takes its place at once."))


def ragged_batch() -> Picture:
    """Draw one step with tokens of four requests."""
    from mini_vllm.model_runner import RequestStep
    from mini_vllm.models.loader import load
    from mini_vllm.pictures import draw_batch
    tokenizer = load("tiny-tales").tokenizer
    encode = tokenizer.encode
    steps = {"ada": RequestStep(encode(" king"), [1], 5, True), "ben": RequestStep(encode(" and"), [2], 8, True),
             "cleo": RequestStep(encode("She opened the door and"), [3], 5, True),
             "dan": RequestStep(encode("There was once a poor fisherman who lived with")[:9],
                                [4, 5], 9, False)}
    return draw_batch(steps, 8, text_of=lambda token: tokenizer.decode([token]), per_row=10, look=(
        "One step of the engine. ada and ben generate one token each. In the same batch, cleo's whole prompt and a "
        "part of dan's are computed. The K/V of each token is written to its own slot. A next token is chosen at each "
        "▲. Below is the rectangle that a padded batch would compute."))


def without_and_with_drafts() -> Picture:
    """Draw one request twice: decoded token by token, and with drafts."""
    from mini_vllm.engine import LLMEngine
    from mini_vllm.engine_config import EngineConfig
    from mini_vllm.fast.step_costs import DraftCost, StepCosts
    from mini_vllm.pictures import draw_trace, stack
    from mini_vllm.request import SamplingParams
    from mini_vllm.trace.recorder import StepTrace
    pictures = []
    for num_drafted in (0, 4):
        trace = StepTrace(clock=lambda: 0.0)
        engine = LLMEngine(EngineConfig(model="tiny-tales", num_blocks=9, enable_lookahead=False,
                                        num_speculative_tokens=num_drafted), trace=trace)
        if engine.speculation is not None:
            engine.speculation.costs = StepCosts((DraftCost(1, first=0.0, per_token=0.2),))
        engine.add_request(WOLF, SamplingParams(max_tokens=40, temperature=0, ignore_eos=True))
        while engine.has_unfinished_requests():
            engine.step()
        pictures.append(draw_trace(trace, width=WIDTH, is_brief=True, has_blocks=False))
    return stack(*pictures, look=(
        "The same 40 tokens twice. Above, each step gives one token (a dot). Below, half of the steps also compute "
        "guesses of the next tokens. A filled square is a guess that was right: a token that needs no step of its own. "
        "A hollow square was wrong, and changes nothing."))


OPENINGS: dict[str, Callable[[], Picture]] = {
    "00": small_pool, "01": reserved_and_paged, "02": scattered_tables, "03": first_write,
    "04": static_and_continuous, "05": ragged_batch, "06": without_and_with_drafts}

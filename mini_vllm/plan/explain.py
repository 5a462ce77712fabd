"""A plan as lines: each is a name, its result, and the formula with its numbers, so that it can be followed by hand."""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.plan.estimate import SECONDS_PER_DAY, Plan

#: Factor → prefix, from the largest down.
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))


@dataclass(frozen=True)
class Line:
    """A result with its formula. ``key`` is its name in JSON."""

    key: str
    title: str
    value: float
    unit: str
    #: With its numbers; a test computes it.
    formula: str
    note: str = ""

    @property
    def told(self) -> str:
        return f"{self.formula}: {self.note}" if self.note else self.formula

    @property
    def result(self) -> str:
        return count(self.value) + f" {self.unit}".rstrip() if self.unit in COUNTED else si(self.value, self.unit)


#: Units of which thousands are written out instead of prefixed.
COUNTED = ("", "requests", "tokens", "tokens/s", "requests/s")


def count(value: float) -> str:
    """Format a number with four digits, or all of a whole number: 1,234,567 or 12.35."""
    if value == int(value) or abs(value) >= 1000:
        return f"{round(value):,}"
    return f"{value:.4g}"


def si(value: float, unit: str) -> str:
    """Format a number with a prefix: 4.8 TB/s, 0.1 ms."""
    factor, prefix = next(((factor, prefix) for factor, prefix in _PREFIXES if abs(value) >= factor), _PREFIXES[-1])
    return f"{value / factor:.4g} {prefix}{unit}"


def lines_of(plan: Plan) -> list[tuple[str, list[Line]]]:
    """Return the lines in groups: title → lines, in the order of the calculation."""
    return [("memory", _memory(plan)), ("a round: every running request gets one token", _round(plan)),
            ("replicas", _replicas(plan))]


def _memory(plan: Plan) -> list[Line]:
    shape, machine, demand, limits = plan.shape, plan.machine, plan.demand, plan.limits
    matrices = "" if shape.is_tied else "2 × "
    return [
        Line("num_weights", "weights", shape.num_weights, "",
             f"{shape.layers} layers × (2 × {shape.width} width × {shape.head_size} head size × ({shape.heads} heads + "
             f"{shape.kv_heads} KV heads) + 3 × {shape.width} × {shape.mlp_width} MLP width) + {matrices}"
             f"{shape.vocabulary} vocabulary × {shape.width}"),
        Line("weight_bytes", "weights in bytes", plan.weight_bytes, "B",
             f"{count(shape.num_weights)} × {plan.bytes_per_weight:g} B"),
        Line("kv_bytes_per_token", "K/V per token", plan.kv_bytes_per_token, "B",
             f"2 × {shape.layers} layers × {shape.kv_heads} KV heads × {shape.head_size} × {plan.bytes_per_kv:g} B",
             "keys and values"),
        Line("kv_memory", "left for K/V", plan.kv_memory, "B",
             f"{limits.memory_share:g} × {si(machine.memory, 'B')} − {si(plan.weight_bytes, 'B')}"),
        Line("blocks_per_request", "blocks per request", plan.blocks_per_request, "",
             f"⌈({demand.prompt} prompt + {demand.output} output) / {limits.block_size}⌉"),
        Line("request_bytes", "K/V per request", plan.request_bytes, "B",
             f"{plan.blocks_per_request} blocks × {limits.block_size} tokens × {si(plan.kv_bytes_per_token, 'B')}"),
        Line("fitting", "requests that fit", plan.fitting, "requests",
             f"⌊{si(plan.kv_memory, 'B')} / {si(plan.request_bytes, 'B')}⌋"),
        Line("batch", "running at once", plan.batch, "requests",
             f"min({count(plan.fitting)}, {limits.max_num_seqs})", "the second is --max-num-seqs"),
    ]


def _round(plan: Plan) -> list[Line]:
    shape, machine, demand = plan.shape, plan.machine, plan.demand
    tokens = plan.batch + plan.prompt_tokens
    layers = shape.layers * shape.layer_weights
    return [
        Line("prompt_tokens", "prompt tokens in it", plan.prompt_tokens, "tokens",
             f"{plan.batch} requests × {demand.prompt} × (1 − {demand.cached:g} cached) / {demand.output} output"),
        Line("steps", "steps", plan.steps, "", f"max(1, ({plan.batch} + {count(plan.prompt_tokens)}) / "
                                               f"{machine.step_tokens} tokens per step)"),
        Line("read_s", "read the weights", plan.read_s, "s",
             f"{count(plan.steps)} × {count(shape.weights_per_token)} × {plan.bytes_per_weight:g} B / "
             f"{si(machine.bandwidth, 'B/s')}"),
        Line("multiply_s", "multiply", plan.multiply_s, "s",
             f"2 × ({count(layers)} weights in layers × {count(tokens)} tokens + {count(shape.output_weights)} of the "
             f"output × {plan.batch}) / {si(machine.flops, 'FLOP/s')}"),
        Line("products_s", "→ products", plan.products_s, "s",
             f"max({si(plan.read_s, 's')}, {si(plan.multiply_s, 's')})",
             f"{'reading' if plan.read_s >= plan.multiply_s else 'multiplying'} is the bound"),
        Line("kv_read_s", "read K/V", plan.kv_read_s, "s",
             f"{plan.batch} × ({demand.prompt} + {demand.output} / 2) tokens × {si(plan.kv_bytes_per_token, 'B')} / "
             f"{si(machine.kv_bandwidth, 'B/s')}"),
        Line("attend_s", "multiply with K/V", plan.attend_s, "s",
             f"4 × {shape.layers} layers × {shape.heads} heads × {shape.head_size} × ({plan.batch} × "
             f"{count(plan.context)} + {count(plan.prompt_tokens)} × "
             f"{count(demand.prompt - plan.new_prompt / 2)} tokens) / {si(machine.flops, 'FLOP/s')}"),
        Line("attention_s", "→ attention", plan.attention_s, "s",
             f"max({si(plan.kv_read_s, 's')}, {si(plan.attend_s, 's')})",
             f"{'reading' if plan.kv_read_s >= plan.attend_s else 'multiplying'} is the bound"),
        Line("fixed_s", "start operations", plan.fixed_s, "s",
             f"{count(plan.steps)} × {shape.layers} layers × {si(machine.layer_s, 's')}"),
        Line("requests_s", "plan, sample, text", plan.requests_s, "s",
             f"{plan.batch} requests × {si(machine.request_s, 's')}"),
        Line("round_s", "→ round", plan.round_s, "s",
             f"{si(plan.products_s, 's')} + {si(plan.attention_s, 's')} + {si(plan.fixed_s, 's')} + "
             f"{si(plan.requests_s, 's')}", "the time between two tokens of a request"),
    ]


def _replicas(plan: Plan) -> list[Line]:
    shape, demand, limits = plan.shape, plan.demand, plan.limits
    return [
        Line("tokens_per_s", "tokens per second", plan.tokens_per_s, "tokens/s",
             f"{plan.batch} / {si(plan.round_s, 's')}", "tokens of outputs, per replica"),
        Line("capacity", "requests per second", plan.capacity, "requests/s",
             f"{count(plan.tokens_per_s)} / {demand.output} output", "per replica"),
        Line("peak_requests_per_s", "demand at the peak", plan.peak_requests_per_s, "requests/s",
             f"{count(demand.requests_per_s * SECONDS_PER_DAY)} per day / {count(SECONDS_PER_DAY)} s × {demand.peak:g} "
             "peak"),
        Line("replicas", "replicas", plan.replicas, "",
             f"⌈{count(plan.peak_requests_per_s)} / ({count(plan.capacity)} × {limits.utilisation:g} utilisation)⌉"),
        Line("tier_bytes_per_s", "loading K/V pays above", plan.tier_bytes_per_s, "B/s",
             f"{si(plan.kv_bytes_per_token, 'B')} / (2 × {count(shape.layers * shape.layer_weights)} weights in layers "
             f"/ {si(plan.machine.flops, 'FLOP/s')})", "reading a prompt's token from a disk or another machine at a "
             "higher rate takes less time than computing it"),
    ]

"""From a model, a machine and a workload to the time of a step, tokens per second and replicas.

A replica is busy all the time with ``batch`` requests, each at another point of its life. While each of them gets one
token, ``batch / output`` of them begin, and their prompts are computed in the same steps:

    round = steps × (fixed + weights) + attention + requests        one token for every request
    tokens per second = batch / round
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mini_vllm.checks import real_number, whole_number
from mini_vllm.plan.machines import Machine
from mini_vllm.plan.shape import LARGEST, ModelShape

SECONDS_PER_DAY = 86_400
MOST_REQUESTS_PER_S = 1e9


@dataclass(frozen=True)
class Demand:
    """What arrives. Raises ValueError that names the field, its value and its bound."""

    requests_per_s: float
    prompt: int
    output: int
    #: The part of the prompts' tokens that is found in the cache.
    cached: float = 0.0
    #: Requests per second at the busiest time, divided by the average.
    peak: float = 1.0

    def __post_init__(self) -> None:
        real_number("requests per second", self.requests_per_s, above=0, at_most=MOST_REQUESTS_PER_S)
        for field in ("prompt", "output"):
            whole_number(field, getattr(self, field), 1, LARGEST)
        real_number("cached", self.cached, 0, below=1)
        real_number("peak", self.peak, 1, 1e6)

    @property
    def length(self) -> int:
        """The tokens of a request when it ends."""
        return self.prompt + self.output


@dataclass(frozen=True)
class Limits:
    """How a replica is run. Raises ValueError that names the field, its value and its bound."""

    max_num_seqs: int = 64
    block_size: int = 32
    #: The part of the memory for weights, keys and values; the rest is for a step's intermediate results.
    memory_share: float = 0.9
    #: The part of the capacity that is planned with, so that requests rarely wait.
    utilisation: float = 0.7
    #: None: as many as the machine computes with, or as the checkpoint is packed.
    weight_bits: float | None = None
    kv_bits: float | None = None

    def __post_init__(self) -> None:
        whole_number("max_num_seqs", self.max_num_seqs, 1, LARGEST)
        whole_number("block_size", self.block_size, 1, LARGEST)
        for field in ("memory_share", "utilisation"):
            real_number(field, getattr(self, field), above=0, at_most=1)
        for field in ("weight_bits", "kv_bits"):
            if getattr(self, field) is not None:
                real_number(field, getattr(self, field), 1, 64)


class Plan:
    """The arithmetic, one number per attribute. Raises ValueError if not even a single request fits."""

    def __init__(self, shape: ModelShape, machine: Machine, demand: Demand, limits: Limits) -> None:
        self.shape, self.machine, self.demand, self.limits = shape, machine, demand, limits
        self._fit_memory()
        self._time_round()
        # What one replica can do, and how many the demand takes.
        self.tokens_per_s = self.batch / self.round_s
        self.capacity = self.tokens_per_s / demand.output
        self.peak_requests_per_s = demand.requests_per_s * demand.peak
        self.replicas = math.ceil(self.peak_requests_per_s / (self.capacity * limits.utilisation))
        #: From this rate on, loading a prompt's keys and values takes less time than computing them.
        self.tier_bytes_per_s = self.kv_bytes_per_token * machine.flops / (2 * shape.layers * shape.layer_weights)

    def _fit_memory(self) -> None:
        shape, machine, demand, limits = self.shape, self.machine, self.demand, self.limits
        own_bits = 8.0 * machine.number_bytes
        packed_bits = shape.packed_bits if machine.number_bytes < 4 else None  # a CPU expands packed weights
        self.bytes_per_weight = (limits.weight_bits or packed_bits or own_bits) / 8
        self.weight_bytes = shape.num_weights * self.bytes_per_weight
        self.bytes_per_kv = (limits.kv_bits or own_bits) / 8
        self.kv_bytes_per_token = shape.kv_bytes(self.bytes_per_kv)
        shape.check_length(demand.length)
        usable = machine.memory * limits.memory_share
        if self.weight_bytes >= usable:
            raise ValueError(f"the weights of {shape.name} take {self.weight_bytes:.4g} bytes, must be less than "
                             f"{usable:.4g}, {limits.memory_share:g} of the memory of {machine.name}: take a larger "
                             "machine, fewer --weight-bits, or several machines with tensor parallelism")
        self.kv_memory = usable - self.weight_bytes
        self.blocks_per_request = math.ceil(demand.length / limits.block_size)
        self.request_bytes = self.blocks_per_request * limits.block_size * self.kv_bytes_per_token
        self.fitting = int(self.kv_memory // self.request_bytes)
        if self.fitting < 1:
            raise ValueError(f"one request of {demand.length} tokens takes {self.request_bytes:.4g} bytes of keys and "
                             f"values, must be at most {self.kv_memory:.4g}, the memory that the weights leave")
        self.batch = min(self.fitting, limits.max_num_seqs)

    def _time_round(self) -> None:
        shape, machine, demand, batch = self.shape, self.machine, self.demand, self.batch
        self.new_prompt = demand.prompt * (1 - demand.cached)
        #: Prompt tokens that are computed while every request gets one token.
        self.prompt_tokens = batch * self.new_prompt / demand.output
        self.steps = max(1.0, (batch + self.prompt_tokens) / machine.step_tokens)
        # Products: the layers for all tokens, the output matrix for one token per request and per prompt.
        self.product_flops = 2 * (shape.layers * shape.layer_weights * (batch + self.prompt_tokens)
                                  + shape.output_weights * batch)
        self.read_bytes = self.steps * shape.weights_per_token * self.bytes_per_weight
        self.read_s, self.multiply_s = self.read_bytes / machine.bandwidth, self.product_flops / machine.flops
        self.products_s = max(self.read_s, self.multiply_s)
        # Attention: a decoded token reads its request's keys and values; a prompt's tokens share one reading.
        self.context = demand.prompt + demand.output / 2
        self.kv_read_bytes = batch * self.context * self.kv_bytes_per_token
        prompt_context = demand.prompt - self.new_prompt / 2
        self.attention_flops = 4 * shape.layers * shape.heads * shape.head_size * (
            batch * self.context + self.prompt_tokens * prompt_context)
        self.kv_read_s = self.kv_read_bytes / machine.kv_bandwidth
        self.attend_s = self.attention_flops / machine.flops
        self.attention_s = max(self.kv_read_s, self.attend_s)
        self.fixed_s = self.steps * shape.layers * machine.layer_s
        self.requests_s = batch * machine.request_s
        self.round_s = self.products_s + self.attention_s + self.fixed_s + self.requests_s

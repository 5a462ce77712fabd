"""A machine as the numbers that decide how long a step takes, and machines that have a name here."""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.checks import real_number, whole_number

#: Larger values are not accepted, so that every product stays a finite number.
MOST_BYTES, MOST_RATE, MOST_SECONDS = 1e18, 1e21, 1e3


@dataclass(frozen=True)
class Machine:
    """What a replica runs on. Raises ValueError that names the field, its value and its bound."""

    name: str
    #: What the numbers come from.
    source: str
    memory: float
    #: Bytes per second, for the weights.
    bandwidth: float
    #: Of matrix products with enough rows.
    flops: float
    #: Bytes per second at which attention reads keys and values: on a CPU far less than ``bandwidth``, because each key
    #: is used for one token only, and softmax is in between.
    kv_bandwidth: float
    #: The time that a layer takes besides reading and multiplying: starting its operations from Python.
    layer_s: float
    #: The time per running request and step: planning, sampling, text.
    request_s: float
    #: The most tokens that the engine computes in a step here.
    step_tokens: int
    #: A weight and a key's number, unless the model is packed.
    number_bytes: int

    def __post_init__(self) -> None:
        real_number("memory", self.memory, above=0, at_most=MOST_BYTES)
        for field in ("bandwidth", "flops", "kv_bandwidth"):
            real_number(field, getattr(self, field), above=0, at_most=MOST_RATE)
        for field in ("layer_s", "request_s"):
            real_number(field, getattr(self, field), 0, MOST_SECONDS)
        whole_number("step_tokens", self.step_tokens, 1)
        whole_number("number_bytes", self.number_bytes, 1, 8)


#: The limits of ``fast.tuning``, which imports MLX. A test compares them.
CPU_STEP_TOKENS, GPU_STEP_TOKENS = 256, 2048
HERE = "here"

PRESETS = {machine.name: machine for machine in (
    Machine("arm-2", "assumed for two Arm cores with a fast BLAS, float32",
            8e9, 20.2e9, 55.7e9, 4.3e9, 0.6e-3, 0.09e-3, CPU_STEP_TOKENS, 4),
    Machine("h200", "published for an H200: 141 GB, 4.8 TB/s; assumed: 640 of the published 989 TFLOP/s, layer and "
            "request",
            141e9, 4.8e12, 640e12, 4.8e12, 0.1e-3, 0.02e-3, GPU_STEP_TOKENS, 2),
    Machine("m1-max", "published by Apple for an M1 Max: 64 GB, 400 GB/s, 10.4 TFLOP/s; assumed: layer and "
            "request, those of the H200",
            64e9, 400e9, 10.4e12, 400e9, 0.1e-3, 0.02e-3, GPU_STEP_TOKENS, 2),
)}

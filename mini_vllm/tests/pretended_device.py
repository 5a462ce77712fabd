"""A pytest plugin that pretends that MLX computes on a GPU. ``make pretend`` loads it.

    MINI_VLLM_PRETEND=metal pytest -p mini_vllm.tests.pretended_device mini_vllm/fast

``backend`` is the only module that knows the device, so this plugin changes its answers before another module imports
them. Everything is still computed on the CPU. With ``cuda``, where engines use the GPU kernels by default, plain
operations take the place of the kernels. A test marked ``real_device(reason)`` is skipped.
"""

import os

import pytest

from mini_vllm import backend
from mini_vllm.backend import mx

DEVICES = ("metal", "cuda")
DEVICE = os.environ.get("MINI_VLLM_PRETEND")
if DEVICE not in DEVICES:
    raise pytest.UsageError(f"MINI_VLLM_PRETEND is {DEVICE!r}, must be {' or '.join(DEVICES)}")

backend.mlx_build = lambda: DEVICE
backend.is_cpu = lambda: False
backend.device_name = lambda: f"gpu (pretended {DEVICE})"
backend.blas = backend.BlasInfo(DEVICE, None, "pretended")
mx.compile = lambda function, **options: function  # on a CPU it needs a C++ compiler
gather_mm = mx.gather_mm
#: On a CPU, MLX has this product only in float32.
mx.gather_mm = lambda a, b, *args, **named: gather_mm(a.astype(mx.float32), b.astype(mx.float32), *args,
                                                      **named).astype(a.dtype)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    from mini_vllm.gpu.conftest import emulate
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE == "cuda" and "mini_vllm/gpu" not in item.path.as_posix():  # those tests are about the kernels
            emulate(patch.setattr)
        return (yield)


def pytest_runtest_setup(item):
    mark = item.get_closest_marker("real_device")
    if mark:
        pytest.skip(f"not on a pretended device: {mark.args[0]}")

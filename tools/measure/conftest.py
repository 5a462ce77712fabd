"""Checkpoints for the suites of the measurements: those of the engine's."""

from mini_vllm.conftest import checkpoints, shallow  # noqa: F401

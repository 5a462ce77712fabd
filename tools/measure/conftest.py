"""Checkpoints for the tests of the measurements: those of the engine's tests."""

from mini_vllm.conftest import checkpoints, shallow  # noqa: F401

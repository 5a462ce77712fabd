"""The model that most tests of the engine use."""

import pytest

from mini_vllm.models.loader import load


@pytest.fixture(scope="module")
def loaded(shallow):
    """Return a random model of two layers; a file whose tests need another model defines its own fixture."""
    return load(shallow("llama3"))

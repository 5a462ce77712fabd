"""What a configuration rejects when it is created, by the name of the field."""

import pytest

from mini_vllm.engine_config import EngineConfig, parse_memory


def test_a_budget_below_the_seats_is_refused_when_the_configuration_is_made():
    with pytest.raises(ValueError, match=r"^max_num_batched_tokens is 8, must be at least max_num_seqs \(9\)"):
        EngineConfig(max_num_batched_tokens=8, max_num_seqs=9)
    with pytest.raises(ValueError, match=r"^max_num_batched_tokens is 8, must be at least max_num_seqs \(64\)"):
        EngineConfig(max_num_batched_tokens=8)
    assert EngineConfig(max_num_batched_tokens=9, max_num_seqs=9).max_num_batched_tokens == 9
    assert EngineConfig(max_num_seqs=5000).max_num_batched_tokens is None, "the engine takes at least max_num_seqs then"


@pytest.mark.parametrize("memory", ["0", "0GB", "-1MB", 0, 2**63, "9999999999GiB", "nan"])
def test_memory_that_nobody_has_is_refused_with_both_bounds(memory):
    with pytest.raises(ValueError, match=r"kv_memory is .*, must be more than 0 and less than 2 \*\* 63 bytes"):
        EngineConfig(kv_memory=memory)


def test_memory_is_read_in_both_kinds_of_units():
    assert [parse_memory(text) for text in (7, "7", "2KB", "2 kib", "1.5GB")] == [7, 7, 2000, 2048, 1_500_000_000]

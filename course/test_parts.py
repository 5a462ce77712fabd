"""What students build in phase 04 runs real decoding: the labs' own classes in the engine, in place of its own."""

import pytest

from course.labs import discover, find_lab
from course.loading import load_file
from mini_vllm.engine_config import EngineParts
from mini_vllm.llm import LLM
from mini_vllm.request import SamplingParams

PROMPTS = ["Once upon a time", "The king said to the queen", "Once upon a midnight", "In the forest", "A cat"]
PARAMS = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)


def solution(number):
    return load_file(find_lab(number, discover()).folder / "solution.py")


@pytest.fixture(scope="module")
def wanted():
    return [output.token_ids for output in LLM("tiny-tales").generate(PROMPTS, PARAMS)]


@pytest.mark.parametrize("numbers, num_blocks", [(["4.1"], 99), (["4.2"], 9), (["4.3"], 9), (["4.2", "4.3"], 9)])
def test_the_labs_classes_serve_in_the_engine(wanted, numbers, num_blocks):
    parts = {}
    for number in numbers:
        module = solution(number)
        parts |= ({"request_queue": module.PriorityQueueWithAging} if number == "4.3"
                  else {"scheduler": module.Scheduler})
    llm = LLM("tiny-tales", parts=EngineParts(**parts), num_blocks=num_blocks, block_size=8, max_num_seqs=4)
    outputs = llm.generate(PROMPTS, PARAMS)
    assert [output.error for output in outputs] == [None] * 5
    assert [output.token_ids for output in outputs] == wanted
    assert type(llm.engine.scheduler).__module__.startswith("lab_file_") == ("4.3" not in numbers or len(numbers) > 1)
    if num_blocks == 9:
        assert llm.engine.scheduler.num_preemptions > 0
    assert llm.engine.kv_cache.block_pool.get_usage() == 0.0

"""Requests, parameters and outputs: which values are rejected, and which numbers add up."""

import pytest

from mini_vllm.request import CompletionOutput, Priority, Request, RequestOutput, RequestStatus, SamplingParams, Usage


def test_parameters_at_their_bounds_are_fine():
    params = SamplingParams(max_tokens=1, min_tokens=1, temperature=0, top_p=1, min_p=1, logprobs=20, seed=0, stop="x")
    assert params.stop == ("x",) and params.stop_token_ids == ()


def test_a_request_counts_its_tokens():
    request = Request("r", [1, 2, 3], priority=0, arrival_time=5.0)
    request.append_output_token(9)
    assert (request.num_prompt_tokens, request.num_tokens, request.num_computed_tokens) == (3, 4, 0)
    assert request.all_token_ids == [1, 2, 3, 9] and request.output_token_ids == [9]
    assert request.priority is Priority.HIGH and request.status is RequestStatus.WAITING


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="request 'r': the prompt is empty"):
        Request("r", [])


def test_priorities_and_states():
    assert [int(p) for p in (Priority.HIGH, Priority.NORMAL, Priority.LOW)] == [0, 1, 2]
    assert [s.name for s in RequestStatus if not s.is_finished] == ["WAITING", "RUNNING", "PREEMPTED"]


def test_usage_reads_as_attributes_and_as_json():
    usage = Usage(10, 5)
    assert usage.prompt_tokens_details.cached_tokens == 0 and usage["total_tokens"] == 15
    assert usage.to_dict() == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15,
                               "prompt_tokens_details": {"cached_tokens": 0},
                               "completion_tokens_details": {"accepted_prediction_tokens": 0,
                                                             "rejected_prediction_tokens": 0}}
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_an_output_speaks_for_its_first_continuation():
    output = RequestOutput("r", "p", [1], [CompletionOutput(0, "text", [7], "stop")], True, Usage(1, 1))
    assert (output.text, output.token_ids, output.finish_reason) == ("text", [7], "stop")
    refused = RequestOutput("r", "p", [], [], True, Usage(0, 0), error="no")
    assert (refused.text, refused.token_ids, refused.finish_reason) == ("", [], "error")

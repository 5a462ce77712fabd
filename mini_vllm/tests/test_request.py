"""Requests, parameters and outputs: which values are rejected, and which numbers add up."""

import pytest

from mini_vllm.request import CompletionOutput, Request, RequestOutput, Usage


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="request 'r': the prompt is empty"):
        Request("r", [])


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

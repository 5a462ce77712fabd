"""What the prompt of a request says, for those who name requests by it."""

from __future__ import annotations

from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.request import Request
from mini_vllm.sequences import LiveRequests

#: Of a prompt that came as token ids, this many are read: nobody wants more than its first words.
MAX_TOKENS = 32


class PromptTexts:
    """The text that a request came with; of one that came as token ids, how these begin to read.

    It knows the live requests and the tokenizer, but no engine: an engine must not outlive its last owner.
    """

    def __init__(self, live: LiveRequests, tokenizer: Tokenizer) -> None:
        self._live, self._tokenizer = live, tokenizer

    def __call__(self, request: Request) -> str:
        try:
            text = self._live.group_of(request.request_id).prompt
        except KeyError:  # somebody else gave it to the scheduler
            text = None
        return self._tokenizer.decode(request.prompt_token_ids[:MAX_TOKENS]) if text is None else text

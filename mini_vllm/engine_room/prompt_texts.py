"""The text of a request's prompt, for code that names requests by it."""

from __future__ import annotations

from mini_vllm.models.tokenizer import Tokenizer
from mini_vllm.request import Request
from mini_vllm.sequences import LiveRequests

#: Of a prompt given as token ids, only this many are decoded: its first words are enough.
MAX_TOKENS = 32


class PromptTexts:
    """The text of a request's prompt; for a prompt given as token ids, the text of the first ones.

    It knows the live requests and the tokenizer, but no engine: a reference would keep the engine alive.
    """

    def __init__(self, live: LiveRequests, tokenizer: Tokenizer) -> None:
        self._live, self._tokenizer = live, tokenizer

    def __call__(self, request: Request) -> str:
        try:
            text = self._live.group_of(request.request_id).prompt
        except KeyError:  # the request was not added by this engine
            text = None
        return self._tokenizer.decode(request.prompt_token_ids[:MAX_TOKENS]) if text is None else text

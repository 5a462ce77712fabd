"""The path of one request: a seat, a model, its outputs, an answer; and what happens if its client disconnects.

    accept ──▶ seat (429) ──▶ lease of the model (404, 503) ──▶ prompts read (400) ──▶ outputs ──▶ outbox
                                                                                                    │
       the connection is watched meanwhile: if it closes, all of this is cancelled       answer, or events

The status of a stream is not sent before its first output exists, so every rejected request has its own status.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mini_vllm.async_engine import EngineBusyError
from mini_vllm.engine_thread import EngineStoppedError
from mini_vllm.logit_rules import NO_TOKEN_LEFT
from mini_vllm.models.prompts import PromptTokens
from mini_vllm.request import SamplingParams
from mini_vllm.server.access.caller import Caller
from mini_vllm.server.access.concurrency_limit import RETRY_AFTER_S
from mini_vllm.server.api.answers import Answers
from mini_vllm.server.api.logprobs import check_num_logprobs
from mini_vllm.server.api.params import check_stream_options, priority_of, refused, sampling_params
from mini_vllm.server.api.prompt_outputs import Batch, Outbox, Work
from mini_vllm.server.api.prompt_readers import Readers
from mini_vllm.server.api.protocol import GenerationRequest
from mini_vllm.server.api.response_writers import EventWriter, WholeWriter, Writer
from mini_vllm.server.errors import ApiError, retry_later
from mini_vllm.server.metrics import Metrics, RequestMeter
from mini_vllm.server.models.loaded_model import ServedModel
from mini_vllm.server.models.model_registry import ModelShelf

log = logging.getLogger("mini_vllm.server")

FAILED = "the model failed while it computed this request; the server's log has the details under "


class EngineResponse(Response, ABC):
    """The answer to a request that the engine computes. It is computed while it is sent."""

    #: The field that contains the prompt, for errors.
    PROMPT: str
    ANSWERS: type[Answers]

    def __init__(self, body: GenerationRequest, caller: Caller, shelf: ModelShelf, metrics: Metrics,
                 readers: Readers) -> None:
        """Raise ApiError for errors that do not depend on the model."""
        super().__init__()
        check_stream_options(body)
        self.request, self.caller, self.shelf, self.metrics, self.readers = body, caller, shelf, metrics, readers
        self.priority = priority_of(body, caller)
        self.holder = self.priority, caller.name

    @property
    @abstractmethod
    def num_prompts(self) -> int:
        """The number of prompts; each is continued ``n`` times."""

    @abstractmethod
    async def read_prompts(self, served: ServedModel) -> Sequence[PromptTokens]:
        """Return the tokens of the prompts. Raise ValueError if a prompt is invalid or too long."""

    @property
    def structure_field(self) -> str:
        """The field that says what the output must match."""
        return "structured_outputs"

    def make_answers(self, include_usage: bool) -> Answers:
        return self.ANSWERS(self.request.model, self.request.n or 1, include_usage=include_usage)

    def sampling_params(self, served: ServedModel, answers: Answers) -> SamplingParams:
        """Return the parameters for the engine. Raise ValueError or ApiError if a field is invalid."""
        return sampling_params(self.request, served.sampling_defaults)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.create_task(self._answer(send))
        watch = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()  # no effect if it is done
            watch.cancel()
            await asyncio.wait({work, watch})
        if not work.cancelled():
            work.result()

    async def _answer(self, send: Send) -> None:
        """Compute and send the answer. Raise errors before the first byte; later ones are the stream's last event."""
        body, options = self.request, self.request.stream_options
        answers = self.make_answers(include_usage=bool(options and options.include_usage))
        writer: Writer = EventWriter(answers, send, self.num_prompts) if body.stream else WholeWriter(answers, send)
        with self.metrics.request(body.model if body.model in self.shelf.names() else "") as meter:
            try:
                await self._deliver(answers, writer, meter)
            except (ValueError, EngineBusyError, EngineStoppedError, ApiError) as error:
                told = self._told(error)
                if not writer.has_started:
                    raise told from error
                meter.note_failure(told.status)
                await writer.fail(told)

    async def _deliver(self, answers: Answers, writer: Writer, meter: RequestMeter) -> None:
        """Write the outputs as they are computed.

        A client that reads slowly holds neither seats nor the model: they are free as soon as the engine is done.
        """
        outbox = Outbox()
        computing = asyncio.create_task(self._compute(answers, outbox))
        try:
            async with aclosing(outbox.batches(computing)) as batches:
                async for batch in batches:
                    self._check(batch, answers.id)
                    meter.note(batch)
                    await writer.write(batch)
        finally:
            computing.cancel()  # no effect if it is done
            await asyncio.gather(computing, return_exceptions=True)
        await writer.end()

    async def _compute(self, answers: Answers, outbox: Outbox) -> None:
        body = self.request
        seats = self.shelf.seats(body.model)
        num_texts = self.num_prompts * (body.n or 1)
        self.caller.pay_for(num_texts)
        this = asyncio.current_task()
        assert this is not None
        with seats.taken(num_texts, self.priority, self.caller.name, end=this.cancel) as claim:
            async with self.shelf.lease(body.model) as served:
                answers.has_cache = served.config.enable_prefix_caching
                params = self._with_owner(self.sampling_params(served, answers))
                check_num_logprobs(params, num_texts, served.prompts.max_model_len)
                _held = await served.prepare(params, self.holder)
                prompts = await self.read_prompts(served)
                priority = await seats.enter(claim, _num_slots(prompts, params, served), served.num_slots)
                work = Work(prompts, params, priority, self.caller.extra_keys, answers.id)
                await work.run(served, outbox)

    def _with_owner(self, params: SamplingParams) -> SamplingParams:
        """Return the same parameters, so that what the output must match is prepared for this key alone."""
        asked = params.structured_outputs
        if asked is None or self.caller.name is None:
            return params
        return replace(params, structured_outputs=replace(asked, owner=self.caller.name))

    def _told(self, error: Exception) -> ApiError:
        if isinstance(error, ApiError):
            return error
        if isinstance(error, ValueError):
            return refused(error, self.PROMPT, self.structure_field)
        if isinstance(error, EngineBusyError):
            return retry_later(429, f"the engine is {error}; try again later", "queue_full", RETRY_AFTER_S)
        return retry_later(503, "the model is being stopped or restarted; try again", "model_stopped", RETRY_AFTER_S)

    def _check(self, batch: Batch, answer_id: str) -> None:
        """Raise ApiError if an output is not an answer, because it failed or was aborted."""
        for _, output in batch:
            if output.error is not None:
                # An error about the client's own fields is not logged.
                _, _, message = output.error.partition(": ")
                if message == NO_TOKEN_LEFT or message.startswith("structured_outputs"):
                    raise refused(ValueError(message), self.PROMPT, self.structure_field)
                log.error("%s failed: %s", answer_id, output.error)
                raise ApiError(500, f"{FAILED}{answer_id}", code="computation_failed")
            if any(each.finish_reason == "abort" for each in output.outputs):
                raise retry_later(503, "the model was restarted while it computed this; try again", "aborted",
                                  RETRY_AFTER_S)


def _num_slots(prompts: Sequence[PromptTokens], params: SamplingParams, served: ServedModel) -> int:
    """Return the slots of the KV cache that these prompts and their outputs take at most."""
    longest = served.prompts.max_model_len
    return (params.n or 1) * sum(min(longest, len(prompt.token_ids) + (params.max_tokens or longest))
                                 for prompt in prompts)


async def _until_gone(receive: Receive) -> None:
    """Wait until the client disconnects: the body has been read, so no other message follows."""
    while (await receive())["type"] != "http.disconnect":
        pass

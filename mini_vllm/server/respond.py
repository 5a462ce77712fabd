"""The way of one request: a seat, a model, its outputs, an answer; and what happens if its client leaves.

    accept ──▶ seat (429) ──▶ lease of the model (404, 503) ──▶ prompts read (400) ──▶ outputs ──▶ answer, or events
       └────────────── meanwhile somebody watches the connection: if it closes, all of this is cancelled ───────────┘

The status of a stream is not sent before its first output is there, so whatever is refused has its own status.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mini_vllm.async_engine import EngineBusyError
from mini_vllm.engine_thread import EngineStoppedError
from mini_vllm.models.prompts import PromptTokens
from mini_vllm.server.access import Caller
from mini_vllm.server.answers import Answers
from mini_vllm.server.errors import ApiError, retry_later
from mini_vllm.server.outputs import Batch, Work
from mini_vllm.server.params import check_stream_options, priority_of, refused, sampling_params
from mini_vllm.server.prometheus import Metrics, RequestMeter
from mini_vllm.server.protocol import GenerationRequest
from mini_vllm.server.seats import RETRY_AFTER_S
from mini_vllm.server.served import ServedModel
from mini_vllm.server.shelf import ModelShelf
from mini_vllm.server.writers import EventWriter, WholeWriter, Writer

log = logging.getLogger("mini_vllm.server")

FAILED = "the model failed while it computed this request; the server's log says how, under "


class EngineResponse(Response, ABC):
    """The answer to a request that the engine computes. It is worked out while it is sent."""

    #: The field that holds the prompt, for errors.
    PROMPT: str
    ANSWERS: type[Answers]

    def __init__(self, body: GenerationRequest, caller: Caller, shelf: ModelShelf, metrics: Metrics) -> None:
        """Raises ApiError for what is wrong whatever the model is."""
        super().__init__()
        check_stream_options(body)
        self.request, self.caller, self.shelf, self.metrics = body, caller, shelf, metrics
        self.priority = priority_of(body, caller)

    @property
    @abstractmethod
    def num_prompts(self) -> int:
        """How many texts are to be continued, each ``n`` times."""

    @abstractmethod
    async def read_prompts(self, served: ServedModel) -> Sequence[PromptTokens]:
        """Their tokens. Raises ValueError for what is no prompt, or too long."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.create_task(self._answer(send))
        watch = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()  # of no effect if it is done
            watch.cancel()
            await asyncio.wait({work, watch})
        if not work.cancelled():
            work.result()

    async def _answer(self, send: Send) -> None:
        body = self.request
        with self.metrics.request(body.model if body.model in self.shelf.names() else "") as meter:
            seats = self.shelf.seats(body.model)
            num_texts = self.num_prompts * (body.n or 1)
            self.caller.pay_for(num_texts)
            with seats.taken(num_texts, self.priority, self.caller.name):
                async with self.shelf.lease(body.model) as served:
                    await self._serve(served, meter, send)

    async def _serve(self, served: ServedModel, meter: RequestMeter, send: Send) -> None:
        """Errors before the first byte are raised; later ones are the stream's last event."""
        body, options = self.request, self.request.stream_options
        answers = self.ANSWERS(body.model, body.n or 1, has_cache=served.config.enable_prefix_caching,
                               include_usage=bool(options and options.include_usage))
        writer: Writer = EventWriter(answers, send, self.num_prompts) if body.stream else WholeWriter(answers, send)
        try:
            params = sampling_params(body, served.sampling_defaults)
            work = Work(await self.read_prompts(served), params, self.priority, self.caller.extra_keys,
                        answers.id)
            async with aclosing(work.outputs(served, deltas=bool(body.stream))) as batches:
                async for batch in batches:
                    _check(batch, answers.id)
                    meter.note(batch)
                    await writer.write(batch)
            await writer.end()
        except (ValueError, EngineBusyError, EngineStoppedError, ApiError) as error:
            told = self._told(error)
            if not writer.has_started:
                raise told from error
            meter.note_failure(told.status)
            await writer.fail(told)

    def _told(self, error: Exception) -> ApiError:
        if isinstance(error, ApiError):
            return error
        if isinstance(error, ValueError):
            return refused(error, self.PROMPT)
        return retry_later(503, "the model is being stopped or started anew; ask again", "model_stopped", RETRY_AFTER_S)


def _check(batch: Batch, answer_id: str) -> None:
    """Raises ApiError if an output is no answer: it failed, or somebody ended it."""
    for _, output in batch:
        if output.error is not None:
            log.error("%s failed: %s", answer_id, output.error)
            raise ApiError(500, f"{FAILED}{answer_id}", code="computation_failed")
        if any(each.finish_reason == "abort" for each in output.outputs):
            raise retry_later(503, "the model was started anew while it computed this; ask again", "aborted",
                              RETRY_AFTER_S)


async def _until_gone(receive: Receive) -> None:
    """The body has been read, so the next that comes is the end of the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass

"""Errors in the format of OpenAI's API: ``{"error": {"message", "type", "param", "code"}}``.

An answer only says what the client can act on. Internal errors are written to the log, and nowhere else.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mini_vllm.server.api.validation_messages import complaint

log = logging.getLogger("mini_vllm.server")

#: Status → OpenAI's name for the error.
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 500: "server_error",
         503: "service_unavailable_error"}
#: Status → the message if the framework itself rejects a request.
MESSAGES = {404: "there is nothing at this path", 405: "this path does not allow this method",
            400: "the body could not be read: it must be JSON in UTF-8"}
INTERNAL = "something went wrong in the server; its log says what"


class ApiError(Exception):
    """An error that is sent as the answer. ``message`` is for the client, and says what to do."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None,
                 headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def to_dict(self) -> dict[str, object]:
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def to_response(self) -> Response:
        return json_response(self.to_dict(), self.status, self.headers)


def retry_later(status: int, message: str, code: str, after_s: float) -> ApiError:
    """Return an error for a request that may succeed after ``after_s`` seconds; the header has them rounded up."""
    return ApiError(status, message, code=code, headers={"Retry-After": str(max(1, -int(-after_s // 1)))})


def json_response(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Make a JSON response in ASCII: a text may contain half a surrogate pair, which UTF-8 cannot encode."""
    body = json.dumps(content, separators=(",", ":")).encode()
    return Response(body, status, headers, media_type="application/json")


def add_handlers(app: FastAPI) -> None:
    """Make every exception in a route an answer in that format."""

    @app.exception_handler(ApiError)
    async def _refused(request: Request, error: ApiError) -> Response:
        return error.to_response()

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> Response:
        message, param, code = complaint(error.errors())
        return ApiError(400, message, param=param, code=code).to_response()

    @app.exception_handler(HTTPException)
    async def _framework(request: Request, error: HTTPException) -> Response:
        message = MESSAGES.get(error.status_code, str(error.detail))
        return ApiError(error.status_code, message, headers=error.headers).to_response()

    @app.exception_handler(Exception)
    async def _unexpected(request: Request, error: Exception) -> Response:
        return ApiError(500, INTERNAL).to_response()

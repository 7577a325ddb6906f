"""What a client is told when a request cannot be served: a status, and an error in OpenAI's form."""

from __future__ import annotations

import math
from collections.abc import Mapping

from starlette.exceptions import HTTPException

from meshwright.serving.api.body.error import ErrorAnswer, ErrorDetail
from meshwright.serving.api.body.message import MessageError, MessageErrorDetail
from meshwright.specs.error import Draining, MeshwrightError, QueueFull, RequestRefused

BAD_REQUEST, UNAUTHORIZED, NOT_FOUND, TIMED_OUT, TOO_LARGE, TOO_MANY = 400, 401, 404, 408, 413, 429
OUR_FAILURE, UNAVAILABLE, LATE = 500, 503, 504
TYPES = {
    UNAUTHORIZED: "authentication_error",
    NOT_FOUND: "not_found_error",
    TIMED_OUT: "timeout_error",
    TOO_MANY: "rate_limit_error",
    OUR_FAILURE: "server_error",
    UNAVAILABLE: "unavailable_error",
    LATE: "timeout_error",
}
MESSAGES = "/v1/messages"  # paths whose clients know errors in Anthropic's form
MESSAGE_TYPES = {TOO_LARGE: "request_too_large", OUR_FAILURE: "api_error", UNAVAILABLE: "overloaded_error"}


class ApiError(HTTPException):
    """A request that is answered with an error.

    Args:
        status: of HTTP.
        message: what was given, what is allowed, what to do next.
        param: the field of the body it is about.
        code: a word that programs can compare.
        headers: of the answer.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(status, message, dict(headers or {}))
        self.param, self.code = param, code

    def __str__(self) -> str:
        return self.detail

    @property
    def answer(self) -> ErrorAnswer:
        """The body that says so."""
        kind = TYPES.get(self.status_code, "invalid_request_error")
        return ErrorAnswer(error=ErrorDetail(message=str(self), type=kind, param=self.param, code=self.code))

    @property
    def message_answer(self) -> MessageError:
        """The same in Anthropic's form."""
        kind = MESSAGE_TYPES.get(self.status_code, self.answer.error.type)
        return MessageError(error=MessageErrorDetail(type=kind, message=str(self)))

    def answer_on(self, path: str) -> ErrorAnswer | MessageError:
        """The body as clients of a path know it."""
        return self.message_answer if path.startswith(MESSAGES) else self.answer


def told(error: MeshwrightError) -> ApiError:
    """An error of ours as a client sees it: a mistake of its own in words, a failure of ours without what is inside."""
    if isinstance(error, QueueFull):
        seconds = max(1, math.ceil(error.retry_after_s))
        return ApiError(TOO_MANY, str(error), code="queue_full", headers={"Retry-After": str(seconds)})
    if isinstance(error, Draining):
        return draining()
    if isinstance(error, RequestRefused):
        return ApiError(BAD_REQUEST, str(error), code="request_refused")
    if error.exit_code == 1:
        return failed()
    return ApiError(BAD_REQUEST, str(error))


def draining() -> ApiError:
    """The server is about to end."""
    return ApiError(
        UNAVAILABLE, "the server is stopping and takes no more requests", code="draining",
        headers={"Retry-After": "1", "Connection": "close"},
    )  # fmt: skip


def failed() -> ApiError:
    """Something of ours broke; the server's log says what."""
    return ApiError(OUR_FAILURE, "the server could not serve this request; its log says why", code="failed")


def late() -> ApiError:
    """A request took longer than it was given."""
    return ApiError(LATE, "the request took longer than its deadline", code="deadline_exceeded")

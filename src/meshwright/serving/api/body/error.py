"""Errors in OpenAI's form: one object with a sentence, a type, the field it is about and a code."""

from __future__ import annotations

from meshwright.serving.api.body.value import Answered


class ErrorDetail(Answered):
    """What was wrong.

    Args:
        message: what was given, what is allowed, what to do next.
        type: the family, such as "invalid_request_error".
        param: the field of the body it is about.
        code: a word that programs can compare.
    """

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(Answered):
    """The whole body of an answer that is an error."""

    error: ErrorDetail

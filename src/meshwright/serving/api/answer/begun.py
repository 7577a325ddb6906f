"""Answers by the path that asks for them: which body a path has, and who begins its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.serving.api.answer.chatting import begin_chat
from meshwright.serving.api.answer.completing import begin_completion
from meshwright.serving.api.answer.responding import begin_response
from meshwright.serving.api.answer.run import AnswerRun
from meshwright.serving.api.body.chat import ChatBody
from meshwright.serving.api.body.completion import CompletionBody
from meshwright.serving.api.body.response import ResponseBody
from meshwright.serving.api.generation.model_service import ModelService

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


async def begin(model: ModelService, path: str, body: Mapping[str, Any]) -> AnswerRun:
    """Submit what a body asks for. Raises pydantic's ValidationError, ApiError."""
    if path == "/v1/completions":
        return await begin_completion(model, CompletionBody.model_validate(body))
    if path == "/v1/responses":
        return await begin_response(model, ResponseBody.model_validate(body))
    return await begin_chat(model, ChatBody.model_validate(body))

"""Paths that generate: completions, chats, responses, messages; and embeddings."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Response
from fastapi import Request as HttpRequest
from pydantic import BaseModel

from meshwright.serving.api.answer.chatting import begin_chat
from meshwright.serving.api.answer.completing import begin_completion
from meshwright.serving.api.answer.messaging import begin_message, count_tokens
from meshwright.serving.api.answer.responding import begin_response
from meshwright.serving.api.body.chat import ChatBody, ChatCompletion
from meshwright.serving.api.body.completion import Completion, CompletionBody
from meshwright.serving.api.body.error import ErrorAnswer
from meshwright.serving.api.body.message import (
    CountAnswer,
    CountBody,
    MessageAnswer,
    MessageBody,
    MessageError,
)
from meshwright.serving.api.body.pooling import EmbeddingAnswer, EmbeddingBody, RerankAnswer, RerankBody
from meshwright.serving.api.body.response import ResponseAnswer, ResponseBody
from meshwright.serving.api.error import UNAVAILABLE
from meshwright.serving.api.generation.caller import Caller
from meshwright.serving.api.generation.model_service import ModelService
from meshwright.serving.api.http.event_stream import MESSAGE_EVENTS, RESPONSE_EVENTS, answered, until_gone
from meshwright.serving.api.http.route.json_route import JsonRoute
from meshwright.serving.api.pooling.embedding import embed, rerank

Timeout = Annotated[
    float | None, Header(alias="X-Timeout-S", gt=0, allow_inf_nan=False, description="Seconds until it is ended.")
]  # fmt: skip
ERRORS = {
    400: "A body that cannot be served",
    401: "No key, or one that is not served",
    404: "No such model or path",
    408: "The body came too slowly",
    413: "The body is too large",
    429: "The queue is full",
    500: "The server failed",
    503: "The server stops",
    504: "The deadline has passed",
}


def documented(
    answer: type[BaseModel] | None, streams: bool = False, unavailable: type[BaseModel] | None = None,
    error: type[BaseModel] = ErrorAnswer,
) -> dict[str, Any]:  # fmt: skip
    """What a path may answer, for the schema; `unavailable`: with 503, where that is no error."""
    errors: dict[int | str, Any] = {
        status: {"model": error, "description": text} for status, text in ERRORS.items()
    }
    errors[UNAVAILABLE]["model"] = unavailable or error
    stream = {"content": {"text/event-stream": {"schema": {"type": "string"}}}} if streams else {}
    good = {} if answer is None else {200: {"model": answer, "description": "The answer", **stream}}
    return {"responses": {**good, **errors}, "response_model": None}


def generation_routes(model: ModelService) -> APIRouter:
    """The paths, around a model."""
    router, write_s = APIRouter(route_class=JsonRoute), model.limits.write_s

    def caller(request: HttpRequest, timeout_s: float | None) -> Caller:
        return Caller(request.scope["meshwright.user"], timeout_s)

    @router.post("/v1/completions", **documented(Completion, True))
    async def completions(body: CompletionBody, request: HttpRequest, timeout_s: Timeout = None) -> Response:
        run = await begin_completion(model, body, caller(request, timeout_s))
        return await answered(request, run, bool(body.stream), write_s)

    @router.post("/v1/chat/completions", **documented(ChatCompletion, True))
    async def chat_completions(body: ChatBody, request: HttpRequest, timeout_s: Timeout = None) -> Response:
        run = await begin_chat(model, body, caller(request, timeout_s))
        return await answered(request, run, bool(body.stream), write_s)

    @router.post("/v1/responses", **documented(ResponseAnswer, True))
    async def responses(body: ResponseBody, request: HttpRequest, timeout_s: Timeout = None) -> Response:
        run = await begin_response(model, body, caller(request, timeout_s))
        return await answered(request, run, bool(body.stream), write_s, RESPONSE_EVENTS)

    @router.post("/v1/messages", **documented(MessageAnswer, True, error=MessageError))
    async def messages(body: MessageBody, request: HttpRequest, timeout_s: Timeout = None) -> Response:
        run = await begin_message(model, body, caller(request, timeout_s))
        return await answered(request, run, bool(body.stream), write_s, MESSAGE_EVENTS)

    @router.post("/v1/messages/count_tokens", **documented(CountAnswer, error=MessageError))
    async def count(body: CountBody) -> Response:
        return _json(await count_tokens(model, body))

    @router.post("/v1/embeddings", **documented(EmbeddingAnswer))
    async def embeddings(body: EmbeddingBody, request: HttpRequest, timeout_s: Timeout = None) -> Response:
        return _json(await until_gone(request, embed(model, body, caller(request, timeout_s))))

    @router.post("/v1/rerank", **documented(RerankAnswer))
    async def ranked(body: RerankBody, request: HttpRequest, timeout_s: Timeout = None) -> Response:
        return _json(await until_gone(request, rerank(model, body, caller(request, timeout_s))))

    return router


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")

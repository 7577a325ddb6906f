"""Paths that tell: models, tokens, health, readiness, metrics."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response
from pydantic import BaseModel

from meshwright.serving.api.answer.chat_prompt import chat_tokens
from meshwright.serving.api.answer.completing import encoded
from meshwright.serving.api.answer.logprob import token_text
from meshwright.serving.api.body.model import (
    DetokenizeAnswer,
    DetokenizeBody,
    HealthAnswer,
    ModelCard,
    ModelList,
    TokenizeAnswer,
    TokenizeBody,
)  # fmt: skip
from meshwright.serving.api.error import UNAVAILABLE
from meshwright.serving.api.generation.model_service import ModelService
from meshwright.serving.api.http.lifecycle import Lifecycle, Status
from meshwright.serving.api.http.metrics import ServerMetrics
from meshwright.serving.api.http.route.generation_route import documented
from meshwright.serving.api.http.route.json_route import JsonRoute

METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"


def status_routes(model: ModelService, lifecycle: Lifecycle, metrics: ServerMetrics) -> APIRouter:
    """The paths, around a model."""
    router = APIRouter(route_class=JsonRoute)

    @router.get("/v1/models", **documented(ModelList))
    async def models() -> Response:
        return _json(ModelList(data=cards(model)))

    @router.get("/v1/models/{name:path}", **documented(ModelCard))
    async def model_card(name: str) -> Response:
        model.adapter_of(name)
        return _json(next(card for card in cards(model) if card.id == name))

    @router.post("/tokenize", **documented(TokenizeAnswer))
    async def tokenize(body: TokenizeBody) -> Response:
        model.adapter_of(body.model or model.name)
        if body.messages is not None:
            tokens = await chat_tokens(model, body.messages, [], {}, body.add_generation_prompt)
        else:
            tokens = await encoded(model, body.prompt or "", body.add_special_tokens)
        texts = [token_text(model.text, token) for token in tokens] if body.return_token_strs else None
        answer = TokenizeAnswer(
            count=len(tokens), max_model_len=model.max_model_tokens, tokens=tokens, token_strs=texts
        )
        return _json(answer)

    @router.post("/detokenize", **documented(DetokenizeAnswer))
    async def detokenize(body: DetokenizeBody) -> Response:
        model.adapter_of(body.model or model.name)
        model.check_tokens(body.tokens, "tokens")
        return _json(DetokenizeAnswer(prompt=await asyncio.to_thread(model.text.decode, body.tokens)))

    @router.get("/health", **documented(HealthAnswer, unavailable=HealthAnswer))
    async def health() -> Response:
        has_failed = not (lifecycle.is_draining or model.service.snapshot().is_ready)
        return _json(_state("failed", model), UNAVAILABLE) if has_failed else _json(_state("ok", model))

    @router.get("/ready", **documented(HealthAnswer, unavailable=HealthAnswer))
    async def ready() -> Response:
        if lifecycle.is_draining:
            return _json(_state("draining", model), UNAVAILABLE)
        if not model.service.snapshot().is_ready:
            return _json(_state("failed", model), UNAVAILABLE)
        return _json(_state("ready", model))

    @router.get("/metrics", responses={200: {"content": {"text/plain": {}}}}, response_model=None)
    async def read_metrics() -> Response:
        return Response(metrics.text(), media_type=METRICS_TYPE)

    return router


def cards(model: ModelService) -> list[ModelCard]:
    """The model, and its adapters below it."""
    own = ModelCard(
        id=model.name, created=model.created_s, root=model.name, max_model_len=model.max_model_tokens,
        vocab_size=model.vocabulary_size,
    )  # fmt: skip
    return [
        own,
        *(own.model_copy(update={"id": name, "parent": model.name}) for name in model.adapters.names),
    ]


def _state(status: Status, model: ModelService) -> HealthAnswer:
    state = model.service.snapshot()
    return HealthAnswer(status=status, num_running=state.num_running, num_waiting=state.num_waiting)


def _json(answer: BaseModel, status: int = 200) -> Response:
    return Response(answer.model_dump_json(by_alias=True), status, media_type="application/json")

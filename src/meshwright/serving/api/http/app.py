"""The application: every path, typed, around one model."""

from __future__ import annotations

import logging
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Response
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from meshwright import __version__
from meshwright.serving.api.body.value import field_names
from meshwright.serving.api.error import BAD_REQUEST, ApiError, failed, told
from meshwright.serving.api.generation.model_service import ModelService
from meshwright.serving.api.http.api_key import ApiKeys
from meshwright.serving.api.http.event_stream import ClientGone
from meshwright.serving.api.http.guard import Guard
from meshwright.serving.api.http.lifecycle import Lifecycle
from meshwright.serving.api.http.metrics import ServerMetrics
from meshwright.serving.api.http.openapi import described
from meshwright.serving.api.http.route.adapter_route import adapter_routes
from meshwright.serving.api.http.route.generation_route import generation_routes
from meshwright.serving.api.http.route.status_route import status_routes
from meshwright.specs.error import MeshwrightError

LOG = logging.getLogger(__name__)
NUM_SHOWN = 3  # mistakes of a body that are told at once
JSON = "application/json"  # what curl does not say by itself
GONE = 499  # what nobody reads any more, as nginx counts it
CODES = {404: "not_found", 405: "method_not_allowed"}


def create_app(
    model: ModelService,
    metrics: ServerMetrics,
    keys: ApiKeys | None = None,
    lifecycle: Lifecycle | None = None,
) -> Guard:
    """The ASGI application of a model."""
    app = FastAPI(title="meshwright", version=__version__, docs_url=None, redoc_url=None)
    keys, lifecycle = keys or ApiKeys(), lifecycle or Lifecycle()
    app.include_router(generation_routes(model))
    app.include_router(adapter_routes(model))
    app.include_router(status_routes(model, lifecycle, metrics))
    app.add_exception_handler(ApiError, _refused)
    app.add_exception_handler(RequestValidationError, _misread)
    app.add_exception_handler(HTTPException, _unrouted)
    app.add_exception_handler(MeshwrightError, _mistaken)
    app.add_exception_handler(ClientGone, _gone)
    described(app, bool(keys), lambda: model.names)
    return Guard(app, keys, model.limits, lifecycle, metrics)


def _said(request: HttpRequest, error: ApiError) -> Response:
    body = error.answer_on(request.url.path).model_dump()
    return JSONResponse(body, error.status_code, headers=error.headers)


async def _refused(request: HttpRequest, error: Any) -> Response:
    return _said(request, error)


async def _mistaken(request: HttpRequest, error: Any) -> Response:
    made = told(error)
    if made.status_code == failed().status_code:
        LOG.error("a request failed: %s", error)
    return _said(request, made)


async def _gone(_: HttpRequest, error: Any) -> Response:
    return Response(status_code=GONE)


async def _misread(request: HttpRequest, error: Any) -> Response:
    """A body that does not match: the field, and what is wrong with it; never the body itself."""
    kind = request.headers.get("content-type", "")
    if request.method == "POST" and JSON not in kind:
        return _said(
            request, ApiError(BAD_REQUEST, f"a body of type {kind[:80]!r}; allowed: {JSON}", code="no_json")
        )
    found = error.errors()
    said = [f"{_field(each)}: {_mistake(each)}".removeprefix(": ") for each in found[:NUM_SHOWN]]
    more = f" (and {len(found) - NUM_SHOWN} more)" if len(found) > NUM_SHOWN else ""
    return _said(
        request,
        ApiError(BAD_REQUEST, "; ".join(said) + more, param=_field(found[0]) or None, code="invalid_body"),
    )


def _mistake(mistake: Any) -> str:
    """In pydantic's words, but for a field that nobody knows: what it may have been."""
    if mistake["type"] != "extra_forbidden":
        return str(mistake["msg"])
    near = get_close_matches(str(mistake["loc"][-1]), field_names(), n=2)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; /openapi.json has those that are"
    return f"there is no such field{hint}"


def _field(mistake: Any) -> str:
    return ".".join(str(part) for part in mistake["loc"][1:])[:200]


async def _unrouted(request: HttpRequest, error: Any) -> Response:
    message = f"{request.method} {request.url.path[:200]}: {error.detail}"
    code = CODES.get(error.status_code)
    return _said(request, ApiError(error.status_code, message, code=code, headers=error.headers))

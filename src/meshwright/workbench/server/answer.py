"""Answers that both servers give: the page and what it is made of, data, and mistakes in words."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from meshwright.specs.error import MeshwrightError
from meshwright.workbench.document.document import Document, plain_json
from meshwright.workbench.page import SCRIPT, SERVED_POLICY, STYLE, asset, served_page

# What the package refuses is an answer like others, an object with `error`: a browser would tell of each other number on its
# console, as of a failure. What no page of ours asks for has the numbers of HTTP.
ANSWERED, NOT_FOUND = 200, 404
Answer = Mapping[str, Any]


def page_answer(document: Document | None = None) -> Response:
    """The page, with a document in it or without one: then it is the workbench."""
    page, policy = served_page(document), {"content-security-policy": SERVED_POLICY}
    return Response(page, media_type="text/html", headers=policy)


def data_answer(data: Answer, status: int = ANSWERED) -> Response:
    """Data as JSON."""
    return JSONResponse(plain_json(data), status)


def error_answer(message: str, allowed: str = "", next: str = "", *, status: int = ANSWERED) -> Response:
    """A mistake in words."""
    return JSONResponse({"error": {"message": message, "allowed": allowed, "next": next}}, status)


def error_data(error: MeshwrightError) -> Answer:
    """One of the package's own errors as an object."""
    return {"message": error.given, "allowed": error.allowed, "next": error.next}


async def _asset(name: str, media_type: str, request: Request) -> Response:
    text = asset(name)
    if text is None:
        return error_answer(f"{name} was not built", "", "make web", status=NOT_FOUND)
    return Response(text, media_type=media_type)


async def _mistaken(request: Request, error: Exception) -> Response:
    assert isinstance(error, MeshwrightError), "the handler of these"
    return JSONResponse({"error": error_data(error)}, ANSWERED)


async def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "the handler of these"
    return error_answer(str(error.detail), status=error.status_code)


ASSETS = (
    Route(f"/{SCRIPT}", partial(_asset, SCRIPT, "text/javascript")),
    Route(f"/{STYLE}", partial(_asset, STYLE, "text/css")),
)
HANDLERS: Mapping[Any, Any] = {MeshwrightError: _mistaken, HTTPException: _unrouted}

"""Bodies of JSON: UTF-8 and nothing that only Python takes for JSON, no lone surrogates, and no deeper than a stack bears."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request as HttpRequest
from fastapi import Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from meshwright.serving.api.error import BAD_REQUEST, ApiError


class JsonRequest(HttpRequest):
    """A request whose body is read strictly."""

    async def json(self) -> Any:
        """The body. Raises ApiError where it is no JSON."""
        try:
            return from_json(await self.body(), allow_inf_nan=False, cache_strings="keys")
        except ValueError as error:
            raise ApiError(BAD_REQUEST, f"the body is no JSON: {error}", code="no_json") from None


class JsonRoute(APIRoute):
    """A path whose bodies are read so."""

    def get_route_handler(self) -> Callable[[HttpRequest], Awaitable[Response]]:  # type: ignore[override]
        """The handler, given such a request."""
        handler = super().get_route_handler()

        async def strictly(request: HttpRequest) -> Response:
            return await handler(JsonRequest(request.scope, request.receive))

        return strictly

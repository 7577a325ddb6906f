"""The OpenAPI schema: what FastAPI makes of the bodies, less what is never answered, and the key where one is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

NEVER = "422"  # a body that does not match is answered with 400, as OpenAI does
KEY = {"key": {"type": "http", "scheme": "bearer"}}
OPEN = ("/health", "/ready", "/metrics")


def described(app: FastAPI, needs_key: bool, models: Callable[[], Sequence[str]]) -> None:
    """Let the application's schema be this one; `models`: what may be asked for, now."""
    made: dict[tuple[str, ...], dict[str, Any]] = {}

    def schema() -> dict[str, Any]:
        names = tuple(models())
        if names not in made:
            made.clear()
            made[names] = _schema(app, needs_key, names)
        return made[names]

    app.openapi = schema  # type: ignore[method-assign]


def _schema(app: FastAPI, needs_key: bool, models: Sequence[str]) -> dict[str, Any]:
    made: dict[str, Any] = get_openapi(title=app.title, version=app.version, routes=app.routes)
    for path, methods in made["paths"].items():
        for operation in methods.values():
            operation["responses"].pop(NEVER, None)
            if needs_key and path not in OPEN:
                operation["security"] = [{"key": []}]
    parts = made.setdefault("components", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        parts.get("schemas", {}).pop(unused, None)
    for name, part in parts.get("schemas", {}).items():
        if name.endswith("Body") and "model" in part["properties"]:
            part["properties"]["model"] = {"type": "string", "enum": list(models)}
    if needs_key:
        parts["securitySchemes"] = KEY
    return made

"""Paths that load and drop LoRA adapters while the server runs, as vLLM has them; only from below an allowed folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from meshwright.serving.api.body.adapter import LoadAdapterBody, UnloadAdapterBody
from meshwright.serving.api.error import BAD_REQUEST, NOT_FOUND, ApiError
from meshwright.serving.api.generation.model_service import ModelService
from meshwright.serving.api.http.route.generation_route import documented
from meshwright.serving.api.http.route.json_route import JsonRoute
from meshwright.specs.error import MeshwrightError, UnknownNameError

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
PLAIN = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "It is done"}}


def adapter_routes(model: ModelService) -> APIRouter:
    """The paths, around a model."""
    router, documents = APIRouter(route_class=JsonRoute), documented(None)
    documents["responses"] |= PLAIN

    @router.post(LOAD, **documents)
    async def load(body: LoadAdapterBody) -> PlainTextResponse:
        folder = _allowed_folder(model, body.lora_path)
        if body.lora_name == model.name:
            raise ApiError(BAD_REQUEST, f"{model.name} is the model itself", param="lora_name")
        try:
            await asyncio.to_thread(model.adapters.load, body.lora_name, folder)
        except MeshwrightError as error:
            said = str(error).replace(f"{model.adapters_folder}/", "")
            raise ApiError(BAD_REQUEST, said, param="lora_path", code="no_adapter") from error
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @router.post(UNLOAD, **documents)
    async def unload(body: UnloadAdapterBody) -> PlainTextResponse:
        try:
            await asyncio.to_thread(model.adapters.unload, body.lora_name)
        except UnknownNameError as error:
            raise ApiError(NOT_FOUND, str(error), param="lora_name", code="adapter_not_found") from error
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return router


def _allowed_folder(model: ModelService, path: str) -> Path:
    """The folder of an adapter. Raises ApiError where the server does not read from there."""
    if model.adapters_folder is None:
        raise ApiError(
            BAD_REQUEST, "this server loads no adapters while it runs; it was started without --adapters-folder",
            code="adapters_not_allowed",
        )  # fmt: skip
    root = model.adapters_folder
    try:
        found = (root / path).resolve()
        is_there = found.is_relative_to(root) and found.is_dir()
    except (OSError, ValueError):  # a name that no file can have
        is_there = False
    if not is_there:  # whether there is something outside is nobody's business
        raise ApiError(
            BAD_REQUEST, f"{path[:200]!r} is no folder below the one that adapters may be loaded from", param="lora_path",
            code="adapters_not_allowed",
        )  # fmt: skip
    return found

"""/v1/load_lora_adapter, /v1/unload_lora_adapter: fields as vLLM names them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from meshwright.serving.api.body.value import Body, Name, Whole


class LoadAdapterBody(Body):
    """`lora_path`: a folder of PEFT, below the one that the server allows."""

    lora_name: Name
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]


class UnloadAdapterBody(Body):
    """`lora_int_id` is taken and says nothing: names are told apart by themselves."""

    lora_name: Name
    lora_int_id: Whole | None = None

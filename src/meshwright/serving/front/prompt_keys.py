"""What a front knows of a request before any model has read it: keys of the beginning of its prompt."""

from __future__ import annotations

import json
import uuid
from collections.abc import Hashable, Mapping
from typing import Any

from pydantic_core import from_json

from meshwright.serving.block.block_key import block_keys
from meshwright.serving.request.request import Request
from meshwright.serving.request.request_file import BLOCK_TOKENS

TEXT_BYTES = 4 * BLOCK_TOKENS  # of a key: tokens of European languages have about four bytes
TOLD_BEFORE = ("tools", "instructions", "system")  # what chat templates put before messages
SAID = ("prompt", "messages", "input")


def routed_request(body: bytes) -> Request:
    """A request as a router sees it. Its keys are the blocks of its token ids where the prompt has some, as in a file of
    requests; else runs of bytes: equal beginnings have equal keys, and a router asks for no more. Of several prompts the
    first decides. A body that makes no sense has no keys; a server will say what is wrong with it."""
    try:
        keys = _keys(from_json(body))
    except (ValueError, TypeError, OverflowError, RecursionError):
        keys = ()
    return Request(uuid.uuid4().hex, max(1, len(keys) * BLOCK_TOKENS), 1, block_keys=keys)


def _keys(fields: Any) -> tuple[Hashable, ...]:
    if not isinstance(fields, Mapping):
        return ()
    model = str(fields.get("model", ""))
    said = next((fields[name] for name in SAID if fields.get(name)), "")
    if isinstance(said, list) and "prompt" in fields and not isinstance(said[0], int):
        said = said[0]
    if isinstance(said, list) and said and isinstance(said[0], int):
        return block_keys(said, BLOCK_TOKENS, model)
    before = "".join(json.dumps(fields[name]) for name in TOLD_BEFORE if fields.get(name))
    text = f"{before}{said if isinstance(said, str) else json.dumps(said)}".encode("utf-8", "replace")
    runs = [text[i : i + TEXT_BYTES] for i in range(0, len(text) - TEXT_BYTES + 1, TEXT_BYTES)]
    return ((model, runs[0]), *runs[1:]) if runs else ()

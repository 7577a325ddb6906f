"""OpenAI's batch files: a request a line goes in, an answer a line comes out, of the very code that answers over HTTP."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.api.servings.engine_choice import EngineChoice
from meshwright.api.servings.opened_model import ANY_ENGINE, OpenedModel
from meshwright.api.servings.serving import check_packages
from meshwright.serving.weight.expert_loads import ExpertLoads
from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError

if TYPE_CHECKING:
    from meshwright.serving.api.generation.model_service import ModelService

MOST_AT_ONCE = 256  # requests under way; more would wait anyway
GOOD = 200
Line = dict[str, Any]
Said = Callable[[int, int], None]
Told = Callable[[ExpertLoads | None], None]


def run_batch(
    model: str | Path, file: str | Path, *, choice: EngineChoice = ANY_ENGINE, name: str = "",
    said: Said = lambda done, of: None, told: Told = lambda loads: None,
) -> list[Line]:  # fmt: skip
    """Answer every line of a batch file.

    Args:
        model: a folder, or an id in the local hub cache.
        file: lines ``{"custom_id", "method": "POST", "url": "/v1/chat/completions", "body"}``.
        choice: the engine.
        name: by which lines call the model; "": its folder's.
        said: hears how many of how many are answered.
        told: hears at the end what came to experts (None: there are none).

    Returns:
        Lines ``{"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}`` in the order of the file; a
        line that cannot be served has the error's status and body.

    Raises:
        SpecError: the file cannot be read, or a line is no request; then nothing runs.
    """
    check_packages()
    from meshwright.serving.api.generation.model_service import ModelService

    lines = read_batch(Path(file))
    with OpenedModel(model, choice) as opened:
        served = ModelService(
            name or opened.name, opened.service, opened.text, opened.max_model_tokens, opened.vocabulary_size,
            opened.check_grammar,
        )  # fmt: skip
        found = asyncio.run(_answered(served, lines, said))
        told(opened.expert_loads())
        return found


def read_batch(file: Path) -> list[Line]:
    """The requests of a batch file. Raises SpecError, which names the line."""
    try:
        texts = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{file} cannot be read: {error}", allowed="a file of JSON lines") from error
    found: list[Line] = []
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            line = json_of(text)
        except ValueError as error:
            raise SpecError(
                f"{file.name}, line {number}: no JSON ({error})", allowed="one object a line"
            ) from None
        if not isinstance(line, dict) or not isinstance(line.get("body"), dict) or "custom_id" not in line:
            raise SpecError(f"{file.name}, line {number} is no request", allowed="custom_id, url and body")
        found.append(line)
    if not found:
        raise SpecError(f"{file.name} has no request", allowed="at least one line")
    return found


async def _answered(model: ModelService, lines: Sequence[Line], said: Said) -> list[Line]:
    places, num_done = asyncio.Semaphore(MOST_AT_ONCE), 0

    async def answer(line: Line) -> Line:
        nonlocal num_done
        async with places:
            status, body = await _response(model, line)
        num_done += 1
        said(num_done, len(lines))
        response = {"status_code": status, "request_id": f"req_{uuid.uuid4().hex}", "body": body}
        return {
            "id": f"batch_req_{uuid.uuid4().hex}", "custom_id": line["custom_id"], "response": response, "error": None
        }  # fmt: skip

    return list(await asyncio.gather(*map(answer, lines)))


async def _response(model: ModelService, line: Mapping[str, Any]) -> tuple[int, Any]:
    """Status and body of one line."""
    from pydantic import ValidationError

    from meshwright.serving.api.answer.begun import PATHS, begin
    from meshwright.serving.api.error import BAD_REQUEST, NOT_FOUND, ApiError, told
    from meshwright.specs.error import MeshwrightError

    try:
        if line.get("url") not in PATHS:
            raise ApiError(NOT_FOUND, f"url {str(line.get('url'))[:80]!r}; allowed: {', '.join(PATHS)}")
        if line["body"].get("stream"):
            raise ApiError(BAD_REQUEST, "stream: lines of a batch are answered whole", param="stream")
        run = await begin(model, str(line["url"]), line["body"])
        try:
            return GOOD, (await run.whole()).model_dump(mode="json", by_alias=True)
        finally:
            run.close()
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        refused = ApiError(
            BAD_REQUEST, f"{'.'.join(map(str, first['loc']))}: {first['msg']}", code="invalid_body"
        )
        return refused.status_code, refused.answer.model_dump()
    except ApiError as refused:
        return refused.status_code, refused.answer.model_dump()
    except MeshwrightError as error:
        return told(error).status_code, told(error).answer.model_dump()


def write_batch(lines: Sequence[Line], target: Path) -> None:
    """Answers as a file of JSON lines."""
    target.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

"""From a body's fields to a request: how its tokens are drawn, and the bounds that a schema cannot say."""

from __future__ import annotations

import json
from typing import Any

from meshwright.serving.api.body.sampling import ResponseFormat, SamplingBody
from meshwright.serving.api.error import BAD_REQUEST, ApiError
from meshwright.serving.api.generation.model_service import ModelService
from meshwright.serving.api.limit import ServerLimits
from meshwright.serving.request.sampling_parameters import SamplingParameters


def sampling_of(
    body: SamplingBody, model: ModelService, num_logprobs: int | None, grammar: str = ""
) -> SamplingParameters:
    """How the tokens of a body are drawn. Raises ApiError."""
    bias = tuple((int(token), value) for token, value in (body.logit_bias or {}).items())
    model.check_tokens((token for token, _ in bias), "logit_bias")
    model.check_tokens(body.stop_token_ids or (), "stop_token_ids")
    return SamplingParameters(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=max(0, body.top_k or 0),
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        seed=body.seed,
        stop=stops_of(body.stop, model.limits),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=body.ignore_eos,
        num_logprobs=num_logprobs,
        logit_bias=bias,
        grammar=grammar or grammar_of(body.response_format, model.limits),
    )


def stops_of(stop: str | list[str] | None, limits: ServerLimits) -> tuple[str, ...]:
    """Texts that end an output. Raises ApiError where one is too long."""
    texts = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if any(len(text) > limits.stop_characters for text in texts):
        raise ApiError(
            BAD_REQUEST, f"a stop text of {max(map(len, texts))} characters; allowed: {limits.stop_characters}",
            param="stop",
        )  # fmt: skip
    return texts


def grammar_of(wanted: ResponseFormat | None, limits: ServerLimits) -> str:
    """The grammar that a response format stands for; "": none."""
    if wanted is None or wanted.type == "text":
        return ""
    if wanted.json_schema is None:
        return schema_grammar({"type": "object"}, limits, "response_format")
    return schema_grammar(wanted.json_schema.schema_, limits, "response_format")


def schema_grammar(schema: dict[str, Any], limits: ServerLimits, param: str) -> str:
    """The grammar of JSON that matches a schema. Raises ApiError where it is too large."""
    text = json.dumps(schema, separators=(",", ":"))
    check_size(text, limits.grammar_bytes, "a schema", param)
    return text


def check_size(text: str, most_bytes: int, what: str, param: str) -> None:
    """Raises ApiError where a text has more bytes."""
    size = len(text.encode())
    if size > most_bytes:
        raise ApiError(BAD_REQUEST, f"{what} of {size} bytes; allowed: {most_bytes}", param=param)

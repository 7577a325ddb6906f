"""Vectors of texts: a request each, whose prompt is computed and whose last token is told as a vector."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.api.answer.completing import encoded
from meshwright.serving.api.body.pooling import (
    EmbeddingAnswer,
    EmbeddingBody,
    EmbeddingRow,
    EmbeddingUsage,
    RankedDocument,
    RankedText,
    RerankAnswer,
    RerankBody,
    RerankUsage,
)  # fmt: skip
from meshwright.serving.api.error import BAD_REQUEST, ApiError, failed
from meshwright.serving.api.generation.caller import NOBODY, Caller
from meshwright.serving.api.generation.generation import Generation, merged
from meshwright.serving.api.generation.model_service import ModelService, new_id
from meshwright.serving.request.request import Request
from meshwright.serving.request.sampling_parameters import SamplingParameters
from meshwright.serving.stored.pooling import SERVED

Vector = NDArray[np.float32]
ONE_TOKEN = SamplingParameters(temperature=0.0, ignore_eos=True)


async def embed(model: ModelService, body: EmbeddingBody, caller: Caller = NOBODY) -> EmbeddingAnswer:
    """A vector for each text of a body. Raises ApiError."""
    given = body.input
    texts: Sequence[str | list[int]] = (
        [given] if isinstance(given, str) or isinstance(given[0], int) else given
    )
    vectors, num_tokens = await _vectors(model, body.model, texts, "input", caller)
    if body.dimensions is not None:
        vectors = [_first(each, body.dimensions, model) for each in vectors]
    rows = [
        EmbeddingRow(index=index, embedding=_written(each, body.encoding_format == "base64"))
        for index, each in enumerate(vectors)
    ]
    usage = EmbeddingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)
    return EmbeddingAnswer(model=body.model, data=rows, usage=usage)


async def rerank(model: ModelService, body: RerankBody, caller: Caller = NOBODY) -> RerankAnswer:
    """Documents by the cosine of their vectors and the query's. Raises ApiError."""
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    vectors, num_tokens = await _vectors(model, body.model, [body.query, *texts], "documents", caller)
    query, *rest = (_unit(each) for each in vectors)
    scores = [float(query @ each) for each in rest]
    best = sorted(range(len(texts)), key=lambda place: -scores[place])[: body.top_n]
    results = [
        RankedDocument(
            index=place, relevance_score=scores[place],
            document=RankedText(text=texts[place]) if body.return_documents else None,
        )
        for place in best
    ]  # fmt: skip
    return RerankAnswer(
        id=new_id("rerank"), model=body.model, results=results, usage=RerankUsage(total_tokens=num_tokens)
    )


async def _vectors(
    model: ModelService, name: str, texts: Sequence[str | list[int]], param: str, caller: Caller
) -> tuple[list[Vector], int]:
    """Of all texts, and how many tokens they have. Raises ApiError; then nothing of them runs any more."""
    adapter = model.adapter_of(name)
    if model.pooling is None:
        raise ApiError(
            BAD_REQUEST, f"{model.name} generates text; folders that have embeddings have {SERVED}", param="model",
            code="no_embeddings",
        )  # fmt: skip
    if len(texts) > model.limits.prompts:
        raise ApiError(BAD_REQUEST, f"{len(texts)} texts; allowed: {model.limits.prompts}", param=param)
    begun: list[Generation] = []
    found: dict[int, Vector] = {}
    try:
        for text in texts:
            tokens = await encoded(model, text) if isinstance(text, str) else text
            request = Request(
                id=new_id("embd"), num_prompt_tokens=len(tokens) or 1, prompt=tokens or None,
                max_output_tokens=model.room_behind(len(tokens), 1, param), sampling=ONE_TOKEN, user=caller.user,
                adapter=adapter, gives_vector=True,
            )  # fmt: skip
            begun.append(await model.begin(request, caller.timeout_s))
        async for place, delta in merged(begun):
            if delta.vector is None:
                raise failed()
            found[place] = _unit(delta.vector) if model.pooling.is_normalized else delta.vector
    finally:
        for each in begun:
            each.close()
    return [found[place] for place in range(len(texts))], sum(
        each.request.num_prompt_tokens for each in begun
    )


def _first(vector: Vector, num: int, model: ModelService) -> Vector:
    """The first numbers of a vector, again of length 1 where the whole is. Raises ApiError where it has fewer."""
    if num > len(vector):
        raise ApiError(
            BAD_REQUEST, f"{num} dimensions; vectors of {model.name} have {len(vector)}", param="dimensions"
        )
    assert model.pooling is not None, "a vector was made"
    return _unit(vector[:num]) if model.pooling.is_normalized else vector[:num]


def _unit(vector: Vector) -> Vector:
    """Of length 1."""
    length = float(np.linalg.norm(vector))
    made: Vector = vector / (length or 1.0)
    return made


def _written(vector: Vector, is_base64: bool) -> list[float] | str:
    if is_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(each) for each in vector]

"""/v1/embeddings, /v1/rerank: texts as vectors, and documents by how near theirs are to a query's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from meshwright.serving.api.body.value import Answered, Body, Count, Name, Prompts, Some, Switch, Told


class EmbeddingBody(Body):
    """Texts whose vectors are asked for; the first `dimensions` numbers of each."""

    model: Name
    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[Count, Field(ge=1)] | None = None
    user: Annotated[str, Field(max_length=512)] | None = None


class EmbeddingUsage(Answered):
    """How many tokens it took."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingRow(Answered):
    """One vector: numbers, or their bytes in float32 as base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingAnswer(Answered):
    """A vector for each text."""

    object: Literal["list"] = "list"
    model: str
    data: list[EmbeddingRow]
    usage: EmbeddingUsage


class RankedText(Body):
    """A document with a name for its text, as some clients send it."""

    text: str


class RerankBody(Body):
    """Documents to be ranked; `top_n` of them are answered (all)."""

    model: Name
    query: str
    documents: Some[str | RankedText]
    top_n: Count | None = None
    return_documents: Switch = True


class RankedDocument(Answered):
    """One document: its place in what was sent, and the cosine of its vector and the query's."""

    index: int
    relevance_score: float
    document: Told[RankedText] = None


class RerankUsage(Answered):
    """How many tokens it took."""

    total_tokens: int


class RerankAnswer(Answered):
    """Documents, the nearest first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: RerankUsage

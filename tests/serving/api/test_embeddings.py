"""Vectors of texts and documents ranked by them, as the real client gets them; and what a model without them says."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import numpy as np
import openai
import pytest
from tests.serving.api.conftest import Served, serving

from meshwright.serving.stored.pooling import Pooling


@pytest.fixture(scope="module")
def embedding() -> Iterator[Served]:
    """Its vectors are how often each byte stands in a text, of length 1."""
    with serving(pooling=Pooling(is_normalized=True)) as made:
        yield made


def bag(text: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    counts = np.bincount(list(text.encode()), minlength=257).astype(float)
    return counts / np.linalg.norm(counts)


def test_texts_and_tokens_become_vectors_in_their_order(embedding: Served) -> None:
    client = embedding.client()
    texts = ["aab", "b" * 100, "\u00fcber"]
    found = client.embeddings.create(model="said", input=texts)
    assert [each.index for each in found.data] == [0, 1, 2]
    for text, each in zip(texts, found.data, strict=True):
        assert np.allclose(each.embedding, bag(text), atol=1e-6)
    assert found.usage.prompt_tokens == found.usage.total_tokens == 3 + 100 + 5
    tokens = client.embeddings.create(model="said", input=[list(b"aab"), [1, 2]])
    assert np.allclose(tokens.data[0].embedding, bag("aab"), atol=1e-6)
    assert len(client.embeddings.create(model="said", input=list(b"aab")).data) == 1


def test_numbers_as_base64_and_the_first_of_them(embedding: Served) -> None:
    body = {"model": "said", "input": "abc", "dimensions": 99}
    plain = httpx.post(embedding.url + "/v1/embeddings", json=body).json()["data"][0]["embedding"]
    coded = httpx.post(embedding.url + "/v1/embeddings", json={**body, "encoding_format": "base64"}).json()
    assert np.allclose(np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4"), plain)
    assert len(plain) == 99 and np.linalg.norm(plain) == pytest.approx(1.0)
    assert np.allclose(plain, bag("ab")[:99], atol=1e-6)
    wrong = httpx.post(embedding.url + "/v1/embeddings", json={**body, "dimensions": 258})
    assert wrong.status_code == 400 and "have 257" in wrong.json()["error"]["message"]


def test_documents_are_ranked_by_how_near_they_are(embedding: Served) -> None:
    body = {"model": "said", "query": "aabb", "documents": ["xyz", {"text": "ab"}, "aaab"]}
    answer = httpx.post(embedding.url + "/v1/rerank", json=body).json()
    assert [each["index"] for each in answer["results"]] == [1, 2, 0]
    assert answer["results"][0]["document"] == {"text": "ab"}
    for each, text in zip(answer["results"], ("ab", "aaab", "xyz"), strict=True):
        assert each["relevance_score"] == pytest.approx(float(bag("aabb") @ bag(text)), abs=1e-6)
    assert answer["usage"]["total_tokens"] == 4 + 3 + 2 + 4
    first = httpx.post(
        embedding.url + "/v1/rerank", json={**body, "top_n": 1, "return_documents": False}
    ).json()
    assert first["results"] == [{"index": 1, "relevance_score": pytest.approx(1.0)}]


def test_what_cannot_be_embedded_is_told(embedding: Served) -> None:
    client = embedding.client()
    for wrong, words in (
        ("", "empty"),
        ("a" * 5000, "4096"),
        (["a"] * 65, "65 texts"),
        ([[257]], "token 257"),
    ):
        with pytest.raises(openai.BadRequestError, match=words):
            client.embeddings.create(model="said", input=wrong)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="gone", input="a")


def test_a_model_that_only_generates_says_which_folders_have_vectors(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="modules.json .* Pooling by the last token"):
        served.client().embeddings.create(model="said", input="a")
    answer = httpx.post(served.url + "/v1/rerank", json={"model": "said", "query": "a", "documents": ["b"]})
    assert answer.json()["error"]["code"] == "no_embeddings"

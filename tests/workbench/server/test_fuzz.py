"""Whatever is sent, the answer is one of ours: no failure of ours, no traceback, no end of waiting."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.workbench.server.client import STATE, client

from meshwright.workbench.server.state import LOOKS, WORDS

__all__ = ["client"]
PATHS = (
    "/",
    "/app.js",
    "/api/catalog",
    "/api/view",
    "/api/segments",
    "/api/plan/x",
    "/api/import",
    "/api/model",
    "/api/cluster",
)
WORD = st.sampled_from(
    (
        "0",
        "1",
        "2",
        "8",
        "-1",
        "1e9",
        "nan",
        "full",
        "fp8",
        "gpt2",
        "1f1b",
        "zb_h1",
        "8xH100",
        "serve",
        "2s",
        "",
        "../x",
    )
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
STATES = st.dictionaries(
    st.sampled_from((*WORDS, *LOOKS)) | st.text(max_size=5), WORD | st.text(max_size=12), max_size=4
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "state": STATES.map(lambda words: {**STATE, **words}) | JSON, "sequence": JSON, "stage": st.integers(-2, 9) | JSON,
        "parts": st.lists(st.sampled_from(("composition", "holders", "timeline", "x")), max_size=2) | JSON,
        "text": st.text(max_size=60) | JSON.map(json.dumps),
    },
)  # fmt: skip
FUZZED = settings(
    max_examples=80,
    deadline=20_000,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def check(answer: Any) -> None:
    assert answer.status_code < 500 and "Traceback" not in answer.text
    is_data = "json" in answer.headers.get("content-type", "") and answer.request.method != "HEAD"
    found = answer.json() if is_data else {}
    assert answer.status_code < 400 or "error" in found or answer.request.method == "HEAD"
    assert "error" not in found or set(found["error"]) == {"message", "allowed", "next"}


@FUZZED
@given(st.sampled_from(PATHS), BODIES)
def test_bodies(client: TestClient, path: str, body: dict[str, Any]) -> None:
    check(client.post(path, content=json.dumps(body), headers={"content-type": "application/json"}))


@FUZZED
@given(
    st.sampled_from(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "ODD")),
    st.sampled_from(PATHS) | st.text(max_size=30).map(lambda it: f"/{quote(it)}"),
    st.dictionaries(
        st.sampled_from(("origin", "content-type", "content-length", "host", "range", "accept-encoding", "cookie")),
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
        max_size=3,
    ),
    st.binary(max_size=200),
)  # fmt: skip
def test_anything(client: TestClient, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
    check(client.request(method, path, content=body, headers=headers))

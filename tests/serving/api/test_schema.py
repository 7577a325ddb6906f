"""Whatever our own OpenAPI schema allows, and whatever not: every answer is one that the schema knows, and none a 500."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.covering import always
from tests.serving.api.conftest import Served, serving
from tests.serving.rest import wait_for_rest

from meshwright.serving.api.limit import ServerLimits

CHECKS = (
    "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "negative_data_rejection",
)  # fmt: skip
PATHS = (
    "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/embeddings", "/v1/rerank", "/v1/models", "/v1/models/{name}", "/tokenize", "/detokenize", "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter", "/health", "/ready", "/metrics",
)  # fmt: skip
SHORT, LONG = 6, 60  # cases of each kind and path


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """What is drawn may ask for hours, and gets less than a second."""
    with serving(limits=ServerLimits(timeout_s=0.3)) as made:
        yield made


def fuzz(served: Served, path: str, num_cases: int) -> None:
    import schemathesis  # a second, which every process would take that collects this file
    from schemathesis.specs.openapi import checks

    wanted = [getattr(checks, name) for name in CHECKS]
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    operations = [found.ok() for found in schema.include(path=path).get_all_operations()]
    assert operations, path
    for operation in operations:
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            if mode is schemathesis.GenerationMode.NEGATIVE and operation.method.lower() == "get":
                continue  # there is nothing to get wrong

            @settings(
                max_examples=num_cases, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(case=operation.as_strategy(mode))
            def tried(case: Any) -> None:
                answer = case.call_and_validate(checks=wanted, timeout=30)
                assert answer.status_code != 500 and "Traceback" not in answer.text  # 504: its time is over

            tried()
    state = wait_for_rest(served.service)
    assert (state.num_open, state.num_held_blocks, state.num_failures) == (0, 0, 0)


@pytest.mark.parametrize("path", always(PATHS, {0, 9, 11}))
def test_answers_are_those_of_the_schema(served: Served, path: str) -> None:
    fuzz(served, path, SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_answers_are_those_of_the_schema_at_length(served: Served, path: str) -> None:
    fuzz(served, path, LONG)

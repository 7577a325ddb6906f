"""The HTTP side: keys, sizes, errors in one form, metrics, schema, tokens, health."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
from tests.serving.api.conftest import Served, serving

from meshwright.serving.api.http.api_key import ApiKeys, keys_of
from meshwright.serving.api.http.metrics import ServerMetrics
from meshwright.serving.api.http.server import Address
from meshwright.serving.api.limit import ServerLimits
from meshwright.serving.engine.engine import Speculated, StepResult
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.sequence import Sequence
from meshwright.serving.request.request import Request
from meshwright.specs.error import SpecError

ASKED = {"model": "said", "prompt": "SAY:yes|"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    """With two keys and small limits."""
    limits = ServerLimits(body_bytes=2048, read_s=0.3, grammar_bytes=64, tools_bytes=200)
    with serving(keys=ApiKeys(["first", "second"]), limits=limits) as made:
        yield made


def post(served: Served, path: str, body: Any, **headers: str) -> httpx.Response:
    return httpx.post(served.url + path, json=body, headers=headers, timeout=30)


def is_error(answer: httpx.Response, status: int, kind: str) -> bool:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and "Traceback" not in answer.text
    return bool(error["type"] == kind)


def test_a_key_is_asked_for_where_there_are_any(guarded: Served) -> None:
    assert is_error(post(guarded, "/v1/completions", ASKED), 401, "authentication_error")
    wrong = post(guarded, "/v1/completions", ASKED, Authorization="Bearer firs")
    assert is_error(wrong, 401, "authentication_error") and wrong.headers["www-authenticate"] == "Bearer"
    assert is_error(
        post(guarded, "/v1/completions", ASKED, Authorization="first"), 401, "authentication_error"
    )
    for key in ("first", "second"):
        assert post(guarded, "/v1/completions", ASKED, Authorization=f"Bearer {key}").status_code == 200
    assert httpx.get(guarded.url + "/openapi.json").status_code == 401
    for path in ("/health", "/ready", "/metrics"):
        assert httpx.get(guarded.url + path).status_code == 200


def test_keys_come_from_a_file_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\none\n\ntwo # of the batch\n")
    keys = keys_of(file, {"MESHWRIGHT_API_KEYS": "three, four"})
    users = [keys.user_of(f"Bearer {key}".encode()) for key in ("one", "two", "three", "four")]
    assert None not in users and len(set(users)) == 4
    assert keys.user_of(b"Bearer ") is None and keys.user_of(b"") is None
    assert keys_of(None, {}).user_of(b"") == ""
    file.write_text("# none\n")
    with pytest.raises(SpecError, match="has no key"):
        keys_of(file, {})


def test_bodies_that_are_too_large_are_refused(guarded: Served) -> None:
    key = {"Authorization": "Bearer first"}
    large = {**ASKED, "prompt": "a" * 5000}
    assert is_error(post(guarded, "/v1/completions", large, **key), 413, "invalid_request_error")
    parts = (b"a" * 1000 for _ in range(9))  # chunked: no length is told before
    chunked = httpx.post(guarded.url + "/v1/completions", content=parts, headers=key)
    assert is_error(chunked, 413, "invalid_request_error")
    chat = {"model": "said", "messages": [{"role": "user", "content": "a"}]}
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": ["x" * 99]}}}
    assert (
        "allowed: 64"
        in post(guarded, "/v1/chat/completions", {**chat, "response_format": schema}, **key).text
    )
    tool = {"type": "function", "function": {"name": "f", "description": "d" * 300}}
    assert "allowed: 200" in post(guarded, "/v1/chat/completions", {**chat, "tools": [tool]}, **key).text


def said_raw(served: Served, text: bytes) -> bytes:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(text)
        found = b""
        with contextlib.suppress(ConnectionResetError):  # what was sent and not read makes an end a reset
            while part := client.recv(65536):
                found += part
        return found


def test_a_body_that_does_not_come_is_not_waited_for(guarded: Served) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer first\r\nContent-Length: 99\r\n\r\n{"
    answer = said_raw(guarded, head)
    assert answer.startswith(b"HTTP/1.1 408") and b"timeout_error" in answer


def test_headers_are_bounded(guarded: Served) -> None:
    answer = said_raw(guarded, b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 200_000 + b"\r\n\r\n")
    assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert httpx.get(guarded.url + "/health").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"a"',
        b"\xff\xfe",
        b"[" * 50_000,
        b'{"model": "said", "prompt": ' + b"1" * 10_000 + b"}",
        b'{"model": "said", "prompt": NaN}',
        b'{"model": "said", "prompt": "a", "temperature": Infinity}',
        b'{"model": "said", "prompt": "\\ud800"}',
        b'{"model": "said", "prompt": "a", "timeout_s": 1e999}',
        b'{"model": "said", "prompt": [[[1]]]}',
        b'{"model": "said", "prompt": {"a": 1}}',
        b'{"model": "\\u0000", "prompt": "a"}',
        b'{"model": "said", "prompt": "a", "logit_bias": {"-1": 3}}',
        b'{"model": "said", "prompt": "a", "seed": 99999999999999999999999}',
    ],
)  # fmt: skip
def test_bodies_that_make_no_sense_are_answered_in_one_form(served: Served, body: bytes) -> None:
    answer = httpx.post(
        served.url + "/v1/completions", content=body, headers={"content-type": "application/json"}, timeout=30
    )
    assert 400 <= answer.status_code < 500 and "Traceback" not in answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert len(answer.text) < 2000, "a mistake does not come back a thousand times as long"


@pytest.mark.parametrize(
    ("prompt", "what"),
    [([], "an empty list"), ([[]], "no prompt"), ([1, -1], "no prompt"), (None, "no prompt")],
)
def test_what_is_no_prompt_is_told_in_one_sentence(served: Served, prompt: object, what: str) -> None:
    error = post(served, "/v1/completions", {"model": "said", "prompt": prompt}).json()["error"]
    assert error["param"] == "prompt" and error["message"].startswith(
        f"prompt: {what}; allowed: a text, a list of token ids"
    )


def test_a_body_that_is_not_said_to_be_json_is_told_so(served: Served) -> None:
    answer = httpx.post(served.url + "/v1/completions", data={"model": "said"})
    assert is_error(answer, 400, "invalid_request_error") and "allowed: application/json" in answer.text


def test_unknown_paths_and_methods(served: Served) -> None:
    assert is_error(httpx.get(served.url + "/v2/nothing"), 404, "not_found_error")
    wrong = httpx.get(served.url + "/v1/completions")
    assert is_error(wrong, 405, "invalid_request_error") and wrong.headers["allow"] == "POST"


def test_what_breaks_inside_is_not_told_and_the_next_request_is_served(served: Served) -> None:
    answer = post(served, "/v1/completions", {"model": "said", "prompt": "FAIL"})
    assert is_error(answer, 500, "server_error")
    assert "wheel" not in answer.text and "secret" not in answer.text
    assert post(served, "/v1/completions", ASKED).json()["choices"][0]["text"] == "yes"


def test_a_stream_that_breaks_says_so(served: Served) -> None:
    client = served.client()
    with pytest.raises(openai.APIError, match="could not serve"):
        list(client.completions.create(model="said", prompt="FAIL", stream=True))


def test_a_misspelt_field_is_told_with_its_neighbours(served: Served) -> None:
    asked = {**ASKED, "max_token": 3, "xyz": 1}
    said = post(served, "/v1/completions", asked).json()["error"]["message"]
    assert "max_token: there is no such field; did you mean max_tokens" in said
    assert "xyz: there is no such field; /openapi.json" in said


def test_tokens_there_and_back(served: Served) -> None:
    answer = post(served, "/tokenize", {"prompt": "aä", "return_token_strs": True}).json()
    assert answer == {
        "count": 3,
        "max_model_len": 4096,
        "tokens": [97, 195, 164],
        "token_strs": ["a", "\ufffd", "\ufffd"],
    }
    assert post(served, "/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": "aä"}
    chat = post(served, "/tokenize", {"messages": [{"role": "user", "content": "ab"}]}).json()
    assert chat["tokens"] == [97, 98]
    assert is_error(post(served, "/detokenize", {"tokens": [257]}), 400, "invalid_request_error")


def figures(served: Served) -> dict[str, float]:
    lines = httpx.get(served.url + "/metrics").text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_metrics_have_the_names_that_dashboards_know_and_only_grow() -> None:
    labels = 'engine="0",model_name="said"'
    with serving() as served:
        before = figures(served)
        post(served, "/v1/completions", {**ASKED, "n": 2})
        post(served, "/v1/completions", {"model": "said", "prompt": "SAY:" + "x" * 60 + "|", "max_tokens": 3})
        post(served, "/v1/completions", {"model": "said", "prompt": "SAY:" + "x" * 60 + "|", "max_tokens": 3})
        after = figures(served)
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "gpu_cache_usage_perc",
    ):
        assert f"vllm:{name}{{{labels}}}" in before
    blocks = (
        'block_size="16",enable_prefix_caching="True",engine="0",num_cpu_blocks="0",num_gpu_blocks="4096"'
    )
    assert (
        before[f"vllm:cache_config_info{{{blocks}}}"] == 1 and before["process_resident_memory_bytes"] > 1e6
    )
    assert after[f"vllm:prompt_tokens_total{{{labels}}}"] == 8 + 65 + 65
    assert after[f"vllm:generation_tokens_total{{{labels}}}"] == 2 * 4 + 3 + 3
    assert after[f"vllm:prefix_cache_hits_total{{{labels}}}"] == 64
    assert after[f"vllm:num_preemptions_total{{{labels}}}"] == 0
    reasons = {
        r: after.get(f'vllm:request_success_total{{engine="0",finished_reason="{r}",model_name="said"}}')
        for r in ("stop", "length")
    }
    assert reasons == {"stop": 1, "length": 2}
    for name in (
        "time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
        "request_prefill_time_seconds", "request_prompt_tokens", "request_generation_tokens", "request_params_n",
        "request_params_max_tokens", "request_max_num_generation_tokens",
    ):  # fmt: skip
        assert after[f"vllm:{name}_count{{{labels}}}"] == 3, name
    assert after[f"vllm:inter_token_latency_seconds_count{{{labels}}}"] == 3 + 4 + 2 + 2 - 3 + 3
    assert after['http_requests_total{handler="/v1/completions",method="POST",status="2xx"}'] == 3
    assert all(after[name] >= value for name, value in before.items() if "_total" in name or "_count" in name)


def test_the_schema_has_every_path_with_its_errors(served: Served) -> None:
    schema = httpx.get(served.url + "/openapi.json").json()
    assert {
        "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/models", "/tokenize",
        "/detokenize", "/health", "/ready", "/metrics",
    } <= set(schema["paths"])  # fmt: skip
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            assert "422" not in operation["responses"]
            if path != "/metrics":
                assert {"400", "401", "413", "429", "503"} <= set(operation["responses"]), path
    assert "HTTPValidationError" not in json.dumps(schema)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of 127.0.0.1, by itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    made = (folder / "certificate.pem", folder / "key.pem")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    command = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
        "-addext", "subjectAltName=IP:127.0.0.1", "-out", str(made[0]), "-keyout", str(made[1]),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return made


def test_a_certificate_is_spoken_with_and_plain_http_is_not_answered(certificate: tuple[Path, Path]) -> None:
    with serving(address=Address("127.0.0.1", 0, *certificate)) as served:
        assert served.url.startswith("https:")
        trusting = ssl.create_default_context(cafile=str(certificate[0]))
        with httpx.Client(verify=trusting) as client:
            answer = client.post(served.url + "/v1/completions", json=ASKED).json()
            assert answer["choices"][0]["text"] == "yes"
        with pytest.raises(httpx.HTTPError):
            httpx.get(served.url.replace("https:", "http:") + "/health")


def test_files_that_are_no_certificate_are_refused_before_anything_starts(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    for pair in ((wrong, certificate[1]), (certificate[0], wrong), certificate[::-1]):
        with pytest.raises(SpecError, match="no certificate with its key"):
            Address("127.0.0.1", 0, *pair).listen()


def test_what_was_proposed_and_accepted_is_counted_as_vllm_counts_it() -> None:
    metrics, sequence = ServerMetrics("said", 64), Sequence(Request("r", 1, 9), 0, 0)
    for accepted in (2, 0, 1):
        metrics.ran(StepResult(Batch(0, 0), 0.0, 1.0, 1, (), (), [Speculated(sequence, 3, accepted)]))
    told, labels = metrics.text().decode(), 'engine="0",model_name="said"'
    for name, number in (("num_drafts", 3), ("num_draft_tokens", 9), ("num_accepted_tokens", 3)):
        assert f"vllm:spec_decode_{name}_total{{{labels}}} {number}.0" in told
    assert f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="0"}} 2.0' in told
    assert f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="1"}} 1.0' in told

"""Only pages of this server are answered, and only small requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.workbench.server.client import PORT, STATE, client

from meshwright.workbench.server import serving
from meshwright.workbench.server.guard import MOST_BODY_BYTES
from meshwright.workbench.server.serving import USUAL_PORT, listening_on, usual_or_free

__all__ = ["client"]
CATALOG = "/api/catalog"


@pytest.mark.parametrize(
    "host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"[::1]:{PORT}", f"LOCALHOST:{PORT}"]
)
def test_the_own_names_are_answered(client: TestClient, host: str) -> None:
    assert client.get(CATALOG, headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        f"evil.example:{PORT}",
        "127.0.0.1",
        f"127.0.0.1:{PORT + 1}",
        "",
        f"127.0.0.1:{PORT}.evil.example",
    ],
)
def test_a_name_that_points_here_is_refused(client: TestClient, host: str) -> None:
    answer = client.get(CATALOG, headers={"host": host})
    assert answer.status_code == 403 and "host" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", f"https://127.0.0.1:{PORT}", f"http://127.0.0.1:{PORT + 1}"]
)
def test_another_page_is_refused(client: TestClient, origin: str) -> None:
    assert client.post("/api/view", json={"state": STATE}, headers={"origin": origin}).status_code == 403


def test_the_own_page_is_answered_and_nobody_may_keep_it(client: TestClient) -> None:
    answer = client.get(CATALOG, headers={"origin": f"http://localhost:{PORT}"})
    assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in answer.headers


def test_a_form_of_another_page_is_no_json(client: TestClient) -> None:
    assert client.post("/api/view", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415


def test_large_bodies_are_refused_told_or_not(client: TestClient) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(MOST_BODY_BYTES // 1024 + 1):
            yield b"x" * 1024

    headers = {"content-type": "application/json"}
    for body in (b"x" * (MOST_BODY_BYTES + 1), pieces()):
        assert client.post("/api/view", content=body, headers=headers).status_code == 413


def test_nobody_else_on_the_network_can_connect() -> None:
    with listening_on(0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"


def test_a_run_is_followed_at_the_usual_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening_on(0) as free:
        usual = free.getsockname()[1]
    monkeypatch.setattr(serving, "USUAL_PORT", usual)
    ports = []
    monkeypatch.setattr(serving, "_serve", lambda listening, *_: ports.append(listening.getsockname()[1]))
    run = tmp_path / "run.jsonl"
    run.write_text('{"step": 1, "loss": 2.0}\n')
    serving.serve_run(run, None, print)
    with listening_on(usual):
        serving.serve_run(run, None, print)
    assert ports[0] == usual != ports[1]


def test_a_second_workbench_is_at_a_port_of_its_own() -> None:
    with usual_or_free() as first, usual_or_free() as second:
        ports = [each.getsockname() for each in (first, second)]
        assert {host for host, _ in ports} == {"127.0.0.1"}
        assert len({port for _, port in ports}) == 2 and ports[1][1] != USUAL_PORT

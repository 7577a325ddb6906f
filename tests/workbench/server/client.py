"""A client of the workbench's application, without a socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from meshwright.workbench.server.app import Workbench, create_app

PORT = 8123
STATE = {
    "model": "llama-3.2-1b",
    "cluster": "8xH100",
    "global-batch": "16",
    "seq": "1024",
    "tp": "2",
    "pp": "2",
}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    workbench = Workbench()
    yield TestClient(
        create_app(workbench, PORT), base_url=f"http://127.0.0.1:{PORT}", raise_server_exceptions=True
    )
    workbench.close()


def asked(client: TestClient, path: str, body: Any, status: int = 200) -> dict[str, Any]:
    """The answer to a POST that is not refused."""
    answer = client.post(path, json=body)
    found: dict[str, Any] = answer.json()
    assert answer.status_code == status and "error" not in found, answer.text
    return found


def refused(client: TestClient, path: str, body: Any) -> dict[str, Any]:
    """The error of a POST that is refused; it is an answer, so that a browser's console stays empty."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["error"]
    return found

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
    """The answer to a POST; of a mistake the error itself."""
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found["error"] if status >= 400 else found

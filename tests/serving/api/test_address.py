"""Unix sockets in place of host and port: one that nobody answers on is taken, all else that stands there is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.serving.api.http.server import Address
from meshwright.specs.error import SpecError


def test_the_socket_of_a_server_that_has_ended_is_taken_and_nothing_else(tmp_path: Path) -> None:
    address = Address(path=tmp_path / "s.sock")
    with address.listen() as first:
        assert address.url(first) == f"unix:{tmp_path}/s.sock"
        with pytest.raises(SpecError, match="cannot be listened on"):
            address.listen()
    address.listen().close()
    file = tmp_path / "file"
    file.write_text("mine")
    for path in (file, tmp_path / ("long" * 40), tmp_path / "none" / "s"):
        with pytest.raises(SpecError, match="cannot be listened on"):
            Address(path=path).listen()
    assert file.read_text() == "mine"

"""Nothing leaves the machine: the block works, and the import and the light commands live under it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request

import pytest

from tests.design.source import CHECKOUT, PACKAGE
from tests.design.test_imports import has_command_line
from tests.no_network import NetworkUsedError

# Addresses reserved for documentation (RFC 5737, RFC 2606): they belong to nobody.
FOREIGN_ADDRESS = "192.0.2.1"
FOREIGN_NAME = "host.example"


@pytest.mark.usefixtures("no_network")
def test_leaving_the_machine_is_refused() -> None:
    with socket.socket() as client, pytest.raises(NetworkUsedError, match="no network"):
        client.connect((FOREIGN_ADDRESS, 80))
    with pytest.raises(NetworkUsedError):
        socket.create_connection((FOREIGN_NAME, 80), timeout=1)
    with pytest.raises(NetworkUsedError):
        urllib.request.urlopen(f"http://{FOREIGN_NAME}/", timeout=1)


@pytest.mark.usefixtures("no_network")
def test_this_machine_can_still_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname(), timeout=10) as client:
            connection, _ = server.accept()
            with connection:
                client.sendall(b"here")
                assert connection.recv(4) == b"here"


def test_the_block_is_taken_back() -> None:
    assert socket.socket.connect.__name__ == "connect"


LIGHT_COMMANDS = (
    "--help",
    "list models",
    "list schedules",
    "systems",
    "show gpt2",
    "simulate --schedule 1f1b --stages 4 --microbatches 8",
)


@pytest.mark.skipif(not has_command_line(), reason="the room cli is not in this tree")
@pytest.mark.parametrize("command", LIGHT_COMMANDS)
def test_light_commands_need_no_network(command: str) -> None:
    result = subprocess.run(
        [sys.executable, str(CHECKOUT / "tests" / "no_network.py"), *command.split()],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()

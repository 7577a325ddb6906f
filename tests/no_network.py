"""Blocks connections and name look-ups that leave this machine; as a program, runs meshwright so blocked.

python tests/no_network.py simulate --schedule 1f1b --stages 4 --microbatches 8
"""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Callable
from typing import Any


class NetworkUsedError(AssertionError):
    """A test, or what it called, tried to leave this machine."""


def is_local(host: object) -> bool:
    """Whether an address is this machine itself (loopback, unspecified, or a path of a Unix socket)."""
    if isinstance(host, bytes):
        host = host.decode()
    if host in (None, "", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def local_only(function: Callable[..., Any], host_of: Callable[..., object]) -> Callable[..., Any]:
    """Wrap a call of the socket module so that it raises NetworkUsedError for a host that is not this one."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        host = host_of(*args, **kwargs)
        if not is_local(host):
            raise NetworkUsedError(f"{function.__name__} of {host!r}: meshwright uses no network")
        return function(*args, **kwargs)

    return guarded


def host_of_address(_self: socket.socket, address: Any) -> object:
    """The host in the address given to connect; a Unix socket's address is a path and has none."""
    return address[0] if isinstance(address, tuple) else None


def host_of_lookup(host: object = None, *_args: Any, **_kwargs: Any) -> object:
    """The host given to a name look-up."""
    return host


def block_network(setattr_: Callable[[Any, str, Any], None]) -> None:
    """Put the block in place with `setattr_` (the builtin, or monkeypatch's, which takes it back)."""
    for name in ("connect", "connect_ex"):
        setattr_(socket.socket, name, local_only(getattr(socket.socket, name), host_of_address))
    for name in ("getaddrinfo", "gethostbyname"):
        setattr_(socket, name, local_only(getattr(socket, name), host_of_lookup))


if __name__ == "__main__":
    block_network(setattr)
    from meshwright.cli import main

    sys.argv[0] = "meshwright"
    main()

"""The network interface of this host from which a peer is reached: what gloo is told to listen on."""

from __future__ import annotations

import socket
import struct
import sys

from meshwright.specs.error import ExecutionError

SIOCGIFADDR = 0x8915  # Linux, ioctl: the address of an interface
NAME_BYTES = 15  # of an interface at most


def interface_to(host: str, port: int) -> str | None:
    """Name of the interface from which packets to `host` leave; None where the system does not tell (not Linux).

    Raises:
        ExecutionError: the host has no address, or no way leads there.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, socket.AF_INET, socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # nothing is sent: UDP only looks up the route
            own = probe.getsockname()[0]
    except OSError as error:
        raise ExecutionError(
            f"{host} cannot be reached from this host: {error}",
            allowed="the name or number of the host of process 0, seen from every host",
            next="set MASTER_ADDR",
        ) from error
    return _interface_with(own) if sys.platform == "linux" else None


def _interface_with(own: str) -> str | None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:NAME_BYTES])
            try:
                answer = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, request)
            except OSError:  # an interface without an address
                continue
            if socket.inet_ntoa(answer[20:24]) == own:
                return name
    return None

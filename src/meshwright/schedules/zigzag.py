"""Where stages stand that go down the devices and come back: the V of two chunks, the waves of more."""

from __future__ import annotations


def zigzag(num_devices: int, num_chunks: int = 2) -> list[int]:
    """Device of every stage, first to last: 0 .. p-1, p-1 .. 0, and so on; two chunks are a V.

    A turn needs no message, since the stages on both sides of it share a device.
    """
    down = list(range(num_devices))
    return [device for chunk in range(num_chunks) for device in (down if chunk % 2 == 0 else down[::-1])]

"""Waiting until a service has done its books: a caller has its answer before the service's thread has freed what it held."""

from __future__ import annotations

import time

from meshwright.serving.loop.service import Service, ServiceState


def wait_for_rest(service: Service, timeout_s: float = 10.0) -> ServiceState:
    """How it is when nobody is served any more, or at the limit."""
    ends_s = time.monotonic() + timeout_s
    state = service.snapshot()
    while (state.num_open or state.num_held_blocks) and time.monotonic() < ends_s:
        time.sleep(0.01)
        state = service.snapshot()
    return state

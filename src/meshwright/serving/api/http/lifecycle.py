"""Whether a server takes requests."""

from __future__ import annotations

from typing import Literal

Status = Literal["ok", "ready", "draining", "failed"]


class Lifecycle:
    """Of one server: it is ready from the first, until it drains."""

    def __init__(self) -> None:
        self.is_draining = False
        self.num_answering = 0  # requests that are being answered, of the paths that generate

"""Who asks, as far as it matters to the scheduler, and how long they wait."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """Of one request.

    Args:
        user: whom it belongs to, for fairness among users.
        timeout_s: after which its answer is of no use; None: the server's own.
    """

    user: str = ""
    timeout_s: float | None = None

    def wait_s(self, asked: float | None) -> float | None:
        """The shorter of what header and body say."""
        said = [seconds for seconds in (asked, self.timeout_s) if seconds is not None]
        return min(said, default=None)


NOBODY = Caller()

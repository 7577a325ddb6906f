"""SlowedLinks: what one rank sends is counted, and waits for the token buckets of the links that are slowed.

A transfer is handed to the backend when the buckets of all links that it leaves by have paid for its bytes; until then it
waits here. Every end waits for what it sends, so an exchange is complete when its slowest direction is, as on a real wire.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from meshwright.specs.cluster.slowing import LinkLimit, Slowing

Clock = Callable[[], float]


class TokenBucket:
    """Fills with `bytes_per_s` up to `burst_bytes`; what takes more than there is waits until it is paid.

    Transfers are paid for in the order in which they ask.
    """

    def __init__(self, bytes_per_s: float, burst_bytes: float, now_s: float = 0.0) -> None:
        self.bytes_per_s, self.burst_bytes = bytes_per_s, burst_bytes
        self._level_bytes, self._since_s = burst_bytes, now_s

    def release_s(self, num_bytes: float, now_s: float) -> float:
        """Take `num_bytes` at `now_s`; when the last of them has left."""
        filled = self._level_bytes + self.bytes_per_s * (now_s - self._since_s)
        self._level_bytes = min(self.burst_bytes, filled) - num_bytes
        self._since_s = now_s
        return now_s + max(0.0, -self._level_bytes) / self.bytes_per_s


class SlowedLinks:
    """The links by which one rank sends; none of them is slowed by default. `limits`: by the rank at the other end.

    ``sent_bytes``: bytes that have been sent so far, by what they were sent for (``label``: an instruction's name).
    Streams of the rank share them; `clock` and `sleep` are those of the machine except in tests.
    """

    def __init__(
        self,
        rank: int = 0,
        limits: Mapping[int, LinkLimit] | None = None,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.rank, self._clock, self._sleep = rank, clock, sleep
        self.sent_bytes: dict[str, float] = {}
        self._lock = threading.Lock()
        self._buckets = {
            peer: TokenBucket(limit.bytes_per_s, limit.burst_bytes, clock())
            for peer, limit in (limits or {}).items()
        }

    @staticmethod
    def of(slowing: Slowing, rank: int, places: Sequence[int]) -> SlowedLinks:
        """Those of `rank`; `places` are the processes of all ranks."""
        limits = slowing.links_of(places[rank])
        return SlowedLinks(
            rank, {peer: limits[place] for peer, place in enumerate(places) if place in limits}
        )

    def message(self, peer: int, num_bytes: float, label: str = "") -> float:
        """Ask for a message to `peer`. When it may leave, in seconds of the clock; 0 where nothing slows it."""
        bucket = self._buckets.get(peer)
        with self._lock:
            self.sent_bytes[label] = self.sent_bytes.get(label, 0.0) + num_bytes
            return 0.0 if bucket is None else bucket.release_s(num_bytes, self._clock())

    def wait_until(self, release_s: float) -> None:
        """Return when that time has come."""
        if not release_s:
            return
        while (left := release_s - self._clock()) > 0:
            self._sleep(left)

    def pass_ring(self, members: Sequence[int], num_bytes: float, passes: int, label: str = "") -> None:
        """Wait for what a ring collective over `members` sends to the next of them.

        `num_bytes` are those of the whole tensor; an all-reduce makes two passes, all-gather and reduce-scatter one, and
        each pass sends (n - 1) / n of it.
        """
        if len(members) > 1:
            following = members[(members.index(self.rank) + 1) % len(members)]
            share = passes * (len(members) - 1) / len(members)
            self.wait_until(self.message(following, share * num_bytes, label))

    def pass_to_each(self, members: Sequence[int], sent_bytes: Sequence[float], label: str = "") -> None:
        """Wait for what is sent to every member; `sent_bytes` in their order, and the own part stays here."""
        parts = [(peer, num) for peer, num in zip(members, sent_bytes, strict=True) if peer != self.rank]
        self.wait_until(max((self.message(peer, num, label) for peer, num in parts), default=0.0))

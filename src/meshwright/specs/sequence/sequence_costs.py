"""SequenceCosts: what a group of ranks needs for its sequences, in seconds and bytes, as a formula of their lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.specs.error import PlanError

FORWARD_SHARE = 1 / 3  # of computes: one product for two backwards


@dataclass(frozen=True)
class SequenceCosts:
    """What a group of d ranks needs for its sequences, forward and backward, as fitted to a model on a cluster:

        seconds = max((square_s sum s^2 + token_s sum s) / d + fixed_s + exchange(d), least_s)
        exchange(d) = (exchange_bytes + (d - 1) ring_bytes) sum s / (d rate(d)) + (d - 1) exchange_s, for d > 1
        bytes of a rank = (token_bytes - r offload_bytes) sum s / d + state_bytes <= capacity_bytes

    with s over the lengths of its sequences (Wang et al. 2025, FlexSP, arXiv 2412.01523, section 4.1). `rates`: bytes per
    second of an exchange by degree; of a degree between two the rate of the larger one. `ring_bytes`: what of a token goes
    around a ring, so that it comes to all other ranks. `is_beside`: exchanges run beside attention (a ring's), and only what
    takes longer than that counts. `least_s` is what runs beside all computes: parameters that are sharded are fetched for the
    shortest sequence, too. `degrees`: those that a group can have, where not all can be (Ulysses divides heads); empty: all.

    A share r of `offload_bytes` (of `token_bytes`, those of layers that may wait in the host's memory) goes there while the
    forward computes and comes back while the backward does, at `offload_rate` bytes per second each way; 0: nothing can. What
    takes longer than that compute counts (Ge et al. 2025, ByteScale, arXiv 2502.21231). A rank has `host_bytes` of it.
    """

    square_s: float
    token_s: float
    fixed_s: float
    token_bytes: float
    state_bytes: float
    capacity_bytes: float
    exchange_bytes: float = 0.0
    exchange_s: float = 0.0
    rates: Mapping[int, float] | None = None
    is_beside: bool = False
    ring_bytes: float = 0.0
    offload_bytes: float = 0.0
    offload_rate: float = 0.0
    host_bytes: float = math.inf
    least_s: float = 0.0
    degrees: tuple[int, ...] = ()

    def rate(self, degree: int) -> float:
        """Bytes per second of an exchange among so many ranks; of more than are known that of the most."""
        rates = self.rates or {}
        if degree in rates:
            return rates[degree]
        behind = [known for known in sorted(rates) if known >= degree]
        if not rates or degree == 1:
            return math.inf
        return rates[behind[0]] if behind else rates[max(rates)]

    def attention_s(self, lengths: Sequence[int], degree: int) -> float:
        """Seconds of what grows with the square of lengths."""
        return self.square_s * sum(length * length for length in lengths) / degree

    def exchange_seconds(self, lengths: Sequence[int], degree: int) -> float:
        """Seconds of what the ranks of a group send each other."""
        if degree == 1:
            return 0.0
        token_bytes = self.exchange_bytes + (degree - 1) * self.ring_bytes
        return token_bytes * sum(lengths) / (degree * self.rate(degree)) + (degree - 1) * self.exchange_s

    def compute_seconds(self, lengths: Sequence[int], degree: int) -> float:
        """Seconds of what grows with tokens: all computes of a group but what every group takes."""
        return self.attention_s(lengths, degree) + self.token_s * sum(lengths) / degree

    def seconds(self, lengths: Sequence[int], degree: int, offload: float = 0.0) -> float:
        """Seconds of a group: its computes, and of its exchanges, and what is offloaded, what nothing hides."""
        attention_s, exchange_s = self.attention_s(lengths, degree), self.exchange_seconds(lengths, degree)
        rest_s = self.token_s * sum(lengths) / degree + self.fixed_s
        if offload:
            rest_s += self.offload_seconds(lengths, degree, offload)
        seen_s = max(attention_s, exchange_s) if self.is_beside else attention_s + exchange_s
        return max(rest_s + seen_s, self.least_s)

    def offload_seconds(self, lengths: Sequence[int], degree: int, offload: float) -> float:
        """Seconds that an offloaded share takes, to the host beyond the forward, and back beyond the backward."""
        if not self.offload_rate:
            raise PlanError(
                f"a share of {offload:g} of what is kept is offloaded, at no rate",
                allowed="0, or costs with bytes per second to the memory of the host",
            )
        moved_s = offload * self.offload_bytes * sum(lengths) / (degree * self.offload_rate)
        compute_s = self.compute_seconds(lengths, degree)
        return max(0.0, moved_s - FORWARD_SHARE * compute_s) + max(
            0.0, moved_s - (1 - FORWARD_SHARE) * compute_s
        )

    def hidden_offload(self, length: int) -> float:
        """The largest share of a sequence that its forward hides on the way to the host, on however many ranks it is."""
        if not self.offload_rate or not self.offload_bytes:
            return 0.0
        hidden_bytes = FORWARD_SHARE * self.compute_seconds((length,), 1) * self.offload_rate
        return min(1.0, hidden_bytes / (self.offload_bytes * length))

    def held_bytes(self, lengths: Sequence[int], degree: int, offload: float = 0.0) -> float:
        """Bytes of a rank while it runs a group."""
        return (self.token_bytes - offload * self.offload_bytes) * sum(lengths) / degree + self.state_bytes

    @property
    def capacity_tokens(self) -> float:
        """Tokens that one rank holds at once, with nothing offloaded."""
        return (self.capacity_bytes - self.state_bytes) / self.token_bytes

    def holding(self, num_tokens: int) -> SequenceCosts:
        """The same where a rank holds so many tokens at most; 0: as many as its memory does."""
        if not num_tokens or num_tokens >= self.capacity_tokens:
            return self
        return replace(self, capacity_bytes=self.state_bytes + num_tokens * self.token_bytes)

    def least_degree(self, length: int, offload: float = 0.0) -> int:
        """Ranks that a sequence needs to fit, of the degrees that can be, where up to a share of it is offloaded. Raises
        PlanError where no tokens fit at all, or the sequence on no such number of ranks."""
        if self.capacity_tokens <= 0:
            raise PlanError(
                f"parameters and their state take {self.state_bytes:,.0f} bytes of {self.capacity_bytes:,.0f}",
                allowed="a device with room for tokens beside them",
                next="divide the state (sharding zero3), or take more memory",
            )
        kept = 1 - offload * self.offload_bytes / self.token_bytes
        with_host = self.capacity_tokens + (self.host_bytes / self.token_bytes if offload else 0.0)
        least = max(1, math.ceil(max(kept * length / self.capacity_tokens, length / with_host) - 1e-9))
        found = min(
            (degree for degree in self.degrees if degree >= least), default=0 if self.degrees else least
        )
        if not found:
            raise PlanError(
                f"a sequence of {length:,} tokens needs {least} ranks, and groups have at most {max(self.degrees)}",
                allowed=f"sequences up to {int(self.capacity_tokens * max(self.degrees)):,} tokens",
                next="cut sequences shorter, or take context ring, which divides no heads",
            )
        return found

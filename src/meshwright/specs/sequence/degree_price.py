"""DegreePrice: costs of groups of one degree as functions of two sums, for those who price many groups."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.specs.sequence.sequence_costs import SequenceCosts


class DegreePrice(NamedTuple):
    """`SequenceCosts` at one degree, as sums of a group's tokens and of the squares of its lengths."""

    degree: int
    square_s: float
    token_s: float
    start_s: float
    sent_s: float
    first_s: float
    least_s: float
    is_beside: bool
    capacity: float

    @classmethod
    def of(cls, costs: SequenceCosts, degree: int) -> DegreePrice:
        """What costs say of a degree. `sent_s`, `first_s`: of an exchange, by token and once."""
        first_s = costs.exchange_seconds((0,), degree)
        return cls(
            degree, costs.square_s / degree, costs.token_s / degree, costs.fixed_s,
            costs.exchange_seconds((1,), degree) - first_s, first_s, costs.least_s, costs.is_beside,
            degree * costs.capacity_tokens * (1 + 1e-9),
        )  # fmt: skip

    def seconds(self, squares: float, tokens: float) -> float:
        """Of a group with these sums, as of `SequenceCosts.seconds`."""
        attention, exchange = self.square_s * squares, self.sent_s * tokens + self.first_s
        seen = max(attention, exchange) if self.is_beside else attention + exchange
        return max(self.token_s * tokens + self.start_s + seen, self.least_s)

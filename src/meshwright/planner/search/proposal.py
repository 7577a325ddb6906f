"""Proposal: what a planner of others gives: its plans, best first, and sentences about what it could not say in one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from meshwright.specs.plan.plan import Plan


@dataclass(frozen=True)
class Proposal(Sequence[Plan]):
    """Plans with notes; a planner without notes gives any other sequence of plans.

    Attributes:
        plans: the best first, by the planner's own measure.
        notes: sentences for people, shown with the assumptions.
    """

    plans: tuple[Plan, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Any) -> Proposal:
        """What a planner gave, as a proposal. Raises TypeError where that is not several plans."""
        if not isinstance(given, Iterable):
            raise TypeError(f"it gives {given!r:.80}, not several plans")
        plans = tuple(given)
        if strange := [each for each in plans if not isinstance(each, Plan)]:
            raise TypeError(f"it gives {strange[0]!r:.80}, not of type Plan")
        return cls(plans, given.notes if isinstance(given, Proposal) else ())

    def __len__(self) -> int:
        return len(self.plans)

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.plans)

    @overload
    def __getitem__(self, index: int) -> Plan: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Plan, ...]: ...
    def __getitem__(self, index: int | slice) -> Plan | tuple[Plan, ...]:
        return self.plans[index]

"""Plans: what a search found, the best plan first, and how it was found."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, overload

from meshwright.planner.search.objective import Objective, sort_key
from meshwright.prediction.description import num_choices
from meshwright.prediction.memory_limit import Rejection
from meshwright.prediction.predicted import Predicted
from meshwright.specs.row_table import csv_text, data_frame, html_table
from meshwright.specs.units import counted, format_chance
from meshwright.specs.whole_file import whole_file

NUM_SHOWN = 10  # plans that are printed
NUM_ALIKE = (
    2  # of these with the same degrees, as they are told apart by schedule, recompute and sharding alone
)
NUM_KEPT = 5  # of the best plans, whose programs stay for whoever simulates them next
# Of a step: what is faster by less is as fast. Medians of repeated runs of one plan differ by as much, and the order in which
# sums of prices put plans means less.
TIE = 0.005
LEAST_CHANCE = 0.01  # a plan that fits less likely is nobody's choice: to accept it is to accept any


class PassedOver(NamedTuple):
    """A plan that would be the first, and why it is not: a sentence behind its gain, with what to say to get it."""

    plan: Predicted
    why: str


@dataclass(frozen=True, eq=False)
class Plans(Sequence[Predicted]):
    """Simulated plans that fit, the best first (equally good ones: the smaller peak first).

    Attributes:
        assumptions: what was chosen for the user, and what the space lacks.
        num_candidates: of the whole space.
        num_too_large: of these, whose memory exceeds the devices'; `rejected` are those of them that were lowered.
        num_slower: that are proven slower than the best: what their busiest device computes alone takes longer.
        num_simulated: that were simulated, and are plans or were left out.
        varied: what was tried besides the space, of the best plans: in words, and how many plans of it fit; none where no
            candidate could be faster so.
        num_on_frontier: of a frontier, how many plans the closed form has on it; None of a ranking.
        search_s: wall seconds of the closed form, its tables and the space; `simulation_s` of what came behind.
        is_complete: False where a time limit or Ctrl-C ended the simulations early.
        optimality_gap: how much shorter than the best plan's step any candidate's may be, as a share of it: none of the
            computes' sums of the candidates that were not simulated leaves more. None where steps are not what is ranked.
        num_tied: where the first is the simplest of several that are as fast, how many these are; else 0.
        passed_over: plans that are faster than the first and were no first answer, the fastest of each reason.
    """

    plans: tuple[Predicted, ...]
    assumptions: tuple[str, ...] = ()
    num_candidates: int = 0
    num_too_large: int = 0
    num_slower: int = 0
    num_simulated: int = 0
    varied: Mapping[str, int] = field(default_factory=dict)
    num_on_frontier: int | None = None
    search_s: float = 0.0
    simulation_s: float = 0.0
    is_complete: bool = True
    optimality_gap: float | None = None
    rejected: tuple[Rejection, ...] = ()
    passed_over: tuple[PassedOver, ...] = ()
    num_tied: int = 0

    @property
    def num_excluded_by_bound(self) -> int:
        """Candidates that are proven not to be the best: too large, or too slow."""
        return self.num_too_large + self.num_slower

    @property
    def num_evaluated(self) -> int:
        """Candidates that may be the best."""
        return self.num_candidates - self.num_excluded_by_bound

    @property
    def wall_s(self) -> float:
        """Seconds that it took."""
        return self.search_s + self.simulation_s

    @property
    def ideas(self) -> dict[int, Predicted]:
        """By place, from 1: the plans that differ in more than details, the best of each schedule, recompute and sharding;
        at most two of these with the same degrees."""
        known, alike, found = set(), Counter[tuple[int, ...]](), dict[int, Predicted]()
        for place, each in enumerate(self.plans, 1):
            plan = each.plan
            degrees = (plan.tp, plan.cp, plan.ep, plan.pp)
            idea = (degrees, plan.schedule if plan.pp > 1 else "", plan.recompute, plan.sharding)
            if idea not in known and alike[degrees] < NUM_ALIKE:
                known.add(idea)
                alike[degrees] += 1
                found[place] = each
        return found

    def __len__(self) -> int:
        return len(self.plans)

    @overload
    def __getitem__(self, index: int) -> Predicted: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Predicted, ...]: ...
    def __getitem__(self, index: int | slice) -> Predicted | tuple[Predicted, ...]:
        return self.plans[index]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Each plan as plain values in SI units (`Predicted.row`), with its place."""
        return [{"place": place, **each.row} for place, each in enumerate(self.plans, 1)]

    def to_dataframe(self) -> Any:
        """The rows as a pandas DataFrame. Raises SpecError without pandas."""
        return data_frame(self.rows)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the rows as CSV."""
        with whole_file(Path(path)) as file:
            file.write_text(csv_text(self.rows), encoding="utf-8")

    def _repr_html_(self) -> str:
        best = self.plans[0].plan
        return html_table(self.rows[:NUM_SHOWN], f"{best.model.name} on {best.cluster}")

    def __repr__(self) -> str:
        shown = list(self.ideas.items())[:NUM_SHOWN]
        lines = [f"{place:>3}  {found}" for place, found in shown]
        lines += [f"     and {len(self) - len(shown)} more"] if len(self) > len(shown) else []
        lines.append(
            f"     {counted(self.num_candidates, 'candidate')}, {self.num_excluded_by_bound:,} excluded by a bound"
        )
        lines += [f"     assumed: {line}" for line in self.assumptions]
        return "\n".join(lines)


def simplest_first(found: Plans, capacity_bytes: int, risk: float) -> Plans:
    """These plans, with the simplest of those first that are as fast as the first and fit as surely: what is within `TIE` of
    it nobody could tell from it by running both. The first of equally simple ones."""
    best = found[0]
    near = [each for each in found if each.step.value <= (1 + TIE) * best.step.value]
    wanted = min(1.0 - risk, best.fit_probability(capacity_bytes))
    tied = [each for each in near if each is best or each.fit_probability(capacity_bytes) >= wanted]
    first = min(tied, key=lambda each: num_choices(each.plan))
    if first is best:
        return found
    others = (each for each in found if each is not first)
    return replace(found, plans=(first, *others), num_tied=len(tied))


def keep_best(plans: Sequence[Predicted]) -> None:
    """Let go of the programs of all but the best few, which come first."""
    for each in plans[NUM_KEPT:]:
        each.forget()


def safe_first(plans: Sequence[Predicted], capacity_bytes: int, risk: float) -> list[Predicted]:
    """These plans, those that fit with a chance of 1 - `risk` or more before the others, in their order otherwise."""
    return sorted(plans, key=lambda each: each.fit_probability(capacity_bytes) < 1.0 - risk)


def passed_over(ranked: Sequence[Predicted], capacity: int, risk: float | None) -> tuple[PassedOver, ...]:
    """The fastest plan that may not fit, where it is faster than the first; none that hardly ever fits."""
    possible = [each for each in ranked if each.fit_probability(capacity) >= LEAST_CHANCE] or ranked[:1]
    fastest = min(possible, key=lambda each: each.step.value)
    if risk is None or fastest.step.value >= ranked[0].step.value:
        return ()
    chance = fastest.fit_probability(capacity)
    if chance >= 1.0 - risk:
        return ()
    risked = math.ceil(100 * (1 - chance)) / 100
    why = f"it fits with a chance of {format_chance(chance)} only; --risk {risked:.2f} accepts it"
    return (PassedOver(fastest, why),)


def in_full(
    ranked: Sequence[Predicted], objective: Objective, ends_s: float = float("inf")
) -> list[Predicted]:
    """These plans with those that are shown simulated in segments where they exchange inside layers, and ranked by that; none
    of them behind a plan that is not shown. After `ends_s` on the clock the others stay composed, and say so."""
    shown: list[Predicted] = []
    for each in ranked[:NUM_SHOWN]:
        full = each if time.perf_counter() >= ends_s else each.refined()
        _ = full.step
        if full is not each:
            each.forget()
        shown.append(full)
        keep_best(sorted(shown, key=lambda one: sort_key(objective, one)))
    return [*sorted(shown, key=lambda one: sort_key(objective, one)), *ranked[NUM_SHOWN:]]

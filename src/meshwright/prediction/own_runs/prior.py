"""RunPrior: how far a stack that nobody knows may be from what is predicted, learned of stacks that were left out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from meshwright.costs.cost import rounded
from meshwright.prediction.own_runs.reading import COORDINATES, FLOOR, FLOOR_PP, FLOOR_TP, Reading
from meshwright.prediction.own_runs.run_table import Floats
from meshwright.specs.error import SpecError

PRIOR_SCHEMA = 1
DIGITS = 4
# No source of the packaged fit is slowed by its host, so what is expected of the floor is assumed: where it lies (an eager
# layer launches more kernels than the gaps that are counted on the device), that it may lie an e-fold off in each of its
# three coordinates, and how many of the stacks with more than a level have one.
FLOORS: Mapping[str, float] = {FLOOR: 1.0, FLOOR_TP: 1.0, FLOOR_PP: 1.0}
LAUNCHES_PER_GAP = 2.5
HOST_BOUND = 0.15
# In doublings of traits: 1.7 to 2.4 were most likely in three searches over the ten sources, which hardly tell them apart.
REACH = 2.5
# Of Student's distribution, near Cauchy's: half of all rows are near, some are anywhere. From 1 to 4 the median errors of
# left-out rows differ by a few tenths of a point.
FREEDOM = 1.5
EVERY_LEVEL, EVERY_KIND, HOST_IS_BEHIND = (
    "one factor for everything",
    "a factor for each kind of work",
    "the host is behind",
)


@dataclass(frozen=True)
class RunPrior:
    """What is expected of a stack before its runs are seen.

    Attributes:
        spreads: standard deviations of logarithms: of the level, of each kind of work, of a doubling of nodes.
        layout: of what goes with the layout. scatter: of one run, the scale of Student's t.
        plain: the probability that one factor explains everything.
        quantile: how many standard deviations to both sides hold 80 % of what comes next.
    """

    spreads: Mapping[str, float] = field(hash=False)
    layout: float
    scatter: float
    plain: float
    quantile: float

    def readings(self) -> list[tuple[Reading, float]]:
        """The explanations, with how probable each is before any run."""
        level, known = COORDINATES[0], {**self.spreads, **FLOORS}
        plain = _spreads({level: known[level]})
        kinds = _spreads({name: known[name] for name in COORDINATES if name not in FLOORS})
        rest = self.layout, REACH, self.scatter, FREEDOM
        more = 1 - self.plain
        return [
            (Reading(EVERY_LEVEL, plain, 0.0, 0.0, *rest[1:]), self.plain),
            (Reading(EVERY_KIND, kinds, 0.0, *rest), more * (1 - HOST_BOUND)),
            (Reading(HOST_IS_BEHIND, _spreads(known), LAUNCHES_PER_GAP, *rest), more * HOST_BOUND),
        ]

    def with_quantile(self, quantile: float) -> RunPrior:
        """The same with another width of intervals."""
        return replace(self, quantile=quantile)


def _spreads(known: Mapping[str, float]) -> Floats:
    return np.array([known.get(name, 0.0) for name in COORDINATES])


@dataclass(frozen=True)
class RunPriors:
    """The prior of all sources, and those without one each: for whoever judges by that source's rows."""

    fit: RunPrior
    left_out: Mapping[str, RunPrior] = field(hash=False)
    source: str = ""

    def without(self, source: str) -> RunPrior:
        """The prior that this source took no part in."""
        return self.left_out.get(source, self.fit)

    def to_dict(self) -> dict[str, Any]:
        """For a file."""
        return {
            "schema": PRIOR_SCHEMA,
            "source": self.source,
            "fit": rounded(asdict(self.fit), DIGITS),
            "left_out": {name: rounded(asdict(each), DIGITS) for name, each in self.left_out.items()},
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> RunPriors:
        """From a file. Raises SpecError on another schema."""
        if table.get("schema") != PRIOR_SCHEMA:
            raise SpecError(f"priors of schema {table.get('schema')!r}", allowed=f"schema {PRIOR_SCHEMA}")
        left_out = {name: RunPrior(**each) for name, each in table["left_out"].items()}
        return cls(RunPrior(**table["fit"]), left_out, table.get("source", ""))


@cache
def packaged_priors() -> RunPriors:
    """The priors that come with the package (see benchmarks/fit/fit_run_prior.py)."""
    text = (resources.files("meshwright.prediction.own_runs") / "priors.json").read_text(encoding="utf-8")
    return RunPriors.from_dict(json.loads(text))

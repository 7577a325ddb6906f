"""What the options of `meshwright plan` about money, energy, failures and numbers to solve for say."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from meshwright.api.plans.request import PlanRequest
from meshwright.api.plans.solving import SOLVED
from meshwright.api.subjects.loading import cluster_named
from meshwright.planner.advice.goodput import Failures
from meshwright.planner.advice.running_cost import with_rates
from meshwright.planner.search.objective import objective_named
from meshwright.planner.search.plans import Plans
from meshwright.prediction.predicted import Predicted
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError, UnknownNameError
from meshwright.specs.option import option
from meshwright.specs.units import parse_count, parse_seconds, parse_watts

NUM_SHOWN = 5  # plans in the table, unless --top says otherwise


def _objective(text: str) -> str:
    return str(objective_named(text).value)


@dataclass(frozen=True)
class Selection:
    """Which of the plans that were found are shown."""

    top: int | None = option(None, f"How many plans are shown ({NUM_SHOWN}).", least=1)
    shows_all: bool = option(False, "Show every plan that was simulated, those that are alike, too.", "--all")

    def of(self, found: Plans, of_others: bool = False) -> dict[int, Predicted]:
        """By place: the best of different ideas; all where all are asked for, or of another planner, which shows its own."""
        every = self.shows_all or of_others
        most = self.top or (len(found) if self.shows_all else NUM_SHOWN)
        chosen = dict(enumerate(found, 1)) if every else found.ideas
        return dict(itertools.islice(chosen.items(), most))


@dataclass(frozen=True)
class Asked:
    """What is asked about money, failures and numbers, in SI units. Raises PlanError for what does not go together."""

    objective: str = option("time", "Least time, cost, energy or memory.", parse=_objective)
    pareto: bool = option(False, "The plans that none beats in both step and memory.")
    price_per_hour_usd: float | None = option(None, "USD of a device and hour: 2.5.", "--price", least=0)
    power_w: float | None = option(
        None, "That a device draws all the time: 700W.", "--power", parse=parse_watts
    )
    num_tokens: int | None = option(None, "Of the whole training: 2T, 500B.", "--tokens", parse=parse_count)
    solve: str | None = option(
        None, "For seq, microbatch, or gpus: those that fit, or are in time (--deadline, --tokens)."
    )
    deadline_s: float | None = option(None, "With --solve gpus: 30d.", "--deadline", parse=parse_seconds)
    max_gpus: int | None = option(None, "With --solve gpus, none above.", least=1)
    failures: Failures | None = None

    def __post_init__(self) -> None:
        if self.solve is not None and self.solve not in SOLVED:
            raise UnknownNameError("number to solve for", self.solve, SOLVED)
        if self.solve is not None and self.pareto:
            raise PlanError("--solve and --pareto", allowed="one of them")
        if self.solves and self.objective != "time":
            raise PlanError(
                f"--objective {self.objective} with --solve or --pareto",
                allowed="--objective for a ranking; --pareto shows step and memory together",
            )
        if self.solve == "gpus" and self.deadline_s is not None and self.num_tokens is None:
            raise PlanError("--solve gpus with --deadline", allowed="it with --deadline 30d and --tokens 2T")
        if self.solve != "gpus" and (self.deadline_s is not None or self.max_gpus is not None):
            raise PlanError(
                "--deadline or --max-gpus without --solve gpus", next="add --solve gpus and --tokens"
            )

    @property
    def solves(self) -> bool:
        """Is something else than a ranking asked for?"""
        return self.solve is not None or self.pareto

    @property
    def shows_costs(self) -> bool:
        """Are dollars and energy worth a table?"""
        given = (self.price_per_hour_usd, self.power_w, self.num_tokens, self.failures)
        return any(value is not None for value in given) or self.objective in ("cost", "energy")

    def on(self, name: str) -> ClusterSpec:
        """The cluster of that name, with the price and power that were given. Raises as `cluster_named`."""
        return self.rated(cluster_named(name))

    def rated(self, cluster: ClusterSpec) -> ClusterSpec:
        """The cluster with the price and power that were given."""
        return with_rates(cluster, self.price_per_hour_usd, self.power_w)

    def check(self, request: PlanRequest, has_like: bool) -> None:
        """Raise PlanError for what does not go with the rest of the command."""
        if has_like and (self.solves or self.objective == "memory"):
            raise PlanError(
                "--like with --solve, --pareto or --objective memory",
                allowed="--like with prices, tokens and failures; on one cluster money ranks as time does",
                next="plan without --like for numbers and frontiers",
            )
        if self.solves and request.lengths is not None:
            raise PlanError(
                "--lengths with --solve or --pareto",
                allowed="--lengths for a ranking",
                next="plan with --lengths, or leave it out",
            )
        if self.solves and (request.risk is not None or request.framework is not None):
            raise PlanError(
                "--risk or --for with --solve or --pareto",
                allowed="them for a ranking",
                next="leave them out",
            )
        if (self.pareto or self.solve == "gpus") and request.time_limit_s is not None:
            raise PlanError(
                "--time-limit with --pareto or --solve gpus", allowed="it for a ranking", next="leave it out"
            )

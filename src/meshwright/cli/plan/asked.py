"""What the options of `meshwright plan` about money, energy, failures and numbers to solve for say, read once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.specs.units import parse_count, parse_seconds, parse_watts

if TYPE_CHECKING:
    from meshwright.planner.advice.goodput import Failures
    from meshwright.specs.cluster.cluster import ClusterSpec

TEXT = str | None
ObjectiveOption = Annotated[str, typer.Option("--objective", help="Least time, cost, energy or memory.")]
PriceOption = Annotated[float | None, typer.Option("--price", help="USD of a device and hour: 2.5.", min=0)]
PowerOption = Annotated[TEXT, typer.Option("--power", help="That a device draws all the time: 700W.")]
TokensOption = Annotated[TEXT, typer.Option("--tokens", help="Of the whole training: 2T, 500B.")]
MtbfOption = Annotated[TEXT, typer.Option("--mtbf", help="Mean time between failures of ONE device: 50000h.")]
CheckpointOption = Annotated[TEXT, typer.Option("--checkpoint", help="Training stops to save for: 60s.")]
RestartOption = Annotated[
    TEXT, typer.Option("--restart", help="From a failure until training goes on: 10min.")
]
SolveOption = Annotated[
    TEXT, typer.Option("--solve", help="For seq, microbatch, or gpus (--deadline, --tokens).")
]
DeadlineOption = Annotated[TEXT, typer.Option("--deadline", help="With --solve gpus: 30d.")]
MaxGpusOption = Annotated[
    int | None, typer.Option("--max-gpus", help="With --solve gpus, none above.", min=1)
]
ParetoOption = Annotated[
    bool, typer.Option("--pareto", help="The plans that none beats in both step and memory.")
]


@dataclass(frozen=True)
class Asked:
    """What the options about money, failures and numbers say, in SI units; they are read once, with their mistakes."""

    objective: str
    price_per_hour_usd: float | None
    power_w: float | None
    num_tokens: int | None
    failures: Failures | None
    solve: str | None
    deadline_s: float | None
    max_gpus: int | None
    pareto: bool

    @property
    def is_plain(self) -> bool:
        """Was nothing of all this asked for?"""
        return self == Asked("time", None, None, None, None, None, None, None, False)

    @property
    def shows_costs(self) -> bool:
        """Are dollars and energy worth a table?"""
        given = (self.price_per_hour_usd, self.power_w, self.num_tokens, self.failures)
        return any(value is not None for value in given) or self.objective in ("cost", "energy")

    def on(self, name: str) -> ClusterSpec:
        """The cluster of that name, with the price and power that were given. Raises as `cluster_named`."""
        from meshwright.api.subject.loading import cluster_named
        from meshwright.planner.advice.running_cost import with_rates

        return with_rates(cluster_named(name), self.price_per_hour_usd, self.power_w)


def read_asked(
    *, objective: str, price: float | None, power: TEXT, tokens: TEXT, failing: tuple[TEXT, TEXT, TEXT],
    solve: TEXT, deadline: TEXT, max_gpus: int | None, pareto: bool, time_limit: TEXT, has_like: bool,
) -> Asked:  # fmt: skip
    """The options as numbers. Raises SpecError for what cannot be read, PlanError for what does not go together."""
    from meshwright.api.plan.solving import SOLVED
    from meshwright.planner.search.objective import objective_named
    from meshwright.specs.error import PlanError, UnknownNameError

    asked = Asked(
        objective_named(objective).value, price, None if power is None else parse_watts(power),
        None if tokens is None else parse_count(tokens), _failures(*failing), solve,
        None if deadline is None else parse_seconds(deadline), max_gpus, pareto,
    )  # fmt: skip
    if solve is not None and solve not in SOLVED:
        raise UnknownNameError("number to solve for", solve, SOLVED)
    if has_like and not asked.is_plain:
        raise PlanError(
            "--like with objectives, prices, failures, --solve or --pareto",
            allowed="--like alone, or those without it",
            next="plan without --like for money, failures and numbers",
        )
    if solve is not None and pareto:
        raise PlanError("--solve and --pareto", allowed="one of them")
    if (solve is not None or pareto) and asked.objective != "time":
        raise PlanError(
            f"--objective {objective} with --solve or --pareto",
            allowed="--objective for a ranking; --pareto shows step and memory together",
        )
    if solve == "gpus" and (asked.deadline_s is None or asked.num_tokens is None):
        raise PlanError("--solve gpus", allowed="it with --deadline 30d and --tokens 2T")
    if solve != "gpus" and (deadline is not None or max_gpus is not None):
        raise PlanError("--deadline or --max-gpus without --solve gpus", next="add --solve gpus and --tokens")
    if (pareto or solve == "gpus") and time_limit is not None:
        raise PlanError(
            "--time-limit with --pareto or --solve gpus", allowed="it for a ranking", next="leave it out"
        )
    return asked


def _failures(mtbf: TEXT, checkpoint: TEXT, restart: TEXT) -> Failures | None:
    from meshwright.planner.advice.goodput import Failures
    from meshwright.specs.error import PlanError

    given = {"--mtbf": mtbf, "--checkpoint": checkpoint, "--restart": restart}
    missing = [name for name, text in given.items() if text is None]
    if len(missing) == len(given):
        return None
    if missing:
        raise PlanError(
            f"{', '.join(name for name in given if name not in missing)} without {', '.join(missing)}",
            allowed="all three or none: --mtbf 50000h --checkpoint 60s --restart 10min",
        )
    return Failures(*(parse_seconds(str(text)) for text in given.values()))

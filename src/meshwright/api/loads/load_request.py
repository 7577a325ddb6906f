"""What serving a load is asked for: the keywords of `plan_load`, and the options of `plan --requests`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.serving.loop.report import LatencyObjective
from meshwright.serving.request.arrival import ArrivalProcess, Constant, Gamma, Poisson
from meshwright.specs.error import SpecError, UnknownNameError
from meshwright.specs.option import option
from meshwright.specs.plan.option import with_options
from meshwright.specs.units import parse_seconds

OBJECTIVES = ("ttft", "tpot", "e2e")
USUAL_OBJECTIVE = LatencyObjective(ttft_s=2.0, tpot_s=0.1)
PROCESSES: dict[str, type] = {"poisson": Poisson, "gamma": Gamma, "constant": Constant}
CALL = re.compile(r"(\w+)(?:\((.*)\))?")


def objective_of(text: str) -> LatencyObjective:
    """Of "ttft=2s,tpot=100ms,e2e=30s"; what is not named is not asked for. Raises SpecError."""
    found: dict[str, float] = {}
    for pair in text.split(","):
        name, equals, value = pair.strip().partition("=")
        if name not in OBJECTIVES or not equals or f"{name}_s" in found:
            raise SpecError(f"--slo {text!r}", allowed="ttft=2s,tpot=100ms, e2e=30s; each once")
        found[f"{name}_s"] = parse_seconds(value)
    if min(found.values()) <= 0:
        raise SpecError(f"--slo {text!r}", allowed="times above 0")
    return LatencyObjective(**found)


def arrivals_of(text: str) -> ArrivalProcess:
    """Of "poisson(rate_per_s=4)", "gamma(rate_per_s=4, variation=3)". Raises SpecError and PlanError."""
    found = CALL.fullmatch(text.strip())
    if found is None:
        raise SpecError(f"--arrivals {text!r}", allowed="NAME(OPTION=NUMBER), such as poisson(rate_per_s=4)")
    name, given = found[1], found[2] or ""
    if name not in PROCESSES:
        raise UnknownNameError("arrival process", name, PROCESSES)
    values: dict[str, Any] = {}
    for pair in filter(None, (each.strip() for each in given.split(","))):
        key, _, value = pair.partition("=")
        try:
            values[key.strip()] = int(value) if value.strip().isdigit() else float(value)
        except ValueError:
            raise SpecError(f"--arrivals {text!r}: {pair!r}", allowed="OPTION=NUMBER") from None
    made: ArrivalProcess = with_options(PROCESSES[name], values, f"arrivals {name}")
    return made


@dataclass(frozen=True)
class LoadRequest:
    """A load and what is asked of it, in SI units.

    Args:
        requests: a file of requests (`serving.request.request_file`).
        objective: within which a request has to be served to count as good.
        first: so many of its lines only.
        arrivals: when they come instead; None: when the file says.
        clients: so many, each of whom sends its next request when its last has ended; 0: requests come at times.
        rate_factor: how many times as often they come as the file says.
        has_step_table: do steps come from a table? Else every batch is simulated.
    """

    requests: Path | None = option(None, "Plan for serving these: .csv or .jsonl, also .gz.")
    objective: LatencyObjective | None = option(
        None, "What a good request takes at most: ttft=2s,tpot=100ms,e2e=30s.", "--slo", parse=objective_of
    )
    first: int | None = option(None, "With --requests, so many of them.", least=1)
    arrivals: ArrivalProcess | None = option(
        None,
        "With --requests, when they come: poisson(rate_per_s=4), gamma(...), constant(...).",
        parse=arrivals_of,
    )
    rate_factor: float | None = option(None, "With --requests, so many times as often as they came.", above=0)
    clients: int = option(
        0, "With --requests, so many clients, each of which sends when its last request has ended.", least=0
    )
    has_step_table: bool = option(
        True, "With --requests, simulate every batch as its program.", "--no-step-table"
    )

    def __post_init__(self) -> None:
        said = (self.objective, self.first, self.arrivals, self.rate_factor, self.clients or None)
        if self.requests is None and (said != (None,) * len(said) or not self.has_step_table):
            raise SpecError(
                "--slo, --first, --arrivals, --rate-factor, --clients or --no-step-table",
                allowed="with --requests FILE",
            )
        if self.clients and (self.arrivals is not None or self.rate_factor is not None):
            raise SpecError("--clients beside --arrivals or --rate-factor", allowed="clients, or times")
        if self.arrivals is not None and self.rate_factor is not None:
            raise SpecError(
                "--arrivals with --rate-factor", allowed="one of them: an arrival process has a rate"
            )

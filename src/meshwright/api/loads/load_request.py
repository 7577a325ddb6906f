"""What serving a load is asked for: the keywords of `plan_load`, and the options of `plan --requests`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from meshwright.serving.loop.report import LatencyObjective
from meshwright.serving.request.arrival import ArrivalProcess, Constant, Gamma, Poisson, arriving, at_rate
from meshwright.serving.request.drawn_lengths import DrawnLengths
from meshwright.serving.request.request import Request
from meshwright.serving.request.request_file import PathLike, read_requests
from meshwright.serving.request.request_lines import Encode
from meshwright.specs.error import SpecError, UnknownNameError
from meshwright.specs.option import option
from meshwright.specs.plan.option import with_options
from meshwright.specs.units import parse_seconds

OBJECTIVES = ("ttft", "tpot", "e2e")
USUAL_OBJECTIVE = LatencyObjective(ttft_s=2.0, tpot_s=0.1)
PROCESSES: dict[str, type] = {"poisson": Poisson, "gamma": Gamma, "constant": Constant}
DRAWN: dict[str, type] = {"lengths": DrawnLengths}
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
    if found[1] not in PROCESSES:
        raise UnknownNameError("arrival process", found[1], PROCESSES)
    made: ArrivalProcess = with_options(PROCESSES[found[1]], _numbers(found), f"arrivals {found[1]}")
    return made


def _numbers(found: re.Match[str]) -> dict[str, int | float]:
    """The options of a name that `CALL` found. Raises SpecError."""
    values: dict[str, int | float] = {}
    for pair in filter(None, (each.strip() for each in (found[2] or "").split(","))):
        key, _, value = pair.partition("=")
        try:
            values[key.strip()] = int(value) if value.strip().isdigit() else float(value)
        except ValueError:
            raise SpecError(f"{found[0]}: {pair!r}", allowed="OPTION=NUMBER") from None
    return values


def drawn_of(source: str) -> DrawnLengths | None:
    """Of "lengths(prompt=500, output=200)"; None: it is the name of a file. Raises SpecError and PlanError."""
    found = CALL.fullmatch(source.strip())
    if found is None or found[1] not in DRAWN:
        return None
    made: DrawnLengths = with_options(DRAWN[found[1]], _numbers(found), f"requests {found[1]}")
    return made


def requests_of(source: PathLike, first: int | None = None, *, encode: Encode | None = None) -> list[Request]:
    """The first requests of a file, or of such as are drawn. Raises what `read_requests` and `drawn_of` raise."""
    drawn = drawn_of(os.fspath(source))
    return read_requests(source, first=first, encode=encode) if drawn is None else drawn.requests()[:first]


@dataclass(frozen=True)
class LoadTimes:
    """When requests come, other than their file says.

    Args:
        process: at the times that it draws; None: when the file says.
        rate_factor: so many times as often.
        clients: so many, each of whom sends when its last request has ended; 0: requests come at times.
        think_s: that a client waits before it sends again.
    """

    process: ArrivalProcess | None = None
    rate_factor: float | None = None
    clients: int = 0
    think_s: float = 0.0

    def __post_init__(self) -> None:
        if self.clients and (self.process is not None or self.rate_factor is not None):
            raise SpecError("--clients beside --arrivals or --rate-factor", allowed="clients, or times")
        if self.process is not None and self.rate_factor is not None:
            raise SpecError(
                "--arrivals with --rate-factor", allowed="one of them: an arrival process has a rate"
            )
        if self.think_s and not self.clients:
            raise SpecError("--think without --clients", allowed="--clients 1000 --think 30s")

    def of(self, source: PathLike, first: int | None = None, encode: Encode | None = None) -> list[Request]:
        """A source's requests at these times. Raises what `requests_of` raises, and SpecError where nobody says when."""
        if drawn_of(os.fspath(source)) and not self.clients and self.process is None:
            raise SpecError(
                f"nobody says when the requests of {os.fspath(source)} come",
                allowed="--arrivals 'poisson(rate_per_s=4)', or --clients 1000 --think 30s",
            )
        found = requests_of(source, first, encode=encode)
        if self.clients > len(found):
            raise SpecError(
                f"{self.clients:,} clients for {len(found):,} requests",
                allowed="a request for each, better several",
            )
        if self.process is not None:
            return arriving(found, self.process)
        return found if self.rate_factor is None else at_rate(found, self.rate_factor)


@dataclass(frozen=True)
class LoadRequest:
    """A load and what is asked of it, in SI units.

    Args:
        requests: a file of requests (`serving.request.request_file`), or lengths of such as are drawn.
        objective: within which a request has to be served to count as good.
        first: so many of its lines only.
        arrivals: when they come instead; None: when the file says.
        clients: so many, each of whom sends its next request when its last has ended; 0: requests come at times.
        think_s: that each of them waits before its next request.
        rate_factor: how many times as often they come as the file says.
        has_step_table: do steps come from a table? Else every batch is simulated.
        routing: a trace of where tokens of the model went, by which experts that are divided are priced.
        expert_placement: a file of a placement, or a name of the slot; empty: neighbouring experts are on one device.
    """

    requests: str | None = option(
        None,
        "Plan for serving these: .csv or .jsonl, also .gz; or 'lengths(prompt=500,output=200,num=5000)'.",
    )
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
    think_s: float = option(
        0.0,
        "With --clients, how long each waits before its next request: 30s.",
        "--think",
        parse=parse_seconds,
    )
    has_step_table: bool = option(
        True, "With --requests, simulate every batch as its program.", "--no-step-table"
    )
    routing: Path | None = option(
        None,
        "With --requests, where tokens of the model went (train --record-routing): what the busiest device of ep has.",
    )
    expert_placement: str = option(
        "",
        "With --routing: a file that `place` wrote, for as many devices as ep, or a name of its algorithms.",
    )

    def __post_init__(self) -> None:
        said = (
            self.objective,
            self.first,
            self.arrivals,
            self.rate_factor,
            self.clients or None,
            self.think_s or None,
            self.routing,
        )
        if self.requests is None and (said != (None,) * len(said) or not self.has_step_table):
            raise SpecError(
                "--slo, --first, --arrivals, --rate-factor, --clients, --think, --routing or --no-step-table",
                allowed="with --requests FILE",
            )
        if self.expert_placement and self.routing is None:
            raise SpecError("--expert-placement without --routing", next="give a routing trace, too")
        LoadTimes(self.arrivals, self.rate_factor, self.clients, self.think_s)

    def load(self) -> list[Request]:
        """What is to be served. Raises what `LoadTimes.of` raises."""
        assert self.requests is not None, "the caller asked"
        times = LoadTimes(self.arrivals, self.rate_factor, self.clients, self.think_s)
        return times.of(self.requests, self.first)

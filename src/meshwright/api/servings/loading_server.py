"""`bench_serve`: load on a server that speaks OpenAI's API, ours or another's, and the figures of what came back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.api.loads.load_request import LoadTimes, arrivals_of, objective_of
from meshwright.api.loads.planning_load import plan_load
from meshwright.api.plans.request import fixed_of
from meshwright.planner.serving.served_plan import ServedPlan
from meshwright.serving.load.event_client import ServerAddress
from meshwright.serving.load.load_generator import LoadPlan, first_model, send_load
from meshwright.serving.load.load_record import LoadFigures
from meshwright.serving.loop.report import LatencyObjective
from meshwright.serving.request.arrival import ArrivalProcess
from meshwright.serving.request.request import Request
from meshwright.serving.request.request_file import BLOCK_TOKENS, PathLike
from meshwright.specs.error import SpecError
from meshwright.specs.option import option
from meshwright.specs.units import parse_seconds

KEY_VARIABLE = "OPENAI_API_KEY"  # as the openai client has it
ONE_DEVICE = {"tp": 1, "replicas": 1}
PANEL = "Simulated beside"


@dataclass(frozen=True)
class LoadOptions:
    """How a server is loaded."""

    first: int | None = option(None, "So many requests of the file only.", least=1)
    arrivals: ArrivalProcess | None = option(
        None, "When they come, in place of the file's times: poisson(rate_per_s=4).", parse=arrivals_of
    )
    rate_factor: float | None = option(None, "So many times as often as the file says.", above=0)
    clients: int = option(
        0, "So many clients, each of which sends when its last request has ended; else by arrivals.", least=0
    )
    think_s: float = option(
        0.0,
        "With --clients, how long each waits before its next request: 30s.",
        "--think",
        parse=parse_seconds,
    )
    objective: LatencyObjective | None = option(
        None, "What counts as good: ttft=2s,tpot=100ms,e2e=30s.", "--slo", parse=objective_of
    )
    model: str = option("", "The model's name on the server; else the first that it names.")
    ends: bool = option(
        False,
        "Let the model end an output before its recorded length; for servers without ignore_eos.",
        "--may-end",
    )
    vocabulary: int = option(
        1000, "Drawn tokens of prompts are below this, and below what the server says", least=2
    )
    tokenizer: Path | None = option(None, "A folder with the tokenizer, for files with texts.")
    timeout_s: float = option(600.0, "Seconds after which a request has failed", "--timeout", above=0)

    def __post_init__(self) -> None:
        self.times()

    def times(self) -> LoadTimes:
        """When requests come. Raises SpecError for what contradicts itself."""
        return LoadTimes(self.arrivals, self.rate_factor, self.clients, self.think_s)


@dataclass(frozen=True)
class AgainstOptions:
    """What is simulated beside a load on a server: the same load, on the plan that the server is said to be."""

    cluster: str = option(
        "", "Simulate the same load on this cluster, beside: 1x8xH100.", "--against", panel=PANEL
    )
    model: str = option(
        "", "With --against, the model: a preset or a folder; else its name on the server.", "--against-model", panel=PANEL
    )  # fmt: skip
    fix: Mapping[str, Any] | None = option(
        None, "With --against, how it serves: tp=8,replicas=2,max_batch_tokens=8192; else one device.", parse=fixed_of,
        repeats=True, panel=PANEL,
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not self.cluster and (self.model or self.fix):
            raise SpecError(
                "--against-model or --fix without --against", allowed="--against CLUSTER beside it"
            )


EVERY_REQUEST = LoadOptions()


def simulated_load(
    url: str, requests: PathLike, against: AgainstOptions, options: LoadOptions = EVERY_REQUEST
) -> ServedPlan:
    """What the simulation says of a file's requests, as `bench_serve` sends them to the server at `url`.

    Raises what `plan_load` raises; ExecutionError where nobody says the model's name.
    """
    found = plan_load(
        against.model or options.model or first_model(_address(url)), against.cluster, _load_of(requests, options),
        slo=options.objective or LatencyObjective(), fix={**ONE_DEVICE, **(against.fix or {})}, clients=options.clients,
        think_s=options.think_s,
    )  # fmt: skip
    best: ServedPlan = found[0]
    return best


def bench_serve(
    url: str, requests: PathLike, *, options: LoadOptions = EVERY_REQUEST, seed: int = 0,
    said: Callable[[int, int], None] = lambda done, of: None,
) -> LoadFigures:  # fmt: skip
    """Send a file's requests to a server and time what comes.

    Args:
        url: http://HOST:PORT; a key for it is in OPENAI_API_KEY.
        requests: as `plan --requests` takes them. Prompts of which only lengths are known are drawn, equal where the
            file says that prefixes are.
        options: how they are sent.
        seed: of drawn tokens.
        said: hears how many of how many have ended.

    Raises:
        SpecError: the file or the URL cannot be used.
        ExecutionError: the server names no model.
    """
    address, load = _address(url), _load_of(requests, options)
    plan = LoadPlan(
        model=options.model, clients=options.clients, think_s=options.think_s, ignores_end=not options.ends,
        block_tokens=BLOCK_TOKENS, vocabulary=options.vocabulary, timeout_s=options.timeout_s, seed=seed,
    )  # fmt: skip
    return LoadFigures.of(send_load(address, load, plan, said), options.objective or LatencyObjective())


def _address(url: str) -> ServerAddress:
    return ServerAddress.of_url(url, os.environ.get(KEY_VARIABLE, ""))


def _load_of(source: PathLike, options: LoadOptions) -> list[Request]:
    """The requests, when they come."""
    encode = None
    if options.tokenizer is not None:
        from meshwright.serving.text.tokenizer import tokenizer_of

        encode = tokenizer_of(options.tokenizer).encode
    return options.times().of(source, options.first, encode)

"""`meshwright serve`: a model behind OpenAI's API, until Ctrl-C or SIGTERM."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from meshwright import api
from meshwright.api.servings.adapter_options import AdapterOptions
from meshwright.api.servings.engine_choice import EngineChoice
from meshwright.api.servings.serving import ServerOptions
from meshwright.cli.frame.command import configurable
from meshwright.cli.frame.output import Output, Result
from meshwright.serving.api.limit import ServerLimits
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.weight.expert_loads import ExpertLoads

Served = Annotated[
    str, typer.Argument(metavar="MODEL", help="A folder, a checkpoint, or an id in the local hub cache.")
]


@configurable
def serve(
    out: Output,
    model: Served,
    choice: EngineChoice,
    server: ServerOptions,
    limits: Limits,
    policy: ContinuousBatching,
    bounds: ServerLimits,
    adapting: AdapterOptions,
) -> Result:
    """Serve a model behind OpenAI's API, on this machine alone unless --host says otherwise.

    Ctrl-C or SIGTERM ends it: /ready says 503, nothing more is taken, what runs is finished; a second one ends it at once.
    With --replicas N as many servers of the model stand behind the address: --router says which gets a request, and one that
    dies is started again. --config FILE.toml has options by their names (port = 8001); what stands on the command line wins.
    """
    out.note(f"loading {model}")
    found = api.serve(
        model, choice=choice, server=server, limits=limits, policy=policy, bounds=bounds, adapting=adapting,
        announce=lambda url, _: out.note(f"serving on {url}/v1  (Ctrl-C ends it)"),
    )  # fmt: skip
    tokens = f"{found['num_prompt_tokens']:,} tokens in, {found['num_output_tokens']:,} out"
    words = f"{found['num_requests']:,} requests, {tokens}"
    loads: ExpertLoads | None = found.pop("experts", None)
    return Result({**found, **loads_data(loads)}, [words, *loads_view(loads)])


def loads_data(loads: ExpertLoads | None) -> dict[str, Any]:
    """What came to experts, of a model that has some, in JSON."""
    return {} if loads is None else {"experts": loads.to_dict()}


def loads_view(loads: ExpertLoads | None) -> list[str]:
    """The same in a line."""
    return [] if loads is None else [str(loads)]

"""What a state asks of serving, in the words of `plan --requests`: a layout, requests that are drawn, and what is good."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from urllib.parse import urlencode

from meshwright.planner.serving.replica_steps import SIZES
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.loop.report import LatencyObjective
from meshwright.serving.request.arrival import Poisson, arriving
from meshwright.serving.request.drawn_lengths import DrawnLengths
from meshwright.serving.request.request import Request
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError, SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.units import parse_seconds, parse_sequence
from meshwright.workbench.server.session import PREFIX, Session
from meshwright.workbench.server.state import (
    SERVE,
    chosen_of,
    cluster_named,
    count_of,
    model_named,
    parsed_of,
    said_words,
)

# Where a state says nothing.
LOAD_DEFAULTS: Mapping[str, str] = {
    "workload": SERVE, "model": "llama-3.1-70b", "cluster": "8x8xH100", "rate_per_s": "4", "prompt": "1000", "output": "250",
    "variation": "0.7", "ttft": "2s", "tpot": "100ms", "tp": "8", "pp": "1", "ep": "1", "replicas": "1",
    "max_batch_tokens": "2048", "max_sequences": "256", "precision": "bf16",
}  # fmt: skip
UNSAID = {"attention_dp": "1", "num_prefill": "0"}  # where a state does not say so
OF_LOAD = ("rate_per_s", "prompt", "output", "variation", "ttft", "tpot", "precision")
FORMATS = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8", "fp32": "float32"}  # of linear layers
# A load is so many requests, and fewer where these have more tokens than that in all: a move is to take a moment.
NUM_REQUESTS, MOST_PROMPT_TOKENS, MOST_OUTPUT_TOKENS = 1000, 8_000_000, 1_000_000
LEAST_REQUESTS = 20  # of which percentiles say anything
MOST_REPLICAS = 64  # each has a scheduler and blocks of its own here, too
MOST_RATE, MOST_VARIATION = 10_000.0, 4.0
MOST_OF_STEP = dict(zip(("max_batch_tokens", "max_sequences"), SIZES[-1], strict=True))


@dataclass(frozen=True)
class AskedLoad:
    """What a state says: the job, the layout, the load, and what of the state nobody understood."""

    words: Mapping[str, str]
    model: ModelSpec
    cluster: ClusterSpec
    plan: ServingPlan
    drawn: DrawnLengths
    rate_per_s: float
    objective: LatencyObjective
    notes: tuple[str, ...]

    @property
    def dtype(self) -> str:
        """Of linear layers."""
        return FORMATS[self.words["precision"]]

    @cached_property
    def _drawn(self) -> list[Request]:
        """Before anybody says when they come."""
        return self.drawn.requests()

    @property
    def longest(self) -> int:
        """Tokens of the longest request, its output among them."""
        return max(each.num_prompt_tokens + each.max_output_tokens for each in self._drawn)

    def requests(self, rate_per_s: float) -> list[Request]:
        """The load, at its own rate or at another."""
        return arriving(self._drawn, Poisson(rate_per_s))

    @property
    def load(self) -> str:
        """For people."""
        drawn = self.drawn
        return (
            f"{self.rate_per_s:g} requests a second of {drawn.prompt:,} + {drawn.output:,} tokens in the mean"
        )

    def id_of(self, plan: ServingPlan) -> str:
        """Another plan for the same load in the words of the state: the address behind #."""
        said = {name: self.words[name] for name in ("workload", "model", "cluster", *OF_LOAD)}
        return urlencode({**said, **_layout_words(plan)})

    def command(self) -> str:
        """What says the same on the command line; "": something was pasted, and has no name there."""
        names = [self.words[name] for name in ("model", "cluster")]
        if any(name.startswith(PREFIX) for name in names):
            return ""
        drawn, good = self.drawn, self.objective
        fix = {**_layout_words(self.plan), "dtype": self.dtype}
        return (
            f"meshwright plan {shlex.join(names)} --requests 'lengths(prompt={drawn.prompt},output={drawn.output},"
            f"variation={drawn.variation:.12g},num={drawn.num})' --arrivals 'poisson(rate_per_s={self.rate_per_s:.12g})' "
            f"--slo ttft={good.ttft_s:.12g}s,tpot={good.tpot_s:.12g}s "
            f"--fix {','.join(f'{name}={value}' for name, value in fix.items())}"
        )


def asked_load_of(state: object, session: Session) -> AskedLoad:
    """Read a state. Raises SpecError for what is none or is too much work, PlanError for a layout that cannot be,
    UnknownNameError for names that nobody knows."""
    words, notes = said_words(state, {**LOAD_DEFAULTS, **UNSAID})
    model, cluster = model_named(words["model"], session), cluster_named(words["cluster"], session)
    chosen_of("precision", words["precision"], FORMATS)
    plan = _plan(words)
    if plan.num_devices > cluster.num_devices:
        raise PlanError(
            f"{plan.name} needs {plan.num_devices:,} devices, {words['cluster']} has {cluster.num_devices:,}",
            allowed="tp x pp x replicas of at most these",
        )
    seconds = {
        f"{name}_s": _number(name, words, parse_seconds, math.inf, "2s, 100ms") for name in ("ttft", "tpot")
    }
    rate_per_s = _number("rate_per_s", words, float, MOST_RATE, "0.5, 4")
    return AskedLoad(
        words, model, cluster, plan, _lengths(words), rate_per_s, LatencyObjective(**seconds), notes
    )


def _plan(words: Mapping[str, str]) -> ServingPlan:
    """How it is served."""
    layout = ReplicaLayout(*(count_of(name, words[name]) for name in ("tp", "pp", "ep", "attention_dp")))
    replicas, tokens, sequences = (count_of(name, words[name]) for name in ("replicas", *MOST_OF_STEP))
    num_prefill = 0 if words["num_prefill"] == "0" else count_of("num_prefill", words["num_prefill"])
    plan = ServingPlan(layout, replicas, tokens, sequences, num_prefill)
    for name, most in {**MOST_OF_STEP, "replicas": MOST_REPLICAS}.items():
        if getattr(plan, name) > most:
            raise SpecError(
                f"{name} is {getattr(plan, name):,}", allowed=f"at most {most:,} in the workbench",
                next="meshwright plan --requests takes more",
            )  # fmt: skip
    return plan


def _lengths(words: Mapping[str, str]) -> DrawnLengths:
    """The requests' lengths, as many as are simulated in a moment."""
    prompt, output = (parsed_of(name, words, parse_sequence) for name in ("prompt", "output"))
    num = min(NUM_REQUESTS, MOST_PROMPT_TOKENS // prompt, MOST_OUTPUT_TOKENS // output)
    if num < LEAST_REQUESTS:
        raise SpecError(
            f"requests of {prompt:,} + {output:,} tokens",
            allowed=f"prompts of at most {MOST_PROMPT_TOKENS // LEAST_REQUESTS:,} tokens in the workbench, outputs of at "
            f"most {MOST_OUTPUT_TOKENS // LEAST_REQUESTS:,}",
            next="meshwright plan --requests takes more",
        )
    variation = _number("variation", words, float, MOST_VARIATION, "0, 0.7", least=0.0)
    return DrawnLengths(prompt, output, num, variation)


def _number(
    name: str, words: Mapping[str, str], parse: Callable[[str], float], most: float, such: str, least: float | None = None
) -> float:  # fmt: skip
    """A number above 0, or from `least`. Raises SpecError."""
    bounds = f"{f'from {least:g}' if least is not None else 'above 0'}{f' up to {most:g}' if most < math.inf else ''}"
    refusal = SpecError(f"{name} is {words[name]!r}", allowed=f"a number {bounds}, such as {such}")
    try:
        found = parse(words[name])
    except (SpecError, ValueError, OverflowError):
        raise refusal from None
    is_enough = found > 0 if least is None else found >= least
    if not (is_enough and found <= most and math.isfinite(found)):
        raise refusal
    return found


def _layout_words(plan: ServingPlan) -> dict[str, str]:
    """A plan's own choices."""
    own = ("replicas", "num_prefill", *MOST_OF_STEP)
    return {name: str(value) for name, value in asdict(plan.layout).items()} | {
        name: str(getattr(plan, name)) for name in own
    }

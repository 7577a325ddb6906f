"""Routing traces: which experts every token of a run went to, layer by layer.

Letters: T tokens, L layers that have experts, K experts a token goes to, E experts of a layer.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.specs.error import SpecError

Integers = NDArray[Any]
Counts = NDArray[np.int64]
Origin = Literal["recorded", "drawn"]
ORIGINS: tuple[Origin, ...] = ("recorded", "drawn")
MOST_EXPERTS = 1 << 15  # of a layer: numbers of experts are kept in 16 bits


class TraceRun(NamedTuple):
    """Neighbouring tokens of a trace that one rank routed in one step (`rank` of the job; 0 of a drawn trace)."""

    step: int
    rank: int
    num_tokens: int


@dataclass(frozen=True, eq=False)
class RoutingTrace:
    """Which experts each of T tokens went to in L layers.

    Args:
        experts: [T, L, K], numbers of experts, the best one first.
        num_experts: E, of every layer.
        layers: which of the model's layers they are, rising; those between have no experts.
        runs: whose tokens they are, in order; empty: all of step 0 and rank 0.
        source: what it was recorded of, or drawn by; for people.
        origin: "recorded" of a run, or "drawn" by a chain: they are never mixed, and every table says which.

    Raises SpecError where these contradict each other.
    """

    experts: Integers
    num_experts: int
    layers: tuple[int, ...]
    runs: tuple[TraceRun, ...] = ()
    source: str = ""
    origin: Origin = "recorded"

    def __post_init__(self) -> None:
        shape, kind = self.experts.shape, self.experts.dtype.kind
        if len(shape) != 3 or kind not in "iu" or min(shape) < 1:
            raise SpecError(
                f"a routing trace of shape {shape} and {self.experts.dtype}",
                allowed="whole numbers [tokens, layers, experts of a token], one of each at least",
            )
        if not 1 <= self.num_experts <= MOST_EXPERTS:
            raise SpecError(f"{self.num_experts} experts of a layer", allowed=f"from 1 to {MOST_EXPERTS}")
        low, high = int(self.experts.min()), int(self.experts.max())
        if low < 0 or high >= self.num_experts:
            raise SpecError(
                f"a token goes to expert {low if low < 0 else high}",
                allowed=f"experts from 0 to {self.num_experts - 1}",
            )
        if len(self.layers) != shape[1] or any(a >= b for a, b in itertools.pairwise((-1, *self.layers))):
            raise SpecError(
                f"layers {self.layers} of a trace with {shape[1]}", allowed="as many numbers, rising from 0"
            )
        if not self.runs:
            object.__setattr__(self, "runs", (TraceRun(0, 0, shape[0]),))
        if sum(run.num_tokens for run in self.runs) != shape[0] or any(min(run) < 0 for run in self.runs):
            raise SpecError(
                f"runs of {sum(run.num_tokens for run in self.runs)} tokens in a trace of {shape[0]}",
                allowed="runs that have all of its tokens",
            )
        if self.origin not in ORIGINS:
            raise SpecError(f"a trace that is {self.origin!r}", allowed=" or ".join(ORIGINS))

    @property
    def num_tokens(self) -> int:
        """T."""
        return int(self.experts.shape[0])

    @property
    def num_layers(self) -> int:
        """L."""
        return int(self.experts.shape[1])

    @property
    def num_experts_per_token(self) -> int:
        """K."""
        return int(self.experts.shape[2])

    @cached_property
    def counts(self) -> Counts:
        """Rows that go to every expert, [L, E]: T * K in each layer."""
        flat = self.experts.astype(np.int64) + np.arange(self.num_layers)[:, None] * self.num_experts
        found = np.bincount(flat.reshape(-1), minlength=self.num_layers * self.num_experts)
        return found.reshape(self.num_layers, self.num_experts)

    @cached_property
    def transitions(self) -> Counts:
        """M[l, a, b], [L - 1, E, E]: how often a token's row of expert a in one layer is followed by one of b in the next.

        Of K experts a token every pair counts, so that a layer has T * K * K.
        """
        size, found = self.num_experts, []
        for layer in range(self.num_layers - 1):
            here, behind = (self.experts[:, each].astype(np.int64) for each in (layer, layer + 1))
            pairs = here[:, :, None] * size + behind[:, None, :]
            found.append(np.bincount(pairs.reshape(-1), minlength=size * size).reshape(size, size))
        return np.array(found, np.int64).reshape(-1, size, size)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that it has tokens of, rising."""
        return tuple(sorted({run.step for run in self.runs}))

    def of_steps(self, first: int, last: int) -> RoutingTrace:
        """Its tokens of the steps from `first` to `last`, both included. Raises SpecError where there are none."""
        chosen = [run for run in self.runs if first <= run.step <= last]
        if not chosen:
            raise SpecError(
                f"steps {first} to {last} of a routing trace",
                allowed=f"some of {self.steps[0]} to {self.steps[-1]}",
            )
        is_there = np.repeat(
            [first <= run.step <= last for run in self.runs], [run.num_tokens for run in self.runs]
        )
        return replace(self, experts=self.experts[is_there], runs=tuple(chosen))

    def parted(self, num_tokens: int) -> tuple[RoutingTrace, RoutingTrace]:
        """Its first tokens, and those behind them: what a placement is fitted to, and what it is tried on."""
        if not 0 < num_tokens < self.num_tokens:
            raise SpecError(
                f"the first {num_tokens} tokens of a trace of {self.num_tokens}",
                allowed=f"from 1 to {self.num_tokens - 1}",
            )
        ends = np.cumsum([run.num_tokens for run in self.runs]).tolist()
        cut: tuple[list[TraceRun], list[TraceRun]] = ([], [])
        for run, end in zip(self.runs, ends, strict=True):
            before = max(0, min(run.num_tokens, num_tokens - (end - run.num_tokens)))
            for runs, count in zip(cut, (before, run.num_tokens - before), strict=True):
                runs += [run._replace(num_tokens=count)] * (count > 0)
        return (
            replace(self, experts=self.experts[:num_tokens], runs=tuple(cut[0])),
            replace(self, experts=self.experts[num_tokens:], runs=tuple(cut[1])),
        )

    def of_experts(self, num_experts: int) -> RoutingTrace:
        """The same in a model of so many experts; a file that does not say them has as many as it names. Raises SpecError."""
        return replace(self, num_experts=num_experts)

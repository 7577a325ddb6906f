"""LayerProfile: what `meshwright run` measures of one's own expert layer, and in how many parts it is then cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from meshwright.specs.config.source import load_model
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.option import option
from meshwright.systems.moe.fs_moe.mechanism import ExpertLayer, LinearCost, layer_seconds

NOTHING = LinearCost(0.0, 0.0, 0.0)
VOCABULARY = 256  # of the model that is measured: its words are no part of the layer
MILLI, MICRO = 1e3, 1e6


@dataclass(frozen=True)
class LayerProfile:
    """Trains one expert layer of your model on processes here, fits startup and rate of gate, experts and exchanges to what
    ran, and says in how many parts it is fastest by the closed form, beside what was measured."""

    model: str = option(MISSING, "A mixture of experts: a preset, a folder, or a config.json.")
    processes: int = option(2, "Processes that share the experts.", least=2)
    batch: int = option(4, "Sequences of a process.", least=2)
    seq: int = option(128, "Tokens of a sequence.", least=1)
    experts: int = option(0, "So many of a layer's experts, where all do not fit; 0: all.", least=0)
    steps: int = option(6, "Steps of each number of parts; the first does not count.", least=3)
    runs: ClassVar[str] = "study:profile_layer"

    def layer(self) -> ModelSpec:
        """One layer: the model's last one with experts. Raises SpecError where none has any, or they do not divide."""
        model = load_model(self.model)
        block = next((each for each in reversed(model.layers) if each.experts is not None), None)
        if block is None or block.experts is None:
            raise SpecError(f"{self.model} has no experts", allowed="a mixture of experts")
        num = self.experts or block.experts.num_experts
        if (
            num > block.experts.num_experts
            or num % self.processes
            or num < block.experts.num_experts_per_token
        ):
            raise SpecError(
                f"{num} experts on {self.processes} processes",
                allowed=f"processes that divide them, {block.experts.num_experts_per_token} to "
                f"{block.experts.num_experts} experts",
            )  # fmt: skip
        one = replace(model, blocks=((block, 1),))
        return one.changed(
            num_experts=num, vocabulary_size=VOCABULARY, max_sequence_length=self.seq, name=f"a layer of {model.name}"
        )  # fmt: skip


class FittedPart(NamedTuple):
    """Seconds by tokens: `cost` by least squares, the share of their variance that it explains, and what was measured."""

    cost: LinearCost
    explained: float
    seconds_of: Mapping[int, float]


def fitted_part(seconds_of: Mapping[int, float]) -> FittedPart:
    """Of seconds by numbers of tokens, two or more; neither startup nor rate is below zero."""
    tokens, seconds = (np.array(list(each), np.float64) for each in (seconds_of, seconds_of.values()))
    spread = tokens - tokens.mean()
    rate = max(0.0, float(spread @ seconds / (spread @ spread)))
    startup = float(seconds.mean() - rate * tokens.mean())
    if startup < 0:  # through the origin, then
        startup, rate = 0.0, float(tokens @ seconds / (tokens @ tokens))
    left = float(((seconds - startup - rate * tokens) ** 2).sum())
    total = float(((seconds - seconds.mean()) ** 2).sum())
    return FittedPart(
        LinearCost(startup, rate, float(tokens.max())), 1 - left / total if total else 1.0, seconds_of
    )


def step_seconds_of(sent: FittedPart, experts: FittedPart, parts: Sequence[int]) -> dict[int, float]:
    """By the closed form: forward and backward of the layer in each number of parts."""
    layer = ExpertLayer(sent.cost, NOTHING, experts.cost, NOTHING)
    return {each: layer_seconds(layer, each) + layer_seconds(layer.backward(), each) for each in parts}


def lines_of(
    job: LayerProfile, name: str, fits: Mapping[str, FittedPart], refused: str, form_s: Mapping[int, float],
    measured_s: Mapping[int, float],
) -> list[str]:  # fmt: skip
    """The report for people."""
    best, quickest = (min(each, key=each.__getitem__) for each in (form_s, measured_s))
    lines = [
        f"{name}, {job.processes} processes, each {job.batch} x {job.seq} tokens; startup and rate by least squares:",
        "part                          startup   of 1,000 tokens   explained   all tokens",
    ]
    for part, (cost, explained, _) in fits.items():
        rate = 1000 * cost.s_per_unit
        lines.append(
            f"{part:28} {MICRO * cost.startup_s:7.1f} us   {MICRO * rate:11.1f} us   {explained:9.3f}   "
            f"{MILLI * cost.seconds():7.3f} ms"
        )
    lines += [
        f"gate, expert_choice: {refused}",
        "parts   experts and exchanges by the closed form   a step, measured",
        *(
            f"{parts:5d}   {MILLI * form_s[parts]:37.3f} ms   {MILLI * measured_s[parts]:13.3f} ms"
            for parts in form_s
        ),
        f"the closed form takes {best}, the quickest measured is {quickest}; in a plan: --fix token_parts={best}",
    ]
    return lines

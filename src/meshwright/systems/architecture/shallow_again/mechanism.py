"""A training step of residual branches: each device has some of them, one all-reduce joins what they add to the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import (
    Effect,
    Exchange,
    Hop,
    Kind,
    Microbatch,
    ParameterGroup,
    Pattern,
    ValueKind,
    Work,
)
from meshwright.ir.vocabulary import Name, Vocabulary
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec

TENSOR_AXIS = "tp"


def shallow_again(model: ModelSpec) -> ModelSpec:
    """The model with all its parts as branches of one layer: the same parameters, another function; to be trained so."""
    return replace(model, has_parallel_branches=True)


_NAMES = (
    *("branch_input", "branch_sum", "summed_branches"),
    *("branch_output_gradient", "branch_input_gradient", "summed_input_gradient"),
)
_SUMS = ("branch_sum", "branch_input_gradient")
# Values a microbatch and device.
BRANCH_INPUT, BRANCH_SUM, SUMMED, OUTPUT_GRADIENT, INPUT_GRADIENT, SUMMED_GRADIENT = (
    Pattern(name, index="none") for name in _NAMES
)
LOSS_KIND = ValueKind("branch_loss", index="none", microbatch=False, accumulates=True)
_LOSS = Pattern(LOSS_KIND.name, index="none")
_WEIGHT, _GRADIENT = Pattern("parameter", index="group"), Pattern("weight_gradient", index="group")
_SAVED = Pattern("saved")
EMBED_F, EMBED_B, BRANCH_F, BRANCH_B = "EMBED_F", "EMBED_B", "BRANCH_F", "BRANCH_B"
HEAD, BRANCH_STEP, DEEP_LAYER = "BRANCH_HEAD", "BRANCH_STEP", "DEEP_LAYER"
REDUCE_BRANCHES, REDUCE_INPUT_GRADIENT = "REDUCE_BRANCHES", "REDUCE_INPUT_GRADIENT"
REDUCE_LAYER = "REDUCE_LAYER"
COMPUTES = (
    Effect(Kind.COMPUTE, EMBED_F, (_WEIGHT,), (BRANCH_INPUT,)),
    Effect(Kind.COMPUTE, BRANCH_F, (BRANCH_INPUT, _WEIGHT), (BRANCH_SUM, _SAVED)),
    Effect(Kind.COMPUTE, HEAD, (BRANCH_INPUT, SUMMED, _WEIGHT), (OUTPUT_GRADIENT, _GRADIENT, _LOSS)),
    Effect(Kind.COMPUTE, BRANCH_B, (_SAVED, OUTPUT_GRADIENT), (INPUT_GRADIENT, _GRADIENT)),
    Effect(Kind.COMPUTE, EMBED_B, (OUTPUT_GRADIENT, SUMMED_GRADIENT), (_GRADIENT,)),
    Effect(Kind.COMPUTE, BRANCH_STEP, (_GRADIENT, _WEIGHT), (_WEIGHT,)),
    Effect(
        Kind.COMPUTE,
        DEEP_LAYER,
        (Pattern("activation", when="not_first"),),
        (Pattern("partial_sum", offset=1),),
    ),
)
COLLECTIVES = (
    Effect(Kind.COLLECTIVE, REDUCE_BRANCHES, (BRANCH_SUM,), (SUMMED,)),
    Effect(Kind.COLLECTIVE, REDUCE_INPUT_GRADIENT, (INPUT_GRADIENT,), (SUMMED_GRADIENT,)),
    Effect(
        Kind.COLLECTIVE, REDUCE_LAYER, (Pattern("partial_sum", offset=1),), (Pattern("activation", offset=1),)
    ),
)
VOCABULARY = Vocabulary.of(
    *(ValueKind(name, index="none", accumulates=name in _SUMS) for name in _NAMES),
    *(LOSS_KIND, ValueKind("partial_sum")),
    *(Name(effect, "some") for effect in COMPUTES),
    *map(Name, COLLECTIVES),
    owner="shallow_again",
)
EFFECTS = {effect.name: effect for effect in (*COMPUTES, *COLLECTIVES)}
_ALL_REDUCE = Exchange((TENSOR_AXIS,), algorithm="all_reduce")


def branches_of(device: int, num_branches: int, num_devices: int) -> range:
    """The branches that a device has, counted from 0. Raises SpecError where some device would have none."""
    if not 1 <= num_devices <= num_branches:
        raise SpecError(f"{num_branches} branches on {num_devices} devices", allowed="a branch each at least")
    return range(device, num_branches, num_devices)


Rows = Callable[
    [int], Iterator[tuple[str, int, int]]
]  # of a device: names with their stage and microbatch, in order


def _program(rows: Rows, num_hops: int, num_devices: int, num_microbatches: int = 1) -> Program:
    """The rows of all devices: a compute, or a collective over all devices on the stream of computes."""
    builder = ProgramBuilder(
        (Axis("pp", 1), Axis(TENSOR_AXIS, num_devices)),
        microbatches=(Microbatch(1, 1.0 / num_microbatches),) * num_microbatches,
        paths=(tuple(Hop(stage, 0) for stage in range(num_hops)),),
        groups=tuple(ParameterGroup(f"layer {stage}", (stage,)) for stage in range(num_hops)),
        vocabulary=VOCABULARY,
    )
    for device in range(num_devices):
        for name, stage, microbatch in rows(device):
            effect = EFFECTS[name]
            cost: dict[str, Any] = (
                {"exchange": _ALL_REDUCE} if effect.kind == Kind.COLLECTIVE else {"work": Work(name)}
            )
            builder.add(device, effect, stage=stage, microbatch=microbatch, **cost)
    return builder.build()


def branch_step(num_branches: int, num_devices: int, num_microbatches: int = 1) -> Program:
    """Forward, backward and step: stage 0 embeds, stages 1 to L are the branches, stage L+1 is the head.

    Every device embeds and has the head. Raises SpecError where some device would have no branch.
    """
    head = num_branches + 1

    def rows(device: int) -> Iterator[tuple[str, int, int]]:
        own = [branch + 1 for branch in branches_of(device, num_branches, num_devices)]
        for microbatch in range(num_microbatches):
            yield EMBED_F, 0, microbatch
            yield from ((BRANCH_F, stage, microbatch) for stage in own)
            yield REDUCE_BRANCHES, head, microbatch
            yield HEAD, head, microbatch
            yield from ((BRANCH_B, stage, microbatch) for stage in reversed(own))
            yield REDUCE_INPUT_GRADIENT, 0, microbatch
            yield EMBED_B, 0, microbatch
        yield from ((BRANCH_STEP, stage, 0) for stage in (0, *own, head))

    return _program(rows, num_branches + 2, num_devices, num_microbatches)


def shallow_forward(num_branches: int, num_devices: int) -> Program:
    """Only what stands between embedding and head, forwards."""

    def rows(device: int) -> Iterator[tuple[str, int, int]]:
        yield EMBED_F, 0, 0
        yield from ((BRANCH_F, branch + 1, 0) for branch in branches_of(device, num_branches, num_devices))
        yield REDUCE_BRANCHES, num_branches + 1, 0

    return _program(rows, num_branches + 2, num_devices)


def deep_forward(num_layers: int, num_devices: int) -> Program:
    """Layers behind each other, each cut over all devices, an all-reduce behind each."""

    def rows(device: int) -> Iterator[tuple[str, int, int]]:
        for layer in range(num_layers):
            yield DEEP_LAYER, layer, 0
            yield REDUCE_LAYER, layer, 0

    return _program(rows, num_layers + 1, num_devices)

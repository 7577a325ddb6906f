"""A training step of residual branches: each device has some of them, one all-reduce joins what they add to the stream."""

from __future__ import annotations

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

TENSOR_AXIS = "tp"


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


def _builder(num_hops: int, num_devices: int, num_microbatches: int) -> ProgramBuilder:
    return ProgramBuilder(
        (Axis("pp", 1), Axis(TENSOR_AXIS, num_devices)),
        microbatches=(Microbatch(1, 1.0 / num_microbatches),) * num_microbatches,
        paths=(tuple(Hop(stage, 0) for stage in range(num_hops)),),
        groups=tuple(ParameterGroup(f"layer {stage}", (stage,)) for stage in range(num_hops)),
        vocabulary=VOCABULARY,
    )


class _Rows:
    """Adds rows of one device to a builder."""

    def __init__(self, builder: ProgramBuilder, device: int) -> None:
        self.builder, self.device = builder, device

    def add(self, name: str, stage: int, microbatch: int = 0) -> None:
        """A compute, or a collective over all devices, on the stream of computes."""
        effect = EFFECTS[name]
        exchange = _ALL_REDUCE if effect.kind == Kind.COLLECTIVE else None
        work = Work(name) if exchange is None else None
        self.builder.add(
            self.device, effect, stage=stage, microbatch=microbatch, work=work, exchange=exchange
        )


def branch_step(num_branches: int, num_devices: int, num_microbatches: int = 1) -> Program:
    """Forward, backward and step: stage 0 embeds, stages 1 to L are the branches, stage L+1 is the head.

    Every device embeds and has the head. Raises SpecError where some device would have no branch.
    """
    head = num_branches + 1
    builder = _builder(num_branches + 2, num_devices, num_microbatches)
    for device in range(num_devices):
        own = [branch + 1 for branch in branches_of(device, num_branches, num_devices)]
        rows = _Rows(builder, device)
        for microbatch in range(num_microbatches):
            rows.add(EMBED_F, 0, microbatch)
            for stage in own:
                rows.add(BRANCH_F, stage, microbatch)
            rows.add(REDUCE_BRANCHES, head, microbatch)
            rows.add(HEAD, head, microbatch)
            for stage in reversed(own):
                rows.add(BRANCH_B, stage, microbatch)
            rows.add(REDUCE_INPUT_GRADIENT, 0, microbatch)
            rows.add(EMBED_B, 0, microbatch)
        for stage in (0, *own, head):
            rows.add(BRANCH_STEP, stage)
    return builder.build()


def shallow_forward(num_branches: int, num_devices: int) -> Program:
    """Only what stands between embedding and head, forwards."""
    builder = _builder(num_branches + 2, num_devices, 1)
    for device in range(num_devices):
        rows = _Rows(builder, device)
        rows.add(EMBED_F, 0)
        for branch in branches_of(device, num_branches, num_devices):
            rows.add(BRANCH_F, branch + 1)
        rows.add(REDUCE_BRANCHES, num_branches + 1)
    return builder.build()


def deep_forward(num_layers: int, num_devices: int) -> Program:
    """Layers behind each other, each cut over all devices, an all-reduce behind each."""
    builder = _builder(num_layers + 1, num_devices, 1)
    for device in range(num_devices):
        rows = _Rows(builder, device)
        for layer in range(num_layers):
            rows.add(DEEP_LAYER, layer)
            rows.add(REDUCE_LAYER, layer)
    return builder.build()

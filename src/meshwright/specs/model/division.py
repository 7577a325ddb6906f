"""check_division: the one rule of what a tensor-parallel degree has to divide; every door of the package asks it."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from meshwright.specs.error import PlanError
from meshwright.specs.model.block import BlockSpec
from meshwright.specs.model.shape import ModelShape


def divided_counts(block: BlockSpec) -> dict[str, int]:
    """What every tensor-parallel device gets an equal, whole part of; 0: the block has none.

    Key-value heads are among them: a device that shared one with others, or had a part of one, is nothing that
    Megatron-LM, torchtitan or this package's executor run.
    """
    attention, experts = block.attention, block.experts
    return {
        "heads": attention.num_heads,
        "key-value heads": attention.num_kv_heads,
        "inner units": 0 if experts else block.feed_forward.intermediate_size,
        "inner units of a shared expert": experts.shared_intermediate_size if experts else 0,
    }


def check_division(model: ModelShape, tp: int, expert_tp: int = 0) -> None:
    """Raise PlanError where `tp` devices cannot share the model's matrices, or `expert_tp` (0: as many) an expert's."""
    for block in model.kinds:
        missed = [f"{count} {what}" for what, count in divided_counts(block).items() if count % tp]
        if missed:
            allowed = ", ".join(map(str, degrees(model)))
            raise PlanError(
                f"tp={tp} does not divide the {' and '.join(missed)} of {model.name}",
                allowed=f"a tensor-parallel degree that gives every device whole ones: {allowed}",
                next="choose one of these; the other devices can take pp, dp or cp",
            )
        if block.experts and block.experts.intermediate_size % (expert_tp or tp):
            raise PlanError(
                f"{expert_tp or tp} devices do not divide the {block.experts.intermediate_size} inner units of an "
                f"expert of {model.name}",
                allowed="a tensor-parallel degree of experts that divides them, or experts that are whole on a device",
                next="choose another etp, such as 1",
            )


def divides(model: ModelShape, tp: int, expert_tp: int = 0) -> bool:
    """May so many tensor-parallel devices share the model?"""
    try:
        check_division(model, tp, expert_tp)
    except PlanError:
        return False
    return True


def degrees(model: ModelShape) -> Iterator[int]:
    """All tensor-parallel degrees that the rule allows the blocks of a model, in rising order."""
    common = gcd(*(count for block in model.kinds for count in divided_counts(block).values()))
    return (degree for degree in range(1, common + 1) if common % degree == 0)


def shared_by_expert(tp: int, num_replicas: int, ep: int) -> int:
    """Devices that share one expert's matrices: the tensor-parallel ones, unless the expert devices take these, too."""
    return tp if num_replicas % ep == 0 else 1

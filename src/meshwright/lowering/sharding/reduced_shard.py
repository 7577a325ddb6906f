"""What a reduction leaves where the copies of a group share its optimizer state (ZeRO-1): a shard of the sum, beside the
whole gradients while they are moved, and instead of them behind."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.ir.program import Program
from meshwright.ir.table import Effect, Kind, ValueBytes
from meshwright.lowering.order import with_effects
from meshwright.lowering.pipeline import Lowering
from meshwright.specs.dtype import dtype_bytes

GRADIENT, REDUCED = "weight_gradient", "reduced_gradient"


@dataclass(frozen=True)
class ReducedShards:
    """Let what is reduced have memory of its own, and its readers nothing of the whole gradients, which then end with the
    reduction. `sizes`: bytes of every group's shard of the sum, on one device."""

    sizes: tuple[float, ...]
    name = "reduced_shards"

    def __call__(self, program: Program) -> Program:
        """The program with its shards."""
        chosen = program.columns.effect.copy()
        for place, effect in enumerate(program.tables.effects):
            other = _of_shards(effect)
            if other != effect:
                program, (number,) = with_effects(program, other)
                chosen[program.columns.effect == place] = number
        held = ValueBytes(REDUCED, self.sizes)
        program = program.with_tables(value_bytes=(*program.tables.value_bytes, held))
        return program.with_columns(effect=chosen)


def _of_shards(effect: Effect) -> Effect:
    """The effect of a compute that reads what is reduced without the whole gradients of the same groups."""
    if effect.kind != Kind.COMPUTE:
        return effect
    reduced = {p._replace(kind=GRADIENT) for p in effect.reads if p.kind == REDUCED}
    return effect._replace(reads=tuple(p for p in effect.reads if p not in reduced))


def reduced_shards(lowering: Lowering) -> ReducedShards | None:
    """The pass of a plan that scatters its gradients behind the computes (as they are made, ZeRO-2 and 3, what is kept is a
    shard already); None where a group's copies have nothing to share."""
    plan, held = lowering.plan, lowering.held
    if any(each.num_shards == 1 for each in held if each.num_trained):
        return None
    size = dtype_bytes(plan.gradient_dtype)
    return ReducedShards(tuple(size * each.num_trained / each.num_shards for each in held))

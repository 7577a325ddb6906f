"""The buffer in which a compute adds to a group's gradients, where what is kept of them is another one: a shard, or wider."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.ir.core_vocabulary import GRADIENT_BUFFER
from meshwright.ir.program import Program
from meshwright.ir.table import Effect, Kind, Pattern, ValueBytes
from meshwright.lowering.order import with_effects
from meshwright.lowering.pipeline import Lowering
from meshwright.specs.dtype import dtype_bytes

GRADIENT = "weight_gradient"


@dataclass(frozen=True)
class WholeGradients:
    """Let computes that add to gradients have a buffer for them, which ends with the compute; the last one's, where
    gradients are scattered (`is_reduced`), with the reduction that moves it.

    `sizes`: bytes of the buffer of every parameter group, on one device. It stands behind all passes that replace
    computes and reductions.
    """

    sizes: tuple[float, ...]
    is_reduced: bool
    name = "whole_gradients"

    def __call__(self, program: Program) -> Program:
        """The program with its buffers."""
        chosen = program.columns.effect.copy()
        for place, effect in enumerate(program.tables.effects):
            other = self._with_buffer(effect)
            if other != effect:
                program, (number,) = with_effects(program, other)
                chosen[program.columns.effect == place] = number
        held = ValueBytes(GRADIENT_BUFFER.name, self.sizes)
        program = program.with_tables(value_bytes=(*program.tables.value_bytes, held))
        return program.with_columns(effect=chosen)

    def _with_buffer(self, effect: Effect) -> Effect:
        """The effect with the buffer behind its other operands."""
        if effect.kind == Kind.COMPUTE:
            added = tuple(p._replace(kind=GRADIENT_BUFFER.name) for p in effect.writes if p.kind == GRADIENT)
            return effect._replace(writes=(*effect.writes, *added))
        if effect.name == "REDUCE_GRAD" and self.is_reduced:
            return effect._replace(reads=(*effect.reads, Pattern(GRADIENT_BUFFER.name, index="group")))
        return effect


def whole_gradients(lowering: Lowering) -> WholeGradients | None:
    """The pass of a plan; None where gradients are added to what is kept.

    What is scattered is widened first. What is only widened is in the format of the parameters until it is added.
    """
    plan = lowering.plan
    is_widened, is_scattered = plan.gradient_dtype != plan.dtype, plan.shared.divides_gradients
    narrow, wide = dtype_bytes(plan.dtype) * is_widened, dtype_bytes(plan.gradient_dtype)
    sizes = tuple(
        float(each.num_trained * (wide if is_scattered and each.num_shards > 1 else narrow))
        for each in lowering.held
    )
    return WholeGradients(sizes, is_scattered) if any(sizes) else None

"""The buffer in which a compute adds to a group's gradients, where what is kept of them is wider."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.ir.core_vocabulary import GRADIENT_BUFFER
from meshwright.ir.program import Program
from meshwright.ir.table import Effect, Kind, ValueBytes
from meshwright.lowering.order import with_effects
from meshwright.lowering.pipeline import Lowering
from meshwright.specs.dtype import dtype_bytes

GRADIENT = "weight_gradient"


@dataclass(frozen=True)
class WholeGradients:
    """Let computes that add to gradients have a buffer for them, which ends with the compute.

    `sizes`: bytes of the buffer of every parameter group, on one device. It stands behind all passes that replace computes.
    """

    sizes: tuple[float, ...]
    name = "whole_gradients"

    def __call__(self, program: Program) -> Program:
        """The program with its buffers."""
        chosen = program.columns.effect.copy()
        for place, effect in enumerate(program.tables.effects):
            other = _with_buffer(effect)
            if other != effect:
                program, (number,) = with_effects(program, other)
                chosen[program.columns.effect == place] = number
        held = ValueBytes(GRADIENT_BUFFER.name, self.sizes)
        program = program.with_tables(value_bytes=(*program.tables.value_bytes, held))
        return program.with_columns(effect=chosen)


def _with_buffer(effect: Effect) -> Effect:
    """The effect with the buffer behind its other operands."""
    if effect.kind != Kind.COMPUTE:
        return effect
    added = tuple(p._replace(kind=GRADIENT_BUFFER.name) for p in effect.writes if p.kind == GRADIENT)
    return effect._replace(writes=(*effect.writes, *added))


def whole_gradients(lowering: Lowering) -> WholeGradients | None:
    """The pass of a plan; None where gradients are added to what is kept, or are those of one microbatch (`scatter`).

    What is only widened is in the format of the parameters until it is added.
    """
    plan = lowering.plan
    if plan.gradient_dtype == plan.dtype:
        return None
    narrow = dtype_bytes(plan.dtype)
    sizes = tuple(0.0 if each.group.scattered else float(each.num_trained * narrow) for each in lowering.held)
    return WholeGradients(sizes) if any(sizes) else None

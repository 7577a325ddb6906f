"""Programs that the tests of the simulator share: small training steps with everything in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.ir import Axis, ParameterGroup, Program, ValueBytes, Work
from meshwright.lowering import OptimizerStep, ReduceGradients, Transfers, program_of_orders, with_works
from meshwright.schedules import registered

SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2), ("zb_h1", 1))
BYTES = (
    ValueBytes("saved", (10.0,)),
    ValueBytes("activation", (3.0,)),
    ValueBytes("gradient", (2.0,)),
    ValueBytes("pending", (5.0,)),
    ValueBytes("parameter", (100.0,)),
    ValueBytes("weight_gradient", (70.0,)),
    ValueBytes("optimizer_state", (200.0,)),
)


def training_step(
    schedule: str, p: int, m: int, v: int = 1, *, dp: int = 1, passes: Sequence[Any] = (), tied: bool = False
) -> Program:
    """A step with sends, reductions along a collapsed dp axis, and optimizer; works by name and share."""
    num_stages = p * v
    groups = [ParameterGroup(f"stage{s}", (s,), 100, ("dp",)) for s in range(num_stages)]
    if tied:
        groups.append(ParameterGroup("tied", (0, num_stages - 1), 50, ("dp",)))
    orders = registered()[schedule].orders(p, m, v)
    program = program_of_orders(orders, groups=groups, collapsed=[Axis("dp", dp, materialised=False)])
    program = program.with_tables(value_bytes=BYTES)
    for step in (*passes, ReduceGradients(), Transfers(), OptimizerStep()):
        program = step(program)
    return with_works(
        program, {(n, s): Work(n, share=1 / v) for n in ("F", "B", "I", "W", "R") for s in range(num_stages)}
    )

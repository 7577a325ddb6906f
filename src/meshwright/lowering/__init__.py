"""Lowering: passes from program to program, one frozen dataclass each, and `lower`, which chains them for a plan."""

from meshwright.lowering.lower import lower
from meshwright.lowering.order import program_of_orders, with_works
from meshwright.lowering.place import Placement, place
from meshwright.lowering.recompute import Recompute
from meshwright.lowering.reduction import OptimizerStep, ReduceGradients
from meshwright.lowering.split_backward import SplitBackward
from meshwright.lowering.transfer import Transfers

PASSES = (SplitBackward, Recompute, ReduceGradients, Transfers, OptimizerStep)

__all__ = [
    "PASSES",
    "OptimizerStep",
    "Placement",
    "Recompute",
    "ReduceGradients",
    "SplitBackward",
    "Transfers",
    "lower",
    "place",
    "program_of_orders",
    "with_works",
]

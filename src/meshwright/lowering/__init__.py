"""Lowering: passes from program to program, one frozen dataclass each, and `lower`, which chains them for a plan."""

from meshwright.lowering.lower import lower
from meshwright.lowering.memory.recompute import Recompute
from meshwright.lowering.order import program_of_orders, with_works
from meshwright.lowering.place import Placement, place
from meshwright.lowering.sharding.gradient_norm import ClipGradients, PostValidate
from meshwright.lowering.sharding.reduction import OptimizerStep, ReduceGradients
from meshwright.lowering.split_backward import SplitBackward
from meshwright.lowering.transfer.receive_place import PlaceReceives
from meshwright.lowering.transfer.stage_edge import ConnectStages
from meshwright.lowering.transfer.transfer import Transfers

PASSES = (
    SplitBackward,
    Recompute,
    ConnectStages,
    ReduceGradients,
    Transfers,
    OptimizerStep,
    ClipGradients,
    PostValidate,
    PlaceReceives,
)

__all__ = [
    "PASSES",
    "ClipGradients",
    "ConnectStages",
    "OptimizerStep",
    "PlaceReceives",
    "Placement",
    "PostValidate",
    "Recompute",
    "ReduceGradients",
    "SplitBackward",
    "Transfers",
    "lower",
    "place",
    "program_of_orders",
    "with_works",
]

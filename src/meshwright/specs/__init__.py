"""What exists and what is decided: models, devices, clusters, workloads and plans. Frozen, SI units."""

from meshwright.specs.cluster import ClusterSpec, Level
from meshwright.specs.cluster_source import Cluster
from meshwright.specs.device import DeviceSpec, Link, NodeSpec, device_presets, load_device, usual_node
from meshwright.specs.dtype import DTYPE_BYTES, dtype_bytes
from meshwright.specs.error import (
    DeadlockError,
    ExecutionError,
    MeshwrightError,
    OutOfMemoryError,
    PlanError,
    ProgramError,
    ScheduleError,
    SpecError,
    UnknownNameError,
)
from meshwright.specs.layer_operator import MicrobatchShape, step_operators
from meshwright.specs.layers import StageLayers, split_layers, stage_layers
from meshwright.specs.model import ModelSpec
from meshwright.specs.model_config import model_from_config
from meshwright.specs.model_source import load_model, model_presets
from meshwright.specs.operator import Operator, total_bytes, total_flops
from meshwright.specs.parameter import Parameter
from meshwright.specs.plan import PassOption, Plan
from meshwright.specs.plan_file import PLAN_SCHEMA, load_plan, save_plan
from meshwright.specs.prediction import BASES, Basis, Prediction
from meshwright.specs.saved import (
    boundary_bytes_per_token,
    num_stage_expert_parameters,
    num_stage_parameters,
    pending_bytes_per_token,
    pending_gradient_bytes_per_token,
    saved_bytes_per_token,
)
from meshwright.specs.stage_work import stage_operators
from meshwright.specs.workload import Workload

__all__ = [
    "BASES",
    "DTYPE_BYTES",
    "PLAN_SCHEMA",
    "Basis",
    "Cluster",
    "ClusterSpec",
    "DeadlockError",
    "DeviceSpec",
    "ExecutionError",
    "Level",
    "Link",
    "MeshwrightError",
    "MicrobatchShape",
    "ModelSpec",
    "NodeSpec",
    "Operator",
    "OutOfMemoryError",
    "Parameter",
    "PassOption",
    "Plan",
    "PlanError",
    "Prediction",
    "ProgramError",
    "ScheduleError",
    "SpecError",
    "StageLayers",
    "UnknownNameError",
    "Workload",
    "boundary_bytes_per_token",
    "device_presets",
    "dtype_bytes",
    "load_device",
    "load_model",
    "load_plan",
    "model_from_config",
    "model_presets",
    "num_stage_expert_parameters",
    "num_stage_parameters",
    "pending_bytes_per_token",
    "pending_gradient_bytes_per_token",
    "save_plan",
    "saved_bytes_per_token",
    "split_layers",
    "stage_layers",
    "stage_operators",
    "step_operators",
    "total_bytes",
    "total_flops",
    "usual_node",
]

"""What exists and what is decided: models, devices, clusters, workloads and plans. Frozen, SI units."""

from meshwright.specs.cluster.cluster import ClusterSpec, Level
from meshwright.specs.cluster.device import (
    DeviceSpec,
    Link,
    NodeSpec,
    device_presets,
    load_device,
    usual_node,
)
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.hugging_face import model_from_config
from meshwright.specs.config.source import load_model, model_presets
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
from meshwright.specs.model.layers import StageLayers, split_layers, stage_layers
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.parameter import Parameter
from meshwright.specs.operator import Operator, total_bytes, total_flops
from meshwright.specs.plan.file import PLAN_SCHEMA
from meshwright.specs.plan.plan import PassOption, Plan
from meshwright.specs.plan.prediction import BASES, Basis, Prediction
from meshwright.specs.plan.workload import Workload

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
    "device_presets",
    "dtype_bytes",
    "load_device",
    "load_model",
    "model_from_config",
    "model_presets",
    "split_layers",
    "stage_layers",
    "total_bytes",
    "total_flops",
    "usual_node",
]

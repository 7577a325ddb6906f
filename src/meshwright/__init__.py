"""meshwright turns a model, a cluster and a workload into a plan, shows its cost, runs it, and compares the two.

    import meshwright as mw

    plans = mw.plan(mw.Model("Qwen3-32B"), mw.Cluster("32x8xH100"), global_batch=1024, seq=8192)
    predicted = mw.simulate(plans[0])

Every name here is imported when it is first used: `import meshwright` loads neither torch nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from meshwright.api import (
        Check,
        Checkpoints,
        Recipe,
        Source,
        calibrate,
        check,
        compare,
        compare_log,
        compare_schedules,
        doctor,
        execute_schedule,
        export_plan,
        find,
        import_plan,
        load,
        lower,
        pareto,
        plan,
        run_training,
        simulate,
        solve,
        train,
    )
    from meshwright.catalog import names
    from meshwright.evidence import Comparison, reproduce
    from meshwright.ir.judge.metrics import bubble, device_time_s, idle_s, peak_bytes, period_s, span_s
    from meshwright.ir.judge.verify import verify
    from meshwright.ir.program import Program
    from meshwright.ir.trace import Trace
    from meshwright.reports.notebook import display
    from meshwright.schedules.order import Schedule, schedule
    from meshwright.specs.cluster.cluster import ClusterSpec
    from meshwright.specs.cluster.device import DeviceSpec
    from meshwright.specs.cluster.profile import Profile
    from meshwright.specs.cluster.source import Cluster
    from meshwright.specs.config.source import load_model as Model
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
    from meshwright.specs.model.model import ModelSpec
    from meshwright.specs.plan.plan import Plan
    from meshwright.specs.plan.prediction import Prediction
    from meshwright.specs.plan.workload import Workload

# Public name -> module, and the name there where it is another.
_PLACES: dict[str, str] = {
    **dict.fromkeys(("Check", "calibrate", "check", "compare", "find", "load", "lower"), "meshwright.api"),
    **dict.fromkeys(("compare_log", "export_plan", "import_plan"), "meshwright.api"),
    **dict.fromkeys(("compare_schedules", "doctor", "execute_schedule"), "meshwright.api"),
    **dict.fromkeys(("Checkpoints", "Recipe", "Source"), "meshwright.api"),
    **dict.fromkeys(("pareto", "plan", "run_training", "simulate", "solve", "train"), "meshwright.api"),
    "names": "meshwright.catalog",
    **dict.fromkeys(("Comparison", "reproduce"), "meshwright.evidence"),
    **dict.fromkeys(
        ("bubble", "device_time_s", "idle_s", "peak_bytes", "period_s", "span_s"),
        "meshwright.ir.judge.metrics",
    ),
    "Program": "meshwright.ir.program",
    "Trace": "meshwright.ir.trace",
    "verify": "meshwright.ir.judge.verify",
    "display": "meshwright.reports.notebook",
    **dict.fromkeys(("Schedule", "schedule"), "meshwright.schedules.order"),
    "ClusterSpec": "meshwright.specs.cluster.cluster",
    "Cluster": "meshwright.specs.cluster.source",
    "DeviceSpec": "meshwright.specs.cluster.device",
    **dict.fromkeys(
        (
            *("DeadlockError", "ExecutionError", "MeshwrightError", "OutOfMemoryError", "PlanError"),
            *("ProgramError", "ScheduleError", "SpecError", "UnknownNameError"),
        ),
        "meshwright.specs.error",
    ),
    "ModelSpec": "meshwright.specs.model.model",
    "Model": "meshwright.specs.config.source:load_model",
    "Plan": "meshwright.api",  # which gives it `Plan.verbs`
    "Prediction": "meshwright.specs.plan.prediction",
    "Profile": "meshwright.specs.cluster.profile",
    "Workload": "meshwright.specs.plan.workload",
}

__all__ = [
    "Check",
    "Checkpoints",
    "Cluster",
    "ClusterSpec",
    "Comparison",
    "DeadlockError",
    "DeviceSpec",
    "ExecutionError",
    "MeshwrightError",
    "Model",
    "ModelSpec",
    "OutOfMemoryError",
    "Plan",
    "PlanError",
    "Prediction",
    "Profile",
    "Program",
    "ProgramError",
    "Recipe",
    "Schedule",
    "ScheduleError",
    "Source",
    "SpecError",
    "Trace",
    "UnknownNameError",
    "Workload",
    "__version__",
    "bubble",
    "calibrate",
    "check",
    "compare",
    "compare_log",
    "compare_schedules",
    "device_time_s",
    "display",
    "doctor",
    "execute_schedule",
    "export_plan",
    "find",
    "idle_s",
    "import_plan",
    "load",
    "lower",
    "names",
    "pareto",
    "peak_bytes",
    "period_s",
    "plan",
    "reproduce",
    "run_training",
    "schedule",
    "simulate",
    "solve",
    "span_s",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    value = getattr(importlib.import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

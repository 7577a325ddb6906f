"""The public names for type checkers and editors; `__init__.py` reads here where each of them is."""
# ruff: noqa: I001  one import a module, not one a name

from meshwright.api import (
    Check as Check,
    GeneratedText as GeneratedText,
    LLM as LLM,
    Checkpoints as Checkpoints,
    Plan as Plan,  # which has its verbs there
    Recipe as Recipe,
    Source as Source,
    bench_serve as bench_serve,
    calibrate as calibrate,
    check as check,
    compare as compare,
    compare_load as compare_load,
    compare_log as compare_log,
    compare_profile as compare_profile,
    compare_schedules as compare_schedules,
    doctor as doctor,
    execute_schedule as execute_schedule,
    export_plan as export_plan,
    find as find,
    import_plan as import_plan,
    load as load,
    lower as lower,
    pareto as pareto,
    plan as plan,
    plan_load as plan_load,
    run_job as run_job,
    run_training as run_training,
    serve as serve,
    simulate as simulate,
    solve as solve,
    train as train,
)
from meshwright.catalog import names as names
from meshwright.evidence import (
    Comparison as Comparison,
    reproduce as reproduce,
)
from meshwright.ir.judge.metrics import (
    bubble as bubble,
    device_time_s as device_time_s,
    idle_s as idle_s,
    peak_bytes as peak_bytes,
    period_s as period_s,
    span_s as span_s,
)
from meshwright.ir.judge.verify import verify as verify
from meshwright.ir.program import Program as Program
from meshwright.ir.trace import Trace as Trace
from meshwright.reports.notebook import display as display
from meshwright.schedules.order import (
    Schedule as Schedule,
    schedule as schedule,
)
from meshwright.specs.cluster.cluster import ClusterSpec as ClusterSpec
from meshwright.specs.cluster.device import DeviceSpec as DeviceSpec
from meshwright.specs.cluster.profile import Profile as Profile
from meshwright.specs.cluster.source import Cluster as Cluster
from meshwright.specs.config.source import Model as Model
from meshwright.specs.error import (
    DeadlockError as DeadlockError,
    ExecutionError as ExecutionError,
    MeshwrightError as MeshwrightError,
    OutOfMemoryError as OutOfMemoryError,
    PlanError as PlanError,
    ProgramError as ProgramError,
    ScheduleError as ScheduleError,
    SpecError as SpecError,
    UnknownNameError as UnknownNameError,
)
from meshwright.specs.model.model import ModelSpec as ModelSpec
from meshwright.specs.plan.prediction import Prediction as Prediction
from meshwright.specs.plan.workload import Workload as Workload

__version__: str
